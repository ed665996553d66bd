//! Runs attention on a file's cache, on a device.
use super::Input;
use super::listed::Lists;
use crate::results::{Results, Took};
use ferroflash::driver::Harness;
use ferroflash::plan::{AnyRequest, Problem};
use ferroflash::request::{
    AttentionRequest, Index, KvCache, KvPages, KvScale, ListedKeys, LseView, Precision, Queries,
    SharedPrefixes, Sinks, TensorView, TokenScales, VarlenQueries,
};
use ferroflash::{Attention, Capabilities, DType, Error, plan};
use reference::{Binder, Judge, Judgement, LaunchOptions, OnDevice, Rows, Rule, TensorError, Work, Written};
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
    /// Returns the request with outputs at these addresses.
    fn decode(&self, binder: &mut Binder<'_>, [o, lse]: [u64; 2]) -> AttentionRequest<'static> {
        let Problem { dtype, batch, seqlen_q, .. } = self.problem;
        let [shape, ..] = self.problem.shapes();
        let [batches, rows, heads, head_dim] = shape;
        let view = |address, columns: usize| {
            let elements = (self.rows() * columns) as u64;
            TensorView::bshd(address, elements, dtype, [batches, rows, heads, columns])
        };
        let starts: Vec<_> = self.starts.iter().map(|start| *start as i32).collect();
        let rest = self.rest();
        let [starts, lengths, rest] =
            [("cu_seqlens_q", &starts), ("seqused_k", &self.lengths), ("rest_lengths", &rest)]
                .map(|(name, all)| Index::new(binder.input(name, || bytes!(all)), all.len() as u64));
        let (q, o) = (view(binder.input("q", || bytes!(self.q)), head_dim), view(o, self.columns()));
        let address = binder.input("k_cache", || self.pool[0].clone());
        let keys = TensorView { address, ..self.pages };
        let pages = match self.v_width {
            None => {
                let address = binder.input("v_cache", || self.pool[1].clone());
                KvPages::new(keys, TensorView { address, ..self.values })
            }
            Some(columns) => KvPages::latent(keys, columns),
        };
        let [k_scale, v_scale] =
            [("k_scale", 0), ("v_scale", 1)].map(|(name, which)| match &self.scales[which] {
                None => KvScale::One,
                Some(all) => self.scale(binder.input(name, || bytes!(all)), all.len() as u64),
            });
        let pages = pages.scales(k_scale, v_scale);
        let mut decode = match (&self.lists, &self.table) {
            (Some(Lists { indices, topk }), _) => {
                let address = binder.input("indices", || bytes!(indices));
                let indices = Index::new(address, indices.len() as u64);
                AttentionRequest::sparse(q, ListedKeys::new(pages, indices, *topk), o)
            }
            (None, Some((table, columns))) => {
                let address = binder.input("block_table", || bytes!(table));
                let table = Index::new(address, table.len() as u64);
                let cache = KvCache::paged(pages, table, *columns, lengths);
                AttentionRequest::cached(q, cache.max_k(self.problem.seqlen_k), o)
            }
            (None, None) => {
                let cache = KvCache::dense(pages, lengths).max_k(self.problem.seqlen_k);
                AttentionRequest::cached(q, cache, o)
            }
        };
        let Problem { invariance, precision, .. } = self.problem;
        decode = decode.invariance(invariance).precision(precision);
        let scores = &mut decode.scores;
        (decode.mask, scores.scale, scores.softcap) =
            (self.problem.mask, self.problem.scale, self.problem.softcap);
        scores.sinks = self.sinks.as_ref().map(|sinks| Sinks {
            address: binder.input("sinks", || bytes!(sinks)),
            elements: sinks.len() as u64,
        });
        self.extras.give(&mut decode, binder);
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

    /// Returns the scale of keys, or of values, at an address.
    fn scale(&self, address: u64, elements: u64) -> KvScale {
        match self.pages.dtype {
            DType::Int8 => KvScale::Tokens(TokenScales::contiguous(address, elements, self.pages.shape[2])),
            _ => KvScale::Device { address, elements, strides: [0, i64::from(elements > 1)] },
        }
    }

    /// Plans the launch without a device, so that planning checks the request. The CPU needs no card that has
    /// its precision.
    ///
    /// # Errors
    /// Returns the errors of planning.
    pub(super) fn validate(&self) -> Result<(), Error> {
        let request = self.request(&mut Binder::at(None, None), LaunchOptions::default());
        let card = match self.problem.precision {
            Precision::Fp8 => Capabilities::profile("h100"),
            _ => None,
        };
        plan(&request, card.unwrap_or(&Capabilities::PROFILES[0].1)).map(drop)
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
        let (mut o, mut lse) = self.numbers(&written);
        self.clear_unwritten(&mut o, &mut lse);
        let took = Took::on_device([upload, load, kernel]);
        let (kernel, reason) = (Some(written.entry), Some(written.reason));
        Ok(Results { kernel, reason, o, rows: Some(lse).into(), head_maxima: None, took })
    }

    /// Returns O and LSE, as the file has them.
    fn numbers(&self, written: &Written) -> (Vec<u16>, Vec<f32>) {
        let o = written.outputs[0].as_chunks().0.iter().map(|bytes| u16::from_ne_bytes(*bytes));
        let lse = written.outputs[1].as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
        (o.collect(), self.lse_in_file(lse.collect()))
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

impl Work for Input {
    fn request<'a>(&'a self, binder: &mut Binder<'_>, options: LaunchOptions<'a>) -> AnyRequest<'a> {
        let sizes = [self.rows() * self.columns() * 2, self.lse().0.iter().product::<usize>() * 4];
        let [o, lse] =
            [("o", 0), ("lse", 1)].map(|(name, which)| binder.output(name, || vec![POISON; sizes[which]]));
        let mut request = self.decode(binder, [o, lse]);
        (request.config, request.scratch) = (options.config, options.scratch);
        AnyRequest::Attention(request)
    }

    fn rows(&self, _: &Written) -> Option<Rows> {
        None
    }

    fn judge(&self, _: Rule) -> Result<Judge<'_>, TensorError> {
        Ok(Box::new(|_, written| {
            let (o, lse) = self.numbers(written);
            match Input::judge(self, &o, &lse) {
                Ok(Some(verdict)) => Judgement::from(verdict),
                Ok(None) => Judgement::failed("the outputs have other shapes"),
                Err(error) => Judgement::failed(error),
            }
        }))
    }
}
