//! Launches the backward kernels of a variant, and compares the gradients with f64, which uses the variant's
//! own functions and their derivatives.
use super::exact::{Rows, expected, heads};
use super::{Buffers, Case, Failure, Params, Tensors, Verified, params_of};
use crate::attention::Inputs;
use crate::backward::{BackwardMemory, GradientReference, NAMES, Scored, TABLE};
use crate::inputs::Random;
use crate::memory::Memory;
use crate::place::Layout;
use crate::work::OnDevice;
use ferroflash::Attention;
use ferroflash::driver::Harness;
use ferroflash::kernels::AttnInfo;
use ferroflash::spec::Pass;
use ferroflash::variant::Variant;
use kernels_gpu::exact::{self, Copied, MaskFn};

/// The scores of all pairs of a case, with their derivatives; minus infinity for a hidden key.
struct Pairs {
    heads: usize,
    /// Of each sequence and head: the scores of each query, one per key, and the sink.
    of: Vec<(Vec<Pair>, f64)>,
    /// The number of keys of each sequence.
    keys: Vec<usize>,
    /// Entries of a head's part of the table that trains; 0 without one.
    entries: usize,
}

/// The score of a query and a key, and its derivative; the entry of a table that the score reads, and the
/// derivative by it.
type Pair = ([f64; 2], Option<(u32, f32)>);

/// The pairs of the sequences from `first` on.
struct Sequences<'a> {
    pairs: &'a Pairs,
    first: usize,
}

impl Pairs {
    fn new<M: MaskFn>(
        case: &Case,
        params: &M::Params,
        tensors: &Tensors,
        copies: Vec<Copied>,
    ) -> Result<Self, Failure> {
        let mut of = vec![];
        heads(case, copies, |sequence| {
            let rows = Rows::new(case, tensors, sequence);
            let pairs = (0..sequence.queries).flat_map(|query| {
                let p = query + sequence.shift;
                let pair = move |(k, product): (i32, f64)| {
                    let product = product as f32;
                    let score = exact::score::<M>(params, sequence, product, p, k);
                    let derivative = exact::gradient::<M>(params, sequence, product, p, k);
                    let entry = exact::entry::<M>(params, sequence, product, p, k);
                    ([score, derivative].map(f64::from), entry)
                };
                (0..).zip(rows.products(query as usize, sequence.keys, |k| k)).map(pair).collect::<Vec<_>>()
            });
            of.push((pairs.collect(), f64::from(M::sink(params, sequence, true))));
            Ok(())
        })?;
        let (heads, keys) = (case.heads[0], case.lengths.iter().map(|[_, keys]| *keys).collect());
        let entries = M::table(params).map_or(0, |table| table.count as usize / heads);
        Ok(Pairs { heads, of, keys, entries })
    }
}

impl Sequences<'_> {
    fn pair(&self, [batch, head, row]: [usize; 3], key: usize) -> Pair {
        let (Pairs { heads, of, keys, .. }, sequence) = (self.pairs, self.first + batch);
        of[sequence * heads + head].0[row * keys[sequence] + key]
    }
}

impl Scored for Sequences<'_> {
    fn score(&self, at: [usize; 3], key: usize, _: impl FnOnce() -> f64) -> Option<[f64; 2]> {
        Some(self.pair(at, key).0).filter(|[score, _]| *score != f64::NEG_INFINITY)
    }

    fn sink(&self, [batch, head]: [usize; 2]) -> Option<f64> {
        let (_, sink) = self.pairs.of[(self.first + batch) * self.pairs.heads + head];
        Some(sink).filter(|sink| *sink != f64::NEG_INFINITY)
    }

    fn entries(&self) -> usize {
        self.pairs.heads * self.pairs.entries
    }

    fn entry(&self, at @ [_, head, _]: [usize; 3], key: usize) -> Option<(usize, f64)> {
        let (entry, weight) = self.pair(at, key).1?;
        let entry = (entry as usize).min(self.pairs.entries.checked_sub(1)?);
        Some((head * self.pairs.entries + entry, weight.into()))
    }

    fn in_sequence(&self, first: usize, _: &Inputs<'_>) -> impl Scored {
        Sequences { first, ..*self }
    }
}

/// Launches one case, whose kernel computes dK and dV. Returns what was verified: this kernel, and the
/// kernels of dQ and of a table in the same launch.
pub(super) fn one<M: MaskFn, D: Harness>(
    card: &Attention<D>,
    variant: &'static Variant<M>,
    params: Params<'_, M, D>,
    case: &Case,
) -> Result<Vec<Verified>, Failure> {
    let refused = |source| Failure::refused(case, source);
    let mut buffers = Buffers::new(card.driver());
    let (tensors, params) = (Tensors::random(case), params_of::<M, D>(params, &mut buffers, case)?);
    let outputs = expected::<M>(case, &params, &tensors, buffers.copies())?.exact;
    let pairs = Pairs::new::<M>(case, &params, &tensors, buffers.copies())?;
    let memory = Memory { variant: Some(variant.with(params)), ..tensors.memory(case) };
    let (o, lse) = (memory.place(&outputs), memory.place_rows(&outputs).lse.unwrap_or_default());
    let d_o = Random::new(!case.seed).normals(case.kernel.dtype, o.len());
    let beside = |pass| kernel_beside(variant.any().kernels(), pass, &case.kernel);
    let of_table = beside(Pass::Table);
    let table = of_table.and_then(|_| M::table(&params)).map_or(0, |table| table.count as usize);
    let mut memory = BackwardMemory::of(memory, [o, d_o], lse, None, Layout::Bshd);
    memory.table = table;
    let inputs = memory.forward.inputs().expect("a case has valid tensors");
    let reference =
        GradientReference::of(&Sequences { pairs: &pairs, first: 0 }, &inputs, &memory.upstream());
    let device = OnDevice::new(card, &memory, None).map_err(refused)?;
    let written = device.run().map_err(refused)?;
    let (outside, worst) = memory.worst(&reference, &written);
    let (worst, all) = (worst.unwrap_or_default(), NAMES.len() + usize::from(table > 0));
    let failed: Vec<_> = worst.iter().filter(|worst| !worst.passed()).map(ToString::to_string).collect();
    if outside > 0 || !failed.is_empty() || worst.len() < all {
        let failed = [failed, vec![format!("{outside} elements outside of the gradients were written")]];
        return Err(Failure::Gradients {
            case: Box::new(case.clone()),
            failures: failed.concat().join("; "),
        });
    }
    let of = |symbol, of: &[&str]| {
        let worst = worst.iter().filter(|worst| of.contains(&worst.tensor)).copied().collect();
        Verified { symbol, launches: 1, worst }
    };
    let dq = beside(Pass::Dq).map_or("dq", |kernel| kernel.contract.symbol);
    let of_table = of_table.map(|kernel| of(kernel.contract.symbol, &[TABLE]));
    Ok([of(written.entry, &NAMES[1..]), of(dq, &NAMES[..1])].into_iter().chain(of_table).collect())
}

/// Returns the kernel of another pass that the planner selects beside a kernel of dK and dV.
fn kernel_beside(
    kernels: impl Iterator<Item = &'static AttnInfo>,
    pass: Pass,
    beside: &AttnInfo,
) -> Option<&'static AttnInfo> {
    let is_beside = |kernel: &&AttnInfo| {
        kernel.pass == pass && kernel.dtype == beside.dtype && kernel.head_dim >= beside.head_dim
    };
    kernels.filter(is_beside).min_by_key(|kernel| kernel.columns())
}
