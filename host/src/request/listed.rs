//! Lists of keys of a latent cache: each query sees the keys of its list.
use super::{AttentionRequest, Index, KeysValues, KvPages, Memory, Queries, TensorView};

/// The keys that each query sees (sparse MLA: DeepSeek Sparse Attention). Query `i` has one list for each
/// latent head, `[queries, latent heads, topk]`. An entry is a slot of the latent cache: row `slot % page` of
/// page `slot / page`, as in [`Slots`](super::Slots). In a cache that is one tensor of rows, with one page,
/// the slot is the row.
///
/// | entry | meaning |
/// |---|---|
/// | a slot | the query sees this key; entries may have any order |
/// | a slot that the list has twice | the key counts twice |
/// | negative, or beyond all pages | the kernel skips the entry; -1 fills the lists of queries that see fewer keys |
///
/// The list is the mask: a causal model lists only keys up to the query's position. A query whose list names
/// no key gives O = 0 and LSE = `-inf`. A launch reads the lists when it runs, so a CUDA graph can be
/// replayed with other lists.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct ListedKeys<M = u64> {
    /// The latent cache ([`KvPages::latent`]).
    pub pages: KvPages<M>,
    /// The lists, contiguous.
    pub indices: Index<M>,
    /// Entries per list.
    pub topk: usize,
}

impl<M> ListedKeys<M> {
    /// Creates lists of `topk` entries each.
    pub const fn new(pages: KvPages<M>, indices: Index<M>, topk: usize) -> Self {
        ListedKeys { pages, indices, topk }
    }
}

impl<R: Memory, W> AttentionRequest<'_, R, W> {
    /// Computes attention of each query to the keys of its list (sparse MLA), in decode and prefill. `q` is
    /// `[queries, 1, heads_q, head_dim]` with the queries of all sequences, at most 4096, and `o` is
    /// `[queries, 1, heads_q, values' columns]`. The request must set a scale, and no mask.
    ///
    /// ```
    /// # fn main() -> Result<(), ferroflash::Error> {
    /// use ferroflash::request::{AttentionRequest, Index, KvPages, ListedKeys, Scratch, TensorView};
    /// use ferroflash::{Capabilities, DType, plan};
    /// # let [q, o, rows, indices] = [1, 2, 3, 4].map(|n| n << 40);
    ///
    /// let (queries, heads, topk) = (8, 128, 2048);
    /// let view = |address, width: usize| {
    ///     TensorView::bshd(address, (8 * 128 * width) as u64, DType::Bf16, [queries, 1, heads, width])
    /// };
    /// let rows = TensorView::bshd(rows, 1000 * 64 * 576, DType::Bf16, [1000, 64, 1, 576]);
    /// let keys = ListedKeys::new(KvPages::latent(rows, 512), Index::new(indices, 8 * 2048), topk);
    /// let request = AttentionRequest::sparse(view(q, 576), keys, view(o, 512))
    ///     .scale(192f32.sqrt().recip())
    ///     .scratch(Scratch::Fastest);
    ///
    /// let h200 = Capabilities::profile("h200").expect("a known card"); // yours: `Attention::capabilities`
    /// assert_eq!(plan(&request, h200)?.contract().symbol, "hopper_sparse_mla_bf16_d576_full_64x64");
    /// # Ok(())
    /// # }
    /// ```
    pub const fn sparse(q: TensorView<R>, keys: ListedKeys<R>, o: TensorView<W>) -> Self {
        Self::new(q, Queries::Batched, KeysValues::Listed(keys), o)
    }
}
