//! The passes of a backward request, in launch order. Each pass is one kernel:
//!
//! | kernels | passes |
//! |---|---|
//! | before the others, if queries are padded | padding is divided off, as in the forward |
//! | Hopper's | -LSE and delta of each query; dK and dV of each key, with sums of dQ; dQ of each query |
//! | portable | -LSE and delta of each query; dK and dV of each key; dQ of each query |
//! | if blocks share the query heads of a key head, behind the others | the sums of dK and dV of the shares |
//! | for gradients of sinks, behind the others | the gradient of each head's sink |
//! | for the gradient of a bias, behind the others | the gradient of each tile of the bias |
//! | for gradients of a table, behind the others | the gradient of a table that a variant's scores read |
mod refusals;

use super::divided::{self, Divided};
use crate::launch::Launch;
use crate::lower::{self, GradientMemory, Refusal, TableMemory};
use crate::place::Place;
use crate::request::{AttentionBackward, TensorView};
use crate::schedule::{self, GradientPass, GradientWork, HeadShares, Padding};
use crate::select::{self, Choice};
use crate::variant::AnyVariant;
use crate::{AttnInfo, Capabilities, Error, Problem, tma, validate};
use refusals::unsolved;
use spec::{
    CONVERT_DQS, Counters, DELTAS, DSINKS, DqScratch, GRADIENTS, Integers, Keys, MaskKind, PaddedVector,
    Pass, ProblemKind, SUM_HEADS, Sequences, TileSums,
};

/// The passes of a backward request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backward {
    passes: [GradientPass; MOST],
    /// The gradients of sinks, which come behind `passes`.
    dsinks: Option<GradientPass>,
    /// The gradient of a table or of a bias, which comes last. No request has both, because a variant's
    /// bias has no gradient. Only portable passes have one: neither a variant nor a bias has a kernel of
    /// Hopper's. If they have one of a table, their blocks do not share heads.
    of_scores: Option<GradientPass>,
    /// -LSE and delta of each query.
    padding: Padding,
    /// The sums of dQ, and their counters, if the passes leave dQ as sums.
    sums: Option<DqScratch>,
    /// The gradients of keys, if blocks share the query heads of a key head.
    shared: Option<Shared>,
    /// Bytes of workspace for divided sequences, which come first, if the forward has padded queries.
    divided: Option<u64>,
}

/// The gradients of keys whose query heads several blocks share.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shared {
    shares: HeadShares,
    /// The sum of the shares.
    sum: GradientPass,
    /// The elements of dK's shares and of dV's, in the workspace.
    elements: [usize; 2],
}

/// Number of passes without those of shares, of sinks, of a table and of a bias.
const MOST: usize = 3;

/// Alignment of counters, in bytes.
pub const ALIGNMENT: u64 = 128;

/// The reason for Hopper's kernels, with what an H200 has measured of them.
macro_rules! hopper {
    ($measured:literal) => {
        concat!(
            "warpgroups and TMA",
            $measured,
            ": one pass over the scores adds dQ in the order of the keys: repeated launches give identical ",
            "bits"
        )
    };
}
const D64: &str = hopper!(" (H200: 1.08 to 1.23x cuDNN)");
const D128: &str = hopper!(" (H200: 0.89 to 1.13x cuDNN)");
const GROUPED: &str = hopper!(" (H200: 1.06 to 1.30x cuDNN with grouped heads)");
const OTHER: &str = hopper!("");
const MODIFIED: &str = hopper!(", with windows and modified scores");
const WINDOWS: &str = hopper!(", with windows");
const VARLEN: &str = hopper!(", with sequences found on the device");
const PORTABLE: &str = "two passes, over keys and over queries, add nothing in memory: repeated launches \
                        give identical bits";
const NOT_HOPPER: &str = "no kernel of Hopper's computes gradients of these masks, scores and head dims: two \
                          passes, over keys and over queries, add nothing in memory";
const SHORT: &str = "the workspace has no room for sums of dQ, which one pass over the scores needs: two \
                     passes, over keys and over queries";

/// Selects and schedules the passes of a valid request: those of Hopper's kernels, with portable passes for
/// tensors that TMA does not accept, or portable passes.
///
/// # Errors
/// Returns [`Error::Unsupported`] if no kernel solves the problem on this device, or there are too many
/// thread blocks.
pub(crate) fn choose(
    r: &AttentionBackward<'_>,
    p: &Problem,
    on: &Capabilities,
) -> Result<Choice<Backward>, Error> {
    if let Some((r, bytes)) = divided_of(r) {
        let p = r.forward.problem();
        validate::problem(&p)?;
        let choice = choose(&r, &p, on)?;
        let with = |passes| Backward { divided: Some(bytes), ..passes };
        return Ok(Choice { kernel: with(choice.kernel), fallback: choice.fallback.map(with), ..choice });
    }
    select::goes_together(p)?;
    let dsinks = DSINKS.first().filter(|_| r.dsinks.is_some());
    let dsinks = dsinks.map(|e| GradientPass::dsinks(&e.contract));
    let of_scores = match (r.dtable, &r.dbias) {
        (Some(_), _) => Some(table(r, p, on)?),
        (None, Some(dbias)) => Some(GradientPass::dbias(p, gradient(p, Pass::Dbias, on)?, dbias.extents())?),
        (None, None) => None,
    };
    // Shares and a table have one place in the workspace.
    let portable = |shared| {
        let portable = portable(p, shared && r.dtable.is_none(), on)?;
        Ok::<_, Error>(Backward { dsinks, of_scores, ..portable })
    };
    let Ok(kernel) = gradient(p, Pass::Gradients, on) else {
        let has_hopper = kernels(None).any(|e| e.pass == Pass::Gradients && on.runs(&e.contract).is_ok());
        let reason = if has_hopper { NOT_HOPPER } else { PORTABLE };
        return Ok(Choice::new(fitting(r, portable)?, reason));
    };
    let hopper = fitting(r, |shared| Ok(Backward { dsinks, ..hopper(p, kernel, shared, on)? }))?;
    let reason = match tma::gradients(r, kernel) {
        Err(reason) => reason,
        Ok(_) if !r.scratch.allows(hopper.scratch_bytes()[0]) => SHORT,
        Ok(_) => {
            let fallback = portable(false).ok();
            let reason = match (kernel.mask, p.heads_q == p.heads_k, p.head_dim) {
                _ if kernel.is_varlen() => VARLEN,
                (MaskKind::Local, ..) if kernel.is_unmodified() => WINDOWS,
                (MaskKind::Local, ..) => MODIFIED,
                (_, false, 128) => GROUPED,
                (_, true, 64) => D64,
                (_, true, 128) => D128,
                _ => OTHER,
            };
            return Ok(Choice { kernel: hopper, reason, fallback });
        }
    };
    Ok(Choice::new(fitting(r, portable)?, reason))
}

/// Returns the request of divided sequences and the bytes of their integers, if queries are padded.
fn divided_of<'a>(r: &AttentionBackward<'a>) -> Option<(AttentionBackward<'a>, u64)> {
    let Divided { request: forward, bytes } = Divided::of(&r.forward, r.scratch.address())?;
    Some((AttentionBackward { forward, scratch: r.scratch.behind(bytes), ..*r }, bytes))
}

/// Checks that the passes of a request's plan take another request's queries.
///
/// # Errors
/// Returns [`Error::Invalid`].
pub(crate) fn are_as_planned(
    asked: &AttentionBackward<'_>,
    planned: &AttentionBackward<'_>,
) -> Result<(), Error> {
    divided::are_as_planned(&asked.forward, &planned.forward)
}

/// Returns the passes in which blocks share heads, or those without shares if the workspace has no room for
/// shares.
fn fitting(
    r: &AttentionBackward<'_>,
    passes: impl Fn(bool) -> Result<Backward, Error>,
) -> Result<Backward, Error> {
    let shared = passes(true)?;
    if r.scratch.allows(shared.scratch_bytes()[0]) { Ok(shared) } else { passes(false) }
}

/// Returns how blocks of a kernel of dK and dV share query heads, if they may and it pays.
fn shared(p: &Problem, kernel: &AttnInfo, on: &Capabilities) -> Result<Option<Shared>, Error> {
    let shares = HeadShares::new(p, kernel, on)?;
    let Some(sum) = SUM_HEADS.iter().find(|e| e.dtype == p.dtype).filter(|_| shares != HeadShares::ONE)
    else {
        return Ok(None);
    };
    let sum = GradientPass::sum_heads(p, &sum.contract, shares)?;
    Ok(Some(Shared { shares, sum, elements: shares.elements(p) }))
}

impl Shared {
    /// The shares of these passes.
    fn of(shared: Option<&Self>) -> HeadShares {
        shared.map_or(HeadShares::ONE, |shared| shared.shares)
    }
}

/// Returns the passes of one of Hopper's kernels.
fn hopper(
    p: &Problem,
    kernel: &'static AttnInfo,
    may_share: bool,
    on: &Capabilities,
) -> Result<Backward, Error> {
    let shared = if may_share { shared(p, kernel, on)? } else { None };
    let shares = Shared::of(shared.as_ref());
    let to_dq = CONVERT_DQS.iter().find(|e| e.rounds(kernel)).ok_or_else(|| unsolved(p, Pass::Dq))?;
    let padding = Padding::new(p, kernel.tile_n)?;
    let per_kv = (p.heads_q / (p.heads_k * shares.get())) as u32;
    // This refuses sizes whose sums exceed 64 bits.
    let delta = delta(p, &padding)?;
    let longest = (p.seqlen_q as u32).div_ceil(kernel.tile_n);
    let (sequences, tiles) = match p.varlen {
        None => (Sequences::NONE, longest),
        Some([rows, _]) => schedule::sequences(p, p.seqlen_q, rows, kernel.tile_n)?,
    };
    let sums = DqScratch::new(kernel, padding.heads, [tiles, longest], per_kv);
    let all = GradientPass::all(p, kernel, (&sums, sequences), shares, on)?;
    let convert = GradientPass::convert(p, to_dq, sums.tiles, sequences)?;
    let passes = [delta, all, convert];
    Ok(Backward { passes, dsinks: None, of_scores: None, padding, sums: Some(sums), shared, divided: None })
}

/// Returns the passes of portable kernels.
fn portable(p: &Problem, may_share: bool, on: &Capabilities) -> Result<Backward, Error> {
    let [dkdv, dq] = [gradient(p, Pass::DkDv, on)?, gradient(p, Pass::Dq, on)?];
    let padding = Padding::new(p, dkdv.tile_n)?;
    let shared = if may_share { shared(p, dkdv, on)? } else { None };
    let [dkdv, dq] = [(dkdv, Shared::of(shared.as_ref())), (dq, HeadShares::ONE)]
        .map(|(kernel, shares)| GradientPass::new(p, kernel, shares));
    Ok(Backward {
        passes: [delta(p, &padding)?, dkdv?, dq?],
        dsinks: None,
        of_scores: None,
        padding,
        sums: None,
        shared,
        divided: None,
    })
}

/// Returns the pass of the gradient of a valid request's table.
fn table(r: &AttentionBackward<'_>, p: &Problem, on: &Capabilities) -> Result<GradientPass, Error> {
    let table = r.forward.variant.and_then(|variant| variant.table());
    let entries = table.map_or(0, |table| table.count / p.heads_q as u32);
    GradientPass::table(p, gradient(p, Pass::Table, on)?, entries)
}

/// Returns the pass that computes -LSE and delta.
fn delta(p: &Problem, padding: &Padding) -> Result<GradientPass, Error> {
    let kernel = DELTAS.iter().find(|e| e.dtype == p.dtype && p.head_dim_v <= e.head_dim as usize);
    GradientPass::delta(p, padding, &kernel.ok_or_else(|| unsolved(p, Pass::DkDv))?.contract)
}

/// Returns the kernels of gradients: the variant's kernels, or the table's.
fn kernels(variant: Option<AnyVariant>) -> impl Iterator<Item = &'static AttnInfo> {
    let own = variant.into_iter().flat_map(AnyVariant::kernels).filter(|kernel| kernel.pass != Pass::Forward);
    own.chain(variant.is_none().then_some(GRADIENTS).into_iter().flatten())
}

/// Returns the kernel of a pass that solves the problem with the fewest columns and runs on the device: of
/// several, the first.
///
/// # Errors
/// Returns [`Error::Unsupported`] if there is none.
fn gradient(p: &Problem, pass: Pass, on: &Capabilities) -> Result<&'static AttnInfo, Error> {
    // The LSE has counted sinks. Only their own gradient needs a kernel.
    let kind = ProblemKind { pass, ..p.sinks(false).kind() };
    // One portable kernel takes varlen tensors and batches of equal lengths.
    let keys = if pass == Pass::Gradients { kind.keys } else { Keys::Batched };
    let kind = ProblemKind { keys, ..kind };
    let solving = || kernels(p.variant).filter(|kernel| kernel.solves(&kind));
    let runs = solving().filter(|kernel| on.runs(&kernel.contract).is_ok());
    runs.min_by_key(|kernel| kernel.columns()).ok_or_else(|| {
        let refusal = solving().find_map(|kernel| on.runs(&kernel.contract).err());
        refusal.unwrap_or_else(|| unsolved(p, pass))
    })
}

/// Adds the passes' steps to a launch, for valid tensors. `p` is the forward's problem.
///
/// # Errors
/// Returns [`Refusal::Tensors`] if a kernel does not accept the tensors, or the errors of a variant's
/// kernels.
pub(crate) fn lower(
    r: &AttentionBackward<'_>,
    p: &Problem,
    passes: &Backward,
    launch: &mut Launch,
) -> Result<(), Refusal> {
    if let Some((own, _)) = divided_of(r) {
        lower::divided(&r.forward, &own.forward, divided::place(), launch);
        return lower(&own, &own.forward.problem(), passes, launch);
    }
    let memory = passes.memory(r);
    passes.all().try_for_each(|pass| lower::gradient(r, p, &pass, &memory, launch))?;
    Ok(lower::fits(launch, &r.forward, p)?)
}

impl Backward {
    /// Returns all passes in launch order.
    fn all(&self) -> impl Iterator<Item = GradientPass> + use<> {
        let sum = self.shared.map(|shared| shared.sum);
        self.passes.into_iter().chain(sum).chain(self.dsinks).chain(self.of_scores)
    }

    /// Returns the places of the launch's kernels.
    pub fn kernels(&self) -> impl Iterator<Item = Place> {
        self.divided.map(|_| divided::place()).into_iter().chain(self.all().map(|pass| pass.place))
    }

    /// Returns the parts of a request's workspace: -LSE, delta, the counters of sums or of a table, the sums,
    /// and the shares or what work tiles add to a table.
    fn memory(&self, r: &AttentionBackward<'_>) -> GradientMemory {
        let workspace = r.scratch.address();
        let Backward { padding: Padding { rows, heads, sequences: padded }, sums, .. } = *self;
        let delta = workspace.saturating_add(self.vector_bytes());
        let [minus_lse, delta] = [workspace, delta].map(|base| PaddedVector { base, rows, heads });
        let end = delta.base.saturating_add(self.vector_bytes());
        let [of_table, _] = self.of_table();
        let (cleared, sums) = match &sums {
            None => ([end, of_table], TileSums { base: 0, counters: 0, tiles: 0, heads }),
            Some(sums) => {
                let counters = end.saturating_add(ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
                let base = counters.saturating_add(counter_bytes(sums.counters));
                ([counters, sums.counters], TileSums { base, counters, tiles: sums.tiles, heads })
            }
        };
        // A launch has at most four counters per row of delta.
        let cleared = Integers { base: cleared[0], count: cleared[1] as u32, reserved: 0 };
        let sum_bytes = self.sums.map_or(0, |of| of.sum_bytes);
        let end = if sum_bytes == 0 { end } else { sums.base.saturating_add(sum_bytes) };
        let counters = Counters { base: end, count: of_table as u32, reserved: 0 };
        let of_table = TableMemory { partials: end.saturating_add(counter_bytes(of_table)), counters };
        let of_keys = match self.shared {
            None => [r.dk, r.dv],
            Some(Shared { shares, elements: [k, v], .. }) => {
                let place = |view: &TensorView, address, elements: usize| {
                    let [batch, rows, heads, columns] = view.shape;
                    let shape = [batch, rows, heads * shares.get(), columns];
                    TensorView::bshd(address, elements as u64, view.dtype, shape)
                };
                [place(&r.dk, end, k), place(&r.dv, end.saturating_add(2 * k as u64), v)]
            }
        };
        GradientMemory { minus_lse, delta, cleared, sums, of_table, padded, of_keys }
    }

    /// Returns the bytes of -LSE, and of delta.
    const fn vector_bytes(&self) -> u64 {
        // A valid problem has less than 2^31 rows of blocks.
        self.padding.rows as u64 * self.padding.heads as u64 * 4
    }

    /// Returns the number of a table's counters, and the bytes of what work tiles add to the table.
    const fn of_table(&self) -> [u64; 2] {
        match self.of_scores {
            Some(GradientPass { work: GradientWork::Table(order, _, groups, partials), .. }) => [
                order.heads.get() as u64 * groups.get() as u64,
                partials.entries as u64 * partials.tiles as u64 * 4,
            ],
            _ => [0; 2],
        }
    }

    /// Returns the bytes of workspace and of counters that launches use.
    pub const fn scratch_bytes(&self) -> [u64; 2] {
        let sums = match &self.sums {
            // A workspace begins at a multiple of 16, and the vectors are multiples of 128 bytes.
            Some(sums) => ALIGNMENT - 16 + counter_bytes(sums.counters) + sums.sum_bytes,
            None => 0,
        };
        let shares = match &self.shared {
            Some(Shared { elements: [k, v], .. }) => 2 * (*k as u64 + *v as u64),
            None => 0,
        };
        let [counters, partial_bytes] = self.of_table();
        let divided = match self.divided {
            Some(bytes) => bytes,
            None => 0,
        };
        [divided + 2 * self.vector_bytes() + sums + shares + counter_bytes(counters) + partial_bytes, 0]
    }
}

/// Returns the bytes of this number of counters, with padding before sums.
const fn counter_bytes(counters: u64) -> u64 {
    (counters * 4).next_multiple_of(ALIGNMENT)
}
