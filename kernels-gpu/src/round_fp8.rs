//! Prepares tensors for Hopper's kernels with products of e4m3: [`RoundFp8`] rounds tensors of 16 bits, and
//! [`LayFp8`] and [`LayFp8Pages`] lay values that are e4m3 already.
use crate::entries::Run;
use crate::lengths::{self, Span};
use attention_tile::{OCTET, octet};
use cuda_std::math::{opaque, stay_a_loop};
use spec::{
    E4m3, Element, FP8_SHARES, FastDiv, Fp8Sequences, Kernel, LayFp8, LayFp8Pages, LayFp8PagesParams,
    LayFp8Params, Lse, RoundFp8, RoundFp8Params, Tensor,
};
use tile::global::{ColumnMeans, Fp8Scale, GlobalRows, GlobalVec, SHARES, largest_of_share, rows_at_once};
use tile::mma::Unpack;
use tile::{Block, Smem, Warp};

impl<E: Unpack, const N: usize, const D: usize> Run for RoundFp8<E, N, D> {
    #[inline(always)]
    fn run(p: RoundFp8Params, block: Block<Self>, _: Smem<Self>) {
        const { assert!(SHARES == FP8_SHARES, "a warp measures a share") }
        match p.measures {
            0 => round::<E, N, D, Self>(&p, &block),
            _ => measure::<E, D, Self>(&p, &block),
        }
    }
}

impl<const N: usize, const D: usize> Run for LayFp8<N, D> {
    #[inline(always)]
    fn run(p: LayFp8Params, block: Block<Self>, _: Smem<Self>) {
        let (warp, at) = (block.warp(), p.blocks.div_rem(block.index()));
        let Some((of, n)) = OwnRows::of_block(&p.sequences, 1, &p.heads, at, N as u32 * 16, warp) else {
            return;
        };
        let (v, to) = (of.rows::<E4m3, D>(&p.v), of.columns::<N>(&p.to, D));
        for i in 0..N as u32 / 4 {
            to.lay_columns(&v, n * N as u32 + i * 4 + warp.index(), warp);
        }
    }
}

impl<const N: usize, const D: usize> Run for LayFp8Pages<N, D> {
    #[inline(always)]
    fn run(p: LayFp8PagesParams, block: Block<Self>, _: Smem<Self>) {
        let (warp, tile) = (block.warp(), N as u32 * 16);
        let (of, n) = p.blocks.div_rem(block.index());
        let (sequence, head) = p.heads.div_rem(of);
        let rows = lengths::length(&p.lengths, sequence, p.max_keys);
        if n * tile >= rows {
            return;
        }
        let to = GlobalRows::<E4m3, N>::new(&p.to, sequence, head);
        for i in 0..N as u32 / 4 {
            let at = n * N as u32 + i * 4 + warp.index();
            let half = |half| octet(&p.cache, &p.pages, [sequence, head], at * 16 + half * OCTET, rows);
            to.lay_halves::<D>(&[half(0), half(1)], at, warp);
        }
    }
}

/// The rows of a head that a thread block prepares: those of a batch or of a sequence.
#[derive(Clone, Copy)]
pub(crate) struct OwnRows {
    /// Whether the tensors are dense.
    is_batch: bool,
    /// Index of the sequence, or of the batch.
    sequence: u32,
    head: u32,
    rows: Span,
}

impl OwnRows {
    /// The queries (0), or the keys (1), of a head of sequence or batch `sequence`.
    #[inline(always)]
    fn of_sequence(p: &Fp8Sequences, which: usize, [sequence, head]: [u32; 2]) -> Self {
        if p.blocks.count == 0 {
            let rows = Span::upto(p.rows[which].rows);
            return OwnRows { is_batch: true, sequence, head, rows };
        }
        let all = Span::of_sequence(&p.rows[which], sequence);
        let rows = if which == 0 { all } else { all.used(&p.seqused_k, sequence) };
        OwnRows { is_batch: false, sequence, head, rows }
    }

    /// The rows of block `n` of head `of` of all batches, in blocks of `tile` rows, and the block's index
    /// among those of its sequence.
    #[inline(always)]
    pub(crate) fn of_block(
        p: &Fp8Sequences,
        which: usize,
        heads: &FastDiv,
        (of, n): (u32, u32),
        tile: u32,
        warp: Warp,
    ) -> Option<(Self, u32)> {
        if p.blocks.count == 0 {
            let (batch, head) = heads.div_rem(of);
            return Some((Self::of_sequence(p, which, [batch, head]), n));
        }
        let sequence = lengths::sequence(&p.blocks, &p.rows[which], [n, tile], warp)?;
        let own = Self::of_sequence(p, which, [sequence, of]);
        let n = n.wrapping_sub(own.begin(tile));
        (n < own.rows.rows().div_ceil(tile)).then_some((own, n))
    }

    /// Index of the tensors' batch.
    #[inline(always)]
    pub(crate) fn batch(&self) -> u32 {
        if self.is_batch { self.sequence } else { 0 }
    }

    /// The head.
    #[inline(always)]
    pub(crate) fn head(&self) -> u32 {
        self.head
    }

    /// Index of the sequence in the tensors' batch.
    #[inline(always)]
    pub(crate) fn in_batch(&self) -> u32 {
        if self.is_batch { 0 } else { self.sequence }
    }

    /// Index of the first block of `tile` rows. A batch begins with block 0.
    #[inline(always)]
    pub(crate) fn begin(&self, tile: u32) -> u32 {
        if self.is_batch { 0 } else { self.rows.first() / tile + self.sequence }
    }

    /// These rows of a tensor.
    #[inline(always)]
    pub(crate) fn rows<E: Element, const C: usize>(&self, of: &Tensor) -> GlobalRows<E, C> {
        GlobalRows::new(of, self.batch(), self.head).part(self.rows.first(), self.rows.rows())
    }

    /// These rows as columns, of a tensor with `16 D` rows for each block of `16 N` rows.
    #[inline(always)]
    fn columns<const N: usize>(&self, of: &Tensor, d: usize) -> GlobalRows<E4m3, N> {
        let [tile, columns] = [N as u32 * 16, d as u32 * 16];
        let blocks = self.rows.rows().div_ceil(tile);
        GlobalRows::new(of, self.batch(), self.head).part(self.begin(tile) * columns, blocks * columns)
    }

    /// These rows of a vector.
    #[inline(always)]
    fn vector(&self, of: &Lse) -> GlobalVec {
        let (first, rows) = (self.rows.first(), self.rows.rows());
        GlobalVec::new(of, self.batch(), self.head, first + rows).part(first, rows)
    }

    /// The `count` numbers of the head's sequence.
    #[inline(always)]
    fn numbers(&self, of: &Lse, count: u32) -> GlobalVec {
        GlobalVec::new(of, self.sequence, self.head, count)
    }
}

/// The means that a kernel subtracts from all keys of a head.
#[inline(always)]
fn means<E: Unpack, const D: usize>(p: &RoundFp8Params, k: &GlobalRows<E, D>, warp: Warp) -> ColumnMeans {
    match p.keeps_means {
        0 => ColumnMeans::of(k, warp),
        _ => ColumnMeans::NONE,
    }
}

/// Measures the largest magnitudes of four shares of a head of Q, K or V.
#[inline(always)]
fn measure<E: Unpack, const D: usize, C: Kernel>(p: &RoundFp8Params, block: &Block<C>) {
    let (warp, per_head) = (block.warp(), SHARES / 4);
    let (of, share) = (block.index() / per_head, block.index() % per_head * 4 + warp.index());
    let (of, which) = if p.measures == 1 { (of, 0) } else { (of / 3, of % 3) };
    let (sequence, head) = p.heads[1].div_rem(of);
    let own = |which: usize, head: u32| OwnRows::of_sequence(&p.sequences, which, [sequence, head]);
    let keys = own(1, head);
    let to = |which: usize| [keys.numbers(&p.maxima[which], SHARES), keys.numbers(&p.scales[which], 1)];
    let (largest, [maxima, scale]) = match which {
        0 => {
            // Queries without keys, such as padding, may be NaN, but their scale must not be.
            let keys = match p.tiles[1] {
                0 => lengths::length(&p.sequences.seqused_k, sequence, p.sequences.rows[1].rows),
                _ => keys.rows.rows(),
            };
            let queries = if keys == 0 { 0 } else { p.group.get() };
            let (first, mut largest) = (head * p.group.get(), 0);
            for i in 0..queries {
                let q = own(0, first + i).rows::<E, D>(&p.from[0]);
                largest = largest.max(largest_of_share(&q, share, &ColumnMeans::NONE, warp));
            }
            (largest, to(0))
        }
        1 => {
            let k = keys.rows::<E, D>(&p.from[1]);
            (largest_of_share(&k, share, &means(p, &k, warp), warp), to(1))
        }
        _ => {
            let v = keys.rows::<E, D>(&p.from[2]);
            (largest_of_share(&v, share, &ColumnMeans::NONE, warp), to(2))
        }
    };
    if warp.lane() == 0 {
        maxima.store_row(share, f32::from_bits(largest), block);
        // No block rounds the rows of an empty sequence. A tile without keys still needs scales.
        if share == 0 {
            scale.store_row(0, 0.0, block);
        }
    }
}

/// The scale of a head of keys. The head's first block stores it.
#[inline(always)]
fn scale<C: Kernel>(
    p: &RoundFp8Params,
    which: usize,
    of: &OwnRows,
    is_first: bool,
    block: &Block<C>,
) -> Fp8Scale {
    let warp = block.warp();
    let scale = Fp8Scale::of(&of.numbers(&p.maxima[which], SHARES), warp);
    if is_first && warp.index() == 0 && warp.lane() == 0 {
        of.numbers(&p.scales[which], 1).store_row(0, scale.scale(), block);
    }
    scale
}

/// Calls `f` with the first of each `step` rows of block `n` that a warp has.
#[inline(always)]
fn each_rows<const N: usize>(n: u32, step: u32, warp: Warp, f: impl Fn(u32)) {
    let (mut row, end) = (n * N as u32 * 16 + warp.index() * step, (n + 1) * N as u32 * 16);
    while row < end {
        stay_a_loop();
        f(row);
        row += opaque(4 * step);
    }
}

/// Rounds the rows of a block of queries, keys or values.
#[inline(always)]
fn round<E: Unpack, const N: usize, const D: usize, C: Kernel>(p: &RoundFp8Params, block: &Block<C>) {
    let (warp, [of_queries, of_keys]) = (block.warp(), p.tiles);
    let found = |which: usize, index: u32| {
        let at = p.blocks[which].div_rem(index);
        OwnRows::of_block(&p.sequences, which, &p.heads[which], at, N as u32 * 16, warp)
    };
    if block.index() < of_queries {
        let Some((own, n)) = found(0, block.index()) else { return };
        let (kv_head, in_group) = p.group.div_rem(own.head);
        let keys = OwnRows::of_sequence(&p.sequences, 1, [own.sequence, kv_head]);
        let (q, to) = (own.rows::<E, D>(&p.from[0]), own.rows::<E4m3, D>(&p.to[0]));
        let by = scale(p, 0, &keys, n == 0 && in_group == 0, block);
        each_rows::<N>(n, rows_at_once(D), warp, |first| {
            to.round_rows(&q, first, (&ColumnMeans::NONE, by), of_keys == 0, warp)
        });
        if p.lse_lacks.base != 0 {
            let means = ColumnMeans::of(&keys.rows::<E, D>(&p.from[1]), warp);
            let (lacks, sees) = (own.vector(&p.lse_lacks), keys.rows.rows() > 0);
            each_rows::<N>(n, 8, warp, |first| {
                for row in first..first + 8 {
                    let dot = means.dot(&q, row, warp);
                    if warp.lane() == 0 {
                        lacks.store_row(row, if sees { dot * p.scale } else { 0.0 }, block);
                    }
                }
            });
        }
        return;
    }
    let of_values = block.index() >= of_queries + of_keys;
    let index = block.index() - of_queries - if of_values { of_keys } else { 0 };
    let Some((own, n)) = found(1, index) else { return };
    if of_values {
        let (v, to) = (own.rows::<E, D>(&p.from[2]), own.columns::<N>(&p.to[2], D));
        let by = scale(p, 2, &own, n == 0, block);
        for i in 0..N as u32 / 4 {
            to.round_columns(&v, n * N as u32 + i * 4 + warp.index(), by, warp);
        }
    } else {
        let (k, to) = (own.rows::<E, D>(&p.from[1]), own.rows::<E4m3, D>(&p.to[1]));
        let (means, by) = (means(p, &k, warp), scale(p, 1, &own, n == 0, block));
        each_rows::<N>(n, rows_at_once(D), warp, |first| to.round_rows(&k, first, (&means, by), false, warp));
    }
}
