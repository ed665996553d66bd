//! New keys and values on their way into a cache.
use super::{KvPages, Slots, TensorView};

/// Puts the keys and values of new tokens to their places in a cache (`reshape_and_cache`): the row of token
/// `t` of `k` and `v` is copied to row `slots[t]` of the cache's pages, or skipped where there is no such
/// row. Two tokens of one launch with the same slot leave either's bytes, or some of both.
///
/// The cache has the tokens' type, or is e4m3: then it gets `x / scale`, rounded to nearest even, 448 where
/// that is more; NaN stays NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "a description of a launch does nothing by itself; plan and launch it"]
#[non_exhaustive]
pub struct Append {
    /// Keys of the tokens: `[1, tokens, heads, head_dim]`, f16 or bf16. There may be more rows than slots:
    /// those are not looked at.
    pub k: TensorView,
    /// Their values, of the same heads, head dim and type.
    pub v: TensorView,
    /// Written: where the tokens go. Rows that no slot names stay as they are.
    pub pages: KvPages,
    /// A place for each token.
    pub slots: Slots,
}

impl Append {
    /// As many tokens as there are slots.
    pub const fn new(k: TensorView, v: TensorView, pages: KvPages, slots: Slots) -> Self {
        Append { k, v, pages, slots }
    }
}
