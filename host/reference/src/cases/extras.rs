//! The test problems of kernels that run before or behind those of an attention.
use crate::case::{Case, Pages};
use crate::device_lengths::{self, DeviceLengths};
use crate::place::Layout;
use ferroflash::DType;
use ferroflash::plan::Problem;
use ferroflash::request::{Alignment, Mask, Precision, RowOutputs, Splits};
use ferroflash::spec::GRADIENTS;

/// Numbers of queries, of keys, and of rows behind the keys of sequences: with many and few queries, without
/// queries, without keys, without both.
const SEQUENCES: [[usize; 3]; 6] = [[70, 91, 0], [0, 33, 5], [5, 0, 0], [1, 64, 9], [0, 0, 0], [130, 150, 1]];
/// Padding of these sequences.
const PADDING: [usize; 6] = [3, 9, 2, 0, 0, 70];
/// All outputs of rows.
const ROWS: RowOutputs<bool> = RowOutputs { lse: true, max_logits: true, entropy: true };

/// Returns tensors of sequences.
fn tensors(heads: [usize; 2]) -> Case {
    let p = Problem::new(DType::F16, 1, 1, heads[0], 64).heads_k(heads[1]);
    Case { mask: Mask::Causal, ..Case::tensors(p, Layout::Bshd, 1).varlen(SEQUENCES) }
}

/// Returns a KV cache of these pages, with varlen queries.
fn cache(pages: Pages) -> Case {
    let case = Case { pages, mask: Mask::Causal, heads: [8, 2], ..Case::new([91, 33, 0, 300, 0, 150]) };
    Case { max_k: 310, ..case.varlen_queries([70, 0, 5, 1, 2, 130]) }
}

/// Returns problems with padded queries: on tensors and on every kind of KV cache, with windows, softcap,
/// sinks, statistics and gradients, and with other integers under one plan.
pub fn padded_queries(seed: u64) -> Vec<Case> {
    let window = Mask::Window { left: Some(20), right: Some(2) };
    let many: Vec<_> = (0..40).map(|b| [1 + b % 3, 7 * b % 45, 0]).collect();
    let many = Case { mask: Mask::Causal, ..tensors([1, 1]).varlen(many).padded((0..40).map(|b| b % 4)) };
    let others = device_lengths::others();
    let garbage = vec![DeviceLengths::Filled, DeviceLengths::Garbage(2), DeviceLengths::Garbage(3)];
    let forward = [
        Case { device_lengths: others.clone(), ..tensors([4, 2]).padded(PADDING) },
        Case { mask: window, softcap: Some(30.0), rows: ROWS, ..tensors([2, 1]).padded(PADDING) },
        Case { sinks: true, mask: window, ..tensors([2, 2]).padded(PADDING) },
        Case { alignment: Alignment::TopLeft, ..tensors([2, 1]).padded(PADDING) },
        Case { mask: Mask::Full, head_dim: 128, dtype: DType::Bf16, kv_dtype: None, o_dtype: None, ..many },
        Case { device_lengths: garbage, splits: Splits::Keys(128), ..cache(Pages::Nhd(16)).padded(PADDING) },
        Case { rows: ROWS, head_maxima: true, ..cache(Pages::Hnd(3)).padded(PADDING) },
        Case { mask: window, sinks: true, ..cache(Pages::Rows).padded(PADDING) },
        Case { mask: Mask::Full, device_lengths: others, ..cache(Pages::Dense).padded(PADDING) },
        Case { kv_dtype: Some(DType::Int8), ..cache(Pages::Interleaved(8)).padded(PADDING) },
    ];
    // A build without backward kernels has none of their problems.
    let backward = [
        Case { dtype: DType::Bf16, kv_dtype: None, o_dtype: None, ..tensors([4, 2]) },
        Case { mask: window, softcap: Some(30.0), ..tensors([2, 1]) },
    ];
    let backward = backward.into_iter().take(if GRADIENTS.is_empty() { 0 } else { 2 });
    let backward = backward.map(|case| case.padded(PADDING).backward(true));
    forward.into_iter().chain(backward).map(|case| case.seeded(seed)).collect()
}

/// Returns problems on Q, K and V of e4m3 with up to this number of columns, and with scales of each batch
/// and key head: with few rows, a tile's edge in each direction, grouped heads, several layouts, fewer
/// columns of V, a window with softcap, and varlen sequences.
pub fn e4m3_tensors(columns: usize, seed: u64) -> Vec<Case> {
    let p =
        |o, rows, keys| Problem::new(DType::E4m3, 2, rows, 4, columns).seqlen_k(keys).heads_k(2).o_dtype(o);
    let [f16, bf16] = [DType::F16, DType::Bf16];
    let all = [
        (p(bf16, 130, 129), Layout::Bshd),
        (p(f16, 1, 1), Layout::Bhsd),
        (p(bf16, 128, 300).mask(Mask::Causal), Layout::Packed),
        (p(f16, 257, 128).mask(Mask::Causal).head_dim(columns - 16), Layout::Bhsd),
        (p(bf16, 70, 200).head_dim_v(48).scale(0.3), Layout::Bshd),
        (p(f16, 150, 260).mask(Mask::Window { left: Some(40), right: Some(3) }).softcap(5.0), Layout::Bshd),
    ];
    let case = |(p, layout)| Case { precision: Precision::Fp8, ..Case::tensors(p, layout, 1) };
    let varlen = |mask, layout| case((p(bf16, 1, 1).mask(mask), layout)).varlen(SEQUENCES);
    let varlen = [varlen(Mask::Causal, Layout::Bshd), varlen(Mask::Full, Layout::Bhsd)];
    all.into_iter().map(case).chain(varlen).map(|case| case.seeded(seed)).collect()
}

/// Returns problems of products of eight bits on a KV cache of this dtype, with up to this number of columns:
/// pages of several sizes and layouts, uneven lengths, sequences without keys or queries, grouped heads,
/// fewer columns (of V alone, where kernels take them), masks that the planner's kernels take, and other
/// integers under one plan, some of them invalid.
pub fn laid_pages(dtype: DType, columns: usize, seed: u64) -> Vec<Case> {
    let (lengths, kv_dtype) = (device_lengths::others(), Some(dtype));
    let (precision, of_values) = match dtype {
        DType::Int8 => (Precision::Int8Fp8, None),
        _ => (Precision::Fp8, Some(48)),
    };
    let case = |dtype, heads, keys: &[usize], mask| Case {
        kv_dtype,
        precision,
        head_dim: columns,
        dtype,
        heads,
        mask,
        max_k: 310,
        ..Case::new(keys)
    };
    let [f16, bf16] = [DType::F16, DType::Bf16];
    let uneven = |dtype, heads, mask| {
        case(dtype, heads, &[91, 33, 0, 300, 0, 150], mask).varlen_queries([70, 0, 5, 1, 2, 130])
    };
    let equal = |mask| Case { queries: 70, ..case(f16, [4, 2], &[128, 0, 257, 129], mask) };
    let window = Mask::Window { left: Some(40), right: Some(3) };
    let all = [
        Case { pages: Pages::Nhd(16), device_lengths: lengths.clone(), ..uneven(f16, [4, 2], Mask::Causal) },
        Case { pages: Pages::Hnd(8), ..uneven(bf16, [2, 2], Mask::Full) },
        Case { pages: Pages::Interleaved(128), head_dim: columns - 16, ..uneven(bf16, [3, 1], Mask::Causal) },
        Case { pages: Pages::Rows, device_lengths: lengths, ..equal(Mask::Causal) },
        Case { pages: Pages::Nhd(48), head_dim_v: of_values, scale: Some(0.3), ..equal(Mask::Full) },
        Case { pages: Pages::Dense, softcap: Some(5.0), rows: RowOutputs::NONE, ..equal(window) },
        Case { pages: Pages::Nhd(16), ..uneven(f16, [4, 2], Mask::Causal).padded(PADDING) },
    ];
    all.into_iter().map(|case| case.seeded(seed)).collect()
}

/// Returns problems with the largest score of each head: with and without that of rows, on tensors of equal
/// lengths, varlen tensors and KV caches.
pub fn head_maxima(seed: u64) -> Vec<Case> {
    let p = Problem::new(DType::F16, 2, 70, 4, 64).heads_k(2).seqlen_k(91).mask(Mask::Causal);
    let dense = Case {
        rows: RowOutputs { max_logits: true, ..RowOutputs::LSE },
        ..Case::tensors(p, Layout::Bhsd, 1)
    };
    // Query rows of the second problem see no key.
    let few = Case { mask: Mask::Window { left: Some(3), right: Some(0) }, max_k: 20, ..dense.clone() };
    let decode = Case { queries: 2, heads: [8, 2], pages: Pages::Nhd(16), ..Case::new([300, 0, 91]) };
    let all = [
        few,
        Case { rows: ROWS, ..dense.clone() },
        Case { rows: RowOutputs::LSE, ..dense.clone() },
        Case { rows: RowOutputs::NONE, softcap: Some(5.0), ..dense },
        Case { rows: ROWS, ..tensors([4, 2]) },
        Case { rows: RowOutputs::LSE, ..tensors([4, 2]) },
        Case { rows: ROWS, ..decode.clone() },
        Case { rows: RowOutputs::LSE, splits: Splits::Keys(128), ..decode },
    ];
    all.into_iter().map(|case| Case { head_maxima: true, ..case }.seeded(seed)).collect()
}
