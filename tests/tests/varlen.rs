//! Tests varlen sequences in the simulator: other lengths with one plan, invalid integers, and that each
//! clamp is needed. `simulated.rs` runs every varlen kernel on its edge cases.
use ferroflash::driver::Harness;
use ferroflash::driver::SimDriver;
use ferroflash::kernels::{AttnInfo, Class, Isa, MaskKind, plain};
use ferroflash::request::{AttentionRequest, Index, LseView, Mask, TensorView, VarlenKeys, VarlenQueries};
use ferroflash::{Attention, DType, Plan, ptx};
use ferroflash_tests::clamps::{FILES, WithoutClamp, without_each_clamp};
use ferroflash_tests::{is_carried, simulator_with};
use ptx_sim::{Kind, Options};
use std::collections::HashSet;

/// The problem has three sequences of up to 70 queries and 90 keys, in tensors of 100 and 120 rows.
const BATCH: usize = 3;
const ROWS: [usize; 2] = [100, 120];
const HEADS: [usize; 2] = [2, 1];
const HEAD_DIM: usize = 64;

/// A launch whose tensors end where their buffers end.
struct Launch<'a> {
    attention: &'a Attention<SimDriver>,
    plan: Plan,
    forward: AttentionRequest<'static>,
    o: <SimDriver as Harness>::Buffer,
    lse: <SimDriver as Harness>::Buffer,
    /// The buffers of `cu_seqlens_q`, `cu_seqlens_k` and `seqused_k`.
    integers: [<SimDriver as Harness>::Buffer; 3],
    /// Buffers that must outlive the launch.
    _others: Vec<<SimDriver as Harness>::Buffer>,
}

impl<'a> Launch<'a> {
    fn new(attention: &'a Attention<SimDriver>, entry: &AttnInfo) -> Self {
        let driver = attention.driver();
        let tensor = |name, rows: usize, heads: usize| {
            let elements = rows * heads * HEAD_DIM;
            let mut buffer = driver.allocate_named(name, elements * 2).expect("room");
            let bytes: Vec<u8> =
                (0..elements).flat_map(|i| (0x3000 + i as u16 % 0x800).to_ne_bytes()).collect();
            driver.upload(&mut buffer, &bytes).expect("as long");
            let shape = [1, rows, heads, HEAD_DIM];
            let view = TensorView::bshd(driver.address(&buffer), elements as u64, DType::F16, shape);
            (buffer, view)
        };
        let [(q, q_view), (o, o_view)] = ["q", "o"].map(|name| tensor(name, ROWS[0], HEADS[0]));
        let [(k, k_view), (v, v_view)] = ["k", "v"].map(|name| tensor(name, ROWS[1], HEADS[1]));
        let lse = driver.allocate_named("lse", ROWS[0] * HEADS[0] * 4).expect("room");
        let lse_shape = [1, HEADS[0], ROWS[0]];
        let lse_view = LseView::contiguous(driver.address(&lse), (ROWS[0] * HEADS[0]) as u64, lse_shape);
        let arrays = [("cu_seqlens_q", BATCH + 1), ("cu_seqlens_k", BATCH + 1), ("seqused_k", BATCH)];
        let integers = arrays.map(|(name, count)| driver.allocate_named(name, count * 4).expect("room"));
        let [starts_q, starts_k, used] =
            [0, 1, 2].map(|i| Index::new(driver.address(&integers[i]), arrays[i].1 as u64));
        let mask = match entry.mask {
            MaskKind::Full => Mask::Full,
            MaskKind::Causal => Mask::Causal,
            MaskKind::Local => Mask::Window { left: Some(20), right: Some(3) },
            MaskKind::Prefix | MaskKind::Chunked | MaskKind::Bits | MaskKind::Own => {
                unreachable!("no line of the table has this mask")
            }
        };
        let queries = VarlenQueries::new(BATCH, starts_q, 70);
        let keys = VarlenKeys::new(starts_k, 90).seqused_k(used);
        let forward = AttentionRequest::varlen(q_view, k_view, v_view, o_view, queries, keys)
            .mask(mask)
            .lse(lse_view)
            .config(entry.contract.symbol);
        let plan = attention.plan(&forward).expect("valid");
        Launch { attention, plan, forward, o, lse, integers, _others: vec![q, k, v] }
    }

    /// Returns O and the LSE for these integers, and the kinds of the simulator's reports. Elements that no
    /// kernel writes have all bits set.
    fn run(&mut self, integers: [&[i32]; 3]) -> (Vec<u16>, Vec<u32>, Vec<Kind>) {
        let driver = self.attention.driver();
        for (buffer, values) in self.integers.iter_mut().zip(integers) {
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
            driver.upload(buffer, &bytes).expect("as long");
        }
        for output in [&mut self.o, &mut self.lse] {
            driver.fill(output, 0xff).expect("is filled");
        }
        let stream = driver.stream().expect("a stream");
        // SAFETY: the buffers are as large as the views state, and the simulator checks each access.
        let launched = unsafe { self.attention.launch(&self.plan, &self.forward, &stream) };
        let reports: Vec<Kind> = driver.take_reports().into_iter().map(|report| report.kind).collect();
        assert!(launched.is_ok() || !reports.is_empty(), "{launched:?}");
        let elements = ROWS[0] * HEADS[0];
        let (mut o, mut lse) = (vec![0; elements * HEAD_DIM * 2], vec![0; elements * 4]);
        driver.download(&self.o, &mut o).expect("as long");
        driver.download(&self.lse, &mut lse).expect("as long");
        let o = o.as_chunks().0.iter().map(|bytes| u16::from_ne_bytes(*bytes)).collect();
        let lse = lse.as_chunks().0.iter().map(|bytes| u32::from_ne_bytes(*bytes)).collect();
        (o, lse, reports)
    }
}

/// Whether this build carries a kernel of f16 and this head dim.
fn is_asked(entry: &&AttnInfo) -> bool {
    (entry.dtype, entry.head_dim as usize) == (DType::F16, HEAD_DIM) && is_carried(entry.contract.symbol)
}

/// For each schedule and mask, the kernels that this build carries.
fn kernels() -> Vec<&'static AttnInfo> {
    let kernels: Vec<_> = plain(Isa::Sm80, Class::Varlen).filter(is_asked).collect();
    let masks: HashSet<_> = kernels.iter().map(|entry| entry.mask.name()).collect();
    assert_eq!(masks.len(), 3, "a build carries every mask: {masks:?}");
    kernels
}

/// Hopper's kernels that this build carries.
fn hoppers() -> impl Iterator<Item = &'static AttnInfo> {
    plain(Isa::Sm90a, Class::Varlen).filter(is_asked)
}

#[test]
fn one_plan_serves_any_lengths() {
    for entry in kernels().into_iter().chain(hoppers()) {
        let attention = simulator_with(entry, Options::default());
        let mut launch = Launch::new(&attention, entry);
        let row = HEADS[0] * HEAD_DIM;
        // Rows before the first start and after the last one belong to no sequence.
        for starts in [
            [0, 30, 60, 100],
            [0, 0, 0, 0],
            [0, 70, 70, 71],
            [0, 1, 2, 3],
            [0, 33, 100, 100],
            [0, 64, 65, 99],
            [5, 35, 40, 95],
            [30, 100, 100, 100],
            [100, 100, 100, 100],
        ] {
            let [first, _, before_last, end] = starts.map(|start| start as usize);
            let (o, lse, reports) = launch.run([&starts, &[0, 40, 90, 120], &[40, 3, 0]]);
            assert_eq!(reports, [], "{}: {starts:?}", entry.contract.symbol);
            let expected: Vec<_> = (0..ROWS[0]).map(|row| (first..end).contains(&row)).collect();
            let written: Vec<_> = o.chunks(row).map(|row| row.iter().all(|bits| *bits != 0xffff)).collect();
            assert_eq!(written, expected, "{}: {starts:?}", entry.contract.symbol);
            for head in lse.chunks(ROWS[0]) {
                let written: Vec<_> = head.iter().map(|bits| *bits != u32::MAX).collect();
                assert_eq!(written, expected, "{}: LSE, {starts:?}", entry.contract.symbol);
            }
            let last = &o[before_last * row..end * row];
            assert!(last.iter().all(|bits| *bits == 0), "a sequence without keys gives 0");
        }
    }
}

/// Invalid lengths, and lengths that are off by one.
const GARBAGE: [i32; 6] = [0, -1, i32::MIN, i32::MAX, 101, 121];

/// Integers of which first each one is garbage, and then all are.
fn garbage() -> impl Iterator<Item = [Vec<i32>; 3]> {
    let right = [vec![0, 30, 60, 100], vec![0, 40, 90, 120], vec![40, 3, 30]];
    let one = (0..11).flat_map({
        let right = right.clone();
        move |at| {
            let right = right.clone();
            GARBAGE.into_iter().map(move |x| {
                let mut all = right.clone();
                *all.iter_mut().flatten().nth(at).expect("one of eleven") = x;
                all
            })
        }
    });
    let all = GARBAGE.into_iter().map(move |x| right.clone().map(|array| vec![x; array.len()]));
    let falling = [[vec![100, 60, 30, 0], vec![120, 90, 40, 0], vec![-3, -2, -1]]];
    one.chain(all).chain(falling)
}

#[test]
fn integers_that_make_no_sense_stay_in_bounds() {
    for entry in kernels() {
        check_garbage(entry, garbage());
    }
}

/// With Hopper's kernels, the tensor maps also depend on the positions of the sequences. (These kernels take
/// seconds, so this test runs only some of the cases.)
#[test]
fn integers_that_make_no_sense_stay_in_bounds_of_maps() {
    let masks = [MaskKind::Causal, MaskKind::Local];
    let kernels: Vec<_> = hoppers().filter(|e| masks.contains(&e.mask)).collect();
    assert_eq!(kernels.len(), 2);
    for entry in kernels {
        check_garbage(entry, garbage().step_by(5));
    }
}

/// Checks that a kernel stays in bounds with garbage integers.
#[track_caller]
fn check_garbage(entry: &AttnInfo, garbage: impl Iterator<Item = [Vec<i32>; 3]>) {
    let attention = simulator_with(entry, Options::default());
    let mut launch = Launch::new(&attention, entry);
    for integers in garbage {
        let (.., reports) = launch.run([0, 1, 2].map(|i| integers[i].as_slice()));
        // Rows of two sequences may be written twice, but no other report is allowed.
        let others: Vec<_> = reports.iter().filter(|kind| **kind != Kind::GlobalRace).collect();
        assert!(others.is_empty(), "{}: {integers:?}: {others:?}", entry.contract.symbol);
    }
}

/// Valid integers, and integers that together need each clamp. No two sequences share queries, so results
/// repeat.
const CLAMPED: [[&[i32]; 3]; 7] = {
    let [q, k, used]: [&[i32]; 3] = [&[0, 30, 60, 100], &[0, 40, 90, 120], &[40, 3, 30]];
    [
        [q, k, used],
        [&[0, 30, 60, 101], k, used],
        [&[0, 60, 50, 50], k, used],
        [q, &[0, 40, 90, 121], &[40, 3, 31]],
        [q, &[0, 40, 30, 120], used],
        [q, k, &[-1, 3, 30]],
        [q, k, &[40, 3, 121]],
    ]
};

#[test]
fn a_clamp_that_is_missing_is_noticed() {
    let entry = kernels()[0];
    let symbol = entry.contract.symbol;
    let run = |text: &str| {
        let attention = simulator_with(entry, Options::default());
        // SAFETY: the simulator checks every access.
        unsafe { attention.load_from(symbol, text).expect("loads") };
        let mut launch = Launch::new(&attention, entry);
        CLAMPED.map(|integers| launch.run(integers))
    };
    let text = ptx::source(symbol).expect("embedded");
    let right = run(&text);
    let mutants = without_each_clamp(&text, &FILES);
    assert_eq!(mutants.len(), 2 * 4, "two of starts, two of what is used");
    for WithoutClamp { clamp, operand, text } in mutants {
        assert!(run(&text) != right, "{symbol} with operand {operand} for {clamp}");
    }
}
