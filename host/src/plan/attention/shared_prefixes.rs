//! Planning of the passes over shared prefixes.
use super::{Chosen, choose};
use crate::lower;
use crate::request::{AttentionRequest, Groups, Scratch, SharedPrefixes};
use crate::schedule::{Passes, PrefixPass, Room, Schedule, Scheduled};
use crate::select::shared_prefixes::{NO_KERNEL, NO_ROOM, SHARED, TOO_SHORT, mixes_scales, obstacle, pays};
use crate::select::{self, Query};
use crate::{Error, validate};

/// Returns the two passes of a valid request, or the reason for a single pass over whole sequences.
///
/// # Errors
/// Returns [`Error::Unsupported`] if the request insists on two passes that are impossible.
pub(super) fn choose_passes(
    r: &AttentionRequest<'_>,
    prefixes: &SharedPrefixes,
    config: Option<&str>,
    query: &Query<'_>,
) -> Result<Result<Chosen<Passes>, &'static str>, Error> {
    let refused = |reason| match prefixes.always {
        true => {
            let remedy = "leave `always` (the program's --shared-pages) out: one pass is right, too";
            Err(Error::unsupported("shared_prefixes in two passes", format_args!("{reason}; {remedy}")))
        }
        false => Ok(Err(reason)),
    };
    if let Some(reason) = obstacle(r, query.problem, config) {
        return refused(reason);
    }
    if !pays(prefixes, query.problem, query.on) {
        return refused(TOO_SHORT);
    }
    if let Err(reason) = lower::prefix(r, prefixes, 1, &Room::default()) {
        return refused(reason);
    }
    match passes(r, prefixes, query) {
        Err(_) if !prefixes.always => Ok(Err(NO_KERNEL)),
        Err(error) => Err(error),
        Ok(None) => refused(NO_KERNEL),
        Ok(Some(passes)) if !r.scratch.allows(passes.kernel.scratch_bytes()[0]) => refused(NO_ROOM),
        Ok(Some(passes)) => Ok(Ok(passes)),
    }
}

/// Returns the two passes, or `None` if no decode kernel takes the rest.
///
/// # Errors
/// Returns the errors of planning each pass.
fn passes(
    r: &AttentionRequest<'_>,
    prefixes: &SharedPrefixes,
    query: &Query<'_>,
) -> Result<Option<Chosen<Passes>>, Error> {
    let (p, room) = (query.problem, Room::default());
    let unsupported = |reason| Error::unsupported("shared_prefixes", reason);
    let planned = |pass: &AttentionRequest<'_>, merges_states: bool| {
        let problem = &pass.problem();
        validate::problem(problem)?;
        let scratch = Scratch::Fastest;
        choose(&Query { problem, tensors: Some(pass), scratch, merges_states, ..*query }, None)
    };
    let rest = planned(&lower::rest(r, prefixes, &room).map_err(unsupported)?, true)?.kernel;
    if !matches!(rest.schedule, Schedule::Decode(_)) {
        return Ok(None);
    }
    let prefix = |parts| planned(&lower::prefix(r, prefixes, parts, &room).map_err(unsupported)?, false);
    let (mut pass, mut parts) = (prefix(1)?, 1);
    // The kernel for the parts may differ from the kernel for whole prefixes. Then the second turn computes
    // the number of parts that fills the device with blocks of the new kernel.
    for _ in 0..2 {
        let wanted = select::shared_prefixes::parts(prefixes, &pass.kernel, p, query.on);
        let next = if wanted == parts { None } else { Some(prefix(wanted)?) };
        let is_better = |next: &Chosen<Scheduled>| parts == 1 || next.kernel.kernel == pass.kernel.kernel;
        let Some(next) = next.filter(is_better) else { break };
        (pass, parts) = (next, wanted);
    }
    let with = |pass| Passes { main: rest, prefix: Some(PrefixPass::new(p, pass, parts)) };
    let fallback = pass.fallback.map(with);
    Ok(Some(Chosen { kernel: with(pass.kernel), reason: SHARED, fallback }))
}

/// Checks that the kernels of a request's plan also solve another request.
pub(super) fn are_as_planned(
    asked: &AttentionRequest<'_>,
    planned: &AttentionRequest<'_>,
    kernel: &Passes,
) -> Result<(), Error> {
    if kernel.prefix.is_none() {
        let insists = asked.shared_prefixes.is_some_and(|prefixes| prefixes.always);
        let expected = "the plan makes one pass over whole sequences; make another plan";
        return if insists { Err(Error::invalid("shared_prefixes", "`always`", expected)) } else { Ok(()) };
    }
    if mixes_scales(asked) {
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
