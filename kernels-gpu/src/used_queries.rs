//! Divides padded varlen sequences into used queries and padding. A padding sequence has no key, so attention
//! kernels write O = 0 and LSE = -inf to its rows, and align the mask of the used queries with the last key.
//! A thread writes one integer of each array.
use crate::entries::Run;
use crate::lengths::Span;
use spec::{DIVIDED_INTEGERS, UsedQueries, UsedQueriesParams};
use tile::global::{FillInts, GlobalInts};
use tile::{Block, Smem};

impl Run for UsedQueries {
    #[inline(always)]
    fn run(p: UsedQueriesParams, block: Block<Self>, _: Smem<Self>) {
        for i in block.dealt(DIVIDED_INTEGERS).map(|i| block.index() * DIVIDED_INTEGERS + i) {
            let (sequence, is_padding) = (i / 2, !i.is_multiple_of(2));
            let queries = Span::of_sequence(&p.queries, sequence);
            let used = queries.used(&p.seqused_q, sequence);
            let start = if is_padding { queries.first() + used.rows() } else { queries.first() };
            // The keys end where the padding begins.
            let start_k = GlobalInts::new(&p.cu_seqlens_k).get(i.div_ceil(2)) as u32;
            let length = GlobalInts::new(&p.lengths).get(sequence) as u32;
            let pages = GlobalInts::new(&p.pages);
            let page = if pages.is_empty() { sequence } else { pages.get(sequence) as u32 };
            let store = |to, x| FillInts::new(to, &block).store(i, x, true);
            store(&p.divided.cu_seqlens_q, start);
            store(&p.divided.cu_seqlens_k, start_k);
            store(&p.divided.lengths, if is_padding { 0 } else { length });
            store(&p.divided.pages, page);
        }
    }
}
