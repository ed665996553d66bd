//! Integers of varlen sequences in backward passes: invalid ones stay in bounds, and each clamp is needed.
use ferroflash::driver::SimDriver;
use ferroflash::spec::{AttnInfo, GRADIENTS, MaskKind, Pass};
use ferroflash::{Attention, DType, ptx};
use ferroflash_tests::clamps::without_each_clamp;
use ferroflash_tests::simulator_with;
use ptx_sim::{Kind, Options};
use reference::{BackwardCase, BackwardMemory, Case, Input, Layout, OnDevice, Pages, Written};

/// `cu_seqlens_q`, `cu_seqlens_k` and `seqused_k` in device memory.
type Integers = [Vec<i32>; 3];

const NAMES: [&str; 3] = ["cu_seqlens_q", "cu_seqlens_k", "seqused_k"];

/// The integers of [`problem`].
fn right() -> Integers {
    [vec![0, 70, 100, 140], vec![0, 150, 200, 230], vec![140, 3, 30]]
}

/// A problem whose tensors end where their buffers end. Its scores are so low that a row of padding would
/// have an infinite probability if it had an LSE.
fn problem(entry: &AttnInfo) -> BackwardMemory {
    let case = Case { heads: [1; 2], dtype: entry.dtype, spare: [0; 2], score: Some(-20.0), ..Case::new([]) };
    let case = Case { pages: Pages::Tensors(Layout::Bshd), head_dim: entry.head_dim as usize, ..case };
    let case = case.varlen([[70, 140, 10], [30, 3, 47], [40, 30, 0]]).of(entry);
    BackwardMemory::new(&BackwardCase { forward: case, d_lse: true })
}

/// Returns a simulator that ends kernels whose loops take garbage for a length of billions.
fn simulator(entry: &AttnInfo) -> Attention<SimDriver> {
    simulator_with(entry, Options { budget: 20_000_000, ..Options::default() })
}

/// Launches with these integers. Returns the outputs, and the kinds of the simulator's reports.
fn launch(
    attention: &Attention<SimDriver>,
    memory: &BackwardMemory,
    integers: &Integers,
) -> (Option<Written>, Vec<Kind>) {
    let mut device = OnDevice::new(attention, memory, None).expect("room");
    let bytes = integers.iter().map(|all| all.iter().flat_map(|x| x.to_ne_bytes()).collect());
    device
        .change(NAMES.into_iter().zip(bytes).map(|(name, bytes)| Input::new(name, bytes)))
        .expect("as long");
    let outputs = device.outputs().expect("room");
    let launched = device.launch(&outputs);
    let kinds: Vec<_> = attention.driver().take_reports().iter().map(|report| report.kind).collect();
    assert!(launched.is_ok() || !kinds.is_empty(), "{launched:?}");
    (device.written(&outputs).ok(), kinds)
}

/// The kernels of dK and dV in f16 of this head dim, one for each mask.
fn kernels(head_dim: u32) -> impl Iterator<Item = &'static AttnInfo> {
    let masks = [MaskKind::Full, MaskKind::Causal, MaskKind::Local];
    let is_asked = move |e: &&AttnInfo| {
        e.pass == Pass::DkDv && e.dtype == DType::F16 && e.columns() == [head_dim; 2] && e.is_plain()
    };
    GRADIENTS.iter().filter(is_asked).filter(move |e| masks.contains(&e.mask))
}

/// Integers of which first each one is garbage, and then all are.
fn garbage() -> Vec<Integers> {
    const GARBAGE: [i32; 6] = [0, -1, i32::MIN, i32::MAX, 141, 231];
    let one = (0..11).flat_map(|at| GARBAGE.map(|x| (at, x))).map(|(at, x)| {
        let mut all = right();
        *all.iter_mut().flatten().nth(at).expect("one of eleven") = x;
        all
    });
    let all = GARBAGE.map(|x| right().map(|array| vec![x; array.len()]));
    let falling = [vec![140, 100, 70, 0], vec![230, 200, 150, 0], vec![-3, -2, -1]];
    one.chain(all).chain([falling]).collect()
}

#[test]
fn integers_that_make_no_sense_stay_in_bounds() {
    for entry in kernels(64).chain(kernels(256)) {
        let (attention, memory) = (simulator(entry), problem(entry));
        for integers in garbage() {
            let (_, kinds) = launch(&attention, &memory, &integers);
            // Rows of two sequences may be written twice, but no other report is allowed.
            let others: Vec<_> = kinds.iter().filter(|kind| **kind != Kind::GlobalRace).collect();
            assert!(others.is_empty(), "{}: {integers:?}: {others:?}", entry.contract.symbol);
        }
    }
}

/// Valid integers, and integers that together need each clamp. No two sequences share rows, so that results
/// repeat.
fn clamped() -> Vec<Integers> {
    let [q, k, used] = right();
    let of = |q: &[i32], k: &[i32], used: &[i32]| [q, k, used].map(<[i32]>::to_vec);
    vec![
        right(),
        of(&[0, 70, 100, 141], &k, &used),
        of(&[0, 60, 50, 50], &k, &used),
        of(&q, &[0, 150, 200, 231], &[140, 3, 31]),
        of(&q, &[0, 60, 50, 50], &used),
        of(&q, &k, &[-1, 3, 30]),
        of(&q, &k, &[140, 3, 231]),
        // A block of keys that the sequence does not use, and a sequence without keys.
        of(&q, &k, &[3, 3, 30]),
        of(&q, &[0, 0, 200, 230], &used),
        // More queries than the longest sequence has, and a sequence without queries.
        of(&[0, 0, 0, 140], &k, &used),
        of(&[0, 70, 140, 140], &k, &used),
    ]
}

/// The source files with the clamps of backward kernels.
const FILES: [&str; 2] = ["/lengths.rs", "/hopper/backward/tiles.rs"];

/// The clamps that no integers need, as words of a kernel and of a clamp.
const SUPERFLUOUS: [[&str; 2]; 3] = [
    // If offsets descend, delta leaves no ticket to this kernel.
    ["bwd_hopper_packed", "end.max(first) - first"],
    // If offsets ascend, delta has a tile for each tile of queries.
    ["bwd_hopper_packed", "(self.values + n).min("],
    // TMA loads zeros in place of rows behind the end of a sequence.
    ["bwd_hopper_packed", "row.min(self.used)"],
];

/// Returns the clamps of the kernels of a launch whose removal changes neither an output nor a report.
fn unnoticed(entry: &AttnInfo) -> Vec<String> {
    let (attention, memory, all) = (simulator(entry), problem(entry), clamped());
    let right: Vec<_> = all.iter().map(|integers| launch(&attention, &memory, integers)).collect();
    let kernels = &right[0].0.as_ref().expect("these integers are valid").kernels;
    assert!(kernels.contains(&entry.contract.symbol), "{kernels:?}");
    let is_right = |symbol: &'static str, text: &str| {
        let attention = simulator(entry);
        // SAFETY: the simulator checks every access.
        unsafe { attention.load_from(symbol, text).expect("loads") };
        all.iter().zip(&right).all(|(integers, right)| launch(&attention, &memory, integers) == *right)
    };
    let mut clamps = vec![];
    for symbol in kernels {
        let mutants = without_each_clamp(&ptx::source(symbol).expect("embedded"), &FILES);
        assert!(!mutants.is_empty(), "{symbol} has clamps");
        let unnoticed = mutants.iter().filter(|mutant| is_right(symbol, &mutant.text));
        clamps.extend(unnoticed.map(|mutant| format!("{symbol}: {mutant}")));
    }
    clamps
}

#[test]
fn a_clamp_that_is_missing_is_noticed() {
    let hopper = |e: &&AttnInfo| e.pass == Pass::Gradients && e.is_varlen() && e.head_dim == 128;
    let entries = kernels(64).take(1).chain(GRADIENTS.iter().filter(hopper).take(1));
    let all: Vec<_> = entries.flat_map(unnoticed).collect();
    let is = |clamp: &String, words: &[&str; 2]| words.iter().all(|word| clamp.contains(word));
    let is_known = |clamp: &&String| SUPERFLUOUS.iter().any(|words| is(clamp, words));
    let unknown: Vec<_> = all.iter().filter(|clamp| !is_known(clamp)).collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
    let is_needed = |words: &&[&str; 2]| !all.iter().any(|clamp| is(clamp, words));
    let needed: Vec<_> = SUPERFLUOUS.iter().filter(is_needed).collect();
    assert!(needed.is_empty(), "a launch needs {needed:?}");
}
