//! Verification of a caller's variant: each of its kernels runs on random tensors. The results are compared
//! with attention in f64, which uses the variant's own functions.
//!
//! ```no_run
//! # use ferroflash::configuration::{And, Causal, MaskMarker, Scored, Sink, SinkParams};
//! # use ferroflash::{Attention, driver::RawDriver, variant::Variant};
//! # fn check(
//! #     card: &Attention<impl ferroflash::driver::Harness>,
//! #     variant: &'static Variant<Scored<Causal, Sink>>,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! // One logit per query head, in device memory.
//! let report = ferroflash_reference::verify(card, variant, |buffers, case| {
//!     let logits = buffers.floats((0..case.heads[0]).map(|head| head as f32 / 4.0))?;
//!     Ok(And::new((), SinkParams { base: logits.base }))
//! })?;
//! println!("{report}");
//! # Ok(())
//! # }
//! ```
mod backward;
mod block_bias;
mod buffers;
mod case;
mod exact;
mod gradient;
mod report;
mod table;

pub use buffers::Buffers;
pub use case::{Case, Front};
pub use report::{At, Failure, Report, Verified};

use crate::case::{Case as Shape, Pages};
use crate::inputs::Random;
use crate::memory::{Cache, Loaded, Memory};
use crate::place::Layout;
use ferroflash::driver::Harness;
use ferroflash::spec::Pass;
use ferroflash::variant::Variant;
use ferroflash::{Attention, Error};
use kernels_gpu::exact::{MaskFn, Sequence};

/// The seeds of each case's tensors.
pub const SEEDS: [u64; 3] = [1, 2, 3];

/// Keys of a page.
const PAGE: usize = 16;

/// Q, K and V of a case: rows of all sequences, each `[heads][head_dim]`, as bits of the kernel's dtype.
struct Tensors([Vec<u16>; 3]);

impl Tensors {
    fn random(case: &Case) -> Self {
        let mut random = Random::new(case.seed);
        let [queries, keys] = case.rows();
        let [heads_q, heads_k] = case.heads;
        let rows = [(queries, heads_q), (keys, heads_k), (keys, heads_k)];
        Tensors(rows.map(|(rows, heads)| random.normals(case.kernel.dtype, rows * heads * case.head_dim())))
    }

    /// Lays the tensors out for the kernel: as they are, or with keys and values on a cache.
    fn memory(&self, case: &Case) -> Memory {
        let of = |which: usize| case.lengths.iter().map(|lengths| lengths[which]).collect::<Vec<_>>();
        let (heads, head_dim, queries) = (case.heads, case.head_dim(), case.max_queries());
        let (dtype, spare, pages) = (case.kernel.dtype, [0; 2], Pages::Nhd(PAGE));
        let (new, seed) = (Shape::new(of(1)), case.seed);
        let shape = Shape { dtype, heads, head_dim, queries, spare, pages, seed, ..new };
        let rows = || {
            let starts = case.starts().into_iter().map(|[_, start]| start).zip(of(1));
            let row = heads[1] * head_dim;
            let of = |which: usize| {
                let own = starts.clone().map(|(start, keys)| start * row..(start + keys) * row);
                own.map(|own| self.0[which][own].to_vec()).collect::<Vec<_>>()
            };
            [of(1), of(2)]
        };
        let on_tensors = Shape { pages: Pages::Tensors(Layout::Bshd), ..shape.clone() };
        let varlen = || case.lengths.iter().map(|[queries, keys]| [*queries, *keys, 0]);
        match case.front {
            Front::Dense => on_tensors.memory(),
            Front::Varlen => on_tensors.varlen(varlen()).memory(),
            Front::Cached => Cache::given(&shape, self.0[0].clone(), &rows()),
            Front::VarlenCached => Cache::given(&shape.varlen_queries(of(0)), self.0[0].clone(), &rows()),
        }
    }
}

/// A second definition of a variant's scores: the score of the query at position `p` and key `k` of a
/// sequence and head, made of the scaled product. Minus infinity hides the key.
type Definition<'a> = &'a dyn Fn(&Sequence, f64, i32, i32) -> f64;

/// Verifies every kernel of a variant that the card runs. `params` makes the parameters of a case, with
/// tables in device memory ([`Buffers`]).
///
/// Each kernel runs on 1 key, on a stage of keys less 1, a stage, a stage and 1, on more queries than keys,
/// on fewer, and on several tiles; with equal heads and with grouped heads; on random tensors of each of
/// [`SEEDS`]. Its O must keep FlashAttention's rule, `max|out - exact| <= 2 max|naive - exact| + 1e-5`, and
/// its LSE [`Reference::lse_tolerance`]. `naive` rounds each step to the kernel's dtype. `exact` and `naive`
/// use the functions that the kernel inlines (`kernels_gpu::exact`). The mask must also keep the rules of
/// `kernels_gpu::exact::Broken`, and a bias of a block (`ScoreMod::block_bias`) must be the bias of each
/// score of the block.
///
/// A kernel of dK and dV runs in whole backward passes, with the variant's kernel of dQ. The gradients must
/// keep the rule of [`GradientReference`](crate::GradientReference). The derivative of the scores
/// (`ScoreMod::gradient`) must agree with finite differences. If the variant has a kernel of a table's
/// gradient, the launches compute it, too. The entries that scores name (`ScoreMod::entry`,
/// `ScoreMod::weight`) must then agree with finite differences.
///
/// If the functions have an error, the kernel and `exact` have the same error: see [`verify_against`].
///
/// # Errors
/// Returns a [`Failure`] with the case, its seed and the place of the worst element.
///
/// [`Reference::lse_tolerance`]: crate::Reference::lse_tolerance
pub fn verify<M: MaskFn, D: Harness>(
    card: &Attention<D>,
    variant: &'static Variant<M>,
    params: impl Fn(&mut Buffers<'_, D>, &Case) -> Result<M::Params, Error>,
) -> Result<Report, Failure> {
    run(card, variant, &params, None)
}

/// Like [`verify`], and also compares the variant's functions with a second definition, for every query and
/// key of every case. The definition takes sequence and head, the scaled product, the query's position and
/// the key; it returns the score, or minus infinity if the query does not see the key. Write the definition
/// in another way than the kernel's functions: an error that both have is not found.
///
/// # Errors
/// The errors of [`verify`]; [`Failure::Definition`].
pub fn verify_against<M: MaskFn, D: Harness>(
    card: &Attention<D>,
    variant: &'static Variant<M>,
    params: impl Fn(&mut Buffers<'_, D>, &Case) -> Result<M::Params, Error>,
    definition: impl Fn(&Sequence, f64, i32, i32) -> f64,
) -> Result<Report, Failure> {
    run(card, variant, &params, Some(&definition))
}

/// Makes the parameters of a case.
type Params<'a, M, D> =
    &'a dyn Fn(&mut Buffers<'_, D>, &Case) -> Result<<M as ferroflash::spec::MaskMarker>::Params, Error>;

fn run<M: MaskFn, D: Harness>(
    card: &Attention<D>,
    variant: &'static Variant<M>,
    params: Params<'_, M, D>,
    definition: Option<Definition<'_>>,
) -> Result<Report, Failure> {
    let mut report = Report { variant: variant.any().name(), kernels: vec![], skipped: vec![] };
    let has = |pass| variant.any().kernels().any(|kernel| kernel.pass == pass);
    let (trains, trains_table) = (has(Pass::DkDv) || has(Pass::Dq), has(Pass::Table));
    let mut kernels = vec![];
    for kernel in variant.any().kernels() {
        let cases = match card.capabilities().runs(&kernel.contract) {
            // The launches of a kernel of dK and dV also run these kernels.
            Ok(()) if kernel.pass.is_beside() => continue,
            Ok(()) => case::edges(kernel).map_err(str::to_owned),
            Err(error) => Err(error.to_string()),
        };
        match cases {
            Ok(cases) => kernels.push(cases),
            Err(reason) => report.skipped.push((kernel.contract.symbol, reason)),
        }
    }
    // The functions are compared before the launch, because a launch in the simulator takes longer.
    for case in kernels.iter().flatten() {
        let mut buffers = Buffers::new(card.driver());
        let params = params_of::<M, D>(params, &mut buffers, case)?;
        exact::keeps_rules::<M>(case, &params, buffers.copies())?;
        block_bias::is_right::<M>(case, &params, buffers.copies())?;
        if trains {
            gradient::is_right::<M>(case, &params, buffers.copies())?;
        }
        if trains_table {
            table::is_right::<M>(case, &params, &buffers.copies())?;
        }
        if let Some(definition) = definition {
            exact::is_defined::<M>(case, &params, &Tensors::random(case), buffers.copies(), definition)?;
        }
    }
    for cases in &kernels {
        for (number, case) in cases.iter().enumerate() {
            // A backward pass takes several times as long as a forward, so each case has one of the seeds.
            let is_forward = case.kernel.pass == Pass::Forward;
            let seeds = if is_forward { &SEEDS[..] } else { &SEEDS[number % SEEDS.len()..][..1] };
            for case in seeds.iter().map(|seed| Case { seed: *seed, ..case.clone() }) {
                if is_forward {
                    report.add(one(card, variant, params, &case)?);
                } else {
                    backward::one(card, variant, params, &case)?.into_iter().for_each(|one| report.add(one));
                }
            }
        }
    }
    for kernel in variant.any().kernels().filter(|kernel| kernel.pass != Pass::Forward) {
        let symbol = kernel.contract.symbol;
        if !report.mentions(symbol) {
            report.skipped.push((symbol, "the planner prefers another kernel of this variant".to_owned()));
        }
    }
    if report.kernels.is_empty() { Err(Failure::Nothing(report)) } else { Ok(report) }
}

/// The parameters of a case. The closure may run the mask's functions, for example in
/// `exact::create_block_mask`.
fn params_of<M: MaskFn, D: Harness>(
    params: Params<'_, M, D>,
    buffers: &mut Buffers<'_, D>,
    case: &Case,
) -> Result<M::Params, Failure> {
    let place = || "the closure that makes the parameters panics".to_owned();
    let made = exact::caught(case, place, || params(buffers, case))?;
    made.map_err(|source| Failure::refused(case, source))
}

/// Launches one case.
fn one<M: MaskFn, D: Harness>(
    card: &Attention<D>,
    variant: &'static Variant<M>,
    params: Params<'_, M, D>,
    case: &Case,
) -> Result<Verified, Failure> {
    let refused = |source| Failure::refused(case, source);
    let mut buffers = Buffers::new(card.driver());
    let (tensors, params) = (Tensors::random(case), params_of::<M, D>(params, &mut buffers, case)?);
    // A function that panics on the host would trap on a GPU, so the host comes first.
    let expected = exact::expected::<M>(case, &params, &tensors, buffers.copies())?;
    let (symbol, memory) = (case.kernel.contract.symbol, tensors.memory(case));
    let memory = Memory { variant: Some(variant.with(params)), ..memory };
    let outcome =
        Loaded::new(card, &memory, Some(symbol)).and_then(|loaded| loaded.run()).map_err(refused)?;
    let verdict = outcome.judge(&expected, case.kernel.dtype);
    match verdict {
        Some(verdict) if verdict.passed() => Ok(Verified { symbol, launches: 1, worst: verdict.worst() }),
        verdict => Err(Failure::Wrong { case: Box::new(case.clone()), verdict: verdict.map(Box::new) }),
    }
}
