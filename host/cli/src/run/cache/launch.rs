//! Runs attention on a file's cache, on a device.
use super::Input;
use crate::results::{Results, Took};
use ferroflash::driver::Harness;
use ferroflash::plan::{Problem, ScratchBytes};
use ferroflash::request::{
    AttentionRequest, Counters, Index, KvCache, KvPages, KvScale, LseView, Queries, Scratch, SharedPrefixes,
    Sinks, TensorView, TokenScales, VarlenQueries, Workspace,
};
use ferroflash::{Attention, Capabilities, DType, Error, plan};
use std::time::Instant;

/// Device addresses of the tensors.
struct Places {
    q: u64,
    pool: [u64; 2],
    scales: [Option<u64>; 2],
    table: Option<u64>,
    lengths: u64,
    rest: u64,
    starts: u64,
    slopes: Option<u64>,
    sinks: Option<u64>,
    /// Bias and masks.
    extras: Vec<u64>,
    o: u64,
    lse: u64,
}

/// The value of unwritten bytes. The value is NaN in f16, bf16 and f32.
const POISON: u8 = 0xff;

impl Input {
    /// Returns the attention request.
    fn decode<'a>(&self, at: &Places, config: Option<&'a str>) -> AttentionRequest<'a> {
        let Problem { dtype, batch, seqlen_q, .. } = self.problem;
        let [shape, ..] = self.problem.shapes();
        let [batches, rows, heads, head_dim] = shape;
        let view = |address, columns: usize| {
            let elements = (self.rows() * columns) as u64;
            TensorView::bshd(address, elements, dtype, [batches, rows, heads, columns])
        };
        let pages = [(at.pool[0], self.pages), (at.pool[1], self.values)]
            .map(|(address, view)| TensorView { address, ..view });
        let [k_scale, v_scale] = [0, 1].map(|i| self.scale(i, at.scales[i]));
        let pages = match self.v_width {
            None => KvPages::new(pages[0], pages[1]),
            Some(columns) => KvPages::latent(pages[0], columns),
        };
        let pages = pages.scales(k_scale, v_scale);
        let lengths = Index::new(at.lengths, batch as u64);
        let cache = match (&self.table, at.table) {
            (Some((table, columns)), Some(address)) => {
                KvCache::paged(pages, Index::new(address, table.len() as u64), *columns, lengths)
            }
            _ => KvCache::dense(pages, lengths),
        };
        let cache = cache.max_k(self.problem.seqlen_k);
        let (q, o) = (view(at.q, head_dim), view(at.o, self.columns()));
        let mut decode = AttentionRequest::cached(q, cache, o).mask(self.problem.mask);
        let scores = &mut decode.scores;
        (scores.scale, scores.softcap, decode.config) = (self.problem.scale, self.problem.softcap, config);
        let (lse, strides) = self.lse();
        let (elements, strides) = (lse.iter().product::<usize>() as u64, strides.map(|n| n as i64));
        decode.lse = Some(LseView::new(at.lse, elements, [batches, heads, rows], strides));
        let starts = Index::new(at.starts, self.starts.len() as u64);
        let varlen = || Queries::Varlen(VarlenQueries::new(batch, starts, seqlen_q));
        decode.queries = self.problem.varlen.map_or(Queries::Batched, |_| varlen());
        decode.scores.alibi =
            self.slopes.as_ref().zip(at.slopes).map(|(slopes, address)| slopes.view(address));
        let sinks = self.sinks.as_ref().zip(at.sinks);
        decode.scores.sinks = sinks.map(|(sinks, address)| Sinks { address, elements: sinks.len() as u64 });
        let mut extras = at.extras.iter().copied();
        self.extras.give(&mut decode, || extras.next().unwrap_or(0));
        // The file names the groups, so the launch reads each prefix once even if that does not pay.
        decode.shared_prefixes = self.shared.map(|[groups, pages]| {
            SharedPrefixes::equal(groups, pages, Index::new(at.rest, batch as u64)).always()
        });
        decode
    }

    /// Returns the scale of keys, or of values, at this address.
    fn scale(&self, which: usize, at: Option<u64>) -> KvScale {
        let scale = self.scales[which].as_ref().zip(at);
        scale.map_or(KvScale::One, |(numbers, address)| {
            if self.pages.dtype == DType::Int8 {
                let elements = numbers.len() as u64;
                return KvScale::Tokens(TokenScales::contiguous(address, elements, self.pages.shape[2]));
            }
            let each = i64::from(numbers.len() > 1);
            KvScale::Device { address, elements: numbers.len() as u64, strides: [0, each] }
        })
    }

    /// Plans the launch without a device, so that planning checks the request.
    ///
    /// # Errors
    /// Returns the errors of planning.
    pub(super) fn validate(&self) -> Result<(), Error> {
        let far = |n: u64| n << 44;
        let at = Places {
            q: far(1),
            pool: [far(2), far(3)],
            scales: [Some(far(4)), Some(far(5))],
            table: Some(far(6)),
            lengths: far(7),
            rest: far(16),
            starts: far(8),
            slopes: Some(far(9)),
            sinks: Some(far(10)),
            extras: vec![far(13), far(14), far(15)],
            o: far(11),
            lse: far(12),
        };
        plan(&self.decode(&at, None).scratch(Scratch::Fastest), &Capabilities::PROFILES[0].1).map(drop)
    }

    /// Runs kernels on the cache. `config` may name one.
    pub(crate) fn launch<D: Harness>(
        &self,
        attention: &Attention<D>,
        config: Option<&str>,
    ) -> Result<Results, Error> {
        let (driver, start) = (attention.driver(), Instant::now());
        let upload = |name: &str, bytes: &[u8]| {
            let mut buffer = driver.allocate_named(name, bytes.len())?;
            driver.upload(&mut buffer, bytes)?;
            Ok::<_, Error>(buffer)
        };
        let filled = |name: &str, bytes: usize, byte: u8| {
            let mut buffer = driver.allocate_named(name, bytes)?;
            driver.fill(&mut buffer, byte)?;
            Ok::<_, Error>(buffer)
        };
        let integers = |all: &[i32]| all.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>();
        let floats = |all: &[f32]| all.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>();
        let given =
            |name, all: &Option<Vec<f32>>| all.as_ref().map(|all| upload(name, &floats(all))).transpose();
        let q = upload("q", &self.q.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>())?;
        let keys = upload("k_cache", &self.pool[0])?;
        let values = self.v_width.is_none().then(|| upload("v_cache", &self.pool[1])).transpose()?;
        let table =
            self.table.as_ref().map(|(table, _)| upload("block_table", &integers(table))).transpose()?;
        let scales = [given("k_scale", &self.scales[0])?, given("v_scale", &self.scales[1])?];
        let sinks = given("sinks", &self.sinks)?;
        let extras = self.extras.buffers().into_iter().map(|(name, bytes)| upload(name, &bytes));
        let extras = extras.collect::<Result<Vec<_>, _>>()?;
        let slopes = self.slopes.as_ref().map(|slopes| upload("alibi_slopes", &floats(slopes.values())));
        let slopes = slopes.transpose()?;
        let starts: Vec<_> = self.starts.iter().map(|start| *start as i32).collect();
        let starts = upload("cu_seqlens_q", &integers(&starts))?;
        let lengths = upload("seqused_k", &integers(&self.lengths))?;
        let rest = upload("rest_lengths", &integers(&self.rest()))?;
        let (o_bytes, lse_bytes) =
            (self.rows() * self.columns() * 2, self.lse().0.iter().product::<usize>() * 4);
        let (o, lse) = (filled("o", o_bytes, POISON)?, filled("lse", lse_bytes, POISON)?);
        let at = |buffer: &D::Buffer| driver.address(buffer);
        let places = Places {
            q: at(&q),
            pool: [at(&keys), values.as_ref().map_or(0, at)],
            scales: scales.each_ref().map(|scale| scale.as_ref().map(at)),
            table: table.as_ref().map(at),
            lengths: at(&lengths),
            rest: at(&rest),
            starts: at(&starts),
            slopes: slopes.as_ref().map(at),
            sinks: sinks.as_ref().map(at),
            extras: extras.iter().map(at).collect(),
            o: at(&o),
            lse: at(&lse),
        };
        let mut decode = self.decode(&places, config);
        let wanted = attention.plan(&decode.scratch(Scratch::Fastest))?.scratch_bytes();
        let ScratchBytes { workspace: bytes, counters: counted } = wanted;
        let room = (bytes > 0).then(|| driver.allocate_named("workspace", bytes as usize)).transpose()?;
        let counters = (counted > 0).then(|| filled("counters", counted as usize, 0)).transpose()?;
        let counters = counters.as_ref().map(|zeros| Counters { address: at(zeros), bytes: counted });
        if let Some(room) = &room {
            let workspace = Workspace { address: at(room), bytes };
            decode.scratch = Scratch::Memory { workspace, counters };
        }
        let (plan, stream) = (attention.plan(&decode)?, driver.stream()?);
        let (upload, start) = (start.elapsed(), Instant::now());
        attention.load(&plan)?;
        let load = start.elapsed();
        let kernel = driver.time(&stream, &mut |stream| {
            // SAFETY: every view describes one buffer of this driver, and the buffer has the view's size. The
            // buffers stay allocated until `synchronize` has returned, and no other work uses them.
            unsafe { attention.launch(&plan, &decode, stream) }
        })?;
        driver.synchronize(&stream)?;
        let download = |buffer: &D::Buffer, bytes: usize| {
            let mut to = vec![0; bytes];
            driver.download(buffer, &mut to).map(|()| to)
        };
        let (o, lse) = (download(&o, o_bytes)?, download(&lse, lse_bytes)?);
        let mut o: Vec<_> = o.as_chunks().0.iter().map(|b| u16::from_ne_bytes(*b)).collect();
        let mut lse: Vec<_> = lse.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect();
        self.clear_unwritten(&mut o, &mut lse);
        let took = Took::on_device([upload, load, kernel]);
        let (kernel, reason) = (Some(plan.contract().symbol), Some(plan.reason()));
        Ok(Results { kernel, reason, o, lse, took })
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
