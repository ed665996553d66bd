//! Append: writes new keys and values to a KV cache.
use super::{KvPages, Rotary, Slots, TensorView};

/// Writes keys and values of new tokens into a KV cache (`reshape_and_cache`). The kernel copies row `t` of
/// `k` and `v` to slot `slots[t]`, or skips the row if the KV cache has no such slot. If two tokens of one
/// launch have one slot, the slot contains the bytes of one of them, or a mixture.
///
/// The KV cache has the tokens' dtype, e4m3 or int8. An e4m3 cache stores `x / scale`, rounded to nearest
/// even and clamped to 448; NaN stays NaN. In an int8 cache, the kernel also writes the scale of each row
/// ([`KvPages::int8`]).
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "a description of a launch does nothing by itself; plan and launch it"]
#[non_exhaustive]
pub struct Append<R = u64, W = R> {
    /// Keys of the tokens: `[1, tokens, heads, head_dim]`, f16 or bf16. The kernel ignores rows beyond the
    /// number of slots.
    pub k: TensorView<R>,
    /// Values of the tokens, with the heads, head dim and dtype of `k`.
    pub v: TensorView<R>,
    /// Output: the KV cache. Slots that no token names do not change.
    pub pages: KvPages<W>,
    /// One slot per token.
    pub slots: Slots<R>,
    /// The rotation of `k` on its way into the KV cache, and of queries beside it. `None`: none.
    pub rotary: Option<Rotary<R, W>>,
}

impl<R: Copy, W> Append<R, W> {
    /// Creates a request that appends one token per slot.
    pub const fn new(k: TensorView<R>, v: TensorView<R>, pages: KvPages<W>, slots: Slots<R>) -> Self {
        Append { k, v, pages, slots, rotary: None }
    }

    /// Creates a request that appends one row per slot to a latent cache ([`KvPages::latent`]). `rows` is
    /// `[1, tokens, heads, head_dim]`: the latent, then the rotated key, as in `pages`. `head_dim` is a
    /// multiple of 16. An e4m3 cache has the scale of its keys, and `head_dim` is a multiple of 32.
    ///
    /// A cache of [`KvPages::latent_scaled`] takes rows of 576 bf16, of which the columns from 512 on may
    /// rotate. The kernel writes the scales, as vLLM's `concat_and_cache_ds_mla` does:
    ///
    /// | 128 columns | scale | numbers |
    /// |---|---|---|
    /// | of numbers | the largest magnitude / 448, in f32, and at least the smallest normal f32 | `x / scale`, rounded to nearest even |
    /// | with an infinity or a NaN | NaN: attention to this row is NaN, as with a 16-bit cache | NaN |
    pub const fn latent(rows: TensorView<R>, pages: KvPages<W>, slots: Slots<R>) -> Self {
        let mut values = rows;
        values.shape[3] = pages.values.shape[3];
        Append { k: rows, v: values, pages, slots, rotary: None }
    }

    /// Rotates `k`, and the rotation's queries, in the same launch (rotary embedding).
    ///
    /// ```
    /// # fn main() -> Result<(), ferroflash::Error> {
    /// use ferroflash::request::{Append, KvPages, Positions, Rotary, Slots, TensorView};
    /// use ferroflash::{Capabilities, DType, plan};
    /// # let [q, k, v, keys, values, slots, positions, table] = [1, 2, 3, 4, 5, 6, 7, 8].map(|n| n << 40);
    ///
    /// // 256 tokens, 32 query heads and 8 key heads of 128 columns, 1000 pages of 16 keys.
    /// let view = |address, heads: usize| {
    ///     TensorView::bshd(address, 256 * heads as u64 * 128, DType::Bf16, [1, 256, heads, 128])
    /// };
    /// let pool = |address| TensorView::bshd(address, 1000 * 16 * 1024, DType::Bf16, [1000, 16, 8, 128]);
    /// // Cosines and sines of 4096 positions, `[4096, 128]`.
    /// let table = TensorView::bshd(table, 4096 * 128, DType::F32, [1, 4096, 1, 128]);
    /// let rotary = Rotary::cos_sin(table, Positions::i64(positions, 256)).queries(view(q, 32), view(q, 32));
    /// let pages = KvPages::new(pool(keys), pool(values));
    /// let append = Append::new(view(k, 8), view(v, 8), pages, Slots::i64(slots, 256)).rotary(rotary);
    ///
    /// let h200 = Capabilities::profile("h200").expect("a known card"); // yours: `Attention::capabilities`
    /// assert_eq!(plan(&append, h200)?.contract().symbol, "append_rotary_bf16");
    /// # Ok(())
    /// # }
    /// ```
    pub fn rotary(mut self, rotary: Rotary<R, W>) -> Self {
        self.rotary = Some(rotary);
        self
    }
}

impl Append {
    /// Returns an append to a latent cache in the form of an append of keys and values: the keys are the
    /// first half of each row, the values the second half. The rotation remains a rotation of whole rows.
    pub(crate) fn halves(&self) -> Self {
        let Append { k, pages, slots, rotary, .. } = *self;
        let (k, keys) = (halves(k), halves(pages.keys));
        let pages = KvPages { keys: keys[0], values: keys[1], scales: [pages.scales[0]; 2] };
        Append { k: k[0], v: k[1], pages, slots, rotary }
    }
}

/// Returns the two halves of a tensor's columns.
fn halves(mut first: TensorView) -> [TensorView; 2] {
    first.shape[3] /= 2;
    [first, first.behind(first.shape[3] as u64)]
}
