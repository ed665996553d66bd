//! Random problems of the families other than `forward`.
use super::drawn::{dtype, lengths, most_queries, told};
use super::{Findings, Limits, below, latent, one_in, pick, shared};
use crate::append::{AppendCase, AppendMemory, Lies, RotaryCase, Scales};
use crate::decode::{DecodeCase, DecodeMemory, Pages};
use crate::inputs::Random;
use crate::memory::{Layout, Memory};
use crate::merge::{Lie, MergeCase, MergeMemory};
use crate::sequences::Sequences;
use crate::tolerance::{ENOUGH_ELEMENTS, Rule};
use crate::work::{OnDevice, Work};
use ferroflash::driver::Harness;
use ferroflash::kernels::Contract;
use ferroflash::plan::Problem;
use ferroflash::request::{Alignment, LseUnit, Mask, RotaryStyle, Splits};
use ferroflash::{Attention, DType, Error};

/// Draws a problem of a family. Returns the problem and its description.
type Draw = fn(&mut Random, Limits) -> (Box<dyn Work + Send>, String);

/// The families that [`super::Fuzz`] does not draw, by name.
pub const FAMILIES: [&str; 7] = ["packed", "decode", "paged", "append", "merge", "mla", "prefix"];
const DRAWS: [Draw; FAMILIES.len()] = [
    packed,
    |random, limits| on_cache(random, limits, false),
    |random, limits| on_cache(random, limits, true),
    append,
    merge,
    latent::draw,
    shared::draw,
];

/// A random valid problem of a family in [`FAMILIES`]. The problem consists of several launches of one plan.
/// Each launch finds other integers in device memory, and some of these integers are invalid.
pub struct Other {
    /// The seed that drew the problem.
    pub seed: u64,
    /// The problem's family, one of [`FAMILIES`].
    pub family: &'static str,
    work: Box<dyn Work + Send>,
    text: String,
}

impl Other {
    /// Draws the problem of `seed`.
    pub fn new(seed: u64, limits: Limits) -> Self {
        let random = &mut Random::new(seed);
        let family = below(random, FAMILIES.len());
        let (work, text) = DRAWS[family](random, limits);
        Other { seed, family: FAMILIES[family], work, text }
    }

    /// Returns the kernel that the planner selects.
    ///
    /// # Errors
    /// Returns the errors of planning and of the driver. Each of them is a failure, because the problem is
    /// valid.
    pub fn kernel<D: Harness>(&self, attention: &Attention<D>) -> Result<&'static Contract, Error> {
        OnDevice::new(attention, &*self.work, None)?.kernel()
    }

    /// Runs all launches and judges their results.
    ///
    /// # Errors
    /// Returns the errors of planning, launching and waiting. Each of them is a failure, because the problem
    /// is valid.
    pub fn run<D: Harness>(&self, attention: &Attention<D>) -> Result<Findings, Error> {
        let few = self.work.outputs().iter().all(|(_, bytes)| bytes.len() < 2 * ENOUGH_ELEMENTS);
        let judge = self.work.judge(if few { Rule::Few } else { Rule::Tolerance });
        let judge = judge.map_err(|e| Error::invalid("fuzz", self, e))?;
        let rounds = OnDevice::new(attention, &*self.work, None)?.run_all()?;
        let judged = rounds.iter().enumerate().map(|(round, written)| (round, judge(round, written)));
        let failures = judged.flat_map(|(round, judgement)| {
            judgement.failures.into_iter().map(move |failure| format!("launch {}: {failure}", round + 1))
        });
        Ok(Findings { failures: failures.collect(), rows: 0, not_judged: 0 })
    }
}

impl std::fmt::Display for Other {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "case {}: {}: {}", self.seed, self.family, self.text)
    }
}

/// Returns a random multiple of 8. Small and large multiples are equally frequent.
fn head_dim(random: &mut Random) -> usize {
    let most = pick(random, &[8, 16, 32]);
    8 * (1 + below(random, most))
}

fn mask(random: &mut Random, limits: Limits) -> Mask {
    let side = |random: &mut Random| (!one_in(random, 4)).then(|| below(random, limits.seqlen) as u32);
    match below(random, 4) {
        0 => Mask::Full,
        1 | 2 => Mask::Causal,
        _ => Mask::Window { left: side(random), right: side(random) },
    }
}

fn packed(random: &mut Random, limits: Limits) -> (Box<dyn Work + Send>, String) {
    let group = 1 + below(random, limits.heads);
    let heads_k = 1 + below(random, limits.heads / group);
    let count = 1 + below(random, limits.sequences);
    let (keys, head_dim) = (lengths(random, count, limits.seqlen), head_dim(random));
    let queries = lengths(random, count, most_queries(limits, &keys, heads_k * group * head_dim));
    let spare = if one_in(random, 2) { 0 } else { below(random, 20) };
    let starts = |lengths: &[usize], more: usize| -> Vec<i32> {
        let ends = lengths.iter().scan(0, |end, length| {
            *end += (length + more) as i32;
            Some(*end)
        });
        std::iter::once(0).chain(ends).collect()
    };
    let sequences = Sequences {
        cu_seqlens_q: starts(&queries, 0),
        cu_seqlens_k: starts(&keys, spare),
        seqused_k: (spare > 0).then(|| keys.iter().map(|n| *n as i32).collect()),
    };
    // There is at least one row per sequence, and there are some unused rows.
    let rows = [&sequences.cu_seqlens_q, &sequences.cu_seqlens_k].map(|starts| starts[count] as usize);
    let mut rows = rows.map(|rows| rows + 1 + below(random, 9));
    // If there is one row per sequence and each sequence has one query, kernels need not read `cu_seqlens_q`.
    // Row `b` of Q must then be the query of sequence `b`, so the offsets must be valid.
    rows[0] += usize::from(rows[0] == count);
    let one = Problem::new(dtype(random), 1, 0, heads_k * group, head_dim).heads_k(heads_k);
    let one =
        one.mask(mask(random, limits)).alignment(pick(random, &[Alignment::BottomRight, Alignment::TopLeft]));
    let softcap = if one_in(random, 6) { 1.0 + below(random, 50) as f32 } else { 0.0 };
    let problem = sequences.problem(one.softcap(softcap).alibi(one_in(random, 6)), rows);
    let layout = pick(random, &[Layout::Bshd, Layout::Bhsd]);
    let text = format!("{problem} {}, {sequences:?}", layout.name());
    let memory = Memory::random(problem, layout, random.bits()).with_sequences(sequences).with_poison();
    let told = told(random, limits, true);
    (Box::new(Memory { told, ..memory }), text)
}

fn on_cache(random: &mut Random, limits: Limits, many: bool) -> (Box<dyn Work + Send>, String) {
    let (own, batch) = (dtype(random), 1 + below(random, limits.sequences));
    let mut filled = lengths(random, batch, if many { limits.seqlen } else { 2 * limits.seqlen });
    if one_in(random, 20) {
        filled.fill(0);
    }
    let max_k = filled.iter().max().copied().unwrap_or(0).max(1) + below(random, 40);
    let (heads_k, head_dim) = (1 + below(random, 3), head_dim(random));
    let group = 1 + below(random, 8);
    // Every decode kernel accepts at least eight rows.
    let most = most_queries(limits, &filled, heads_k * group * head_dim);
    let queries = if many { 1 + below(random, most) } else { 1 + below(random, 8 / group) };
    let eight = !many && one_in(random, 3);
    let cache = if eight { pick(random, &[DType::E4m3, DType::Int8]) } else { own };
    let pages = match below(random, 5) {
        0 => Pages::Dense,
        1 => Pages::Rows,
        2 => Pages::Nhd(pick(random, &[1, 5, 16, 32, 64, 100])),
        3 => Pages::Hnd(pick(random, &[1, 3, 7, 16, 48])),
        _ => Pages::Interleaved(pick(random, &[2, 16, 64])),
    };
    let chunk = Splits::Chunk(128 * (1 + below(random, 3) as u32));
    let exactly = Splits::Exactly(1 + below(random, 9) as u32);
    let splits = if many { [Splits::Auto, chunk] } else { [pick(random, &[Splits::Auto, exactly]), chunk] };
    let mut case = DecodeCase {
        dtype: own,
        cache,
        max_k,
        queries,
        heads: [heads_k * group, heads_k],
        head_dim: if eight { head_dim.next_multiple_of(16) } else { head_dim },
        pages,
        mask: mask(random, limits),
        softcap: one_in(random, 6).then(|| 1.0 + below(random, 50) as f32),
        alibi: many && head_dim <= 256 && one_in(random, 6),
        sinks: !many && one_in(random, 3),
        splits: pick(random, &splits),
        counters: one_in(random, 2),
        ..DecodeCase::new(filled)
    }
    .seeded(random.bits());
    if many && one_in(random, 2) {
        case = case.packed(lengths(random, batch, most));
    }
    case.told = told(random, limits, case.packed.is_some());
    let text = format!("{case}, keys {:?}, queries {:?}", case.filled, case.packed);
    (Box::new(DecodeMemory::new(&case)), text)
}

fn append(random: &mut Random, limits: Limits) -> (Box<dyn Work + Send>, String) {
    let own = dtype(random);
    let eight = one_in(random, 2);
    let scales = [Scales::One, Scales::Values(random.normal().abs() as f32 + 1e-3, 2.0), Scales::Heads];
    let head_dim = head_dim(random) * if eight { 2 } else { 1 };
    let heads = 1 + below(random, limits.heads);
    let cache = match (eight, head_dim) {
        (false, _) => own,
        (true, ..=256) => pick(random, &[DType::E4m3, DType::Int8]),
        (true, _) => DType::E4m3,
    };
    let case = AppendCase {
        dtypes: [own, cache],
        lies: pick(
            random,
            &[Lies::Nhd, Lies::Hnd, Lies::Interleaved { hnd: false }, Lies::Interleaved { hnd: true }],
        ),
        heads,
        head_dim,
        pages: [1 + below(random, 40), 1 + below(random, 64)],
        tokens: [1 + below(random, limits.seqlen), below(random, 9)],
        wide: one_in(random, 2),
        scales: if cache == DType::E4m3 { pick(random, &scales) } else { Scales::One },
        rotary: (head_dim >= 16 && one_in(random, 2)).then(|| rotary(random, head_dim, heads)),
        seed: random.bits(),
    };
    (Box::new(AppendMemory::new(&case)), case.to_string())
}

/// Draws a rotation of heads of `head_dim` columns, 16 or more.
fn rotary(random: &mut Random, head_dim: usize, heads: usize) -> RotaryCase {
    let dims = 16 * (1 + below(random, head_dim / 16));
    RotaryCase {
        style: pick(random, &[RotaryStyle::Halves, RotaryStyle::Interleaved]),
        columns: [8 * below(random, (head_dim - dims) / 8 + 1), dims],
        rows: 1 + below(random, 100),
        wide: one_in(random, 2),
        together: one_in(random, 2),
        wide_positions: one_in(random, 2),
        query_heads: one_in(random, 2).then(|| heads * (1 + below(random, 4))),
        in_place: one_in(random, 2),
    }
}

fn merge(random: &mut Random, limits: Limits) -> (Box<dyn Work + Send>, String) {
    let types = [DType::F16, DType::Bf16, DType::F32].map(|own| [own; 2]);
    let narrowed = [[DType::F32, DType::F16], [DType::F32, DType::Bf16]];
    let all = [&types[..], &narrowed].concat();
    let (dtypes, states) = (pick(random, &all), 1 + below(random, 9));
    let units = [(); 2].map(|()| pick(random, &[LseUnit::Natural, LseUnit::Two]));
    let rows = (limits.seqlen / states).clamp(1, 200);
    let case = MergeCase {
        dtypes,
        shape: [1 + below(random, 3), 1 + below(random, rows), 1 + below(random, 6), head_dim(random)],
        states,
        lie: pick(random, &[Lie::Apart, Lie::SideBySide]),
        units,
        sinks: states == 1 || one_in(random, 2),
        place_of: (dtypes[0] == dtypes[1] && one_in(random, 2)).then(|| below(random, states)),
        seed: random.bits(),
    };
    (Box::new(MergeMemory::new(&case)), case.to_string())
}
