//! Launches batches of sequences in every form of a request. Rows depend on a seed and on positions only.
use ferroflash::driver::{Harness, SimDriver};
use ferroflash::request::{
    AttentionRequest, Index, Invariance, KvCache, KvPages, LseView, Mask, Queries, Scratch, Sinks, Splits,
    TensorView, VarlenKeys, VarlenQueries,
};
use ferroflash::{Attention, DType, Error};
use ptx_sim::Options;
use reference::Random;
use std::ops::Range;

/// The place of keys and values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Keys {
    /// Tensors.
    Tensors,
    /// Pages of this number of keys.
    Pages(usize),
    /// A latent cache with pages of 16 keys.
    Latent,
}

/// The shape of all sequences of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The name of the card.
    pub card: &'static str,
    /// The place of keys.
    pub keys: Keys,
    /// Numbers of query heads and of key heads.
    pub heads: [usize; 2],
    /// Columns of K, and of V.
    pub columns: [usize; 2],
    /// The mask.
    pub mask: Mask,
    /// Whether there are sinks.
    pub sinks: bool,
    /// The splits of a sequence.
    pub splits: Splits,
    /// Whether the launch has counters.
    pub counters: bool,
    /// Whether launches write the largest score of each row.
    pub max_logits: bool,
    /// The promise.
    pub invariance: Invariance,
}

/// Queries of a sequence, at these positions, on its first keys. A position's rows of Q, K and V depend on
/// the seed and on the position only.
#[derive(Clone, Debug)]
pub struct Part {
    /// The seed of the sequence.
    pub seed: u64,
    /// Positions of the queries.
    pub queries: Range<usize>,
    /// Number of keys.
    pub keys: usize,
}

/// The bits of O and of the LSE of each query, over all heads.
pub type Rows = Vec<(Vec<u16>, Vec<u32>)>;

/// Returns the rows of a tensor at positions of a sequence, in f16: numbers from 1/8 to 2 of both signs.
fn rows(seed: u64, tensor: u64, positions: Range<usize>, width: usize) -> Vec<u16> {
    let row = |position: usize| {
        let mut random = Random::new(seed << 32 ^ tensor << 24 ^ position as u64);
        let number = move |_| {
            let bits = random.bits();
            (bits >> 8 & 0x8000) as u16 | (12 + (bits & 3) as u16) << 10 | (bits >> 30 & 0x3ff) as u16
        };
        (0..width).map(number).collect::<Vec<_>>()
    };
    positions.flat_map(row).collect()
}

/// Device memory that lives as long as a launch.
struct Memory<'a> {
    driver: &'a SimDriver,
    buffers: Vec<<SimDriver as Harness>::Buffer>,
}

impl Memory<'_> {
    fn add(&mut self, bytes: &[u8]) -> u64 {
        let mut buffer = self.driver.allocate(bytes.len().max(16)).expect("memory");
        self.driver.upload(&mut buffer, bytes).expect("an upload");
        let address = self.driver.address(&buffer);
        self.buffers.push(buffer);
        address
    }

    fn integers(&mut self, all: &[usize]) -> Index {
        let bytes: Vec<u8> = all.iter().flat_map(|n| (*n as i32).to_le_bytes()).collect();
        Index::new(self.add(&bytes), all.len() as u64)
    }

    fn tensor(&mut self, bits: &[u16], shape: [usize; 4]) -> TensorView {
        let bytes: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        TensorView::bshd(self.add(&bytes), bits.len() as u64, DType::F16, shape)
    }

    /// Returns the last buffer's first bytes.
    fn download(&self, buffer: usize, bytes: usize) -> Vec<u8> {
        let mut all = vec![0; bytes];
        self.driver.download(&self.buffers[buffer], &mut all).expect("a download");
        all
    }
}

/// Launches these parts as one batch, and returns the rows of each part, and the kernel.
///
/// # Errors
/// Returns the errors of planning and launching.
///
/// # Panics
/// Panics if the simulator has no memory.
pub fn launch(
    attention: &Attention<SimDriver>,
    shape: &Shape,
    parts: &[Part],
    varlen: bool,
) -> Result<(Vec<Rows>, &'static str), Error> {
    let mut memory = Memory { driver: attention.driver(), buffers: vec![] };
    let ([heads, heads_k], [columns, columns_v]) = (shape.heads, shape.columns);
    let counts: Vec<usize> = parts.iter().map(|part| part.queries.len()).collect();
    let total: usize = counts.iter().sum();
    let lead = if varlen { [1, total] } else { [parts.len(), counts[0]] };
    let q: Vec<u16> =
        parts.iter().flat_map(|part| rows(part.seed, 0, part.queries.clone(), heads * columns)).collect();
    let q = memory.tensor(&q, [lead[0], lead[1], heads, columns]);
    let o = memory.tensor(&vec![0xffff; total * heads * columns_v], [lead[0], lead[1], heads, columns_v]);
    let o_buffer = memory.buffers.len() - 1;
    let lse = memory.add(&vec![0xff; total * heads * 4]);
    let lse_buffer = memory.buffers.len() - 1;
    let starts = |counts: &[usize]| {
        let mut all = vec![0];
        counts.iter().for_each(|count| all.push(all[all.len() - 1] + count));
        all
    };
    let longest = counts.iter().copied().max().unwrap_or(1).max(1);
    let queries = match varlen {
        false => Queries::Batched,
        true => {
            let offsets = memory.integers(&starts(&counts));
            Queries::Varlen(VarlenQueries::new(parts.len(), offsets, longest))
        }
    };
    let keys: Vec<usize> = parts.iter().map(|part| part.keys).collect();
    let most = keys.iter().copied().max().unwrap_or(1).max(1);
    let widths = [heads_k * columns, heads_k * columns_v];
    let request = match shape.keys {
        Keys::Tensors => {
            let lead = if varlen { [1, keys.iter().sum()] } else { [parts.len(), keys[0]] };
            let [k, v] = [0, 1].map(|which| {
                let of = |part: &Part| rows(part.seed, 1 + which as u64, 0..part.keys, widths[which]);
                let all: Vec<u16> = parts.iter().flat_map(of).collect();
                memory.tensor(&all, [lead[0], lead[1], heads_k, shape.columns[which]])
            });
            match queries {
                Queries::Varlen(queries) => {
                    let keys = VarlenKeys::new(memory.integers(&starts(&keys)), most);
                    AttentionRequest::varlen(q, k, v, o, queries, keys)
                }
                _ => AttentionRequest::dense(q, k, v, o),
            }
        }
        Keys::Pages(page) => {
            let (table, used) = pages(&keys, page, most);
            let pools = [0, 1].map(|which| {
                let mut pool = vec![0x7e00; used * page * widths[which]];
                for (b, part) in parts.iter().enumerate() {
                    let all = rows(part.seed, 1 + which as u64, 0..part.keys, widths[which]);
                    for (page_of, chunk) in all.chunks(page * widths[which]).enumerate() {
                        let at = table[b * most.div_ceil(page) + page_of] * page * widths[which];
                        pool[at..at + chunk.len()].copy_from_slice(chunk);
                    }
                }
                memory.tensor(&pool, [used, page, heads_k, shape.columns[which]])
            });
            let (table, lengths) = (memory.integers(&table), memory.integers(&keys));
            let pages = KvPages::new(pools[0], pools[1]);
            AttentionRequest::cached(q, KvCache::paged(pages, table, most.div_ceil(page), lengths), o)
        }
        Keys::Latent => {
            let (table, used) = pages(&keys, 16, most);
            let mut pool = vec![0x7e00; used * 16 * columns];
            for (b, part) in parts.iter().enumerate() {
                for (page_of, chunk) in
                    rows(part.seed, 1, 0..part.keys, columns).chunks(16 * columns).enumerate()
                {
                    let at = table[b * most.div_ceil(16) + page_of] * 16 * columns;
                    pool[at..at + chunk.len()].copy_from_slice(chunk);
                }
            }
            let pool = memory.tensor(&pool, [used, 16, 1, columns]);
            let (table, lengths) = (memory.integers(&table), memory.integers(&keys));
            let pages = KvPages::latent(pool, columns_v);
            AttentionRequest::cached(q, KvCache::paged(pages, table, most.div_ceil(16), lengths), o)
        }
    };
    let shape_of_lse = [lead[0], heads, lead[1]];
    // With this scale, maxima often grow by more than the slack.
    let mut request = request
        .queries(queries)
        .mask(shape.mask)
        .scale(6.0 / (columns as f32).sqrt())
        .lse(LseView::contiguous(lse, (total * heads) as u64, shape_of_lse))
        .invariance(shape.invariance)
        .splits(shape.splits)
        .scratch(Scratch::Fastest);
    if shape.max_logits {
        let maxima = memory.add(&vec![0xff; total * heads * 4]);
        request = request.max_logits(LseView::contiguous(maxima, (total * heads) as u64, shape_of_lse));
    }
    if shape.sinks {
        let logits: Vec<u8> = (0..heads).flat_map(|head| (head as f32 / 2.0).to_le_bytes()).collect();
        request = request.sinks(Sinks { address: memory.add(&logits), elements: heads as u64 });
    }
    let plan = attention.plan(&request)?;
    let bytes = plan.scratch_bytes();
    let workspace = memory.add(&vec![0xff; bytes.workspace.max(16) as usize]);
    let counters = memory.add(&vec![0; bytes.counters.max(4) as usize]);
    request.scratch = bytes.at(workspace, shape.counters.then_some(counters));
    let stream = attention.driver().stream()?;
    // SAFETY: `memory` holds all tensors of these sizes until the end of this function.
    unsafe { attention.launch(&plan, &request, &stream)? };
    attention.driver().synchronize(&stream)?;
    let o: Vec<u16> = memory
        .download(o_buffer, total * heads * columns_v * 2)
        .chunks(2)
        .map(|bits| u16::from_le_bytes([bits[0], bits[1]]))
        .collect();
    let lse: Vec<u32> = memory
        .download(lse_buffer, total * heads * 4)
        .chunks(4)
        .map(|bits| u32::from_le_bytes([bits[0], bits[1], bits[2], bits[3]]))
        .collect();
    let row = |row: usize| {
        let (batch, of_batch) = (row / lead[1], row % lead[1]);
        let values = (0..heads).map(|head| lse[(batch * heads + head) * lead[1] + of_batch]);
        (o[row * heads * columns_v..][..heads * columns_v].to_vec(), values.collect())
    };
    let firsts = starts(&counts);
    let all = firsts.windows(2).map(|ends| (ends[0]..ends[1]).map(row).collect()).collect();
    Ok((all, plan.contract().symbol))
}

/// Returns a block table, in which no two sequences share a page, and the number of pages.
fn pages(keys: &[usize], page: usize, most: usize) -> (Vec<usize>, usize) {
    let columns = most.div_ceil(page);
    let used = (keys.iter().map(|keys| keys.div_ceil(page)).sum::<usize>()).max(1);
    let mut table = vec![0; keys.len() * columns];
    let mut next = used;
    for (b, keys) in keys.iter().enumerate() {
        for column in 0..keys.div_ceil(page) {
            next -= 1;
            table[b * columns + column] = next;
        }
    }
    (table, used)
}

/// A simulated card with 8 SMs.
///
/// # Panics
/// Panics if there is no such card.
pub fn attention(card: &'static str) -> Attention<SimDriver> {
    let card = SimDriver::of_multiprocessors(card, Options::default(), Some(8));
    Attention::new(card.expect("a known card"))
}
