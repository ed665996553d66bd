//! Runs attention on a file's cache, on a device.
use super::Input;
use crate::results::{Results, Took};
use ferroflash::driver::Harness;
use ferroflash::plan::{AnyRequest, Problem};
use ferroflash::request::{
    AttentionRequest, Index, KvCache, KvPages, KvScale, LseView, Queries, Scratch, SharedPrefixes, Sinks,
    TensorView, TokenScales, VarlenQueries,
};
use ferroflash::{Attention, Capabilities, DType, Error, plan};
use reference::{
    Input as Buffer, Judge, Judgement, LaunchOptions, OnDevice, Rows, Rule, TensorError, Work, Written,
};
use std::time::Instant;

/// The value of unwritten bytes. The value is NaN in f16, bf16 and f32.
const POISON: u8 = 0xff;

/// Returns the bytes of numbers.
macro_rules! bytes {
    ($numbers:expr) => {
        $numbers.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>()
    };
}

impl Input {
    /// Returns the request on buffers at these addresses, in the order of [`Work::inputs`].
    fn decode(&self, inputs: &[u64], [o, lse]: [u64; 2]) -> AttentionRequest<'static> {
        let Problem { dtype, batch, seqlen_q, .. } = self.problem;
        let [shape, ..] = self.problem.shapes();
        let [batches, rows, heads, head_dim] = shape;
        let view = |address, columns: usize| {
            let elements = (self.rows() * columns) as u64;
            TensorView::bshd(address, elements, dtype, [batches, rows, heads, columns])
        };
        let mut inputs = inputs.iter().copied();
        let mut next = || inputs.next().unwrap_or(0);
        let [starts, lengths, rest] = [self.starts.len(), batch, batch].map(|n| Index::new(next(), n as u64));
        let (q, o) = (view(next(), head_dim), view(o, self.columns()));
        let keys = TensorView { address: next(), ..self.pages };
        let pages = match self.v_width {
            None => KvPages::new(keys, TensorView { address: next(), ..self.values }),
            Some(columns) => KvPages::latent(keys, columns),
        };
        let [k_scale, v_scale] = [0, 1].map(|which| self.scale(which, &mut next));
        let pages = pages.scales(k_scale, v_scale);
        let cache = match &self.table {
            Some((table, columns)) => {
                KvCache::paged(pages, Index::new(next(), table.len() as u64), *columns, lengths)
            }
            None => KvCache::dense(pages, lengths),
        };
        let mut decode = AttentionRequest::cached(q, cache.max_k(self.problem.seqlen_k), o);
        let scores = &mut decode.scores;
        (decode.mask, scores.scale, scores.softcap) =
            (self.problem.mask, self.problem.scale, self.problem.softcap);
        scores.alibi = self.slopes.as_ref().map(|slopes| slopes.view(next()));
        scores.sinks =
            self.sinks.as_ref().map(|sinks| Sinks { address: next(), elements: sinks.len() as u64 });
        self.extras.give(&mut decode, next);
        let (shape, strides) = self.lse();
        let (elements, strides) = (shape.iter().product::<usize>() as u64, strides.map(|n| n as i64));
        decode.lse = Some(LseView::new(lse, elements, [batches, heads, rows], strides));
        let varlen = || Queries::Varlen(VarlenQueries::new(batch, starts, seqlen_q));
        decode.queries = self.problem.varlen.map_or(Queries::Batched, |_| varlen());
        // The file names the groups, so the launch reads each prefix once even if that does not pay.
        decode.shared_prefixes =
            self.shared.map(|[groups, pages]| SharedPrefixes::equal(groups, pages, rest).always());
        decode
    }

    /// Returns the scale of keys, or of values, at the next address.
    fn scale(&self, which: usize, next: &mut impl FnMut() -> u64) -> KvScale {
        let Some(numbers) = &self.scales[which] else { return KvScale::One };
        let (address, elements) = (next(), numbers.len() as u64);
        match self.pages.dtype {
            DType::Int8 => KvScale::Tokens(TokenScales::contiguous(address, elements, self.pages.shape[2])),
            _ => KvScale::Device { address, elements, strides: [0, i64::from(elements > 1)] },
        }
    }

    /// Plans the launch without a device, so that planning checks the request.
    ///
    /// # Errors
    /// Returns the errors of planning.
    pub(super) fn validate(&self) -> Result<(), Error> {
        let far: Vec<_> = (1..20).map(|n| n << 44).collect();
        let request = self.decode(&far[2..], [far[0], far[1]]).scratch(Scratch::Fastest);
        plan(&request, &Capabilities::PROFILES[0].1).map(drop)
    }

    /// Runs kernels on the cache. `config` may name one.
    pub(crate) fn launch<D: Harness>(
        &self,
        attention: &Attention<D>,
        config: Option<&str>,
    ) -> Result<Results, Error> {
        let start = Instant::now();
        let device = OnDevice::new(attention, self, config)?;
        let upload = start.elapsed();
        let (written, [load, kernel]) = device.run_timed()?;
        let (mut o, mut lse) = numbers(&written);
        self.clear_unwritten(&mut o, &mut lse);
        let took = Took::on_device([upload, load, kernel]);
        let (kernel, reason) = (Some(written.entry), Some(written.reason));
        Ok(Results { kernel, reason, o, rows: Some(lse).into(), took })
    }

    /// Sets the results of rows that belong to no sequence to 0 and -inf.
    fn clear_unwritten(&self, o: &mut [u16], lse: &mut [f32]) {
        if let Some([rows, _]) = self.problem.varlen {
            let (written, row) = (self.starts[self.problem.batch], o.len() / rows);
            o[written * row..].fill(0);
            lse.chunks_mut(rows).for_each(|head| head[written..].fill(f32::NEG_INFINITY));
        }
    }
}

/// Returns O and LSE.
fn numbers(written: &Written) -> (Vec<u16>, Vec<f32>) {
    let o = written.outputs[0].as_chunks().0.iter().map(|bytes| u16::from_ne_bytes(*bytes));
    let lse = written.outputs[1].as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
    (o.collect(), lse.collect())
}

impl Work for Input {
    fn inputs(&self) -> Vec<Buffer> {
        let starts: Vec<_> = self.starts.iter().map(|start| *start as i32).collect();
        let mut all = vec![
            Buffer::new("cu_seqlens_q", bytes!(starts)),
            Buffer::new("seqused_k", bytes!(self.lengths)),
            Buffer::new("rest_lengths", bytes!(self.rest())),
            Buffer::new("q", bytes!(self.q)),
            Buffer::new("k_cache", self.pool[0].clone()),
        ];
        all.extend(self.v_width.is_none().then(|| Buffer::new("v_cache", self.pool[1].clone())));
        let scales = ["k_scale", "v_scale"].into_iter().zip(&self.scales);
        all.extend(scales.filter_map(|(name, scale)| Some(Buffer::new(name, bytes!(scale.as_ref()?)))));
        all.extend(self.table.as_ref().map(|(table, _)| Buffer::new("block_table", bytes!(table))));
        all.extend(self.slopes.as_ref().map(|slopes| Buffer::new("alibi_slopes", bytes!(slopes.values()))));
        all.extend(self.sinks.as_ref().map(|sinks| Buffer::new("sinks", bytes!(sinks))));
        all.extend(self.extras.buffers().into_iter().map(|(name, bytes)| Buffer::new(name, bytes)));
        all
    }

    fn outputs(&self) -> Vec<(String, Vec<u8>)> {
        let sizes = [self.rows() * self.columns() * 2, self.lse().0.iter().product::<usize>() * 4];
        ["o", "lse"].into_iter().zip(sizes).map(|(name, bytes)| (name.into(), vec![POISON; bytes])).collect()
    }

    fn request<'a>(&'a self, inputs: &[u64], outputs: &[u64], options: LaunchOptions<'a>) -> AnyRequest<'a> {
        let mut request = self.decode(inputs, [outputs[0], outputs[1]]);
        (request.config, request.scratch) = (options.config, options.scratch);
        AnyRequest::Attention(request)
    }

    fn rows(&self, _: &Written) -> Option<Rows> {
        None
    }

    fn judge(&self, _: Rule) -> Result<Judge<'_>, TensorError> {
        Ok(Box::new(|_, written| {
            let (o, lse) = numbers(written);
            match Input::judge(self, &o, &lse) {
                Ok(Some(verdict)) => Judgement::from(verdict),
                Ok(None) => Judgement::failed("the outputs have other shapes"),
                Err(error) => Judgement::failed(error),
            }
        }))
    }
}
