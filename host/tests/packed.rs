//! Tests varlen sequences: the planner's kernels, their numbers of blocks, and the refused requests.

use crate::parts::{forward_params, k, keys, queries, v};
use ferroflash::{kernels::*, plan::*, request::*, *};

/// Distance of the buffers.
const FAR: u64 = 1 << 44;

struct Case {
    card: &'static str,
    /// The queries: `[sequences, rows in total, longest sequence]`.
    queries: [usize; 3],
    /// `[heads_q, heads_k, head_dim]`.
    heads: [usize; 3],
    mask: Mask,
    entry: &'static str,
    blocks: u32,
}

const WINDOW: Mask = Mask::Window { left: Some(1023), right: Some(0) };

#[rustfmt::skip]
const CASES: &[Case] = &[
    // With equal lengths, every block has a tile. With ragged lengths, at most one block per sequence has no
    // tile.
    Case { card: "h200", queries: [8, 8 * 2048, 2048], heads: [32, 8, 128], mask: Mask::Causal,
        entry: "hopper_packed_f16_d128_causal_128x128", blocks: 132 },
    Case { card: "a100", queries: [8, 8 * 2048, 2048], heads: [32, 8, 128], mask: Mask::Causal,
        entry: "fwd_f16_d128_causal_128x48_packed", blocks: 128 * 32 },
    Case { card: "h200", queries: [32, 31 * 1024 + 32768, 32768], heads: [32, 8, 128], mask: Mask::Causal,
        entry: "hopper_packed_f16_d128_causal_128x128", blocks: (504 + 32) * 32 / 2 },
    Case { card: "b200", queries: [32, 31 * 1024 + 32768, 32768], heads: [32, 8, 128], mask: Mask::Causal,
        entry: "fwd_f16_d128_causal_128x48_packed", blocks: (504 + 32) * 32 },
    Case { card: "h200", queries: [256, 256 * 100, 512], heads: [12, 12, 64], mask: Mask::Full,
        entry: "fwd_f16_d64_full_128x32_packed", blocks: (200 + 256) * 12 },
    Case { card: "l4", queries: [64, 64 * 128, 128], heads: [12, 12, 64], mask: Mask::Full,
        entry: "fwd_f16_d64_full_128x32_packed", blocks: 64 * 12 },
    // These sequences fit a small tile.
    Case { card: "h200", queries: [256, 256 * 60, 64], heads: [12, 12, 64], mask: Mask::Full,
        entry: "fwd_f16_d64_full_64x64_packed", blocks: 256 * 12 },
    Case { card: "l4", queries: [4, 4 * 2048, 2048], heads: [16, 16, 64], mask: Mask::Causal,
        entry: "fwd_f16_d64_causal_128x32_packed", blocks: 64 * 16 },
    // There are too few rows for the device.
    Case { card: "h200", queries: [1, 300, 300], heads: [8, 8, 128], mask: Mask::Full,
        entry: "fwd_f16_d128_full_64x64_k2_packed", blocks: 5 * 8 },
    // Windows and softcap have one tile. A head dim between two entries' head dims runs on the larger entry.
    Case { card: "a100", queries: [4, 4000, 2000], heads: [16, 4, 40], mask: WINDOW,
        entry: "fwd_f16_d64_local_128x64_packed", blocks: 35 * 16 },
    Case { card: "a100", queries: [4, 4000, 2000], heads: [16, 4, 72], mask: Mask::Full,
        entry: "fwd_f16_d96_full_128x32_packed", blocks: 35 * 16 },
    Case { card: "rtx4090", queries: [4, 4000, 2000], heads: [16, 4, 192], mask: Mask::Causal,
        entry: "fwd_f16_d192_causal_64x32_packed", blocks: 66 * 16 },
    // The planner skips kernels that do not fit.
    Case { card: "h200", queries: [4, 40000, 20000], heads: [16, 4, 256], mask: Mask::Causal,
        entry: "hopper_packed_f16_d256_causal_128x64", blocks: 316 * 16 / 2 },
    Case { card: "b200", queries: [4, 40000, 20000], heads: [16, 4, 256], mask: Mask::Causal,
        entry: "fwd_f16_d256_causal_128x32_packed", blocks: 316 * 16 },
    Case { card: "rtx4090", queries: [4, 40000, 20000], heads: [16, 4, 256], mask: Mask::Causal,
        entry: "fwd_f16_d256_causal_64x32_packed", blocks: 629 * 16 },
    Case { card: "rtx4090", queries: [4, 40000, 20000], heads: [8, 4, 512], mask: Mask::Causal,
        entry: "fwd_f16_d512_causal_64x32_packed", blocks: 629 * 8 },
];

/// Returns a request with equal numbers of keys and queries.
fn request(case: &Case) -> AttentionRequest<'static> {
    let ([batch, rows, longest], [heads_q, heads_k, head_dim]) = (case.queries, case.heads);
    let view = |n: u64, heads| TensorView::bshd(n * FAR, 1 << 42, DType::F16, [1, rows, heads, head_dim]);
    let starts = |n: u64| Index::new(n * FAR, batch as u64 + 1);
    let [q, k, v, o] = [view(1, heads_q), view(2, heads_k), view(3, heads_k), view(4, heads_q)];
    let queries = VarlenQueries::new(batch, starts(5), longest);
    AttentionRequest::varlen(q, k, v, o, queries, VarlenKeys::new(starts(6), longest)).mask(case.mask)
}

fn card(name: &str) -> &'static Capabilities {
    Capabilities::profile(name).expect("a known card")
}

#[test]
fn the_planner_chooses() {
    let check = |case: &Case| {
        let name = format!("{} {:?} {:?} {:?}", case.card, case.queries, case.heads, case.mask);
        let (forward, card) = (request(case), card(case.card));
        let plan = plan(&forward, card).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(plan.contract().symbol, case.entry, "{name}");
        assert_eq!(plan.grid(), [case.blocks, 1, 1], "{name}");
        assert_eq!(supports(&forward.problem(), card), Ok(plan.contract()), "{name}");
        assert_eq!(plan.scratch_bytes().workspace, 0, "{name}");
    };
    CASES.iter().for_each(check);
}

/// The sequences have few queries and many keys, like new tokens in a long context. With enough keys,
/// Hopper's kernel runs at head dim 128. Hopper's kernel does not run for a window, in which a sequence sees
/// only some keys.
#[test]
fn few_queries_on_many_keys() {
    let check = |rows: usize, keys: usize, head_dim: usize, mask: Mask, entry: &str| {
        let problem = Problem::new(DType::F16, 16, rows, 32, head_dim).heads_k(8).seqlen_k(16 * keys);
        let problem = problem.mask(mask).varlen(Some([16 * rows, 16 * keys]));
        let kernel = supports(&problem, card("h200")).unwrap_or_else(|e| panic!("{problem}: {e}"));
        assert_eq!(kernel.symbol, entry, "{rows} on {keys}, {problem}");
    };
    check(1, 1024, 128, Mask::Causal, "hopper_packed_f16_d128_causal_128x128");
    check(16, 2048, 128, Mask::Full, "hopper_packed_f16_d128_full_128x128");
    check(16, 1023, 128, Mask::Causal, "fwd_f16_d128_causal_64x64_k2_packed");
    check(16, 2048, 64, Mask::Full, "fwd_f16_d64_full_64x64_packed");
    check(16, 2048, 128, WINDOW, "fwd_f16_d128_local_128x32_packed");
}

/// With one query per sequence, decode kernels run, by the rule of dense tensors.
#[test]
fn single_queries_take_decode_kernels() {
    let single = |head_dim: usize, keys: usize, mask: Mask| {
        let case =
            Case { card: "h200", queries: [64, 64, 1], heads: [32, 8, head_dim], mask, entry: "", blocks: 0 };
        let mut f = request(&case);
        let [k, v] = f.kv.tensors_mut().expect("tensors");
        (k.shape[1], v.shape[1]) = (64 * keys, 64 * keys);
        self::keys(&mut f).max_seqlen_k = 8192;
        f
    };
    let h200 = card("h200");
    let symbol = |f: &AttentionRequest<'_>| plan(f, h200).map(|made| made.contract().symbol);
    let is_decode = |f: &AttentionRequest<'_>| symbol(f).is_ok_and(|symbol| symbol.starts_with("decode_"));
    let few = |head_dim, keys, mask| single(head_dim, keys, mask).scratch(Scratch::Fastest);
    assert_eq!(symbol(&few(128, 512, Mask::Causal)), Ok("decode_f16_d128_causal_8_tiles_w4"));
    assert_eq!(symbol(&few(64, 1024, WINDOW)), Ok("decode_f16_d64_local_8_rows_w4_s2"));
    assert_eq!(symbol(&few(128, 511, Mask::Causal)), Ok("fwd_f16_d128_causal_64x64_k2_packed"));
    assert!(!is_decode(&few(64, 1023, Mask::Full)));
    let f = few(128, 2048, Mask::Causal);
    let made = plan(&f, h200).expect("valid");
    assert!(made.reason().contains("few queries on many keys: decode"), "{}", made.reason());
    assert!(made.scratch_bytes().workspace > 0, "sequences may differ in length, so they are split");
    assert_eq!(explain(&f.problem(), h200, f.scratch), Ok((made.contract(), made.reason())));
    assert!(!is_decode(&f.scratch(Scratch::None)), "without the workspace that splits need");
    // Each change prevents decode kernels: rows behind the queries, a second query, another alignment, and
    // different strides of K and V.
    let change = |change: fn(&mut AttentionRequest<'static>)| {
        let mut changed = f;
        change(&mut changed);
        changed
    };
    for other in [
        change(|f| (f.q.shape[1], f.o.shape[1]) = (65, 65)),
        change(|f| queries(f).max_seqlen_q = 2),
        change(|f| f.alignment = Alignment::TopLeft),
        change(|f| v(f).strides[1] += 8),
        change(|f| f.scores.alibi = Some(AlibiSlopes::new(9 * FAR, 32))),
    ] {
        assert!(symbol(&other).is_ok() && !is_decode(&other), "{:?}", symbol(&other));
    }
    let memory = Scratch::workspace(10 * FAR, made.scratch_bytes().workspace);
    let apart = change(|f| v(f).strides[1] += 8).scratch(memory);
    let bound = made.bind(&apart).expect("work tiles take it");
    assert!(bound.contract().symbol.ends_with("_packed"), "{}", bound.contract().symbol);
    // At this head dim, only decode kernels take sinks.
    assert!(is_decode(&f.sinks(Sinks { address: 9 * FAR, elements: 32 })));
    assert_eq!(symbol(&f.config(made.contract().symbol)), Ok(made.contract().symbol), "by name");
}

#[test]
fn every_type_head_dim_and_mask_has_a_packed_kernel_on_every_card() {
    for (_, card) in Capabilities::PROFILES {
        for dtype in [DType::F16, DType::Bf16] {
            for head_dim in (8..=MAX_HEAD_DIM).step_by(8) {
                for mask in [Mask::Full, Mask::Causal, WINDOW] {
                    let problem = Problem::new(dtype, 3, 100, 4, head_dim).mask(mask).varlen(Some([250; 2]));
                    let kernel = supports(&problem, card).unwrap_or_else(|e| panic!("{problem}: {e}"));
                    let entry = entry(kernel.symbol).expect("in the table");
                    assert_eq!((entry.family(), entry.dtype), ("packed", dtype), "{problem}");
                    assert!(
                        entry.head_dim as usize >= head_dim && entry.head_dim <= 2 * head_dim.max(16) as u32
                    );
                }
            }
        }
    }
}

/// The change that makes the first case wrong, and words of the refusal.
struct Refusal(fn(&mut AttentionRequest<'static>), &'static [&'static str]);

/// Makes the tensors a batch of one.
fn make_dense(f: &mut AttentionRequest<'static>) {
    let [k, v] = f.kv.tensors().expect("tensors").map(|view| *view);
    (f.queries, f.kv) = (Queries::Batched, KeysValues::Tensors { k, v });
}

#[rustfmt::skip]
const REFUSED: &[Refusal] = &[
    Refusal(|f| queries(f).batch = 0, &["batch", "1 or more"]),
    Refusal(|f| queries(f).batch = 9,
        &["cu_seqlens_q.elements", "9", "10 or more", "one per sequence and one more"]),
    Refusal(|f| queries(f).batch = usize::MAX, &["batch"]),
    Refusal(|f| keys(f).cu_seqlens_k.elements = 8,
        &["cu_seqlens_k.elements", "8", "9 or more"]),
    Refusal(|f| keys(f).seqused_k = Some(Index::new(7 * FAR, 7)),
        &["seqused_k.elements", "7", "8 or more"]),
    Refusal(|f| queries(f).cu_seqlens_q.address += 2,
        &["cu_seqlens_q.address", "multiple of 4"]),
    Refusal(|f| keys(f).cu_seqlens_k.address = 0,
        &["cu_seqlens_k.address", "device address"]),
    Refusal(|f| keys(f).cu_seqlens_k.address = u64::MAX - 3, &["cu_seqlens_k", "64 bits"]),
    Refusal(|f| queries(f).max_seqlen_q = 0, &["max_seqlen_q", "1 or more"]),
    Refusal(|f| keys(f).max_seqlen_k = MAX_SEQLEN + 1, &["max_seqlen_k", "at most"]),
    Refusal(|f| { f.q.shape[0] = 2; f.o.shape[0] = 2 },
        &["q.shape", "[2, 16384, 32, 128]", "[1, 16384, 32, 128]"]),
    Refusal(|f| k(f).shape[0] = 2, &["k.shape", "[2, 16384", "[1, 16384"]),
    Refusal(|f| v(f).shape[1] = 5, &["v.shape", "[1, 5,"]),
    Refusal(|f| { k(f).shape[1] = 0; v(f).shape[1] = 0 }, &["rows of k", "1 or more"]),
    Refusal(|f| f.o.address = 5 * FAR, &["o.address", "must not overlap cu_seqlens_q"]),
    Refusal(|f| f.lse = Some(LseView::contiguous(6 * FAR, 1 << 40, [1, 32, 16384])),
        &["lse.address", "must not overlap cu_seqlens_k"]),
    Refusal(|f| f.lse = Some(LseView::contiguous(8 * FAR, 1 << 40, [8, 32, 2048])),
        &["lse.shape", "[1, 32, 16384]"]),
    Refusal(|f| f.scratch = Scratch::workspace(5 * FAR, 64),
        &["workspace.address", "must not overlap cu_seqlens_q"]),
    Refusal(|f| f.config = Some("fwd_f16_d128_causal_128x48"),
        &["config", "not a kernel for varlen sequences", "hopper_packed_f16_d128_causal_128x128 is one"]),
    Refusal(|f| f.config = Some("hopper_f16_d128_causal_128x128"),
        &["config", "not a kernel for varlen sequences", "hopper_packed_f16_d128_causal_128x128 is one"]),
    Refusal(|f| { make_dense(f); f.config = Some("fwd_f16_d128_causal_128x48_packed") },
        &["config", "not a kernel for equally long sequences", "hopper_f16_d128_causal_128x128 is one"]),
    Refusal(|f| queries(f).max_seqlen_q = 1 << 29, &[]),
];

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let h200 = card("h200");
    for (number, Refusal(change, words)) in REFUSED.iter().enumerate() {
        let mut forward = request(&CASES[0]);
        assert!(plan(&forward, h200).is_ok());
        change(&mut forward);
        let outcome = plan(&forward, h200);
        if words.is_empty() {
            // If the maximum number of queries is far too large, the launch has no more blocks, because the
            // number of rows also bounds the blocks.
            assert_eq!(outcome.expect("valid").grid(), [(128 + 8) * 32 / 2, 1, 1]);
            continue;
        }
        let error = outcome.expect_err("wrong").to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{number}: {error}, should have {words:?}");
    }
}

#[test]
fn a_plan_serves_other_integers_and_no_other_sizes() {
    let (case, a100) = (&CASES[1], card("a100"));
    let forward = request(case);
    let made = plan(&forward, a100).expect("valid");
    let same = |change: fn(&mut AttentionRequest<'static>)| {
        let mut other = forward;
        change(&mut other);
        made.bind(&other)
    };
    let elsewhere = same(|f| queries(f).cu_seqlens_q.address = 9 * FAR).expect("the same problem");
    assert_eq!(forward_params(&elsewhere), forward_params(&made.bind(&forward).expect("its own")));
    assert!(same(|f| queries(f).cu_seqlens_q.address = 1).is_err(), "checked again");
    assert!(same(|f| queries(f).max_seqlen_q = 99).is_err(), "another bound is another plan");
    assert!(same(|f| f.alignment = Alignment::TopLeft).is_err(), "each sequence is aligned by itself");
    assert!(same(make_dense).is_err());
}
