//! Passes over prefixes that groups of sequences share, and a pass over the rest of each sequence. Each pass
//! is a request by itself. The last pass merges the states that the first passes leave.
mod parts;
mod pays;

use super::{Passes, Prefixes, whole};
use crate::launch::Launch;
use crate::layout::Layout;
use crate::lower::{self, Refusal};
use crate::request::{AttentionRequest, Groups, Scratch, SharedPrefixes};
use crate::schedule::Schedule;
use crate::select::{Choice, Query};
use crate::{Error, Problem, validate};
use parts::{Parts, StateBuffers};
use pays::{NO_KERNEL, NO_ROOM, SHARED, TOO_SHORT};
use spec::States;

/// Returns the passes of a valid request, or the reason for a single pass over whole sequences.
///
/// # Errors
/// Returns [`Error::Unsupported`] if the request insists on passes that are impossible.
pub(super) fn choose(
    r: &AttentionRequest<'_>,
    prefixes: &SharedPrefixes,
    query: &Query<'_>,
    config: Option<&str>,
) -> Result<Result<Choice<Passes>, &'static str>, Error> {
    let refused = |reason| match prefixes.always {
        true => {
            let remedy = "leave `always` (the program's --shared-pages) out: one pass is right, too";
            Err(Error::unsupported("shared_prefixes in two passes", format_args!("{reason}; {remedy}")))
        }
        false => Ok(Err(reason)),
    };
    if let Some(reason) = pays::obstacle(r, query.problem, config) {
        return refused(reason);
    }
    if !pays::pays(prefixes, query.problem, query.on) {
        return refused(TOO_SHORT);
    }
    let parts = match Parts::new(r, prefixes) {
        Ok(parts) => parts,
        Err(reason) => return refused(reason),
    };
    match passes(&parts, prefixes, query) {
        Err(_) if !prefixes.always => Ok(Err(NO_KERNEL)),
        Err(error) => Err(error),
        Ok(None) => refused(NO_KERNEL),
        Ok(Some(passes)) if !r.scratch.allows(passes.kernel.scratch_bytes()[0]) => refused(NO_ROOM),
        Ok(Some(passes)) => Ok(Ok(passes)),
    }
}

/// Returns the passes, or `None` if no decode kernel takes the rest.
///
/// # Errors
/// Returns the errors of planning each pass.
fn passes(
    parts: &Parts<'_, '_>,
    prefixes: &SharedPrefixes,
    query: &Query<'_>,
) -> Result<Option<Choice<Passes>>, Error> {
    let planned = |pass: &AttentionRequest<'_>, merges_states: bool| -> Result<_, Error> {
        let problem = pass.problem();
        validate::problem(&problem)?;
        let scratch = Scratch::Fastest;
        let own = Query::new(&problem, Layout::of(pass), query.on, query.tuning, scratch);
        Ok((whole(&Query { merges_states, ..own }, None)?, problem))
    };
    let (rest, of_rest) = planned(&parts.rest(Scratch::Fastest), true)?;
    let rest = rest.kernel.last;
    if !matches!(rest.schedule, Schedule::Decode(_)) {
        return Ok(None);
    }
    let prefix = |count| planned(&parts.prefixes(count, &StateBuffers::default(), Scratch::Fastest), false);
    let ((mut pass, mut of_prefix), mut count) = (prefix(1)?, 1);
    // The kernel for the parts may differ from the kernel for whole prefixes. Then the second turn computes
    // the number of parts that fills the device with blocks of the new kernel.
    for _ in 0..2 {
        let wanted = pays::parts(prefixes, &pass.kernel.last, query.problem, query.on);
        let next = if wanted == count { None } else { Some(prefix(wanted)?) };
        let is_better = |(next, _): &(Choice<Passes>, Problem)| {
            count == 1 || next.kernel.last.kernel == pass.kernel.last.kernel
        };
        let Some(next) = next.filter(is_better) else { break };
        ((pass, of_prefix), count) = (next, wanted);
    }
    let kept = parts.buffers(count, 0).bytes(count);
    let with = |prefix: Passes| {
        let [few, _] = prefix.before;
        let before = few.map_or([Some(prefix.last), None], |few| [Some(few), Some(prefix.last)]);
        let prefixes = Prefixes { parts: count, problems: [of_prefix, of_rest] };
        Passes {
            before,
            last: rest,
            prefixes: Some(prefixes),
            sinks: None,
            quantise: None,
            lay: None,
            statistics: None,
            kept,
            divided: None,
            head_maxima: None,
        }
    };
    Ok(Some(Choice { kernel: with(pass.kernel), reason: SHARED, fallback: pass.fallback.map(with) }))
}

/// Adds the steps of all passes. The first passes leave states of the prefixes in the workspace, and the last
/// pass merges them into its results.
///
/// # Errors
/// Returns [`Refusal::Tensors`] if a kernel does not accept the tensors.
pub(super) fn lower(
    r: &AttentionRequest<'_>,
    prefixes: &SharedPrefixes,
    s: &Passes,
    &Prefixes { parts: count, problems: [ref of_prefix, ref of_rest] }: &Prefixes,
    launch: &mut Launch,
) -> Result<(), Refusal> {
    let parts = Parts::new(r, prefixes).map_err(Refusal::Tensors)?;
    let (buffers, scratch) = (parts.buffers(count, r.scratch.address()), s.partials(&r.scratch));
    let (prefix, rest) = (parts.prefixes(count, &buffers, scratch), parts.rest(scratch));
    let prefix = (&prefix, of_prefix);
    s.before.iter().flatten().try_for_each(|pass| lower::attention(prefix, pass, States::NONE, launch))?;
    lower::attention((&rest, of_rest), &s.last, parts.states(count, &buffers), launch)
}

/// Checks that the passes of a request's plan also solve another request.
///
/// # Errors
/// Returns [`Error::Invalid`], which names the difference.
pub(super) fn are_as_planned(
    asked: &AttentionRequest<'_>,
    planned: &AttentionRequest<'_>,
    has_prefixes: bool,
) -> Result<(), Error> {
    if !has_prefixes {
        let insists = asked.shared_prefixes.is_some_and(|prefixes| prefixes.always);
        let expected = "the plan makes one pass over whole sequences; make another plan";
        return if insists { Err(Error::invalid("shared_prefixes", "`always`", expected)) } else { Ok(()) };
    }
    if pays::mixes_scales(asked) {
        let expected = "the plan is for scales per key head; make another plan";
        return Err(Error::invalid("shared_prefixes", "varlen groups with scales per sequence", expected));
    }
    let groups = |r: &AttentionRequest<'_>| r.shared_prefixes.map(|prefixes| prefixes.anywhere().groups);
    if groups(asked) == groups(planned) {
        return Ok(());
    }
    let name = |r: &AttentionRequest<'_>| match r.shared_prefixes.map(|prefixes| prefixes.groups) {
        None => "none".to_owned(),
        Some(Groups::Equal { count, pages, .. }) => format!("{count} groups with {pages} pages"),
        Some(Groups::Varlen { queries, prefix, rest }) => format!(
            "varlen, up to {} groups of {} queries, {} pages and {} more",
            queries.batch, queries.max_seqlen_q, prefix.columns, rest.columns
        ),
    };
    let expected = format_args!("the plan is for {}; make another plan", name(planned));
    Err(Error::invalid("shared_prefixes", name(asked), expected))
}
