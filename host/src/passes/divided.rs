//! Padded queries: a kernel divides each sequence into its used queries and its padding, and the passes of
//! the attention take twice the number of sequences. They need not know of padding, so they all compose with
//! it.
use crate::Error;
use crate::launch::Launch;
use crate::lower;
use crate::place::Place;
use crate::request::{AttentionRequest, Index, KeysValues, Paged, Queries, VarlenKeys, VarlenQueries};
use spec::{Entry, UsedQueries};

/// The integers of divided sequences lie at multiples of this number of bytes.
const ALIGNMENT: u64 = 128;

/// A request with padded queries, divided.
pub(super) struct Divided<'a> {
    /// The request of twice the number of sequences, with the rest of the scratch memory.
    pub request: AttentionRequest<'a>,
    /// Bytes of workspace for the integers of the divided sequences.
    pub bytes: u64,
}

/// Returns the place of the kernel that divides sequences.
pub(super) fn place() -> Place {
    Place::of(&<UsedQueries as Entry>::CONTRACT)
}

/// Returns the number of used queries of each sequence, if queries are padded.
pub(super) const fn seqused_q(r: &AttentionRequest<'_>) -> Option<Index> {
    match r.queries {
        Queries::Varlen(VarlenQueries { seqused_q, .. }) => seqused_q,
        Queries::Batched => None,
    }
}

impl<'a> Divided<'a> {
    /// Divides the sequences of a valid request, if its queries are padded. The integers lie at the start of
    /// the workspace at `workspace`.
    pub fn of(r: &AttentionRequest<'a>, workspace: u64) -> Option<Self> {
        let Queries::Varlen(VarlenQueries { batch, seqused_q: Some(_), max_seqlen_q, .. }) = r.queries else {
            return None;
        };
        let count = 2 * batch as u64;
        let part = ((count + 1) * 4).next_multiple_of(ALIGNMENT);
        let index = |at, elements| Index::new(workspace.saturating_add(at * part), elements);
        let [starts, others, lengths] = [index(0, count + 1), index(1, count + 1), index(2, count)];
        let kv = match r.kv {
            KeysValues::Varlen { k, v, keys } => {
                let seqused_k = keys.seqused_k.map(|_| lengths);
                let keys = VarlenKeys { cu_seqlens_k: others, seqused_k, ..keys };
                KeysValues::Varlen { k, v, keys }
            }
            KeysValues::Cache(mut kv) => {
                kv.lengths = lengths;
                kv.paged = match kv.paged {
                    Paged::Dense { .. } => Paged::Dense { rows: Some(Index::new(others.address, count)) },
                    // Validation has checked that the distance is even. Kernels read no page of padding.
                    Paged::Table { entries, columns, stride } => {
                        Paged::Table { entries, columns, stride: stride / 2 }
                    }
                };
                KeysValues::Cache(kv)
            }
            others => others,
        };
        let mut queries = VarlenQueries::new(2 * batch, starts, max_seqlen_q);
        // Not every sequence has a query, although there may be a row for each.
        queries.max_seqlen_q = max_seqlen_q.max(2);
        let request = AttentionRequest { queries: Queries::Varlen(queries), kv, ..*r };
        Some(Divided { request, bytes: 3 * part })
    }

    /// Divides the sequences of a request for attention: the integers lie at the start of its workspace.
    pub fn of_attention(r: &AttentionRequest<'a>) -> Option<Self> {
        let divided = Self::of(r, r.scratch.address())?;
        let scratch = r.scratch.behind(divided.bytes);
        Some(Divided { request: AttentionRequest { scratch, ..divided.request }, ..divided })
    }

    /// Adds the step that divides the sequences of `r`.
    pub fn lower(&self, r: &AttentionRequest<'_>, launch: &mut Launch) {
        lower::divided(r, &self.request, place(), launch);
        launch.main_follows();
    }
}

/// Checks that requests both have padded queries, or neither.
///
/// # Errors
/// Returns [`Error::Invalid`].
pub(super) fn are_as_planned(
    asked: &AttentionRequest<'_>,
    planned: &AttentionRequest<'_>,
) -> Result<(), Error> {
    let [asked, planned] = [asked, planned].map(|r| if seqused_q(r).is_some() { "some" } else { "none" });
    if asked == planned {
        return Ok(());
    }
    let expected = format_args!("the plan is for {planned}; make another plan");
    Err(Error::invalid("seqused_q", asked, expected))
}
