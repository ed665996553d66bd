//! Kernels of [`Precision::Fp8`] in the simulator: sums of many equal scores, single keys.
use ferroflash::DType;
use ferroflash::kernels::{AttnInfo, MaskKind};
use ferroflash::plan::Problem;
use ferroflash::request::{Mask, Precision};
use ferroflash::spec::Class;
use ferroflash_tests::{carried_kernels, simulator_with};
use half::f16;
use ptx_sim::Options;
use reference::{Case, Layout, Memory, Outcome, Reference};

/// Returns a case of queries and keys, `lengths`, in f16. Varlen kernels get them as the second sequence,
/// behind 3 queries and 150 keys.
fn case(entry: &AttnInfo, lengths: [usize; 2], mask: Mask) -> Case {
    let [queries, keys] = lengths;
    let problem = Problem::new(DType::F16, 1, queries, 1, entry.head_dim as usize).seqlen_k(keys);
    let case = Case::tensors(problem.mask(mask).precision(entry.precision()), Layout::Bshd, 1);
    if entry.is_varlen() { case.varlen([[3, 150, 0], [queries, keys, 5]]) } else { case }
}

/// The row of Q and O of the first query of [`case`].
fn query_row(entry: &AttnInfo) -> usize {
    if entry.is_varlen() { 3 } else { 0 }
}

/// Runs a case on a kernel.
fn run(entry: &AttnInfo, memory: &Memory) -> Outcome {
    ferroflash_tests::run(&simulator_with(entry, Options::default()), entry.contract.symbol, memory)
}

/// Kernels of f16 for products of e4m3, on tensors.
const TENSORS: (Class, Precision, DType) = (Class::Quantised, Precision::Fp8, DType::F16);

/// Returns the carried kernels of [`TENSORS`].
fn hoppers() -> Vec<&'static AttnInfo> {
    carried_kernels(|e| (e.class(), e.precision(), e.dtype) == TENSORS)
}

/// A tensor core that adds all of these keys makes outputs 2 % too small.
#[test]
fn sums_of_equal_scores_have_no_bias() {
    for entry in hoppers() {
        let mask = if entry.mask == MaskKind::Causal { Mask::Causal } else { Mask::Full };
        let mut memory = Case { score: Some(-1.0), ..case(entry, [1, 2048], mask) }.memory();
        memory.buffers[memory.v.buffer].iter_mut().for_each(|bits| *bits &= 0x7fff);
        let exact = Reference::new(&memory.inputs().expect("a case")).exact;
        let (row, columns) = (query_row(entry), entry.head_dim as usize);
        let outcome = run(entry, &memory);
        let found =
            outcome.o()[memory.o.row(row)..][..columns].iter().map(|bits| f16::from_bits(*bits).to_f64());
        let bias = found.sum::<f64>() / exact.out[row * columns..][..columns].iter().sum::<f64>() - 1.0;
        assert!(bias.abs() < 0.003, "{}: {bias}", entry.contract.symbol);
    }
}

/// A query gets the value of the key that has nearly all of its weight. A key outside of its window, or of
/// another sequence, has none, however large its score is.
#[test]
fn a_single_key_has_all_the_weight() {
    for entry in hoppers() {
        let mask = match entry.mask {
            MaskKind::Full => Mask::Full,
            MaskKind::Causal => Mask::Causal,
            _ => Mask::Window { left: Some(300), right: Some(0) },
        };
        let mut memory = case(entry, [1, 700], mask).memory();
        let [columns, behind] = [entry.head_dim as usize, if entry.is_varlen() { 150 } else { 0 }];
        let query = memory.q.row(query_row(entry));
        let query = memory.buffers[memory.q.buffer][query..][..columns].to_vec();
        let hidden = match (entry.is_varlen(), entry.mask) {
            (true, _) => Some(40),
            (false, MaskKind::Local) => Some(100),
            _ => None,
        };
        for (key, factor) in [Some((behind + 555, 2.0)), hidden.map(|key| (key, 3.0))].into_iter().flatten() {
            let row = memory.k.row(key);
            let larger = query.iter().map(|bits| f16::from_f64(f16::from_bits(*bits).to_f64() * factor));
            let larger: Vec<_> = larger.map(f16::to_bits).collect();
            memory.buffers[memory.k.buffer][row..][..columns].copy_from_slice(&larger);
        }
        let value = &memory.buffers[memory.v.buffer][memory.v.row(behind + 555)..][..columns];
        let (outcome, value) = (run(entry, &memory), value.to_vec());
        let found = &outcome.o()[memory.o.row(query_row(entry))..][..columns];
        for (o, v) in found.iter().zip(value) {
            let [o, v] = [*o, v].map(|bits| f16::from_bits(bits).to_f64());
            assert!((o - v).abs() <= 0.07 * v.abs() + 0.01, "{}: {o} of {v}", entry.contract.symbol);
        }
    }
}

/// Padding may have any bits, also those of NaN: its O is 0 and its LSE is -inf, and used rows do not change.
#[test]
fn nan_in_padding_stays_in_padding() {
    const USED: usize = 20;
    const PADDING: usize = 9;
    const KEYS: usize = 150;
    for entry in hoppers().into_iter().filter(|entry| entry.is_varlen()) {
        let mask = match entry.mask {
            MaskKind::Full => Mask::Full,
            MaskKind::Causal => Mask::Causal,
            _ => Mask::Window { left: Some(40), right: Some(0) },
        };
        let case = case(entry, [1, 1], mask).varlen([[USED, KEYS, 0]]).padded([PADDING]);
        let mut memory = case.memory();
        let columns = entry.head_dim as usize;
        let clean = run(entry, &memory);
        for row in USED..USED + PADDING {
            let at = memory.q.row(row);
            memory.buffers[memory.q.buffer][at..][..columns].fill(f16::NAN.to_bits());
        }
        let outcome = run(entry, &memory);
        let (end, all) = (memory.o.row(USED), memory.o.row(USED + PADDING));
        assert_eq!(clean.o()[..end], outcome.o()[..end], "{}", entry.contract.symbol);
        assert!(outcome.o()[end..all].iter().all(|bits| *bits == 0), "{}", entry.contract.symbol);
        let lse = outcome.lse();
        assert!(lse[..USED].iter().all(|x| x.is_finite()), "{}", entry.contract.symbol);
        assert!(lse[USED..][..PADDING].iter().all(|x| *x == f32::NEG_INFINITY), "{}", entry.contract.symbol);
    }
}
