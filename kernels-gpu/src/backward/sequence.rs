//! The sequence of a work tile: of a batch of equal lengths, or of varlen tensors. One kernel takes both,
//! because the loops need no more than the rows of a sequence.
use crate::lengths::{self, Span};
use cuda_std::math::opaque;
use spec::{BwdParams, BwdSequences, CuSeqlens, Element, PaddedVector, Sequences, Tensor, Window, WorkTile};
use tile::Warp;
use tile::global::GlobalRows;

/// The sequence of a work tile.
#[derive(Clone, Copy)]
pub struct TileSequence {
    /// The tile. Its batch is that of the tensors, and its block is counted in the sequence.
    pub tile: WorkTile,
    /// Index of the sequence.
    pub index: u32,
    /// The sequence's queries.
    pub queries: Span,
    /// The sequence's keys: those that queries may see.
    pub keys: Span,
    /// All rows of the sequence in K and V.
    pub all_keys: Span,
    /// The window of the mask, with the sequence's shift.
    pub window: Window,
    /// The first row of the sequence's -LSE and delta.
    pub values: u32,
}

impl TileSequence {
    /// The sequence of a work tile of `rows` rows, which are keys if `KEYS` is true, otherwise queries.
    /// Returns `None` if the tile does not exist at the current lengths. All warps of a block find the same.
    #[inline(always)]
    pub fn find<const KEYS: bool>(p: &BwdParams, tile: WorkTile, rows: u32, warp: Warp) -> Option<Self> {
        let all = &p.sequences;
        if all.cu_seqlens_q.offsets.count() == 0 {
            return Some(Self::of(p, tile, tile.batch));
        }
        let starts = if KEYS { &all.cu_seqlens_k } else { &all.cu_seqlens_q };
        let index = lengths::sequence(&all.tiles, starts, [tile.m_block, rows], warp)?;
        let of = Self::of(p, tile, warp.uniform(index));
        let own = if KEYS { of.all_keys } else { of.queries };
        let m_block = tile.m_block.wrapping_sub(all.tiles.begin(index, own.first(), rows));
        if m_block >= own.rows().div_ceil(rows) {
            return None;
        }
        let [queries, keys, all_keys] = [of.queries, of.keys, of.all_keys].map(|span| span.uniform(warp));
        Some(TileSequence { tile: WorkTile { m_block, ..tile }, queries, keys, all_keys, ..of })
    }

    /// Sequence `index`, or batch `index` of tensors of equal lengths. `tile` is one of its tiles.
    #[inline(always)]
    pub fn of(p: &BwdParams, tile: WorkTile, index: u32) -> Self {
        let all = &p.sequences;
        if all.cu_seqlens_q.offsets.count() == 0 {
            let [queries, keys] = [p.q.rows, p.k.rows].map(Span::upto);
            return TileSequence { tile, index, queries, keys, all_keys: keys, window: p.window, values: 0 };
        }
        let [queries, all_keys] =
            [&all.cu_seqlens_q, &all.cu_seqlens_k].map(|rows| Span::of_sequence(rows, index));
        let keys = all_keys.used(&all.seqused_k, index);
        let shift = (keys.rows() as i32 - queries.rows() as i32) * all.bottom_right as i32;
        let (window, values) = (Window { shift, ..p.window }, first_value(all, index, queries));
        TileSequence { tile, index, queries, keys, all_keys, window, values }
    }

    /// Computes the same sequence again, from parameters and from integers on the device. If a loop kept the
    /// sequence's numbers, these would take registers, and the kernel of dK and dV would spill at head dim
    /// 128.
    #[inline(always)]
    pub fn again(&self, p: &BwdParams) -> Self {
        Self::of(p, self.tile, opaque(self.index))
    }

    /// The rows of `part` of a head of a tensor.
    #[inline(always)]
    pub fn rows<E: Element, const D: usize>(
        &self,
        tensor: &Tensor,
        head: u32,
        part: Span,
    ) -> GlobalRows<E, D> {
        GlobalRows::new(tensor, self.tile.batch, head).part(part.first(), part.rows())
    }

    /// [`TileSequence::rows`] of Q and dO, or of K and V.
    #[inline(always)]
    pub fn pair<E: Element, const D: usize, const DV: usize>(
        &self,
        tensors: [&Tensor; 2],
        head: u32,
        part: Span,
    ) -> (GlobalRows<E, D>, GlobalRows<E, DV>) {
        // As an array of one type, because LLVM orders the code of pairs differently.
        let [first, second] = tensors.map(|tensor| self.rows::<E, D>(tensor, head, part));
        let second = if D == DV { second.as_wide_as(&first) } else { second };
        (first, second.retyped())
    }
}

/// The first row of -LSE and delta of sequence `index`, which has these queries.
#[inline(always)]
pub fn first_value(all: &BwdSequences, index: u32, queries: Span) -> u32 {
    all.padded.begin(index, queries.first(), PaddedVector::ROWS).wrapping_mul(PaddedVector::ROWS)
}

/// The queries of the sequence that has row `row` of -LSE and delta, and the first row of the sequence there.
/// A head of a batch has `rows` queries.
#[inline(always)]
pub fn padded(all: &BwdSequences, row: u32, rows: u32, warp: Warp) -> (Span, u32) {
    let (queries, first) = of_tile(&all.padded, &all.cu_seqlens_q, [row, PaddedVector::ROWS], rows, warp);
    (queries, first.wrapping_mul(PaddedVector::ROWS))
}

/// The queries of the sequence that has row `row` of tiles of `tile` rows, and its first tile, as `of` maps
/// tiles to sequences. A head of a batch has `rows` queries.
#[inline(always)]
pub fn of_tile(
    of: &Sequences,
    cu_seqlens_q: &CuSeqlens,
    [row, tile]: [u32; 2],
    rows: u32,
    warp: Warp,
) -> (Span, u32) {
    if cu_seqlens_q.offsets.count() == 0 {
        return (Span::upto(rows), 0);
    }
    match lengths::sequence(of, cu_seqlens_q, [row / tile, tile], warp) {
        Some(index) => {
            let queries = Span::of_sequence(cu_seqlens_q, index);
            (queries, of.begin(index, queries.first(), tile))
        }
        None => (Span::upto(0), 0),
    }
}

/// Whether the offsets of sequences ascend. All lanes of a warp take part.
#[inline(always)]
pub fn ascend(all: &BwdSequences, warp: Warp) -> bool {
    let [q, k] = [&all.cu_seqlens_q, &all.cu_seqlens_k];
    let (mut i, mut descends) = (warp.lane(), false);
    while i + 1 < q.offsets.count() {
        let falls = |rows| lengths::offset(rows, i) > lengths::offset(rows, i + 1);
        descends |= falls(q) || falls(k);
        i += 32;
    }
    !warp.any(descends)
}
