//! Schedules the kernels of a backward pass.
use super::tiles::resident;
use crate::place::Place;
use crate::{Capabilities, Contract, Error, Problem};
use spec::{
    AttnInfo, BiasTiles, ConvertDqInfo, DELTA_ROWS, DqScratch, FastDiv, MaskKind, PaddedVector, Pass,
    RowParts, Sequences, TABLE_ENTRIES, TileOrder, TilePartials,
};

/// A kernel of a backward pass, and the distribution of its work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientPass {
    /// The place of the kernel.
    pub place: Place,
    /// The kernel, if its mask and scores may have parameters.
    pub kernel: Option<&'static AttnInfo>,
    pub work: GradientWork,
}

/// The results of a kernel of a backward pass, and the distribution of its work over thread blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GradientWork {
    /// -LSE and delta: this number of blocks per head.
    Delta(FastDiv),
    /// dK and dV: work tiles of keys, and their sequences if the tensors are varlen.
    DkDv(TileOrder, Sequences),
    /// dQ: work tiles of queries, and their sequences.
    Dq(TileOrder, Sequences),
    /// The gradients of sinks: a block per query head.
    Dsinks,
    /// The gradient of a table: work tiles of queries, and their sequences; this number of blocks per work
    /// tile; and the sums of the work tiles, which have no address yet.
    Table(TileOrder, Sequences, FastDiv, TilePartials),
    /// The gradient of a bias: the work tiles of queries, and the tiles of the bias.
    Dbias(TileOrder, BiasTiles),
    /// All gradients, dQ as sums: work tiles of keys for this kernel, and the sequences of work tiles and of
    /// tiles of sums if the tensors are varlen.
    All(&'static AttnInfo, TileOrder, [Sequences; 2]),
    /// dQ of its sums: this number of blocks of 64 queries per head, and the sequences of tiles of sums.
    Convert(FastDiv, Sequences),
    /// dK and dV of the shares of each key head.
    SumHeads(RowParts, HeadShares),
}

impl GradientPass {
    /// Returns the schedule of the kernel that computes -LSE and delta.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if there are too many thread blocks.
    pub fn delta(p: &Problem, padding: &Padding, kernel: &Contract) -> Result<Self, Error> {
        let per_head = padding.rows / DELTA_ROWS;
        let all = u64::from(padding.heads).saturating_mul(per_head.into());
        let blocks = FastDiv::new(per_head).filter(|_| all < 1 << 31);
        let work = GradientWork::Delta(blocks.ok_or_else(|| too_many(p, per_head))?);
        Ok(GradientPass { place: Place::of(kernel), kernel: None, work })
    }

    /// Returns the schedule of the kernel of gradients of sinks.
    pub fn dsinks(kernel: &Contract) -> Self {
        GradientPass { place: Place::of(kernel), kernel: None, work: GradientWork::Dsinks }
    }

    /// Returns the schedule of a kernel of gradients. Blocks run head by head: each head's tensors are then
    /// in the L2 cache.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if there are too many thread blocks.
    pub fn new(p: &Problem, kernel: &'static AttnInfo, shares: HeadShares) -> Result<Self, Error> {
        let (order, sequences) = work_tiles(p, kernel, shares)?;
        let work = match kernel.pass {
            Pass::DkDv => GradientWork::DkDv(order, sequences),
            _ => GradientWork::Dq(order, sequences),
        };
        Ok(GradientPass { place: Place::of_either(kernel, p.variant), kernel: Some(kernel), work })
    }

    /// Returns the schedule of the kernel of a table's gradient, which has this number of entries per head.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if there are too many thread blocks.
    pub fn table(p: &Problem, kernel: &'static AttnInfo, entries: u32) -> Result<Self, Error> {
        let (order, sequences) = work_tiles(p, kernel, HeadShares::ONE)?;
        let groups = FastDiv::new(entries.div_ceil(TABLE_ENTRIES as u32));
        let fits = |groups: &FastDiv| order.tiles.checked_mul(groups.get()).is_some_and(|all| all < 1 << 31);
        let groups = groups.filter(fits).ok_or_else(|| too_many(p, order.m_blocks))?;
        let partials = TilePartials { base: 0, entries, tiles: order.tiles };
        let work = GradientWork::Table(order, sequences, groups, partials);
        Ok(GradientPass { place: Place::of_either(kernel, p.variant), kernel: Some(kernel), work })
    }

    /// Returns the schedule of the kernel of a bias' gradient, which has this shape.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if there are too many thread blocks.
    pub fn dbias(p: &Problem, kernel: &'static AttnInfo, shape: [usize; 4]) -> Result<Self, Error> {
        let (order, _) = work_tiles(p, kernel, HeadShares::ONE)?;
        let tiles = bias_tiles(p, kernel, shape).ok_or_else(|| too_many(p, order.m_blocks))?;
        let work = GradientWork::Dbias(order, tiles);
        Ok(GradientPass { place: Place::of(&kernel.contract), kernel: Some(kernel), work })
    }

    /// Returns the schedule of one of Hopper's kernels, which leaves sums of dQ in `sums`, whose tiles belong
    /// to these sequences. Heads run in groups of equal size.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if there are too many work tiles.
    pub fn all(
        p: &Problem,
        kernel: &'static AttnInfo,
        (sums, of_sums): (&DqScratch, Sequences),
        shares: HeadShares,
        on: &Capabilities,
    ) -> Result<Self, Error> {
        let (batch, blocks, of_keys) = tiles(p, kernel)?;
        let heads_k = p.heads_k as u32;
        let heads = heads_k * shares.get() as u32;
        let all = batch.saturating_mul(heads);
        let group = (1..=sums.group.min(all)).rev().find(|group| all.is_multiple_of(*group)).unwrap_or(1);
        let order =
            TileOrder::new(blocks, batch, heads, heads_k, group).ok_or_else(|| too_many(p, blocks))?;
        let order = order.resident(resident(&kernel.contract, on));
        let work = GradientWork::All(kernel, order, [of_keys, of_sums]);
        Ok(GradientPass { place: Place::of_either(kernel, p.variant), kernel: None, work })
    }

    /// Returns the schedule of the kernel that adds the shares of dK and dV.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if there are too many keys.
    pub fn sum_heads(p: &Problem, kernel: &Contract, shares: HeadShares) -> Result<Self, Error> {
        let columns = p.head_dim.max(p.head_dim_v);
        let rows = p.batch * p.seqlen_k * p.heads_k;
        let parts =
            RowParts::new(rows, columns / 8, kernel.threads).ok_or_else(|| too_many(p, rows as u32))?;
        let work = GradientWork::SumHeads(parts, shares);
        Ok(GradientPass { place: Place::of(kernel), kernel: None, work })
    }

    /// Returns the schedule of the kernel that rounds `tiles` tiles of sums of dQ per head.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if there are no queries.
    pub fn convert(p: &Problem, kernel: &ConvertDqInfo, tiles: u32, of: Sequences) -> Result<Self, Error> {
        let blocks = tiles * (kernel.stage_rows / kernel.block_rows);
        // There are fewer of these blocks than of delta's.
        let work = GradientWork::Convert(FastDiv::new(blocks).ok_or_else(|| too_many(p, blocks))?, of);
        Ok(GradientPass { place: Place::of(&kernel.contract), kernel: None, work })
    }
}

/// Returns the work tiles of a portable kernel, of keys for dK and dV, otherwise of queries, and their
/// sequences if the tensors are varlen.
///
/// # Errors
/// Returns [`Error::Unsupported`] if there are too many thread blocks.
fn work_tiles(p: &Problem, kernel: &AttnInfo, shares: HeadShares) -> Result<(TileOrder, Sequences), Error> {
    let heads = if kernel.pass == Pass::DkDv { p.heads_k * shares.get() } else { p.heads_q };
    let [heads, heads_k] = [heads, p.heads_k].map(|count| count as u32);
    let (batch, blocks, sequences) = tiles(p, kernel)?;
    let order = TileOrder::new(blocks, batch, heads, heads_k, 1).ok_or_else(|| too_many(p, blocks))?;
    Ok((order, sequences))
}

/// Returns batches, blocks and sequences of the rows of a kernel's tiles, of one head.
///
/// # Errors
/// Returns [`Error::Unsupported`] if there are too many blocks.
fn tiles(p: &Problem, kernel: &AttnInfo) -> Result<(u32, u32, Sequences), Error> {
    let is_of_keys = matches!(kernel.pass, Pass::DkDv | Pass::Gradients);
    let length = if is_of_keys { p.seqlen_k } else { p.seqlen_q };
    let Some(rows) = p.varlen else {
        return Ok((p.batch as u32, length.div_ceil(kernel.tile_m as usize) as u32, Sequences::NONE));
    };
    let (sequences, blocks) = sequences(p, length, rows[usize::from(is_of_keys)], kernel.tile_m)?;
    Ok((1, blocks, sequences))
}

/// Returns the tiles of a bias of this shape, or `None` if there are none, or 2^31 or more.
fn bias_tiles(
    p: &Problem,
    kernel: &AttnInfo,
    [sequences, heads, rows, keys]: [usize; 4],
) -> Option<BiasTiles> {
    let div = |number: usize| FastDiv::new(u32::try_from(number).ok()?);
    let [m_blocks, n_blocks] = [rows.div_ceil(kernel.tile_m as usize), keys.div_ceil(kernel.tile_n as usize)];
    let all = [sequences, heads, m_blocks, n_blocks].into_iter().try_fold(1, usize::checked_mul)?;
    let shared_heads = p.heads_q / heads;
    let shares = (p.batch / sequences).checked_mul(shared_heads)?;
    Some(BiasTiles {
        n_blocks: div(n_blocks)?,
        m_blocks: div(m_blocks)?,
        heads: div(heads)?,
        shared_heads: div(shared_heads)?,
        sequences: u32::try_from(sequences).ok().filter(|_| all < 1 << 31)?,
        shares: u32::try_from(shares).ok()?,
    })
}

/// Number of blocks that share the query heads of a key head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadShares(usize);

impl HeadShares {
    /// Fewer queries are not shared, because the sum of shares is a launch of its own. Each share is rounded
    /// to the gradients' type, as FlashAttention-2 rounds dK and dV of each query head before their sum.
    const LEAST_QUERIES: usize = 256;

    /// A block takes all query heads of its keys.
    pub const ONE: Self = HeadShares(1);

    /// Returns the largest number with which all blocks of a kernel of dK and dV still run at once. Causal
    /// blocks run in two waves, long blocks and then short ones, because the first keys' blocks have twice
    /// the mean work.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if there are too many blocks.
    pub fn new(p: &Problem, kernel: &AttnInfo, on: &Capabilities) -> Result<Self, Error> {
        let (batch, blocks, _) = tiles(p, kernel)?;
        let blocks = batch as usize * p.heads_k * blocks as usize;
        let waves = if p.mask_kind() == MaskKind::Causal { 2 } else { 1 };
        let most = waves * resident(&kernel.contract, on) as usize / blocks.max(1);
        let heads_per_kv = p.heads_q / p.heads_k;
        let shares = (2..=most.min(heads_per_kv)).rev().find(|shares| heads_per_kv.is_multiple_of(*shares));
        // A sum of varlen rows would write rows that belong to no sequence.
        let may_share = p.varlen.is_none() && p.seqlen_q >= Self::LEAST_QUERIES;
        Ok(HeadShares(shares.filter(|_| may_share).unwrap_or(1)))
    }

    /// The number of shares.
    pub const fn get(self) -> usize {
        self.0
    }

    /// Returns the elements of dK's shares and of dV's.
    pub const fn elements(self, p: &Problem) -> [usize; 2] {
        let heads = p.batch * p.seqlen_k * p.heads_k * self.0;
        [heads * p.head_dim, heads * p.head_dim_v]
    }
}

/// The rows of -LSE and of delta: each sequence has whole blocks of [`PaddedVector::ROWS`] rows, and each
/// head of a batch has room for whole stages of the kernel that reads them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Padding {
    /// Rows per head.
    pub rows: u32,
    /// Heads of all batches.
    pub heads: u32,
    /// The mapping from blocks to sequences, if the tensors are varlen.
    pub sequences: Sequences,
}

impl Padding {
    /// Returns the rows of a valid problem, for a kernel with stages of `stage` queries.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if there are too many rows.
    pub fn new(p: &Problem, stage: u32) -> Result<Self, Error> {
        let [[batches, ..], ..] = p.shapes();
        let (sequences, blocks) = match p.varlen {
            // A length is at most 2^30.
            None => {
                (Sequences::NONE, (p.seqlen_q as u32).next_multiple_of(stage).div_ceil(PaddedVector::ROWS))
            }
            Some([rows, _]) => sequences(p, p.seqlen_q, rows, PaddedVector::ROWS)?,
        };
        let rows = blocks.checked_mul(PaddedVector::ROWS).filter(|rows| *rows < 1 << 31);
        let heads = (batches * p.heads_q) as u32;
        Ok(Padding { rows: rows.ok_or_else(|| too_many(p, blocks))?, heads, sequences })
    }
}

/// Returns the mapping from blocks of `tile` rows to varlen sequences of at most `longest` rows, with `rows`
/// rows in all, and the number of blocks.
///
/// # Errors
/// Returns [`Error::Unsupported`] if there are too many blocks.
pub fn sequences(p: &Problem, longest: usize, rows: usize, tile: u32) -> Result<(Sequences, u32), Error> {
    let [count, longest, rows] =
        [p.batch, longest, rows].map(|number| u32::try_from(number).unwrap_or(u32::MAX));
    Sequences::new(count, longest, rows, tile).ok_or_else(|| too_many(p, rows.div_ceil(tile)))
}

fn too_many(p: &Problem, blocks: u32) -> Error {
    let feature = format_args!("{blocks} blocks for each of {} x {} heads", p.batch, p.heads_q);
    Error::unsupported(feature, "a launch may have less than 2^31 thread blocks; split the batch")
}
