//! `ferroflash run` on a cache: few queries a sequence, keys and values in pages.
use super::FileLayout;
use crate::device::{Device, Results, Took, milliseconds};
use crate::error::Error;
use crate::files::File;
use crate::options::ScoreOptions;
use ferroflash::{
    Alignment, Attention, Capabilities, Counters, DType, Decode, Driver, Index, KvCache, KvPages, LseView,
    PageView, Problem, Sinks, TensorView, Workspace, plan_decode,
};
use reference::{HostTensor, Inputs, Outputs, Reference, TensorError, Verdict, e4m3};
use safetensors::Dtype;
use std::time::Instant;

/// A file's queries and cache.
pub(crate) struct Input {
    /// One sequence's with as many keys as one may have, `batch` of them.
    pub problem: Problem,
    /// Shape of `q` in the file: `[T, H, D]` or `[B, S, H, D]`.
    pub shape: Vec<usize>,
    q: Vec<u16>,
    /// Keys and values, whose type may be another than the queries'.
    pool: [Vec<u8>; 2],
    pages: PageView,
    /// Page numbers, and how many a sequence has.
    table: Option<(Vec<u32>, usize)>,
    lengths: Vec<u32>,
    sinks: Option<Vec<f32>>,
}

/// Device addresses of its tensors.
struct Places {
    q: u64,
    pool: [u64; 2],
    table: Option<u64>,
    lengths: u64,
    sinks: Option<u64>,
    o: u64,
    lse: u64,
}

/// Not a number in f16, bf16 and f32.
const POISON: u8 = 0xff;

impl Input {
    /// Reads `q`, `k_cache`, `v_cache`, `seqused_k`, and where present `block_table` and `sinks`.
    pub(super) fn read(file: &File<'_>, layout: FileLayout, scores: &ScoreOptions) -> Result<Self, Error> {
        for scale in ["k_scale", "v_scale"] {
            if file.has(scale) {
                let what =
                    "scales are not read from files; give --scale times k_scale, and multiply o by v_scale";
                return Err(file.invalid(format_args!("`{scale}`: {what}")));
            }
        }
        let typed = |name: &str| {
            let tensor = file.tensor(name)?;
            let dtype = match tensor.dtype() {
                Dtype::F16 => DType::F16,
                Dtype::BF16 => DType::Bf16,
                Dtype::F8_E4M3 => DType::E4m3,
                other => return Err(file.invalid(format_args!("`{name}` is {other:?}; convert it to F16"))),
            };
            Ok((dtype, tensor.shape().to_vec(), tensor.data().to_vec()))
        };
        let (lengths, _) = file.words("seqused_k", Dtype::I32)?;
        let (dtype, shape, q) = typed("q")?;
        let (batch, rows) = (lengths.len(), shape.iter().rev().skip(2).product::<usize>());
        let (&[.., heads_q, head_dim], 3 | 4) = (&shape[..], shape.len()) else {
            return Err(
                file.invalid(format_args!("`q` has shape {shape:?}; [T, H, D] or [B, S, H, D] is needed"))
            );
        };
        if batch == 0 || !rows.is_multiple_of(batch) || shape.len() == 4 && shape[0] != batch {
            let what = format_args!("`q` has shape {shape:?}, `seqused_k` {batch} sequences");
            return Err(file.invalid(format_args!("{what}: each must have as many queries as the others")));
        }
        let (kind, keys, k) = typed("k_cache")?;
        let (v_kind, values, v) = typed("v_cache")?;
        let Ok([pages, b, c, d]) = <[usize; 4]>::try_from(keys.clone()) else {
            return Err(file.invalid(format_args!("`k_cache` has shape {keys:?}; four sizes are needed")));
        };
        if (v_kind, &values) != (kind, &keys) {
            return Err(file.invalid(format_args!(
                "`v_cache` is {} {values:?}, `k_cache` {} {keys:?}: both must be the same",
                v_kind.name(),
                kind.name()
            )));
        }
        let elements = keys.iter().product::<usize>() as u64;
        let pages = match layout {
            FileLayout::Bshd => PageView::nhd(0, elements, kind, [pages, b, c, d]),
            FileLayout::Bhsd => PageView::hnd(0, elements, kind, [pages, c, b, d]),
        };
        let table =
            file.has("block_table").then(|| {
                let (table, shape) = file.words("block_table", Dtype::I32)?;
                match shape[..] {
                    [rows, columns] if rows == batch && columns > 0 => Ok((table, columns)),
                    _ => Err(file
                        .invalid(format_args!("`block_table` has shape {shape:?}, not [{batch}, columns]"))),
                }
            });
        let table = table.transpose()?;
        let sinks = file.has("sinks").then(|| file.words("sinks", Dtype::F32)).transpose()?;
        let sinks = sinks.map(|(bits, _)| bits.into_iter().map(f32::from_bits).collect());
        let capacity = pages.shape[1] * table.as_ref().map_or(1, |(_, columns)| *columns);
        let problem = Problem::new(dtype, batch, rows / batch, heads_q, head_dim);
        let problem = scores.of(problem.seqlen_k(capacity).heads_k(pages.shape[2]));
        if problem.alignment != Alignment::BottomRight {
            return Err(Error::Invalid(
                "--top-left: the last query stands at the last key of a cache".into(),
            ));
        }
        let q = q.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
        let input = Input { problem, shape, q, pool: [k, v], pages, table, lengths, sinks };
        input.is_there(file)?;
        Ok(input)
    }

    /// Checks the numbers that kernels would clamp.
    fn is_there(&self, file: &File<'_>) -> Result<(), Error> {
        if file.has("cu_seqlens_q") {
            let (starts, _) = file.words("cu_seqlens_q", Dtype::I32)?;
            let even = (0..=self.problem.batch).map(|b| (b * self.problem.seqlen_q) as u32);
            if !starts.iter().copied().eq(even) {
                let what = "on a cache each sequence has as many queries as the others";
                return Err(file.invalid(format_args!("`cu_seqlens_q` is {starts:?}: {what}")));
            }
        }
        let [pages, page, ..] = self.pages.shape;
        for (b, length) in self.lengths.iter().enumerate() {
            let (length, capacity) = (*length as usize, self.problem.seqlen_k);
            if length > capacity {
                let what = format_args!("`seqused_k[{b}]` is {}", length as i32);
                return Err(file.invalid(format_args!("{what}; there is room for {capacity} keys")));
            }
            if let Some(number) = (0..length.div_ceil(page)).map(|i| self.page(b, i)).find(|n| *n >= pages) {
                let what = format_args!("`block_table` has page {} for sequence {b}", number as i32);
                return Err(file.invalid(format_args!("{what}; `k_cache` has {pages}")));
            }
        }
        Ok(())
    }

    /// The number of page `i` of sequence `b`.
    fn page(&self, b: usize, i: usize) -> usize {
        self.table.as_ref().map_or(b, |(table, columns)| table[b * columns + i] as usize)
    }

    /// Shape of LSE, and elements from one sequence and from one head to the next.
    pub(super) fn lse(&self) -> (Vec<usize>, [usize; 2]) {
        let Problem { batch, seqlen_q, heads_q, .. } = self.problem;
        match self.shape.len() {
            3 => (vec![heads_q, batch * seqlen_q], [seqlen_q, batch * seqlen_q]),
            _ => (vec![batch, heads_q, seqlen_q], [heads_q * seqlen_q, seqlen_q]),
        }
    }

    /// The request.
    fn decode<'a>(&self, at: &Places, config: Option<&'a str>) -> Decode<'a> {
        let Problem { dtype, batch, seqlen_q, heads_q, head_dim, .. } = self.problem;
        let shape = [batch, seqlen_q, heads_q, head_dim];
        let view = |address| TensorView::bshd(address, self.q.len() as u64, dtype, shape);
        let pages = at.pool.map(|address| PageView { address, ..self.pages });
        let (pages, lengths) = (KvPages::new(pages[0], pages[1]), Index::new(at.lengths, batch as u64));
        let cache = match (&self.table, at.table) {
            (Some((table, columns)), Some(address)) => {
                KvCache::paged(pages, Index::new(address, table.len() as u64), *columns, lengths)
            }
            _ => KvCache::dense(pages, lengths),
        };
        let mut decode = Decode::new(view(at.q), cache, view(at.o)).mask(self.problem.mask);
        (decode.scale, decode.softcap, decode.config) = (self.problem.scale, self.problem.softcap, config);
        let (lse, strides) = self.lse();
        let (elements, strides) = (lse.iter().product::<usize>() as u64, strides.map(|n| n as i64));
        decode.lse = Some(LseView::new(at.lse, elements, [batch, heads_q, seqlen_q], strides));
        let sinks = self.sinks.as_ref().zip(at.sinks);
        decode.sinks = sinks.map(|(sinks, address)| Sinks { address, elements: sinks.len() as u64 });
        decode
    }

    /// Decodes on a device. `config` names a kernel.
    pub(super) fn run(&self, device: &Device, config: Option<&str>) -> Result<Results, Error> {
        if let Some(runner) = device.runner() {
            return Ok(runner.decode(self, config)?);
        }
        let far = |n: u64| n << 44;
        let sinks = self.sinks.as_ref().map(|_| far(5));
        let table = self.table.as_ref().map(|_| far(4));
        let at = Places {
            q: far(1),
            pool: [far(2), far(3)],
            table,
            lengths: far(6),
            sinks,
            o: far(7),
            lse: far(8),
        };
        // Validation is planning's, and planning needs no device.
        plan_decode(&self.decode(&at, config), &Capabilities::PROFILES[0].1)?;
        let start = Instant::now();
        let (shape, [sequence, head]) = self.lse();
        let (mut o, mut lse) = (vec![], vec![0.0; shape.iter().product()]);
        for b in 0..self.problem.batch {
            let Reference { exact, .. } = self.reference(b).map_err(|e| Error::Invalid(e.to_string()))?;
            o.extend(exact.out_bits(self.problem.dtype));
            for (i, x) in exact.lse.iter().enumerate() {
                let (m, row) = (i / self.problem.seqlen_q, i % self.problem.seqlen_q);
                lse[b * sequence + m * head + row] = *x as f32;
            }
        }
        let took = Took { upload: None, load: None, kernel: milliseconds(start.elapsed()) };
        Ok(Results { kernel: None, o, lse, took })
    }

    /// What sequence `b` should give.
    fn reference(&self, b: usize) -> Result<Reference, TensorError> {
        let Problem { dtype, seqlen_q, heads_q, heads_k, head_dim, .. } = self.problem;
        let (keys, page) = (self.lengths[b] as usize, self.pages.shape[1]);
        let mut reference = if keys == 0 {
            let rows = seqlen_q * heads_q;
            let (out, lse) = (vec![0.0; rows * head_dim], vec![f64::NEG_INFINITY; rows]);
            let exact = Outputs { shape: [1, seqlen_q, heads_q, head_dim], out, lse };
            Reference { exact, naive_error: 0.0, tolerance: 0.0, lse_tolerance: 1e-5 }
        } else {
            let number = |bytes: &[u8]| match *bytes {
                [low, high] => u16::from_le_bytes([low, high]),
                _ => e4m3::widen(bytes[0], dtype),
            };
            let rows = |pool: &[u8]| -> Vec<u16> {
                let row = |i: usize| {
                    let (key, head) = (i / heads_k, i % heads_k);
                    let at = [self.page(b, key / page), key % page, head].into_iter().zip(self.pages.strides);
                    let at = at.map(|(i, stride)| i * stride as usize).sum::<usize>();
                    let bytes = self.pages.dtype.bytes();
                    pool[bytes * at..][..bytes * head_dim].chunks_exact(bytes).map(number)
                };
                (0..keys * heads_k).flat_map(row).collect()
            };
            let [k, v] = [0, 1].map(|i| rows(&self.pool[i]));
            let q = &self.q[b * seqlen_q * heads_q * head_dim..][..seqlen_q * heads_q * head_dim];
            let tensor = |bits, rows, heads| HostTensor::bshd(bits, dtype, [1, rows, heads, head_dim]);
            let problem = self.problem.batch(1).seqlen_k(keys);
            let [k, v] = [tensor(&k, keys, heads_k)?, tensor(&v, keys, heads_k)?];
            Reference::new(&Inputs::new(problem, tensor(q, seqlen_q, heads_q)?, k, v)?)
        };
        if let Some(sinks) = &self.sinks {
            reference.add_sinks(dtype, sinks);
        }
        Ok(reference)
    }

    /// The worst of all sequences.
    pub(super) fn judge(&self, o: &[u16], lse: &[f32]) -> Result<Option<Verdict>, TensorError> {
        let Problem { dtype, batch, seqlen_q, heads_q, head_dim, .. } = self.problem;
        let (each, (_, [sequence, head])) = (seqlen_q * heads_q * head_dim, self.lse());
        let mut all: Option<Verdict> = None;
        for b in 0..batch {
            let rows = (0..heads_q * seqlen_q).map(|i| (i / seqlen_q) * head + i % seqlen_q);
            let lse: Vec<_> = rows.map(|at| lse[b * sequence + at]).collect();
            let o = HostTensor::bshd(&o[b * each..][..each], dtype, [1, seqlen_q, heads_q, head_dim])?;
            let Some(mut verdict) = self.reference(b)?.judge(&o, Some(&lse)) else { return Ok(None) };
            verdict.out.batch = b;
            verdict.lse.iter_mut().for_each(|worst| worst.batch = b);
            all = Some(all.map_or(verdict, |all| all.or_worse(&verdict)));
        }
        Ok(all)
    }

    /// The same on kernels.
    pub(crate) fn launch<D: Driver>(
        &self,
        attention: &Attention<D>,
        config: Option<&str>,
    ) -> Result<Results, ferroflash::Error> {
        let (driver, start) = (attention.driver(), Instant::now());
        let upload = |name: &str, bytes: &[u8]| {
            let mut buffer = driver.allocate_named(name, bytes.len())?;
            driver.upload(&mut buffer, bytes)?;
            Ok::<_, ferroflash::Error>(buffer)
        };
        let filled = |name: &str, bytes: usize, byte: u8| {
            let mut buffer = driver.allocate_named(name, bytes)?;
            driver.fill(&mut buffer, byte)?;
            Ok::<_, ferroflash::Error>(buffer)
        };
        let words = |words: &[u32]| words.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>();
        let q = upload("q", &self.q.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>())?;
        let (keys, values) = (upload("k_cache", &self.pool[0])?, upload("v_cache", &self.pool[1])?);
        let table = self.table.as_ref().map(|(table, _)| upload("block_table", &words(table))).transpose()?;
        let sinks = self.sinks.as_ref().map(|sinks| sinks.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
        let sinks = sinks.map(|bits| upload("sinks", &words(&bits))).transpose()?;
        let lengths = upload("seqused_k", &words(&self.lengths))?;
        let (o_bytes, lse_bytes) = (self.q.len() * 2, self.lse().0.iter().product::<usize>() * 4);
        let (o, lse) = (filled("o", o_bytes, POISON)?, filled("lse", lse_bytes, POISON)?);
        let at = |buffer: &D::Buffer| driver.address(buffer);
        let places = Places {
            q: at(&q),
            pool: [at(&keys), at(&values)],
            table: table.as_ref().map(at),
            lengths: at(&lengths),
            sinks: sinks.as_ref().map(at),
            o: at(&o),
            lse: at(&lse),
        };
        let mut decode = self.decode(&places, config);
        let wanted = attention.plan_with(&decode, u64::MAX)?;
        let [bytes, counted] = [wanted.workspace_bytes(), wanted.counters_bytes()];
        let room = (bytes > 0).then(|| driver.allocate_named("workspace", bytes as usize)).transpose()?;
        let counters = (counted > 0).then(|| filled("counters", counted as usize, 0)).transpose()?;
        decode.workspace = room.as_ref().map(|room| Workspace { address: at(room), bytes });
        decode.counters = counters.as_ref().map(|zeros| Counters { address: at(zeros), bytes: counted });
        let (plan, stream) = (attention.plan(&decode)?, driver.stream()?);
        let (upload, start) = (start.elapsed(), Instant::now());
        attention.load(&plan)?;
        let load = start.elapsed();
        let kernel = driver.time(&stream, &mut |stream| {
            // SAFETY: every view is of a buffer of this driver that is as large as the view says and is freed
            // only after a wait; nobody else uses them.
            unsafe { attention.launch(&plan, &decode, stream) }
        })?;
        driver.synchronize(&stream)?;
        let download = |buffer: &D::Buffer, bytes: usize| {
            let mut to = vec![0; bytes];
            driver.download(buffer, &mut to).map(|()| to)
        };
        let (o, lse) = (download(&o, o_bytes)?, download(&lse, lse_bytes)?);
        let took = [upload, load, kernel].map(milliseconds);
        Ok(Results {
            kernel: Some(plan.contract().symbol),
            o: o.chunks_exact(2).map(|b| u16::from_ne_bytes([b[0], b[1]])).collect(),
            lse: lse.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect(),
            took: Took { upload: Some(took[0]), load: Some(took[1]), kernel: took[2] },
        })
    }
}
