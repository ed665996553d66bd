//! Tests that every head dim has a kernel on every card, that measured choices come first, and the windows
//! and scales in parameters. `tests/plans.txt` has the planner's choices.

use crate::parts::forward_params;
use ferroflash::{kernels::*, plan::*, request::*, tuning::*, *};

fn forward(p: &Problem) -> AttentionRequest<'static> {
    let view = |n: u64, seqlen: usize, heads: usize| {
        TensorView::bhsd(n << 44, 1 << 42, p.dtype, [p.batch, seqlen, heads, p.head_dim])
    };
    let [q, o] = [1, 4].map(|n| view(n, p.seqlen_q, p.heads_q));
    let [k, v] = [2, 3].map(|n| view(n, p.seqlen_k, p.heads_k));
    AttentionRequest::dense(q, k, v, o).mask(p.mask).softcap(p.softcap.unwrap_or_default())
}

/// Returns a forward kernel's line in the table.
fn info(kernel: &Contract) -> &'static AttnInfo {
    entry(kernel.symbol).expect("in the table")
}

#[test]
fn what_was_measured_with_a_workspace_is_taken_with_one() {
    let h200 = Capabilities::profile("h200").expect("a known card");
    let problem = Problem::new(DType::F16, 1, 128, 8, 128).seqlen_k(1024);
    let entry = "fwd_f16_d128_full_128x64_split";
    let mut tuning = Tuning::new();
    tuning.keep(&h200.name, &problem, Tuned::new(entry.into(), 1.0, None));
    let f = forward(&problem);
    let bytes =
        plan_with(&f.scratch(Scratch::Fastest), h200, &tuning).expect("valid").scratch_bytes().workspace;
    let symbol = |f: &AttentionRequest<'_>| plan_with(f, h200, &tuning).expect("valid").contract().symbol;
    assert_eq!(symbol(&f.scratch(Scratch::workspace(6 << 44, bytes))), entry);
    assert_eq!(symbol(&f), plan(&f, h200).expect("valid").contract().symbol);
}

const SLIDING: Mask = Mask::Window { left: Some(1023), right: Some(0) };

#[test]
fn every_head_dim_and_mask_has_a_plan_on_every_card() {
    for (name, capabilities) in Capabilities::PROFILES {
        for dtype in [DType::F16, DType::Bf16] {
            for head_dim in (8..=512).step_by(8) {
                for mask in [Mask::Full, Mask::Causal, SLIDING] {
                    let problem = Problem::new(dtype, 2, 300, 4, head_dim).mask(mask);
                    let kernel = supports(&problem, capabilities).unwrap_or_else(|e| panic!("{name}: {e}"));
                    let entry = info(kernel);
                    assert!(
                        entry.contract.smem_bytes <= capabilities.smem_per_block
                            && entry.head_dim as usize >= head_dim
                    );
                    assert_eq!(entry.dtype, dtype);
                }
            }
        }
    }
}

/// `(mask, alignment, seqlen_q, seqlen_k) -> (shift, left, right)`.
#[rustfmt::skip]
const WINDOWS: &[(Mask, Alignment, usize, usize, [i32; 3])] = &[
    (Mask::Causal, Alignment::BottomRight, 100, 300, [200, ALL, 0]),
    (Mask::Causal, Alignment::BottomRight, 300, 100, [-200, ALL, 0]),
    (Mask::Causal, Alignment::TopLeft, 100, 300, [0, ALL, 0]),
    (Mask::Window { left: Some(16), right: Some(4) }, Alignment::BottomRight, 100, 300, [200, 16, 4]),
    (Mask::Window { left: Some(16), right: None }, Alignment::TopLeft, 100, 300, [0, 16, ALL]),
    (Mask::Window { left: Some(u32::MAX), right: Some(1 << 30) }, Alignment::TopLeft, 100, 300,
        [0, ALL, ALL]),
    (Mask::Full, Alignment::BottomRight, 100, 300, [200, ALL, ALL]),
];
const ALL: i32 = 1 << 30;

#[test]
fn masks_become_windows() {
    for &(mask, alignment, seqlen_q, seqlen_k, [shift, left, right]) in WINDOWS {
        let f = forward(&Problem::new(DType::F16, 1, seqlen_q, 2, 64).seqlen_k(seqlen_k).mask(mask))
            .alignment(alignment);
        let plan = plan(&f, Capabilities::profile("l4").expect("known")).expect("valid");
        let window = forward_params(&plan.bind(&f).expect("planned")).window;
        assert_eq!([window.shift, window.left, window.right], [shift, left, right], "{mask:?} {alignment:?}");
    }
}

#[test]
fn scales_become_base_two() {
    let log2_e = std::f32::consts::LOG2_E;
    let p = Problem::new(DType::F16, 1, 10, 2, 64);
    let capabilities = Capabilities::profile("l4").expect("known");
    let params = |f: AttentionRequest<'_>| {
        let launch = plan(&f, capabilities).and_then(|plan| plan.bind(&f)).expect("valid");
        let params = forward_params(&launch);
        (params.scale_log2, params.softcap)
    };
    assert_eq!(params(forward(&p)), (0.125 * log2_e, 0.0));
    assert_eq!(params(forward(&p).scale(0.3)), (0.3 * log2_e, 0.0));
    assert_eq!(params(forward(&p).scale(0.3).softcap(20.0)), (20.0 * log2_e, 0.3 / 20.0));
}

/// The error names the field in which a request differs from its plan's.
#[test]
fn a_request_of_another_precision_is_refused_by_name() {
    let h200 = Capabilities::profile("h200").expect("a known card");
    let f = forward(&Problem::new(DType::F16, 1, 256, 2, 64)).scratch(Scratch::workspace(6 << 44, 1 << 30));
    let planned = plan(&f.precision(Precision::Fp8), h200).expect("valid");
    let error = planned.bind(&f).expect_err("another precision").to_string();
    assert!(error.contains("precision: inputs; the plan is for fp8"), "{error}");
}
