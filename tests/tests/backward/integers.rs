//! Integers of varlen sequences in backward passes: invalid ones stay in bounds, and each clamp is needed.
use ferroflash::driver::SimDriver;
use ferroflash::request::Mask;
use ferroflash::spec::{AttnInfo, GRADIENTS, MaskKind, Pass};
use ferroflash::{Attention, DType, ptx};
use ferroflash_tests::clamps::without_each_clamp;
use ferroflash_tests::simulator_with;
use ptx_sim::{Kind, Options};
use reference::{BackwardMemory, Case, Input, Layout, OnDevice, Pages, Written, is_modified};
use std::ops::Range;

/// `cu_seqlens_q`, `cu_seqlens_k` and `seqused_k` in device memory.
type Integers = [Vec<i32>; 3];

const NAMES: [&str; 3] = ["cu_seqlens_q", "cu_seqlens_k", "seqused_k"];

/// The queries, keys and unused keys of each sequence. The first sequence is the longest.
type Lengths = [[usize; 3]; 3];

const RAGGED: Lengths = [[70, 150, 0], [30, 49, 1], [40, 30, 0]];
/// Each sequence has equally many blocks.
const EVEN: Lengths = [[128, 128, 0], [128, 127, 1], [128, 128, 0]];

/// Integers of [`RAGGED`], with fewer keys.
fn right() -> Integers {
    let [q, k, _] = integers(RAGGED);
    [q, k, vec![140, 3, 30]]
}

/// The integers of sequences of these lengths.
fn integers(lengths: Lengths) -> Integers {
    let starts = |rows: [usize; 3]| (0..=3).map(|of| rows[..of].iter().sum::<usize>() as i32).collect();
    let [queries, keys] =
        [lengths.map(|[queries, ..]| queries), lengths.map(|[_, keys, unused]| keys + unused)];
    [starts(queries), starts(keys), lengths.map(|[_, keys, _]| keys as i32).to_vec()]
}

/// A problem whose tensors end where their buffers end. Its scores are so low that a row of padding would
/// have an infinite probability if it had an LSE.
fn problem(entry: &AttnInfo, lengths: Lengths) -> BackwardMemory {
    let case = Case { heads: [1; 2], dtype: entry.dtype, spare: [0; 2], score: Some(-20.0), ..Case::new([]) };
    let [head_dim, values] = entry.columns().map(|columns| columns as usize);
    let head_dim_v = (values != head_dim).then_some(values);
    let case = Case { pages: Pages::Tensors(Layout::Bshd), head_dim, head_dim_v, ..case };
    let mask = match entry.mask {
        MaskKind::Full => Mask::Full,
        MaskKind::Causal => Mask::Causal,
        _ => Mask::Window { left: Some(20), right: Some(3) },
    };
    let softcap = is_modified(entry).then_some(100.0);
    let case = Case { mask, softcap, ..case.varlen(lengths).of(entry) };
    BackwardMemory::new(&case.backward(true))
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
    launch_with(attention, memory, integers, vec![])
}

/// Like [`launch`], with other inputs, too.
fn launch_with(
    attention: &Attention<SimDriver>,
    memory: &BackwardMemory,
    integers: &Integers,
    others: Vec<Input>,
) -> (Option<Written>, Vec<Kind>) {
    let mut device = OnDevice::new(attention, memory, None).expect("room");
    let bytes = integers.iter().map(|all| all.iter().flat_map(|x| x.to_ne_bytes()).collect());
    let integers = NAMES.into_iter().zip(bytes).map(|(name, bytes)| Input::new(name, bytes));
    device.change(integers.chain(others)).expect("as long");
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
        let (attention, memory) = (simulator(entry), problem(entry, RAGGED));
        for integers in garbage() {
            let (_, kinds) = launch(&attention, &memory, &integers);
            // Rows of two sequences may be written twice, but no other report is allowed.
            let others: Vec<_> = kinds.iter().filter(|kind| **kind != Kind::GlobalRace).collect();
            assert!(others.is_empty(), "{}: {integers:?}: {others:?}", entry.contract.symbol);
        }
    }
}

/// The kernels of dK and dV of two head dims, and Hopper's varlen kernels, in f16.
fn portable_and_hopper() -> impl Iterator<Item = &'static AttnInfo> {
    kernels(64).chain(kernels(256)).chain(hopper())
}

/// Hopper's varlen kernels in f16.
fn hopper() -> impl Iterator<Item = &'static AttnInfo> {
    GRADIENTS.iter().filter(|e| e.pass == Pass::Gradients && e.is_varlen() && e.dtype == DType::F16)
}

/// Launches without a report, and returns the outputs.
#[track_caller]
fn outputs(
    entry: &AttnInfo,
    memory: &BackwardMemory,
    integers: &Integers,
    others: Vec<Input>,
) -> Vec<Vec<u8>> {
    let (written, kinds) = launch_with(&simulator(entry), memory, integers, others);
    assert_eq!(kinds, [], "{}: {integers:?}", entry.contract.symbol);
    let written = written.expect("no report");
    assert!(written.kernels.contains(&entry.contract.symbol), "{:?}", written.kernels);
    written.outputs
}

/// Returns O, dO and the LSE with NaN in these rows.
fn without_rows(memory: &BackwardMemory, rows: Range<usize>) -> Vec<Input> {
    let (of, columns) = (&memory.forward.o, memory.forward.o.shape[3]);
    let tensor = |(name, all): (&str, &Vec<u16>)| {
        let mut all = all.clone();
        rows.clone().for_each(|row| all[of.row(row)..][..columns].fill(u16::MAX));
        Input::new(name, all.iter().flat_map(|x| x.to_ne_bytes()).collect())
    };
    let mut lse = memory.lse.clone();
    lse[rows.clone()].fill(f32::NAN);
    let lse = Input::new("lse", lse.iter().flat_map(|x| x.to_ne_bytes()).collect());
    [("o", &memory.o), ("d_o", &memory.d_o)].map(tensor).into_iter().chain([lse]).collect()
}

/// If a sequence is longer than the request says, its further rows count for nothing, and get no gradients.
#[test]
fn a_sequence_is_as_long_as_the_request_says() {
    for (entry, lengths) in portable_and_hopper().flat_map(|entry| [(entry, RAGGED), (entry, EVEN)]) {
        let memory = problem(entry, lengths);
        for (of, gradients) in [(0, 0..1), (1, 1..3)] {
            let mut cut = integers(lengths);
            cut[2][1] = 0;
            // The first sequence takes the rows of the second one, which has no keys.
            let (mut long, further) = (cut.clone(), cut[of][1] as usize..cut[of][2] as usize);
            (long[of][1], long[2][0]) = (cut[of][2], i32::MAX);
            let mut expected = outputs(entry, &memory, &cut, vec![]);
            for gradient in gradients {
                let place = memory.gradients[gradient];
                let guard = (expected[gradient].len() - place.span() * 2) / 2;
                for row in further.clone() {
                    expected[gradient][guard + place.row(row) * 2..][..place.shape[3] * 2].fill(u8::MAX);
                }
            }
            let others = if of == 0 { without_rows(&memory, further) } else { vec![] };
            let at = format!("{}: {long:?}", entry.contract.symbol);
            assert!(outputs(entry, &memory, &long, others) == expected, "{at}");
        }
    }
}

/// Offsets behind the rows of a tensor count as its end.
#[test]
fn a_sequence_ends_with_the_tensor() {
    for (entry, lengths) in portable_and_hopper().flat_map(|entry| [(entry, RAGGED), (entry, EVEN)]) {
        let memory = problem(entry, lengths);
        for of in 0..2 {
            let (mut right, mut behind) = (integers(lengths), integers(lengths));
            right[of][2] = right[of][3];
            behind[of][2..].copy_from_slice(&[1000, -1]);
            let [right, got] = [right, behind].map(|integers| outputs(entry, &memory, &integers, vec![]));
            assert!(got == right, "{}: offsets of {}", entry.contract.symbol, NAMES[of]);
        }
    }
}

/// If offsets descend, Hopper's kernels write nothing, rather than wait for blocks that do not exist.
#[test]
fn hoppers_kernels_write_nothing_if_offsets_descend() {
    for (entry, of) in hopper().flat_map(|entry| [(entry, 0), (entry, 1)]) {
        let mut falling = right();
        falling[of].swap(1, 2);
        let got = outputs(entry, &problem(entry, RAGGED), &falling, vec![]);
        assert!(got.iter().flatten().all(|byte| *byte == u8::MAX), "{}", entry.contract.symbol);
    }
}

/// Valid integers, and integers that together need each clamp. No two sequences share rows, so that results
/// repeat.
fn clamped() -> Vec<(Lengths, Integers)> {
    let [q, k, used] = right();
    let of = |q: &[i32], k: &[i32], used: &[i32]| [q, k, used].map(<[i32]>::to_vec);
    let of_ragged = [
        right(),
        of(&[0, 70, 100, 141], &k, &used),
        of(&[0, 60, 50, 50], &k, &used),
        of(&q, &[0, 150, 200, 231], &[140, 3, 31]),
        of(&q, &[0, 60, 50, 50], &used),
        // Offsets behind all rows, in a descending order: a sequence without keys, and one without queries.
        of(&q, &[0, 150, 400, 300], &used),
        of(&[0, 70, 300, 200], &k, &used),
        of(&q, &[0, 150, 230, 229], &used),
        of(&[0, 70, 140, 139], &k, &used),
        of(&q, &k, &[-1, 3, 30]),
        of(&q, &k, &[140, 3, 231]),
        // A block of keys that the sequence does not use, and a sequence without keys.
        of(&q, &k, &[3, 3, 30]),
        of(&q, &[0, 0, 200, 230], &used),
        // More queries than the longest sequence has, and a sequence without queries.
        of(&[0, 0, 0, 140], &k, &used),
        of(&[0, 70, 140, 140], &k, &used),
        // More keys than the longest sequence has.
        of(&q, &[0, 200, 200, 230], &[200, 0, 30]),
    ];
    let further = [0, 256, 256, 384];
    let of_even = [of(&further, &further, &[256, 0, 128])];
    of_ragged.map(|all| (RAGGED, all)).into_iter().chain(of_even.map(|all| (EVEN, all))).collect()
}

/// The source files with the clamps of backward kernels.
const FILES: [&str; 2] = ["/lengths.rs", "/hopper/backward/tiles.rs"];

/// The clamps that no integers need, as words of a kernel and of a clamp.
const SUPERFLUOUS: [[&str; 2]; 6] = [
    // If offsets descend, delta leaves no ticket, and no sums.
    ["bwd_hopper_packed", "max.u32 of kernels-gpu/src/lengths.rs"],
    ["bwd_convert_dq", "max.u32 of kernels-gpu/src/lengths.rs"],
    // Portable kernels take no tickets.
    ["bwd_delta_f16_d64", "let falls ="],
    // A block of keys behind the sequence's end visits a tile, and adds nothing.
    ["bwd_hopper_packed", "let all_keys ="],
    // If offsets ascend, delta has a tile for each tile of queries.
    ["bwd_hopper_packed", "(self.values + n).min("],
    // TMA loads zeros in place of rows behind the end of a sequence.
    ["bwd_hopper_packed", "row.min(self.used)"],
];

/// Returns the clamps of the kernels of a launch whose removal changes neither an output nor a report.
fn unnoticed(entry: &AttnInfo) -> Vec<String> {
    let (attention, all) = (simulator(entry), clamped());
    let all: Vec<_> = all.into_iter().map(|(lengths, all)| (problem(entry, lengths), all)).collect();
    let right: Vec<_> = all.iter().map(|(memory, integers)| launch(&attention, memory, integers)).collect();
    let kernels = &right[0].0.as_ref().expect("these integers are valid").kernels;
    assert!(kernels.contains(&entry.contract.symbol), "{kernels:?}");
    let is_right = |symbol: &'static str, text: &str| {
        let attention = simulator(entry);
        // SAFETY: the simulator checks every access.
        unsafe { attention.load_from(symbol, text).expect("loads") };
        let mut launches = all.iter().zip(&right);
        launches.all(|((memory, integers), right)| launch(&attention, memory, integers) == *right)
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
