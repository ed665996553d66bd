//! The work tiles of Hopper's backward: blocks of keys, of batches of equal lengths or of varlen sequences.
use crate::backward::sequence::first_value;
use crate::lengths::{self, Span};
use crate::rows::Rows;
use cuda_std::math::opaque;
use spec::{BwdHopperParams, BwdMap, BwdRagged, RaggedMap, TensorMap, Window, WorkTile};
use tile::Warp;
use tile::tickets::{Note, TicketConsumer, TicketProducer};
use tile::tma::{MapKind, RaggedRow, StoreMapKind};

/// A kind of tensor maps, with the work tiles of its tensors.
pub trait KeyMap: BwdMap + StoreMapKind<Data = Self> {
    /// A work tile.
    type Tile: KeyTile<Map = Self>;
}

/// A work tile: a block of keys, with its key head.
pub trait KeyTile: Copy {
    /// The note that the producer passes to the other warps.
    type Note: Note;
    /// The kind of tensor maps.
    type Map: KeyMap<Note = Self::Note>;
    /// Whether the tensors may have keys that their sequence does not use. Gradients of such keys are 0.
    const HAS_UNUSED: bool;

    /// Takes the next ticket that has a work tile of `m` and `n` base tiles of keys and queries, and passes
    /// its note to the block's other warps; at the end, the note that no work tile follows.
    fn take(
        p: &BwdHopperParams<Self::Map>,
        tickets: &mut TicketProducer<Self::Note>,
        tile: [usize; 2],
    ) -> Self::Note;
    /// Whether a note describes a work tile, rather than the end.
    fn is_some(p: &BwdHopperParams<Self::Map>, note: Self::Note) -> bool;
    /// The work tile that a note describes.
    fn of(p: &BwdHopperParams<Self::Map>, note: Self::Note) -> Self;
    /// The same work tile, read again from the note that the producer has passed. If the producer's loop over
    /// queries kept all numbers of a varlen tile, its registers would spill.
    #[inline(always)]
    fn again(self, _: &BwdHopperParams<Self::Map>, _: &TicketProducer<Self::Note>) -> Self {
        self
    }
    /// The same block of keys for a consumer, as masks see it. In the loop over queries, the numbers of a
    /// varlen tile would take registers from the products.
    #[inline(always)]
    fn kept(self, _: &BwdHopperParams<Self::Map>, _: &TicketConsumer<Self::Note>, _: Warp) -> Self {
        self
    }
    /// The number of the block among the blocks of its head, and the number of blocks of `tile_m` keys that
    /// queries may see.
    fn number(&self, p: &BwdHopperParams<Self::Map>, tile_m: u32) -> [u32; 2];
    /// Batch or sequence, and key head.
    fn of_head(&self) -> [u32; 2];
    /// The numbers of queries and keys, at least 1, and the window.
    fn lens(&self, p: &BwdHopperParams<Self::Map>) -> ([u32; 2], Window);
    /// The number of keys from the first row of `rows` on that queries may see.
    fn existing(&self, rows: &Rows) -> u32;
    /// The query head `head`, counted over all heads of the vectors and sums.
    fn head_of_all(&self, p: &BwdHopperParams<Self::Map>, head: u32) -> u32;
    /// The tile of -LSE and delta, of `tile_n` rows, that belongs to tile `n` of the queries.
    fn values(&self, p: &BwdHopperParams<Self::Map>, n: u32, tile_n: u32) -> u32;
    /// The tile of sums that belongs to tile `n` of the queries.
    fn sums(&self, n: u32) -> u32;
    /// The coordinates of query `row` of a query head.
    fn query(&self, row: u32, head: u32) -> <Self::Map as MapKind>::At;
    /// The coordinates of key `row`, to load it.
    fn key(&self, row: u32) -> <Self::Map as MapKind>::At;
    /// The coordinates of key `row`, to store its gradients.
    fn gradient(&self, row: u32) -> <Self::Map as MapKind>::At;
}

/// The work tile of a ticket that exists. The first keys come first.
#[inline(always)]
fn ascending<M: BwdMap>(p: &BwdHopperParams<M>, ticket: u32) -> WorkTile {
    let tile = p.order.tile(ticket);
    WorkTile { m_block: p.order.m_blocks - 1 - tile.m_block, ..tile }
}

impl KeyMap for TensorMap {
    type Tile = WorkTile;
}

/// A block of keys of a batch. Each warp computes it of the ticket.
impl KeyTile for WorkTile {
    type Map = TensorMap;
    type Note = u32;
    const HAS_UNUSED: bool = false;

    #[inline(always)]
    fn take(p: &BwdHopperParams, tickets: &mut TicketProducer<u32>, _: [usize; 2]) -> u32 {
        let ticket = tickets.take(&p.sums);
        tickets.pass(ticket);
        ticket
    }
    #[inline(always)]
    fn is_some(p: &BwdHopperParams, ticket: u32) -> bool {
        ticket < p.order.tiles
    }
    #[inline(always)]
    fn of(p: &BwdHopperParams, ticket: u32) -> Self {
        ascending(p, ticket)
    }
    #[inline(always)]
    fn number(&self, p: &BwdHopperParams, _: u32) -> [u32; 2] {
        [self.m_block, p.order.m_blocks]
    }
    #[inline(always)]
    fn of_head(&self) -> [u32; 2] {
        [self.batch, self.head]
    }
    #[inline(always)]
    fn lens(&self, p: &BwdHopperParams) -> ([u32; 2], Window) {
        // LLVM would divide by the tiles' sizes before the loop over tickets, and the producer would spill
        // the results.
        ([opaque(p.q_len), p.k_len], p.window)
    }
    #[inline(always)]
    fn existing(&self, rows: &Rows) -> u32 {
        rows.q_len - rows.first
    }
    #[inline(always)]
    fn head_of_all(&self, p: &BwdHopperParams, head: u32) -> u32 {
        self.batch * p.order.heads.get() * p.heads_per_kv + head
    }
    #[inline(always)]
    fn values(&self, _: &BwdHopperParams, n: u32, _: u32) -> u32 {
        n
    }
    #[inline(always)]
    fn sums(&self, n: u32) -> u32 {
        n
    }
    #[inline(always)]
    fn query(&self, row: u32, head: u32) -> [u32; 3] {
        [row, head, self.batch]
    }
    #[inline(always)]
    fn key(&self, row: u32) -> [u32; 3] {
        [row, self.kv_head, self.batch]
    }
    #[inline(always)]
    fn gradient(&self, row: u32) -> [u32; 3] {
        [row, self.head, self.batch]
    }
}

impl KeyMap for RaggedMap {
    type Tile = SequenceKeys;
}

/// A block of keys of a varlen sequence, which the producer finds. A sequence without keys has one block, so
/// that its queries get gradients of 0. A sequence without queries gets one query without weight, which lies
/// behind its end.
#[derive(Clone, Copy)]
pub struct SequenceKeys {
    /// The number of the block in the sequence.
    number: u32,
    head: u32,
    sequence: u32,
    /// The number of keys that queries may see.
    used: u32,
    queries: Span,
    /// All keys of the sequence.
    keys: Span,
    /// The first tile of -LSE and delta, and the first tile of sums.
    values: u32,
    sums: u32,
}

/// The note behind the last work tile. No block has this number.
const END: [[u32; 4]; 3] = [[u32::MAX; 4]; 3];

impl SequenceKeys {
    /// The sequence of block `m_block` of all keys, and the number of the block in this sequence, if the
    /// block exists at the current lengths.
    #[inline(always)]
    fn find(p: &BwdHopperParams<RaggedMap>, m_block: u32, tile_m: u32) -> Option<[u32; 2]> {
        let of = &p.sequences.of;
        let begin = |sequence, start| of.tiles.begin(sequence, start, tile_m);
        let sequence = of.tiles.find_by_halves(m_block, |sequence| {
            begin(sequence, lengths::offset(&of.cu_seqlens_k, sequence)) <= m_block
        });
        let all_keys = Span::of_sequence(&of.cu_seqlens_k, sequence);
        let number = m_block.wrapping_sub(begin(sequence, all_keys.first()));
        (number < all_keys.rows().div_ceil(tile_m).max(1)).then_some([sequence, number])
    }

    /// The note about a block.
    #[inline(always)]
    fn note(
        p: &BwdHopperParams<RaggedMap>,
        [sequence, number]: [u32; 2],
        head: u32,
        tile_n: u32,
    ) -> [[u32; 4]; 3] {
        let BwdRagged { of, sums, .. } = &p.sequences;
        let keys = Span::of_sequence(&of.cu_seqlens_k, sequence);
        let used = keys.used(&of.seqused_k, sequence).rows();
        let queries = Span::of_sequence(&of.cu_seqlens_q, sequence);
        let values = first_value(of, sequence, queries) / tile_n;
        let sums = sums.begin(sequence, queries.first(), tile_n);
        let ([q, q_len], [k, k_len]) = (queries.words(), keys.words());
        [[number, head, sequence, used], [q, q_len, k, k_len], [values, sums, 0, 0]]
    }
}

impl KeyTile for SequenceKeys {
    type Map = RaggedMap;
    type Note = [[u32; 4]; 3];
    const HAS_UNUSED: bool = true;

    #[inline(always)]
    fn take(
        p: &BwdHopperParams<RaggedMap>,
        tickets: &mut TicketProducer<[[u32; 4]; 3]>,
        [m, n]: [usize; 2],
    ) -> [[u32; 4]; 3] {
        // The loop keeps only what it has found: registers for a whole note would spill.
        let (found, head) = loop {
            let ticket = tickets.take(&p.sums);
            if ticket >= p.order.tiles {
                tickets.pass(END);
                return END;
            }
            let WorkTile { m_block, head, .. } = ascending(p, ticket);
            if let Some(found) = Self::find(p, m_block, m as u32 * 16) {
                break (found, head);
            }
        };
        let note = Self::note(p, found, head, n as u32 * 16);
        tickets.pass(note);
        note
    }
    #[inline(always)]
    fn is_some(_: &BwdHopperParams<RaggedMap>, [[number, ..], ..]: [[u32; 4]; 3]) -> bool {
        number != END[0][0]
    }
    #[inline(always)]
    fn of(_: &BwdHopperParams<RaggedMap>, note: [[u32; 4]; 3]) -> Self {
        let [[number, head, sequence, used], [q, q_len, k, k_len], [values, sums, ..]] = note;
        let [queries, keys] = [[q, q_len], [k, k_len]].map(Span::of_words);
        SequenceKeys { number, head, sequence, used, queries, keys, values, sums }
    }
    #[inline(always)]
    fn again(self, p: &BwdHopperParams<RaggedMap>, tickets: &TicketProducer<[[u32; 4]; 3]>) -> Self {
        Self::of(p, tickets.passed())
    }
    #[inline(always)]
    fn kept(
        self,
        p: &BwdHopperParams<RaggedMap>,
        tickets: &TicketConsumer<[[u32; 4]; 3]>,
        warp: Warp,
    ) -> Self {
        Self::of(p, tickets.kept(warp))
    }
    #[inline(always)]
    fn number(&self, _: &BwdHopperParams<RaggedMap>, tile_m: u32) -> [u32; 2] {
        [self.number, self.used.div_ceil(tile_m).max(1)]
    }
    #[inline(always)]
    fn of_head(&self) -> [u32; 2] {
        [self.sequence, self.head]
    }
    #[inline(always)]
    fn lens(&self, p: &BwdHopperParams<RaggedMap>) -> ([u32; 2], Window) {
        let shift = (self.used as i32 - self.queries.rows() as i32) * p.sequences.of.bottom_right as i32;
        ([self.queries.rows(), self.used].map(|rows| rows.max(1)), Window { shift, ..p.window })
    }
    #[inline(always)]
    fn existing(&self, rows: &Rows) -> u32 {
        self.used.saturating_sub(rows.first)
    }
    #[inline(always)]
    fn head_of_all(&self, _: &BwdHopperParams<RaggedMap>, head: u32) -> u32 {
        head
    }
    /// Whatever the lengths, the tile of -LSE and delta exists.
    #[inline(always)]
    fn values(&self, p: &BwdHopperParams<RaggedMap>, n: u32, tile_n: u32) -> u32 {
        (self.values + n).min(p.delta.rows / tile_n - 1)
    }
    #[inline(always)]
    fn sums(&self, n: u32) -> u32 {
        self.sums + n
    }
    #[inline(always)]
    fn query(&self, row: u32, head: u32) -> RaggedRow {
        RaggedRow::new(row, head, self.queries.first(), self.queries.rows())
    }
    #[inline(always)]
    fn key(&self, row: u32) -> RaggedRow {
        RaggedRow::new(row.min(self.used), self.head, self.keys.first(), self.used)
    }
    #[inline(always)]
    fn gradient(&self, row: u32) -> RaggedRow {
        RaggedRow::new(row, self.head, self.keys.first(), self.keys.rows())
    }
}
