//! A request limits what the bits of a sequence's result depend on.

/// This limits what the bits of a sequence's result (O, LSE) depend on (batch invariance).
///
/// Without a promise, the planner selects kernels and splits by the sizes of the whole batch, so that a
/// sequence's result has other last bits in another batch. With a promise, a sequence's shape selects them:
/// numbers of heads and columns, dtypes, the kinds of mask and scores, and the layout of tensors. The kind of
/// device (architecture, shared memory, driver) selects too. docs/limits.md, "Batch invariance", says what
/// the promises cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Invariance {
    /// On the whole batch.
    #[default]
    None,
    /// On the sequence's own tensors and lengths only: not on its neighbours, on the form of the request
    /// (equal or varlen queries) or on the capture of a graph.
    Batch,
    /// As [`Invariance::Batch`], and not on how the sequence's queries are divided among requests: a prompt
    /// in one piece, in chunks, or query by query. Requests on tensors and requests on KV caches run
    /// different kernels.
    BatchAndChunks,
}

impl Invariance {
    /// Returns whether the request has a promise.
    pub(crate) const fn is_promised(self) -> bool {
        !matches!(self, Invariance::None)
    }
}
