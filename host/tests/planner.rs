//! Tests a table of the planner's choices.
mod choices;
mod few;

use crate::parts::forward_params;
use choices::*;
use ferroflash::{kernels::*, plan::*, request::*, tuning::*, *};

fn problem(case: &Case) -> Problem {
    let [batch, heads_q, heads_k, seqlen_q, seqlen_k, head_dim] = case.sizes;
    let (mask, softcap) = (case.mask, case.softcap);
    Problem::new(DType::F16, batch, seqlen_q, heads_q, head_dim)
        .seqlen_k(seqlen_k)
        .heads_k(heads_k)
        .mask(mask)
        .softcap(softcap.unwrap_or_default())
}

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
fn the_planner_chooses() {
    let check = |case: &Case| {
        let capabilities = Capabilities::profile(case.card).expect("a known card");
        let name = format!("{} {:?} {:?}", case.card, case.sizes, case.mask);
        let problem = problem(case);
        let f = forward(&problem);
        let plan = plan(&f, capabilities).unwrap_or_else(|e| panic!("{name}: {e}"));
        let launch = plan.bind(&f).expect("its own tensors");
        // The driver completes the parameters of Hopper's kernels, so the test reads only portable ones.
        let group = if case.group == 0 { 0 } else { forward_params(&launch).order.group.get() };
        assert_eq!(plan.contract().symbol, case.entry, "{name}");
        assert_eq!((plan.grid(), group), ([case.tiles, 1, 1], case.group), "{name}");
        assert_eq!(supports(&problem, capabilities), Ok(plan.contract()), "{name}");
        assert!(!plan.reason().is_empty());
    };
    CASES.iter().for_each(check);
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

/// `card, [batch, heads_q, heads_k, seqlen_q, seqlen_k, head_dim], mask -> entry, blocks, splits` with a
/// workspace.
type Split = (&'static str, [usize; 6], Mask, &'static str, u32, u64);
#[rustfmt::skip]
const SPLITS: &[Split] = &[
    ("h200", [1, 32, 8, 128, 8192, 128], Mask::Full, "hopper_f16_d128_full_128x128_split", 128, 4),
    ("b200", [1, 32, 8, 128, 8192, 128], Mask::Full, "fwd_f16_d128_full_128x64_split", 288, 9),
    ("b200", [4, 32, 32, 128, 8192, 128], Mask::Causal, "fwd_f16_d128_causal_128x64_split", 256, 2),
    ("h200", [1, 32, 8, 17, 8192, 104], Mask::Full, "hopper_f16_d128_full_128x128_split", 128, 4),
    ("l4", [1, 8, 8, 100, 4096, 64], Mask::Full, "fwd_f16_d64_full_128x64_split", 112, 14),
    // A tile has at most 32 splits, with at least two blocks of keys each.
    ("b200", [1, 1, 1, 100, 65536, 64], Mask::Full, "fwd_f16_d64_full_128x64_split", 32, 32),
    ("b200", [1, 1, 1, 100, 2048, 64], Mask::Full, "fwd_f16_d64_full_128x64_split", 16, 16),
    ("h200", [1, 1, 1, 100, 2048, 64], Mask::Full, "hopper_f16_d64_full_128x128_split", 8, 8),
    // These cases have enough queries, too few keys, or a mask or head dim without a split-KV entry.
    ("b200", [8, 32, 32, 2048, 2048, 64], Mask::Full, "fwd_f16_d64_full_128x32", 4096, 0),
    ("h200", [1, 8, 8, 512, 512, 64], Mask::Full, "fwd_f16_d64_full_32x128_k2_s4", 128, 0),
    ("h200", [1, 8, 8, 128, 8192, 64], SLIDING, "fwd_f16_d64_local_128x64", 8, 0),
    ("h200", [1, 8, 8, 128, 8192, 256], Mask::Full, "fwd_f16_d256_full_64x32", 16, 0),
];

#[test]
fn a_workspace_lets_blocks_share_keys() {
    let check = |(card, sizes, mask, entry, blocks, slices): &Split| {
        let capabilities = Capabilities::profile(card).expect("a known card");
        let name = format!("{card} {sizes:?} {mask:?}");
        let case = Case { card, sizes: *sizes, mask: *mask, softcap: None, entry, tiles: 0, group: 0 };
        let alone = forward(&problem(&case));
        let roomy = plan(&alone.scratch(Scratch::Fastest), capabilities);
        let bytes = roomy.unwrap_or_else(|e| panic!("{name}: {e}")).scratch_bytes().workspace;
        let [batch, heads, _, seqlen_q, ..] = sizes.map(|size| size as u64);
        let columns = info(plan(&alone, capabilities).expect("valid").contract()).head_dim;
        assert_eq!(bytes, slices * batch * heads * seqlen_q * (u64::from(columns) + 1) * 4, "{name}");
        let with =
            |bytes| plan(&alone.scratch(Scratch::workspace(6 << 44, bytes)), capabilities).expect("valid");
        let planned = with(bytes.max(16));
        assert_eq!(
            (planned.contract().symbol, planned.grid()[0], planned.scratch_bytes().workspace),
            (*entry, *blocks, bytes),
            "{name}"
        );
        if bytes > 0 {
            let [less, none] = [with(bytes - 1), plan(&alone, capabilities).expect("valid")];
            assert_eq!(
                (less.contract(), less.scratch_bytes().workspace),
                (none.contract(), 0),
                "{name}: an insufficient workspace is not used"
            );
        }
    };
    SPLITS.iter().for_each(check);
}

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

#[test]
fn older_cards_are_refused_in_words() {
    let mut t4 = Capabilities::profile("l4").expect("known").clone();
    (t4.name, t4.compute_capability) = ("Tesla T4".into(), (7, 5));
    let refused = supports(&Problem::new(DType::F16, 1, 512, 8, 64), &t4).expect_err("too old").to_string();
    assert!(
        refused.contains("compute capability 7.5 (Tesla T4)") && refused.contains("8.0 or newer"),
        "{refused}"
    );
}

type Change = fn(AttentionRequest<'static>) -> AttentionRequest<'static>;

/// A change of the request at the launch of a plan for a causal problem of 64 columns, and words of the
/// refusal. The list is empty if the request's meaning has not changed.
#[rustfmt::skip]
const ASKED: &[(&str, Change, &str)] = &[
    ("the same", |f| f, ""),
    ("the default scale by name", |f| f.scale(0.125), ""),
    ("causal as a window", |f| f.mask(CAUSAL_WINDOW), ""),
    ("equal query and key counts have one alignment", |f| f.alignment(Alignment::TopLeft), ""),
    ("no softcap", |f| f.softcap(0.0), ""),
    ("its entry by name", |f| f.config("fwd_f16_d64_causal_128x64"), ""),
    ("another entry", |f| f.config("fwd_f16_d64_causal_64x64"), "config"),
    ("no entry", |f| f.config("fwd_f16_d64_diagonal"), "config"),
    ("another scale", |f| f.scale(0.25), "scale: 0.25; the plan is for 0.125"),
    ("another mask", |f| f.mask(Mask::Full), "mask: full; the plan is for causal"),
    ("a softcap", |f| f.softcap(20.0), "softcap: 20; the plan is for none"),
    ("an invalid tensor", |mut f| { f.q.address = 8; f }, "q.address"),
];

#[test]
fn a_plan_is_for_what_a_request_means_and_not_how_it_says_it() {
    let l4 = Capabilities::profile("l4").expect("known");
    let problem = Problem::new(DType::F16, 32, 512, 32, 64).mask(Mask::Causal);
    let made = plan(&forward(&problem), l4).expect("valid");
    for (name, change, refusal) in ASKED {
        let asked = change(forward(&problem));
        match made.bind(&asked) {
            Ok(params) => {
                assert_eq!(*refusal, "", "{name}");
                assert_eq!(params, made.bind(&forward(&problem)).expect("its own"), "{name}");
            }
            Err(error) => {
                let error = error.to_string();
                assert!(!refusal.is_empty() && error.contains(refusal), "{name}: {error}");
            }
        }
    }
}

#[test]
fn a_plan_for_any_workspace_is_given_one_at_each_launch() {
    let b200 = Capabilities::profile("b200").expect("known");
    let problem = Problem::new(DType::F16, 1, 128, 32, 128).seqlen_k(8192);
    let f = forward(&problem);
    let made = plan(&f.scratch(Scratch::Fastest), b200).expect("valid");
    let bytes = made.scratch_bytes().workspace;
    assert!(bytes > 0);
    let refused = |f: &AttentionRequest<'_>| made.bind(f).expect_err("refused").to_string();
    let given = |address, bytes| f.scratch(Scratch::workspace(address, bytes));
    assert!(made.bind(&given(6 << 44, bytes)).is_ok());
    assert!(refused(&f).contains("workspace.bytes"), "none");
    assert!(refused(&given(6 << 44, bytes - 1)).contains(&bytes.to_string()), "too small");
    assert!(refused(&given(6 << 44 | 8, bytes)).contains("workspace.address"), "misaligned");
    assert!(refused(&given(f.o.address, bytes)).contains("workspace"), "over the output");
}
