//! Selects the kernel of one pass: the first rule of one table decides (`rules.rs`).
mod few;
mod fp8;
mod invariant;
mod named;
mod others;
mod pairs;
mod pays;
mod precision;
mod refusals;
mod rule;
mod rules;
mod state;
mod tiles;

pub(crate) use invariant::INVARIANT;
pub(crate) use others::{append, merge, sum};
pub(crate) use pairs::{Pair, pair_in_any_batch, pairs};
pub(crate) use refusals::{WIDE_INT8, beside_bias, goes_together, needs_no_splits, reads_cache};

use crate::layout::Layout;
use crate::request::Scratch;
use crate::schedule::Split;
use crate::variant::AnyVariant;
use crate::{AttnInfo, Capabilities, Error, Problem, Tuning};
use spec::{Class, Keys, Precision, ProblemKind};

/// The inputs of selection.
#[derive(Clone, Copy)]
pub(crate) struct Query<'a> {
    pub problem: &'a Problem,
    pub kind: ProblemKind,
    /// The layout of the request's tensors.
    pub layout: Layout,
    pub on: &'a Capabilities,
    pub tuning: &'a Tuning,
    /// Scratch memory that launches may use.
    pub scratch: Scratch,
    /// Whether the kernel must merge states over other keys into its results.
    pub merges_states: bool,
    /// The reason why the batch is not divided among two kernels, if a varlen batch on a KV cache could be.
    pub undivided: Option<&'static str>,
}

impl<'a> Query<'a> {
    /// Returns the question for a kernel that solves a problem alone.
    pub fn new(
        problem: &'a Problem,
        layout: Layout,
        on: &'a Capabilities,
        tuning: &'a Tuning,
        scratch: Scratch,
    ) -> Self {
        let kind = ProblemKind { maxima: layout.rows.max_logits, ..problem.kind() };
        let (merges_states, undivided) = (false, None);
        Query { problem, kind, layout, on, tuning, scratch, merges_states, undivided }
    }

    /// Returns the question for another problem with these tensors.
    fn of(&self, problem: &'a Problem, scratch: Scratch) -> Self {
        let kind = ProblemKind { maxima: self.kind.maxima, ..problem.kind() };
        Query { problem, kind, scratch, ..*self }
    }

    /// Returns the kernels of a class for Q's dtype: the kernels of the problem's variant, or the table's.
    fn class(&self, class: Class) -> impl Iterator<Item = &'static AttnInfo> + Clone + use<> {
        let (variant, dtype, pass) = (self.problem.variant, self.kind.dtype, self.kind.pass);
        let is_of = move |e: &&AttnInfo| e.class() == class && e.pass == pass;
        let own = variant.into_iter().flat_map(AnyVariant::kernels).filter(is_of);
        own.chain(variant.is_none().then(|| spec::of_class(class, dtype)).into_iter().flatten())
    }

    /// Returns the kernels of a class that solve the problem.
    pub(crate) fn solving(&self, class: Class) -> impl Iterator<Item = &'static AttnInfo> + Clone {
        self.class(class).filter(|e| e.solves(&self.kind))
    }

    /// Returns whether the device runs a kernel, if its driver knows tensor maps.
    fn fits(&self, e: &AttnInfo) -> bool {
        e.contract.target.runs_on(self.on.arch()) && e.contract.smem_bytes <= self.on.smem_per_block
    }

    /// Returns whether the device runs a kernel.
    pub(crate) fn runs(&self, e: &AttnInfo) -> bool {
        self.fits(e) && (self.on.tensor_maps || !e.has_maps())
    }

    /// Returns whether only kernels with parameters solve the problem: of a mask, of scores, or a caller's.
    pub(crate) fn needs_params(&self) -> bool {
        !self.kind.is_plain() || self.problem.variant.is_some()
    }

    /// Returns whether a kernel has parameters of its mask or scores, or is a caller's.
    fn is_special(&self, e: &AttnInfo) -> bool {
        !e.is_plain() || self.problem.variant.is_some()
    }

    /// Returns the number of a kernel's work tiles: at least one per sequence and head.
    fn tiles(&self, e: &AttnInfo) -> u64 {
        let (p, shares) = (self.problem, u64::from(e.shares()));
        if matches!(self.kind.class(), Class::Dense | Class::Quantised) {
            return p.tiles(e.tile_m).saturating_mul(shares);
        }
        let m_blocks = p.totals()[0].div_ceil(e.tile_m as usize).max(p.batch);
        (m_blocks as u64).saturating_mul(p.heads_q as u64 * shares)
    }
}

/// A selected kernel, or what is made of it, and the reason for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice<K = &'static AttnInfo> {
    pub kernel: K,
    pub reason: &'static str,
    /// The fallback for tensors that `kernel` does not accept.
    pub fallback: Option<K>,
}

impl<K: Copy> Choice<K> {
    /// Returns a kernel without fallback: it accepts all tensors, or the caller named it.
    pub(crate) const fn new(kernel: K, reason: &'static str) -> Self {
        Choice { kernel, reason, fallback: None }
    }
}

/// The reason for a kernel that the caller named.
pub(crate) const ASKED: &str = "the request names this kernel";
/// The reason if sequences on a KV cache would run faster with splits, but stay unsplit.
pub(crate) const UNSPLIT: &str = "without a workspace, no sequence is split by its keys: SMs may idle";
const MEASURED: &str = "`ferroflash sweep` measured it as the fastest for this size on this device";

/// Selects the kernel that solves a whole problem: the named one, or the planner's choice.
///
/// # Errors
/// Returns [`Error::Unsupported`] if no kernel solves the problem on this device, or [`Error::Invalid`] if
/// the named kernel does not solve it.
pub(crate) fn attention(q: &Query<'_>, config: Option<&str>) -> Result<Choice, Error> {
    let (p, on) = (q.problem, q.on);
    refusals::goes_together(p)?;
    match p.precision {
        Precision::Fp8 => fp8::takes(q, config.is_some())?,
        _ => precision::has_precision(q, config.is_some())?,
    }
    if p.cache.is_none() && on.arch() < 80 {
        let (major, minor) = on.compute_capability;
        let feature = format_args!("compute capability {major}.{minor} ({})", on.name);
        let reason = "kernels need 8.0 or newer: A100, RTX 30, L4, H100 and later";
        return Err(Error::unsupported(feature, reason));
    }
    if p.leaves_state() {
        return state::choose(q, config);
    }
    if let Some(name) = config {
        return named::choose(q, name);
    }
    if matches!(q.kind.keys, Keys::Latent | Keys::Listed) {
        return few::latent(q);
    }
    if p.invariance.is_promised() {
        return invariant::choose(q);
    }
    if let Some(choice) = few::decode(q)? {
        return Ok(choice);
    }
    needs_no_splits(p)?;
    match measured(q)? {
        Some(choice) => Ok(choice),
        None => tiles::choose(q),
    }
}

/// Returns the measured kernel for a dense problem, unless it is wrong for this request: a size class does
/// not include slopes, and a card's name does not include the driver's version. The measurement used a
/// workspace, and tensors that the kernel accepts. Without these, the rules decide.
///
/// # Errors
/// Returns [`Error::Invalid`] if the kernel does not solve the problem.
fn measured(q: &Query<'_>) -> Result<Option<Choice>, Error> {
    let (p, on) = (q.problem, q.on);
    if q.kind.keys != Keys::Batched || q.needs_params() {
        return Ok(None);
    }
    let Some(name) = q.tuning.best(&on.name, p) else { return Ok(None) };
    let is_hoppers = |e: &&AttnInfo| e.has_maps() && e.contract.symbol == name;
    if (p.alibi || !on.tensor_maps) && spec::attention().any(|e| is_hoppers(&e)) {
        return Ok(None);
    }
    let choice = named::choose(q, name).map_err(|e| {
        let expected = format_args!("it does not solve this problem ({e}); run `ferroflash sweep` again");
        Error::invalid("tuning", name, expected)
    })?;
    let workspace = Split::new(p, choice.kernel, on)?.map_or(0, |split| split.workspace());
    if q.layout.suits(choice.kernel).is_err() || !q.scratch.allows(workspace) {
        return Ok(None);
    }
    let fallback = choice.kernel.has_maps().then(|| tiles::portable(q)).flatten();
    Ok(Some(Choice { reason: MEASURED, fallback, ..choice }))
}
