//! Runs decode kernels on tensors instead of caches, in the simulator. Dense tensors are
//! `[batch, keys, heads, head_dim]`, and the host knows the lengths of their sequences. Varlen tensors are
//! `[total_k, heads, head_dim]`, and `cu_seqlens_k` gives the start of each sequence.
use ferroflash::driver::Harness;
use ferroflash::driver::{Driver, SimDriver};
use ferroflash::kernels::Contract;
use ferroflash::plan::Problem;
use ferroflash::request::{Alignment, Mask};
use ferroflash::{DType, Error};
use reference::{HostTensor, Inputs, Random, Reference};
use spec::*;
use std::ops::Range;

/// A launch of one f16 entry.
#[derive(Clone, Debug)]
pub struct KnownKeys {
    /// The symbol of the entry.
    pub symbol: &'static str,
    /// Number of sequences.
    pub batch: usize,
    /// Queries per sequence, query heads, key heads, and head dim.
    pub shape: [usize; 4],
    /// Upper bound of the number of a sequence's keys.
    pub max_keys: usize,
    /// Number of splits of each sequence; with 0, the device decides.
    pub splits: u32,
    /// Only for varlen tensors: the number of rows of K and of V, and `cu_seqlens_k`. These integers may be
    /// garbage.
    pub varlen: Option<(usize, Vec<i32>)>,
    /// Number of used keys of each sequence, which may be garbage; `None` if the host knows the lengths.
    pub used: Option<Vec<i32>>,
}

/// The bits of O and of the LSE.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    o: Vec<u16>,
    lse: Vec<u32>,
}

/// The inputs of a launch. All launches of a shape have the same inputs.
struct Tensors {
    q: Vec<u16>,
    k: Vec<u16>,
    v: Vec<u16>,
}

fn info(symbol: &str) -> &'static AttnInfo {
    attention().find(|entry| entry.contract.symbol == symbol).expect("an entry of the table")
}

fn bytes<const N: usize>(words: impl IntoIterator<Item = [u8; N]>) -> Vec<u8> {
    words.into_iter().flatten().collect()
}

impl KnownKeys {
    /// Sets the number of splits of each sequence.
    #[must_use]
    pub fn splits(self, splits: u32) -> Self {
        KnownKeys { splits, ..self }
    }

    /// The launch contract of the entry.
    ///
    /// # Panics
    /// Panics if the table has no such entry.
    pub fn contract(&self) -> &'static Contract {
        &info(self.symbol).contract
    }

    /// Number of rows of K and of V.
    fn rows(&self) -> usize {
        self.varlen.as_ref().map_or(self.batch * self.max_keys, |(rows, _)| *rows)
    }

    /// The rows of sequence `b`, by the rule that kernels apply to integers that the host has not checked.
    fn keys(&self, b: usize) -> Range<usize> {
        let used = self.used.as_ref().map_or(self.max_keys, |used| used[b].max(0) as usize);
        let (first, rows) = match &self.varlen {
            None => (b * self.max_keys, self.max_keys),
            Some((rows, starts)) => {
                // As an unsigned number, a negative number is large.
                let (first, end) = (starts[b] as u32 as usize, (starts[b + 1] as u32 as usize).min(*rows));
                (first, end.saturating_sub(first))
            }
        };
        first..first + rows.min(used).min(self.max_keys)
    }

    fn tensors(&self) -> Tensors {
        let ([queries, heads, kv_heads, columns], mut random) = (self.shape, Random::new(5));
        let mut normals = |count: usize| random.normals(DType::F16, count * columns);
        Tensors {
            q: normals(self.batch * queries * heads),
            k: normals(self.rows() * kv_heads),
            v: normals(self.rows() * kv_heads),
        }
    }

    /// Launches the module `ptx` on this driver.
    ///
    /// # Errors
    /// Returns an error of the driver, with the reports of the simulator.
    pub fn run(&self, driver: &SimDriver, ptx: &str) -> Result<Written, Error> {
        let ([queries, heads, kv_heads, columns], batch) = (self.shape, self.batch);
        let (entry, Tensors { q, k, v }) = (info(self.symbol), self.tensors());
        let group = heads / kv_heads;
        let (rows, kv) = (queries * group, kv_heads as u32);
        let row_blocks = (rows as u32).div_ceil(entry.tile_m);
        let slots = (batch as u32 * self.splits.max(8)).max(1);
        let o_rows = batch * queries * heads;

        let upload = |name: &str, data: Vec<u8>| -> Result<_, Error> {
            let mut buffer = driver.allocate_named(name, data.len())?;
            driver.upload(&mut buffer, &data)?;
            Ok(buffer)
        };
        let halves = |x: &[u16]| bytes(x.iter().map(|x| x.to_le_bytes()));
        let integers = |x: &[i32]| bytes(x.iter().map(|x| x.to_le_bytes()));
        let [q, k, v] = [upload("q", halves(&q))?, upload("k", halves(&k))?, upload("v", halves(&v))?];
        let starts = self.varlen.as_ref().map(|(_, starts)| upload("cu_seqlens_k", integers(starts)));
        let used = self.used.as_ref().map(|used| upload("seqused_k", integers(used)));
        let (starts, used) = (starts.transpose()?, used.transpose()?);
        let counters = upload("counters", vec![0; batch * kv_heads * row_blocks as usize * 4])?;
        let o = driver.allocate_named("o", o_rows * columns * 2)?;
        let lse = driver.allocate_named("lse", o_rows * 4)?;
        let left = slots as usize * kv_heads * rows;
        let left_rows = driver.allocate_named("partial rows", left * entry.head_dim as usize * 4)?;
        let left_values = driver.allocate_named("partial values", left * 4)?;

        let div = |x: u32| FastDiv::new(x).expect("above 0");
        let tensor = |base: u64, rows: usize, heads: usize| Tensor {
            base,
            batch_bytes: (rows * heads * columns * 2) as u64,
            head_bytes: columns as u64 * 2,
            row_bytes: (heads * columns * 2) as u32,
            rows: rows as u32,
            chunks: columns as u32 / 8,
            reserved: 0,
        };
        let list = |buffer: Option<&_>, count: usize| Integers {
            base: buffer.map_or(0, |buffer| driver.address(buffer)),
            count: count as u32,
            reserved: 0,
        };
        let starts = list(starts.as_ref(), if starts.is_some() { batch + 1 } else { 0 });
        let all_keys = tensor(driver.address(&k), self.rows(), kv_heads);
        let cache = varlen_cache(&all_keys, driver.address(&v), &starts, self.max_keys as u32);
        let mut cache = cache.expect("whole chunks");
        if self.varlen.is_none() {
            let page_chunks = cache.row_chunks * self.max_keys as u32;
            cache = Cache { page_chunks, pages: batch as u32, table: 0, ..cache };
        }
        let params = DecodeParams {
            order: DecodeOrder {
                lengths: list(used.as_ref(), batch),
                starts,
                max_keys: self.max_keys as u32,
                splits: self.splits,
                chunk: FastDiv::ONE,
                kv_heads: div(kv),
                row_blocks: div(row_blocks),
                rows: entry.tile_m,
                share: 8.0,
                threshold: 2.25,
                blocks: 7,
                spread: 0,
            },
            cache,
            q: tensor(driver.address(&q), queries, heads),
            group: div(group as u32),
            window: Window { shift: 0, left: Window::UNBOUNDED, right: 0 },
            scale_log2: std::f32::consts::LOG2_E / (columns as f32).sqrt(),
            softcap: 0.0,
            scales: [PerHead { base: 0, sequence_bytes: 0, head_bytes: 0, value: 1.0, reserved: 0 }; 2],
            partials: Partials {
                rows_base: driver.address(&left_rows),
                values_base: driver.address(&left_values),
                rows: rows as u32,
                heads: kv,
                slices: div(slots),
                reserved: 0,
            },
            counters: Counters {
                base: driver.address(&counters),
                count: batch as u32 * kv * row_blocks,
                reserved: 0,
            },
            o: tensor(driver.address(&o), queries, heads),
            lse: Lse {
                base: driver.address(&lse),
                batch_bytes: (heads * queries * 4) as u64,
                head_bytes: queries as u64 * 4,
            },
            sinks: Lse { base: 0, batch_bytes: 0, head_bytes: 0 },
            states: States::NONE,
        };
        let kernel = driver.load(ptx, &entry.contract)?;
        let stream = driver.stream()?;
        // SAFETY: the parameters have no padding, and the simulator checks every access.
        unsafe {
            let bytes = std::slice::from_raw_parts((&raw const params).cast(), size_of::<DecodeParams>());
            driver.launch(&kernel, [params.order.blocks, 1, 1], bytes, &stream)?;
        }
        driver.synchronize(&stream)?;
        let (mut o_bytes, mut lse_bytes) = (vec![0; o_rows * columns * 2], vec![0; o_rows * 4]);
        driver.download(&o, &mut o_bytes)?;
        driver.download(&lse, &mut lse_bytes)?;
        let half = |x: &[u8]| u16::from_le_bytes([x[0], x[1]]);
        let word = |x: &[u8]| u32::from_le_bytes([x[0], x[1], x[2], x[3]]);
        Ok(Written { o: o_bytes.chunks(2).map(half).collect(), lse: lse_bytes.chunks(4).map(word).collect() })
    }

    /// Describes the errors of these results.
    ///
    /// # Panics
    /// Panics if the case contradicts itself.
    pub fn failures(&self, written: &Written) -> Vec<String> {
        let ([queries, heads, kv_heads, columns], Tensors { q, k, v }) = (self.shape, self.tensors());
        let tensor = |bits, rows, heads| {
            HostTensor::bshd(bits, DType::F16, [1, rows, heads, columns]).expect("a tensor")
        };
        let lse: Vec<f32> = written.lse.iter().map(|bits| f32::from_bits(*bits)).collect();
        let mut all = vec![];
        for b in 0..self.batch {
            let (each, keys) = (queries * heads, self.keys(b));
            let (o, lse) = (&written.o[b * each * columns..][..each * columns], &lse[b * each..][..each]);
            if keys.is_empty() {
                if o.iter().any(|x| *x != 0) || lse.iter().any(|x| *x != f32::NEG_INFINITY) {
                    all.push(format!("sequence {b} has no key: {o:?} {lse:?}"));
                }
                continue;
            }
            let mut problem = Problem::new(DType::F16, 1, queries, heads, columns).mask(Mask::Causal);
            (problem.seqlen_k, problem.heads_k) = (keys.len(), kv_heads);
            problem.alignment = Alignment::BottomRight;
            let rows = |x| tensor(x, self.rows(), kv_heads).rows(keys.clone());
            let inputs = Inputs::new(
                problem,
                tensor(&q[b * each * columns..][..each * columns], queries, heads),
                rows(&k),
                rows(&v),
            );
            let right = Reference::new(&inputs.expect("a problem"));
            let verdict = right.judge(&tensor(o, queries, heads), Some(lse)).expect("the same shape");
            all.extend(verdict.failures().map(|failure| format!("sequence {b}: {failure}")));
        }
        all
    }
}
