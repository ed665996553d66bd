//! Sinks that a merge kernel adds to the output of a kernel without sinks.
use super::Passes;
use crate::Problem;
use crate::launch::Launch;
use crate::lower::{self, Merged, Refusal};
use crate::place::Place;
use crate::request::{AttentionRequest, LseView, Merge, Sinks, State};
use crate::schedule::{Schedule, Scheduled};
use spec::{MERGES, MergeInfo, States};

/// Returns the merge kernel that adds a problem's sinks, if the kernel of a pass cannot add them.
pub(super) fn merge(p: &Problem, pass: &Scheduled) -> Option<Place> {
    let adds_sinks = pass.kernel.scores.sink || matches!(pass.schedule, Schedule::Decode(_));
    let merges = |merge: &&MergeInfo| [merge.states, merge.output] == [p.o_dtype; 2];
    let merge = MERGES.iter().find(merges).filter(|_| p.sinks && !adds_sinks)?;
    Some(Place::of(&merge.contract))
}

/// Returns the bytes of workspace for the LSE without sinks, which the merge kernel reads.
pub(super) fn lse_bytes(p: &Problem) -> u64 {
    let [[batches, rows, heads, _], ..] = p.shapes();
    let rows = (batches as u64).saturating_mul(rows as u64).saturating_mul(heads as u64);
    rows.saturating_mul(4)
}

/// Adds the steps of all passes, which leave the LSE without sinks in the workspace, and the step of the
/// merge kernel, which adds the sinks to the output in place.
///
/// # Errors
/// Returns [`Refusal::Tensors`] if a kernel does not accept the tensors.
pub(super) fn lower(
    (r, p): (&AttentionRequest<'_>, &Problem),
    s: &Passes,
    place: Place,
    sinks: Sinks,
    launch: &mut Launch,
) -> Result<(), Refusal> {
    let [batch, rows, heads, _] = r.q.shape;
    let lse = LseView::contiguous(r.scratch.address(), s.kept / 4, [batch, heads, rows]);
    let pass = AttentionRequest { lse: Some(lse), scratch: s.partials(&r.scratch), ..*r };
    s.all().try_for_each(|own| lower::attention((&pass, p), own, States::NONE, launch))?;
    let states = [State::new(r.o, lse)];
    let merge = Merge { lse: r.lse, ..Merge::new(&states, r.o).sinks(sinks) };
    Ok(lower::merge(&Merged::new(&merge)?, place, launch)?)
}
