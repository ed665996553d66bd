//! Invalid integers of varlen sequences in backward passes stay in bounds.
use ferroflash::DType;
use ferroflash::spec::{AttnInfo, GRADIENTS, MaskKind, Pass};
use ferroflash_tests::simulator_with;
use ptx_sim::{Kind, Options};
use reference::{BackwardCase, BackwardMemory, Case, Input, Layout, OnDevice, Pages};

/// `cu_seqlens_q`, `cu_seqlens_k` and `seqused_k` in device memory.
type Integers = [Vec<i32>; 3];

const NAMES: [&str; 3] = ["cu_seqlens_q", "cu_seqlens_k", "seqused_k"];

/// The integers of [`problem`].
fn right() -> Integers {
    [vec![0, 30, 60, 100], vec![0, 40, 90, 120], vec![40, 3, 30]]
}

/// A problem whose tensors end where their buffers end.
fn problem(entry: &AttnInfo) -> BackwardMemory {
    let case = Case { heads: [2, 2], dtype: entry.dtype, spare: [0; 2], ..Case::new([]) };
    let case = Case { pages: Pages::Tensors(Layout::Bshd), head_dim: entry.head_dim as usize, ..case };
    let case = case.varlen([[30, 40, 0], [30, 3, 47], [40, 30, 0]]).of(entry);
    BackwardMemory::new(&BackwardCase { forward: case, d_lse: true })
}

/// Returns the kinds of the simulator's reports with each of these integers.
fn run(entry: &AttnInfo, memory: &BackwardMemory, all: &[Integers]) -> Vec<Vec<Kind>> {
    let attention = simulator_with(entry, Options { budget: 20_000_000, ..Options::default() });
    let mut device = OnDevice::new(&attention, memory, None).expect("room");
    let results = all.iter().map(|integers| {
        let bytes = integers.iter().map(|all| all.iter().flat_map(|x| x.to_ne_bytes()).collect());
        let named = NAMES.into_iter().zip(bytes).map(|(name, bytes)| Input::new(name, bytes));
        device.change(named).expect("as long");
        let outputs = device.outputs().expect("room");
        let launched = device.launch(&outputs);
        let kinds: Vec<_> = attention.driver().take_reports().iter().map(|report| report.kind).collect();
        assert!(launched.is_ok() || !kinds.is_empty(), "{launched:?}");
        kinds
    });
    results.collect()
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
    const GARBAGE: [i32; 6] = [0, -1, i32::MIN, i32::MAX, 101, 121];
    let one = (0..11).flat_map(|at| GARBAGE.map(|x| (at, x))).map(|(at, x)| {
        let mut all = right();
        *all.iter_mut().flatten().nth(at).expect("one of eleven") = x;
        all
    });
    let all = GARBAGE.map(|x| right().map(|array| vec![x; array.len()]));
    let falling = [vec![100, 60, 30, 0], vec![120, 90, 40, 0], vec![-3, -2, -1]];
    one.chain(all).chain([falling]).collect()
}

#[test]
fn integers_that_make_no_sense_stay_in_bounds() {
    for entry in kernels(64).chain(kernels(256)) {
        let all = garbage();
        let results = run(entry, &problem(entry), &all);
        for (integers, kinds) in all.iter().zip(results) {
            // Rows of two sequences may be written twice, but no other report is allowed.
            let others: Vec<_> = kinds.iter().filter(|kind| **kind != Kind::GlobalRace).collect();
            assert!(others.is_empty(), "{}: {integers:?}: {others:?}", entry.contract.symbol);
        }
    }
}
