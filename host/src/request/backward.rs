//! The backward pass of attention.
use super::{AttentionRequest, Bias, LseView, Memory, Scratch, Sinks, TensorView};
use std::fmt;

/// The gradients of Q, K and V of an attention, from the gradient of its output. One launch computes all
/// three, and adds in a fixed order: a repeated launch gives identical bits.
///
/// The kernels stand behind the feature `training`. docs/limits.md, "Backward", lists the requests that have
/// none.
///
/// ```
/// # fn main() -> Result<(), ferroflash::Error> {
/// use ferroflash::request::{AttentionBackward, AttentionRequest, LseView, Mask, TensorView};
/// use ferroflash::{Capabilities, DType, plan};
/// # let [q, k, v, o, lse, d_o, dq, dk, dv] = [1, 2, 3, 4, 5, 6, 7, 8, 9].map(|n| n << 40);
///
/// let shape = [2, 1024, 16, 128]; // batch, seqlen, heads, head_dim
/// let view = |address| TensorView::bshd(address, 2 * 1024 * 16 * 128, DType::Bf16, shape);
/// let lse = LseView::contiguous(lse, 2 * 16 * 1024, [2, 16, 1024]);
/// let forward = AttentionRequest::dense(view(q), view(k), view(v), view(o)).mask(Mask::Causal).lse(lse);
///
/// // After the forward has run:
/// let backward = AttentionBackward::new(forward, view(d_o), view(dq), view(dk), view(dv));
/// let h200 = Capabilities::profile("h200").expect("a known card"); // yours: `Attention::capabilities`
/// let plan = plan(&backward, h200)?;
/// // What to allocate, once; `ScratchBytes::at` is this memory.
/// assert!(plan.scratch_bytes().workspace >= 2 * (2 * 16 * 1152) * 4);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy)]
#[non_exhaustive]
#[must_use = "a description of a launch does nothing by itself; plan and launch it"]
pub struct AttentionBackward<'a, R: Memory = u64, W = R> {
    /// The attention, whose launch has written `o` and `lse`. The backward pass reads both; `lse` is
    /// necessary. It does not use the forward's scratch memory, splits and `config`.
    pub forward: AttentionRequest<'a, R>,
    /// The gradient of O, with O's shape.
    pub d_o: TensorView<R>,
    /// The gradient of the LSE, if the loss depends on it.
    pub d_lse: Option<LseView<R>>,
    /// Output: the gradient of Q, with Q's shape. The kernels write all rows of all three gradients that
    /// belong to a sequence. No gradient may overlap another tensor.
    pub dq: TensorView<W>,
    /// Output: the gradient of K, with K's shape.
    pub dk: TensorView<W>,
    /// Output: the gradient of V, with V's shape.
    pub dv: TensorView<W>,
    /// Output: the gradient of the forward's [`Sinks`], one f32 per query head, if the caller wants it.
    pub dsinks: Option<Sinks<W>>,
    /// Output: the gradient of the table that the scores of the forward's variant read
    /// (`ScoreMarker::TABLE`), if the caller wants it.
    pub dtable: Option<TableGradient<W>>,
    /// Output: the gradient of the forward's bias, of its shape and dtype, if the caller wants it. Where the
    /// bias broadcasts sequences or heads (an extent of 1, or a stride of 0), so does its gradient, which is
    /// the sum over them. Kernels write rows in words of 4 bytes: the element behind a row of an odd number
    /// of 16-bit elements becomes 0.
    pub dbias: Option<Bias<W>>,
    /// The workspace of the launch. Every launch needs one: plan with [`Scratch::Fastest`], the default, and
    /// launch with memory of the size that the plan states.
    pub scratch: Scratch,
}

impl<'a, R: Memory, W> AttentionBackward<'a, R, W> {
    /// Creates the backward pass of an attention whose LSE has no gradient.
    pub const fn new(
        forward: AttentionRequest<'a, R>,
        d_o: TensorView<R>,
        dq: TensorView<W>,
        dk: TensorView<W>,
        dv: TensorView<W>,
    ) -> Self {
        let (d_lse, dsinks, dtable, dbias, scratch) = (None, None, None, None, Scratch::Fastest);
        AttentionBackward { forward, d_o, d_lse, dq, dk, dv, dsinks, dtable, dbias, scratch }
    }

    /// Sets the gradient of the LSE. It has natural logarithms' unit and contiguous rows, as the LSE has.
    pub const fn d_lse(mut self, d_lse: LseView<R>) -> Self {
        self.d_lse = Some(d_lse);
        self
    }

    /// Sets the memory of the gradient of the forward's sinks. The gradients of Q, K and V count the sinks
    /// with and without it.
    pub fn dsinks(mut self, dsinks: Sinks<W>) -> Self {
        self.dsinks = Some(dsinks);
        self
    }

    /// Sets the memory of the gradient of the table that the scores of the forward's variant read.
    pub fn dtable(mut self, dtable: TableGradient<W>) -> Self {
        self.dtable = Some(dtable);
        self
    }

    /// Sets the memory of the gradient of the forward's bias. The gradients of Q, K and V count the bias with
    /// and without it.
    pub fn dbias(mut self, dbias: Bias<W>) -> Self {
        self.dbias = Some(dbias);
        self
    }

    /// Sets the workspace of the launch.
    pub const fn scratch(mut self, scratch: Scratch) -> Self {
        self.scratch = scratch;
        self
    }
}

/// The memory of a table's gradient: f32 `[query heads][entries]`, contiguous, as the table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableGradient<M = u64> {
    /// Device address. A multiple of 4.
    pub address: M,
    /// Number of elements of the buffer, at least those of the table.
    pub elements: u64,
}

/// The gradients that only some requests have.
type Others<'a> = (&'a Option<LseView>, &'a Option<Sinks>, &'a Option<TableGradient>, &'a Option<Bias>);

impl AttentionBackward<'_> {
    /// Returns all fields but the forward.
    const fn own(&self) -> ([&TensorView; 4], Others<'_>, &Scratch) {
        let AttentionBackward { d_o, d_lse, dq, dk, dv, dsinks, dtable, dbias, scratch, .. } = self;
        ([d_o, dq, dk, dv], (d_lse, dsinks, dtable, dbias), scratch)
    }
}

// A derived impl has no bound for the forward's variant, whose type the memory determines.
impl PartialEq for AttentionBackward<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.forward == other.forward && self.own() == other.own()
    }
}

impl fmt::Debug for AttentionBackward<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([d_o, dq, dk, dv], (d_lse, dsinks, dtable, dbias), scratch) = self.own();
        let views = [("d_o", d_o), ("dq", dq), ("dk", dk), ("dv", dv)];
        let mut debug = f.debug_struct("AttentionBackward");
        debug.field("forward", &self.forward).field("d_lse", d_lse).field("dsinks", dsinks);
        debug.field("dtable", dtable).field("dbias", dbias).field("scratch", scratch);
        views.iter().fold(&mut debug, |debug, (name, view)| debug.field(name, view)).finish()
    }
}
