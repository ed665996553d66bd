//! Turns a request into passes, in launch order. Each pass is one kernel, with a combine kernel if several
//! thread blocks share keys. Selection knows the kernel of one pass; only this module composes passes:
//!
//! | request | passes |
//! |---|---|
//! | sequences that share prefixes | over the prefixes; over the rest of each sequence, which merges both |
//! | a mixed batch on a KV cache | over the sequences of few queries; over the sequences of many |
//! | sinks, which the kernel cannot add | over all keys; a merge kernel adds the sinks |
//! | products of eight bits | one; a kernel quantises keys and values before it |
//! | an entropy, or largest scores that the kernel does not write | the request's; statistics of the scores |
//! | the largest scores of heads | the request's; they are found among those of rows |
//! | padded queries | a kernel divides padding off; then the request's |
//! | all others | one |
pub mod backward;
mod divided;
mod head_maxima;
mod mixed;
mod shared_prefixes;
mod sinks;
mod statistics;

use crate::launch::Launch;
use crate::layout::Layout;
use crate::lower::{self, Refusal};
use crate::place::Place;
use crate::request::{AttentionRequest, Precision, RowOutputs, Scratch, SharedPrefixes};
use crate::schedule::{Schedule, Scheduled};
use crate::select::{self, ASKED, Choice, Query, UNSPLIT};
use crate::{Capabilities, Contract, Error, Problem, Tuning, validate};
use divided::Divided;
use head_maxima::OfRows;
use spec::States;
use statistics::Statistics;

/// The passes of an attention request, in launch order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Passes {
    before: [Option<Scheduled>; MOST - 1],
    last: Scheduled,
    /// Shared prefixes, if all passes before the last pass take them.
    prefixes: Option<Prefixes>,
    /// The merge kernel that adds sinks to the output of the last pass.
    sinks: Option<Place>,
    /// The kernel that quantises or lays tensors for the last pass.
    quantise: Option<Place>,
    /// The kernel that lays or rounds the values of a KV cache behind it.
    lay: Option<Place>,
    /// The pass over the scores alone, behind all others.
    statistics: Option<Statistics>,
    /// Bytes of workspace that hold what one pass leaves for another.
    kept: u64,
    /// Bytes of workspace for divided sequences, if the request has padded queries.
    divided: Option<u64>,
    /// Bytes of workspace for the largest scores of rows, if the request wants those of heads.
    head_maxima: Option<u64>,
}

/// Passes over shared prefixes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Prefixes {
    /// The number of parts of a prefix. A kernel takes each part as a sequence.
    parts: usize,
    /// The problems of the passes over prefixes, and of the last pass over the rest.
    problems: [Problem; 2],
}

/// Maximum number of passes: a mixed batch of prefixes, and the rest.
const MOST: usize = 3;

/// Selects and schedules the passes of a valid request of problem `p`.
///
/// # Errors
/// Returns the errors of [`whole`] and of the pass of statistics, or [`Error::Unsupported`] if the request
/// insists on passes over shared prefixes that are impossible.
pub(crate) fn choose(
    r: &AttentionRequest<'_>,
    p: &Problem,
    config: Option<&str>,
    on: &Capabilities,
    tuning: &Tuning,
) -> Result<Choice<Passes>, Error> {
    if let Some(Divided { request, bytes }) = Divided::of_attention(r) {
        let p = request.problem();
        validate::problem(&p)?;
        let choice = choose(&request, &p, config, on, tuning)?;
        let with = |passes| Passes { divided: Some(bytes), ..passes };
        return Ok(Choice { kernel: with(choice.kernel), fallback: choice.fallback.map(with), ..choice });
    }
    if let Some(OfRows { request, bytes, .. }) = OfRows::of(r, p)? {
        let choice = choose(&request, p, config, on, tuning)?;
        let with = |passes| Passes { head_maxima: Some(bytes), ..passes };
        return Ok(Choice { kernel: with(choice.kernel), fallback: choice.fallback.map(with), ..choice });
    }
    let query = |r: &AttentionRequest<'_>| Query::new(p, Layout::of(r), on, tuning, r.scratch);
    if !statistics::is_needed(r, p, config) {
        return of_attention(r, &query(r), config);
    }
    if statistics::may_spare(r, p, config) {
        let choice = of_attention(r, &query(r), config)?;
        if RowOutputs::of(choice.kernel.last.kernel).max_logits {
            let own = statistics::choose((r, p), on, None).ok();
            let fallback = choice.fallback.zip(own);
            let fallback = fallback.map(|(passes, own)| Passes { statistics: Some(own), ..passes });
            return Ok(Choice { fallback, ..choice });
        }
    }
    let (own, statistics) = (statistics::without(r), statistics::choose((r, p), on, config)?);
    let config = config.filter(|_| !statistics.is_named);
    let choice = of_attention(&own, &query(&own), config)?;
    let with = |passes| Passes { statistics: Some(statistics), ..passes };
    let reason = if statistics.is_named { ASKED } else { choice.reason };
    Ok(Choice { kernel: with(choice.kernel), reason, fallback: choice.fallback.map(with) })
}

/// Selects and schedules the passes of a valid request, without statistics.
fn of_attention(
    r: &AttentionRequest<'_>,
    query: &Query<'_>,
    config: Option<&str>,
) -> Result<Choice<Passes>, Error> {
    // The kernels of prefixes have the precision of the inputs.
    let divides = |prefixes: &&SharedPrefixes| prefixes.always || r.precision == Precision::Inputs;
    let Some(prefixes) = r.shared_prefixes.as_ref().filter(divides) else { return whole(query, config) };
    match shared_prefixes::choose(r, prefixes, query, config)? {
        Ok(passes) => Ok(passes),
        Err(reason) => Ok(Choice { reason, ..whole(query, config)? }),
    }
}

/// Selects and schedules the passes over whole sequences of a valid problem. If the caller names a kernel,
/// that kernel is selected; otherwise the planner chooses.
///
/// # Errors
/// Returns the errors of [`select::attention`], and of scheduling.
pub(crate) fn whole(query: &Query<'_>, config: Option<&str>) -> Result<Choice<Passes>, Error> {
    let Query { problem: p, on, scratch, .. } = *query;
    let allows = |bytes| scratch.allows(bytes);
    let (kernel, reason, fallback) = match mixed::choose(query, config)? {
        Err(undivided) => {
            let query = Query { undivided, ..*query };
            let Choice { kernel, reason, fallback } = select::attention(&query, config)?;
            (Passes::one(p, Scheduled::new(p, kernel, on, allows)?), reason, fallback)
        }
        Ok(Choice { kernel: pair, reason, .. }) => {
            // If TMA does not accept the tensors, a portable kernel takes all sequences, unless the request
            // names a kernel.
            let alone = config.is_none() && !p.invariance.is_promised();
            let all = alone.then(|| select::attention(query, None)).transpose()?;
            let [few, many] = Scheduled::mixed(p, pair, on, allows)?;
            let fallback = all.map(|all| all.fallback.unwrap_or(all.kernel));
            (Passes::one(p, many).after([Some(few), None]), reason, fallback)
        }
    };
    // The fallback has smaller tiles. If there are too many tiles, the plan has no fallback.
    let fallback = fallback.and_then(|kernel| Scheduled::new(p, kernel, on, |_| false).ok());
    let lacks_workspace =
        |s: &Scheduled| matches!(&s.schedule, Schedule::Decode(decode) if decode.lacks_workspace);
    let is_short = kernel.all().any(lacks_workspace) && reason != ASKED;
    let reason = if is_short { UNSPLIT } else { reason };
    Ok(Choice { kernel, reason, fallback: fallback.map(|fallback| Passes::one(p, fallback)) })
}

/// Checks that the passes of a request's plan also solve another request.
///
/// # Errors
/// Returns [`Error::Invalid`], which names the difference.
pub(crate) fn are_as_planned(
    (r, asked): (&AttentionRequest<'_>, &Problem),
    (of_plan, planned): (&AttentionRequest<'_>, &Problem),
    s: &Passes,
) -> Result<(), Error> {
    shared_prefixes::are_as_planned(r, of_plan, s.prefixes.is_some())?;
    divided::are_as_planned(r, of_plan)?;
    head_maxima::are_as_planned(r, of_plan)?;
    // Decode kernels run with and without sinks.
    let has_sinks = matches!(s.last.schedule, Schedule::Decode(_)) || asked.sinks == planned.sinks;
    // Most requests state the plan's problem in the plan's words.
    let is_same = || asked == planned || asked.means(planned);
    if has_sinks && is_same() { Ok(()) } else { Err(validate::another(asked, planned)) }
}

/// Adds the passes' steps to a launch, for valid tensors.
///
/// # Errors
/// Returns [`Refusal::Tensors`] if a kernel does not accept the tensors.
pub(crate) fn lower(
    (r, p): (&AttentionRequest<'_>, &Problem),
    s: &Passes,
    launch: &mut Launch,
) -> Result<(), Refusal> {
    if let Some(divided) = Divided::of_attention(r) {
        divided.lower(r, launch);
        return lower((&divided.request, &divided.request.problem()), s, launch);
    }
    if let Some(of_rows) = OfRows::of(r, p)? {
        lower((&of_rows.request, p), s, launch)?;
        of_rows.lower(r, p, launch);
        return Ok(());
    }
    let Some(statistics) = &s.statistics else {
        if statistics::keeps_promise(r, p) {
            return Err(Refusal::Tensors(statistics::UNPLANNED));
        }
        return lower_attention((r, p), s, launch);
    };
    lower_attention((&statistics::without(r), p), s, launch)?;
    statistics::lower((r, p), statistics, launch)
}

/// Adds the steps of the passes of the attention.
fn lower_attention(
    (r, p): (&AttentionRequest<'_>, &Problem),
    s: &Passes,
    launch: &mut Launch,
) -> Result<(), Refusal> {
    match (&s.prefixes, &r.shared_prefixes, s.sinks.zip(r.scores.sinks), s.quantise) {
        (Some(passes), Some(prefixes), ..) => shared_prefixes::lower(r, prefixes, s, passes, launch),
        (.., Some((merge, added)), _) => sinks::lower((r, p), s, merge, added, launch),
        (.., Some(quantise)) => match s.lay {
            Some(lay) => lower::fp8_on_cache((r, p), &s.last, [quantise, lay], launch),
            None => lower::quantised((r, p), &s.last, quantise, launch),
        },
        _ => match s.lay {
            Some(lay) => lower::int8_on_cache((r, p), &s.last, lay, launch),
            None => s.all().try_for_each(|pass| lower::attention((r, p), pass, States::NONE, launch)),
        },
    }
}

impl Passes {
    /// Returns a single pass, with the merge kernel that adds sinks if the kernel cannot add them.
    fn one(p: &Problem, last: Scheduled) -> Self {
        let (sinks, quantise) = (sinks::merge(p, &last), lower::quantise_of(p, last.kernel));
        let lay = spec::lay_of(last.kernel).map(|lay| Place::of(&lay));
        let kept = match sinks {
            Some(_) => sinks::lse_bytes(p),
            None if quantise.is_some() || lay.is_some() => lower::quantised_bytes(p, last.kernel),
            None => 0,
        };
        Passes {
            before: [None; MOST - 1],
            last,
            prefixes: None,
            sinks,
            quantise,
            lay,
            statistics: None,
            kept,
            divided: None,
            head_maxima: None,
        }
    }

    /// Returns the passes after these.
    const fn after(self, before: [Option<Scheduled>; MOST - 1]) -> Self {
        Passes { before, ..self }
    }

    /// Returns all passes of the attention.
    fn all(&self) -> impl Iterator<Item = &Scheduled> {
        self.before.iter().flatten().chain([&self.last])
    }

    /// Returns the place of the first kernel.
    pub fn first(&self) -> Place {
        let [first, _] = self.before;
        first.unwrap_or(self.last).place
    }

    /// Returns the contract of the main kernel: of the first pass, or of a named kernel of statistics.
    pub fn contract(&self) -> &'static Contract {
        let ([first, _], named) = (self.before, self.statistics.filter(|own| own.is_named));
        &named.map_or(first.unwrap_or(self.last), |own| own.pass).kernel.contract
    }

    /// Returns the places of the launch's kernels.
    pub fn kernels(&self) -> impl Iterator<Item = Place> {
        let statistics = self.statistics.map(|own| own.pass.place);
        let prepare = [self.quantise, self.lay].into_iter().flatten();
        let of_attention = self.all().flat_map(Scheduled::kernels).chain(self.sinks).chain(prepare);
        let divides = self.divided.map(|_| divided::place());
        let heads = self.head_maxima.map(|_| head_maxima::place());
        divides.into_iter().chain(of_attention).chain(statistics).chain(heads)
    }

    /// Returns the bytes of workspace and of counters that launches use. The passes run one after the other,
    /// so they share partial results and counters.
    pub fn scratch_bytes(&self) -> [u64; 2] {
        let all = self.all().map(Scheduled::scratch_bytes);
        let [partials, counters] = all.fold([0; 2], |most, own| [0, 1].map(|i| own[i].max(most[i])));
        let kept =
            [self.divided, self.head_maxima].into_iter().flatten().fold(self.kept, u64::saturating_add);
        [kept.saturating_add(partials), counters]
    }

    /// Returns the scratch memory of each pass, behind what the passes keep.
    const fn partials(&self, scratch: &Scratch) -> Scratch {
        scratch.behind(self.kept)
    }
}
