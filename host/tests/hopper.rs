//! Tests Hopper's kernels: the planner's selection, tensor maps, and tensors that TMA does not accept.

use crate::fake::FakeDriver;
use crate::fake_ptx::with_ptx;
use crate::parts::{forward_params, k, keys, queries, v};
use ferroflash::{plan::*, request::*, tuning::*, *};
use spec::{HopperParams, RaggedMap, VarlenParams};
use std::mem::offset_of;
use std::sync::atomic::Ordering;

fn card(name: &str) -> &'static Capabilities {
    Capabilities::profile(name).expect("a known card")
}

/// Returns a request with contiguous tensors at `address`: 2 batches, 16 query heads and 4 key heads.
fn forward(address: u64, [seqlen_q, seqlen_k]: [usize; 2], head_dim: usize) -> AttentionRequest<'static> {
    let view = |n: u64, seqlen, heads| {
        TensorView::bshd(address + (n << 36), 1 << 34, DType::Bf16, [2, seqlen, heads, head_dim])
    };
    let [q, o] = [0, 3].map(|n| view(n, seqlen_q, 16));
    let [k, v] = [1, 2].map(|n| view(n, seqlen_k, 4));
    AttentionRequest::dense(q, k, v, o)
}

/// Returns the request of a long prefill.
fn long(address: u64) -> AttentionRequest<'static> {
    forward(address, [2048; 2], 128)
}

const LONG: &str = "hopper_bf16_d128_full_128x128";

/// `card, [seqlen_q, seqlen_k], head_dim, mask -> the beginning of a symbol, blocks`.
type Case = (&'static str, [usize; 2], usize, Mask, &'static str, u32);
const SLIDING: Mask = Mask::Window { left: Some(511), right: Some(0) };
#[rustfmt::skip]
const CASES: &[Case] = &[
    ("h200", [2048, 2048], 128, Mask::Full, "hopper_bf16_d128_full_128x", 132),
    ("h100", [2048, 2048], 128, Mask::Causal, "hopper_bf16_d128_causal_128x", 132),
    ("h200", [2048, 2048], 128, SLIDING, "hopper_bf16_d128_local_128x", 132),
    ("h200", [2048, 2048], 80, Mask::Causal, "hopper_bf16_d96_causal_128x", 132),
    // Rows inside 32-byte sectors: panels have 64 columns, or three warpgroups share panels of 32.
    ("h200", [2048, 2048], 72, Mask::Causal, "hopper_bf16_d128_causal_128x", 132),
    ("h200", [4096, 4096], 72, Mask::Causal, "hopper_bf16_d96_causal_192x", 132),
    ("h200", [2048, 2048], 88, Mask::Full, "hopper_bf16_d96_full_192x", 132),
    ("h200", [1024, 1024], 72, Mask::Full, "hopper_bf16_d128_full_128x", 132), // as many rounds of 192
    ("h200", [2048, 2048], 56, Mask::Full, "hopper_bf16_d64_full_192x", 132),
    ("h200", [2048, 4000], 160, Mask::Full, "hopper_bf16_d192_full_128x", 132),
    ("h200", [2048, 2048], 256, Mask::Causal, "hopper_bf16_d256_causal_128x", 132),
    // Three warpgroups of queries always run for full problems, and for long causal problems.
    ("h200", [2048, 2048], 64, Mask::Full, "hopper_bf16_d64_full_192x", 132),
    ("h200", [2048, 2048], 64, Mask::Causal, "hopper_bf16_d64_causal_128x", 132),
    ("h200", [8192, 8192], 64, Mask::Causal, "hopper_bf16_d64_causal_192x", 132),
    // Blocks take two tiles at a time, if a head has an even number of tiles.
    ("h200", [768, 1024], 128, Mask::Causal, "hopper_bf16_d128_causal_128x", 96),
    ("h200", [900, 1024], 128, Mask::Causal, "hopper_bf16_d128_causal_128x", 128),
    ("h200", [600, 1024], 128, Mask::Causal, "hopper_bf16_d128_causal_128x", 132),
    // Pairs of the tiles of 9 heads would leave 60 SMs idle.
    ("h200", [2048 - 128, 2048], 128, Mask::Causal, "hopper_bf16_d128_causal_128x", 132),
    // For short problems, Hopper's kernels run from one tile per SM on.
    ("h200", [500, 2000], 128, Mask::Full, "hopper_bf16_d128_full_128x", 128),
    // With few tiles, or half a tile of queries, a portable kernel runs.
    ("h200", [128, 128], 128, Mask::Full, "fwd_bf16_d128_full_", 128),
    // In these cases, a portable kernel runs: it pads the head dim less, no Hopper kernel has the head dim,
    // or the card is not a Hopper card.
    ("h200", [2048, 2048], 32, Mask::Full, "fwd_bf16_d32_full_", 512),
    ("h200", [2048, 2048], 264, Mask::Full, "fwd_bf16_d512_full_", 1024),
    ("l4", [2048, 2048], 128, Mask::Full, "fwd_bf16_d128_full_", 512),
    ("a100", [2048, 2048], 128, Mask::Full, "fwd_bf16_d128_full_", 512),
    ("b200", [2048, 2048], 128, Mask::Full, "fwd_bf16_d128_full_", 512),
    ("rtx5090", [2048, 2048], 128, Mask::Full, "fwd_bf16_d128_full_", 512),
];

#[test]
fn long_problems_take_them_on_the_cards_that_they_are_for() {
    for (name, lengths, head_dim, mask, symbol, blocks) in CASES {
        let (f, case) = (
            forward(1 << 40, *lengths, *head_dim).mask(*mask),
            format!("{name} {lengths:?} {head_dim} {mask:?}"),
        );
        let made = plan(&f, card(name)).unwrap_or_else(|e| panic!("{case}: {e}"));
        assert!(made.contract().symbol.starts_with(symbol), "{case}: {}", made.contract().symbol);
        assert_eq!(made.grid(), [*blocks, 1, 1], "{case}");
        assert_eq!(supports(&f.problem(), card(name)), Ok(made.contract()), "{case}");
    }
}

/// `card, [heads of 128 queries, keys], head_dim, mask, workspace -> prefix of the symbol, blocks, splits`.
/// With splits, the kernel is a split-KV kernel.
type Few = (&'static str, [usize; 2], usize, Mask, Scratch, &'static str, u32, u32);
const ROOM: Scratch = Scratch::Fastest;
const NONE: Scratch = Scratch::None;
#[rustfmt::skip]
const FEW: &[Few] = &[
    // 128 splits run on 128 SMs, one split per SM.
    ("h200", [8, 8192], 64, Mask::Full, ROOM, "hopper_f16_d64_full_128x128_split", 128, 16),
    ("h200", [8, 8192], 128, Mask::Causal, ROOM, "hopper_f16_d128_causal_128x128_split", 128, 16),
    ("h200", [32, 8192], 128, Mask::Full, ROOM, "hopper_f16_d128_full_128x128_split", 128, 4),
    ("h200", [64, 8192], 128, Mask::Full, ROOM, "hopper_f16_d128_full_128x128_split", 128, 2),
    ("h200", [32, 8192], 80, Mask::Full, ROOM, "fwd_f16_d96_full_", 32, 0),
    // A split has at least two blocks of keys; a tile has at most 32 splits.
    ("h200", [1, 2048], 64, Mask::Full, ROOM, "hopper_f16_d64_full_128x128_split", 8, 8),
    ("h200", [1, 32768], 64, Mask::Full, ROOM, "hopper_f16_d64_full_128x128_split", 32, 32),
    // Each block takes several shares.
    ("h200", [88, 8192], 128, Mask::Full, ROOM, "hopper_f16_d128_full_128x128_split", 132, 3),
    // Without splits, the tiles keep nearly all SMs busy.
    ("h200", [128, 8192], 128, Mask::Full, ROOM, "hopper_f16_d128_full_128x128", 128, 0),
    ("h200", [128, 8192], 64, Mask::Causal, NONE, "hopper_f16_d64_causal_128x128", 128, 0),
    // These cases have no workspace, few keys, another mask, or another card.
    ("h200", [32, 8192], 128, Mask::Full, Scratch::workspace(1 << 50, 32 << 16),
        "fwd_f16_d128_full_32x128_k4", 128, 0),
    ("h200", [32, 1024], 128, Mask::Full, ROOM, "fwd_f16_d128_full_", 128, 0),
    ("h200", [8, 8192], 128, SLIDING, ROOM, "fwd_f16_d128_local_", 8, 0),
    ("b200", [32, 8192], 128, Mask::Full, ROOM, "fwd_f16_d128_full_128x64_split", 288, 9),
    ("a100", [16, 8192], 64, Mask::Full, ROOM, "fwd_f16_d64_full_128x64_split", 208, 13),
];

/// Returns a request with heads of 128 queries.
fn few([heads, keys]: [usize; 2], head_dim: usize) -> AttentionRequest<'static> {
    let view = |n: u64, rows| {
        TensorView::bshd((1 << 44) + (n << 36), 1 << 34, DType::F16, [1, rows, heads, head_dim])
    };
    AttentionRequest::dense(view(0, 128), view(1, keys), view(2, keys), view(3, 128))
}

#[test]
fn few_queries_on_many_keys_share_them() {
    for (name, [heads, keys], head_dim, mask, room, symbol, blocks, slices) in FEW {
        let (f, case) = (
            few([*heads, *keys], *head_dim).mask(*mask),
            format!("{name} {heads}x128/{keys} {head_dim} {mask:?}"),
        );
        let made = plan(&f.scratch(*room), card(name)).unwrap_or_else(|e| panic!("{case}: {e}"));
        let chosen = made.contract().symbol;
        assert!(chosen.starts_with(symbol), "{case}: {chosen}");
        assert_eq!(chosen.ends_with("_split"), *slices > 0, "{case}: {chosen}");
        assert_eq!(made.grid(), [*blocks, 1, 1], "{case}");
        let row = 4 * (*head_dim as u64 + 1);
        assert_eq!(made.scratch_bytes().workspace, u64::from(*slices) * 128 * *heads as u64 * row, "{case}");
        let explained = explain(&f.problem(), card(name), *room);
        assert_eq!(explained, Ok((made.contract(), made.reason())), "{case}");
    }
}

#[test]
fn slices_are_merged_and_other_tensors_may_be_any() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("h200"));
    let mut f = few([32, 8192], 128);
    f.scratch = Scratch::workspace(1 << 50, 1 << 30);
    let plan = attention.plan(&f)?;
    let slices = 32 * 128 * 4 * (128 + 1) * 4;
    assert_eq!(plan.scratch_bytes().workspace, slices);
    let launch = |f: &AttentionRequest<'_>| {
        // SAFETY: the fake driver runs nothing.
        unsafe { attention.launch(&plan, f, &0) }
    };
    launch(&f)?;
    let mut elsewhere = f;
    elsewhere.scratch = Scratch::workspace(3 << 50, slices);
    launch(&elsewhere)?;
    let mut repeats = f;
    k(&mut repeats).strides[2] = 0;
    launch(&repeats)?;
    elsewhere.scratch = Scratch::workspace(3 << 50, slices - 16);
    assert!(launch(&elsewhere).expect_err("too little room").to_string().contains("workspace"));
    let launches = attention.driver().launches();
    let symbols: Vec<_> = launches.iter().map(|told| &*told.symbol).collect();
    let both = ["hopper_f16_d128_full_128x128_split", "combine_f16_d128"];
    assert_eq!(symbols[..4], [both, both].concat());
    assert!(symbols.len() == 5 && symbols[4].starts_with("fwd_f16_d128_full_"), "{symbols:?}");
    for (told, room) in launches[..4].iter().zip([1 << 50, 1 << 50, 3 << 50, 3 << 50]) {
        let partials = if told.symbol.starts_with("combine") { 0 } else { size_of::<HopperParams>() };
        assert_eq!(word(&told.params, partials), room, "{}", told.symbol);
    }
    Ok(())
}

type Change = fn(AttentionRequest<'static>) -> AttentionRequest<'static>;

/// Tensors that TMA does not accept, and words of the plan's reason.
#[rustfmt::skip]
const STRANGE: &[(&str, Change, &str)] = &[
    ("one head of keys for all", |mut f| { k(&mut f).strides[2] = 0; f }, "a stride is 0"),
    ("the same values in all batches", |mut f| { v(&mut f).strides[0] = 0; f }, "a stride is 0"),
    ("batches very far apart", |mut f| {
        (f.q.strides[0], f.q.elements) = (1 << 40, 1 << 42);
        f
    }, "2^40"),
];

#[test]
fn tensors_that_a_copy_engine_does_not_take_are_for_portable_kernels() {
    for (name, change, reason) in STRANGE {
        let f = change(long(1 << 44));
        let made = plan(&f, card("h200")).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(
            made.contract().symbol.starts_with("fwd_") && made.reason().contains(reason),
            "{name}: {made:?}"
        );
        let asked = plan(&f.config(LONG), card("h200")).expect_err(name).to_string();
        assert!(asked.contains(LONG) && asked.contains(reason), "{name}: {asked}");
    }
    // Tensors without elements may have any strides.
    let mut one = long(1 << 44);
    let views = one.kv.tensors_mut().expect("tensors").into_iter();
    for view in views.chain([&mut one.q, &mut one.o]) {
        (view.shape[0], view.strides[0]) = (1, 0);
    }
    assert_eq!(plan(&one, card("h200")).map(|made| made.contract().symbol), Ok(LONG));
}

#[test]
fn slopes_and_old_drivers_are_for_portable_kernels() {
    let f = long(1 << 40);
    let slopes = f.alibi(AlibiSlopes::new(1 << 50, 16));
    assert!(plan(&slopes, card("h200")).expect("valid").contract().symbol.starts_with("fwd_"));
    let local = plan(&slopes.config("hopper_bf16_d128_local_128x96"), card("h200"));
    assert!(local.expect_err("slopes").to_string().contains("ALiBi"));
    let mut old = card("h200").clone();
    old.tensor_maps = false;
    let made = plan(&f, &old).expect("valid");
    assert!(made.contract().symbol.starts_with("fwd_") && made.reason().contains("CUDA 12.3"), "{made:?}");
    assert!(plan(&f.config(LONG), &old).expect_err("no maps").to_string().contains("CUDA 12.3"));
    let elsewhere = plan(&f.config(LONG), card("b200")).expect_err("another generation").to_string();
    assert!(elsewhere.contains("exactly sm_90a"), "{elsewhere}");
}

#[test]
fn measured_choices_come_first_where_they_take_the_tensors() {
    let (f, h200) = (forward(1 << 40, [600, 700], 128), card("h200"));
    let mut tuning = Tuning::new();
    tuning.keep(&h200.name, &f.problem(), Tuned::new(LONG.into(), 1.0, None));
    let symbol = |f: &AttentionRequest<'_>| plan_with(f, h200, &tuning).expect("valid").contract().symbol;
    assert_eq!((symbol(&f), tuning.outdated().count()), (LONG, 0));
    let mut repeats = f;
    k(&mut repeats).strides[2] = 0;
    assert!(symbol(&repeats).starts_with("fwd_"));
}

/// Reads a 64-bit word of the kernel's parameters.
fn word(params: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(params[at..][..8].try_into().expect("8 bytes"))
}

#[test]
fn maps_are_made_once_for_the_tensors_and_their_boxes() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("h200"));
    let encoded = || attention.driver().maps.swap(0, Ordering::Relaxed);
    let mut f = long(1 << 44).lse(LseView::contiguous(1 << 50, 1 << 20, [2, 16, 2048]));
    f.q.strides[0] += 64;
    let plan = attention.plan(&f)?;
    assert_eq!((plan.contract().symbol, encoded()), (LONG, 0), "planning encodes nothing");
    let launch = |f: &AttentionRequest<'_>| {
        // SAFETY: the fake driver runs nothing.
        unsafe { attention.launch(&plan, f, &7) }
    };
    launch(&f)?;
    launch(&f)?;
    assert_eq!(encoded(), 4, "the second launch finds them");
    let mut other = f;
    v(&mut other).address += 1 << 20;
    launch(&other)?;
    launch(&f)?;
    assert_eq!(encoded(), 1, "equal tensor maps are found");

    let launches = attention.driver().launches();
    let told = &launches[0];
    assert_eq!((&*told.symbol, told.grid, told.threads, told.stream), (LONG, [132, 1, 1], 384, 7));
    assert_eq!((told.params.len(), &launches[3]), (size_of::<HopperParams>(), told));
    let row = 128 * 2;
    for (name, at, view, rows, heads) in [
        ("q", offset_of!(HopperParams, q), f.q, 64, 16),
        ("k", offset_of!(HopperParams, k), *k(&mut f), 128, 4),
        ("v", offset_of!(HopperParams, v), *v(&mut f), 128, 4),
        ("o", offset_of!(HopperParams, o), f.o, 64, 16),
    ] {
        let words = std::array::from_fn(|i| word(&told.params, at + 8 * i));
        let batch = view.strides[0] as u64 * 2;
        assert_eq!(words, [view.address, 64, rows, heads * row, row, batch], "{name}");
    }
    assert_eq!(word(&launches[2].params, offset_of!(HopperParams, v)), v(&mut other).address);
    assert_eq!(word(&told.params, offset_of!(HopperParams, lse)), 1 << 50);
    let lengths = offset_of!(HopperParams, q_len);
    assert_eq!(word(&told.params, lengths), 2048 << 32 | 2048);
    Ok(())
}

#[test]
fn other_tensors_of_a_plan_may_be_any() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("h200"));
    let f = long(1 << 44);
    let plan = attention.plan(&f)?;
    attention.load(&plan)?;
    let loaded = attention.driver().loaded();
    assert!(loaded[0] == LONG && loaded[1].starts_with("fwd_bf16_d128_full_"), "{loaded:?}");
    for (name, change, reason) in STRANGE {
        let strange = change(f);
        // SAFETY: the fake driver runs nothing.
        unsafe { attention.launch(&plan, &strange, &0)? };
        let launches = attention.driver().launches();
        let told = launches.last().expect("a launch");
        let portable = ferroflash::plan(&strange, attention.capabilities())?;
        assert_eq!((&*told.symbol, told.grid), (portable.contract().symbol, portable.grid()), "{name}");
        // The bound launch has the kernel and the reason that a plan for these tensors would have.
        let bound = plan.bind(&strange)?;
        assert_eq!((bound.contract(), bound.grid()), (portable.contract(), portable.grid()), "{name}");
        assert_eq!((bound.reason(), bound.reason().contains(reason)), (portable.reason(), true), "{name}");
        assert_eq!(forward_params(&bound), forward_params(&portable.bind(&strange)?), "{name}");
    }
    assert_eq!(attention.driver().loaded(), loaded, "it was loaded with the plan");
    // The plan's tensors, and other tensors that TMA accepts, use the planned kernel.
    for own in [f, long(1 << 45)] {
        let bound = plan.bind(&own)?;
        assert_eq!((bound.contract(), bound.reason()), (plan.contract(), plan.reason()));
    }
    // If the caller named the kernel, the launch is refused.
    let asked = attention.plan(&f.config(LONG))?;
    let strange = STRANGE[0].1(f).config(LONG);
    // SAFETY: the fake driver runs nothing.
    let refused = unsafe { attention.launch(&asked, &strange, &0) }.expect_err("a stride of 0").to_string();
    assert!(refused.contains(LONG) && refused.contains("a stride is 0"), "{refused}");
    Ok(())
}

/// Returns a request with four sequences of 4000 rows in total, at most 2000 each.
fn packed(address: u64) -> AttentionRequest<'static> {
    let view =
        |n: u64, heads| TensorView::bshd(address + (n << 36), 1 << 34, DType::Bf16, [1, 4000, heads, 128]);
    let starts = Index::new(address + (5 << 36), 5);
    let (queries, keys) = (VarlenQueries::new(4, starts, 2000), VarlenKeys::new(starts, 2000));
    AttentionRequest::varlen(view(0, 16), view(1, 4), view(2, 4), view(3, 16), queries, keys)
}

const PACKED: &str = "hopper_packed_bf16_d128_full_128x128";

#[test]
fn maps_of_packed_sequences_follow_from_tensors_alone() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("h200"));
    let encoded = || attention.driver().maps.swap(0, Ordering::Relaxed);
    let f = packed(1 << 44);
    let plan = attention.plan(&f)?;
    assert_eq!((plan.contract().symbol, encoded()), (PACKED, 0), "planning encodes nothing");
    let launch = |f: &AttentionRequest<'_>| {
        // SAFETY: the fake driver runs nothing.
        unsafe { attention.launch(&plan, f, &7) }
    };
    launch(&f)?;
    let mut others = f;
    let starts = Index::new((1 << 44) + (6 << 36), 5);
    queries(&mut others).cu_seqlens_q = starts;
    keys(&mut others).cu_seqlens_k = starts;
    launch(&others)?;
    assert_eq!(encoded(), 4, "other sequences have the same");
    let launches = attention.driver().launches();
    let told = &launches[0];
    assert_eq!(
        (&*told.symbol, told.params.len()),
        (PACKED, size_of::<VarlenParams<HopperParams<RaggedMap>>>())
    );
    let starts = |launch: usize| {
        word(&launches[launch].params, offset_of!(VarlenParams<HopperParams<RaggedMap>>, cu_seqlens_q))
    };
    assert_eq!([starts(0), starts(1)], [(1 << 44) + (5 << 36), (1 << 44) + (6 << 36)]);
    // A batch of equal lengths at the same address has another tensor map.
    assert!(attention.plan(&long(1 << 44)).is_ok());
    Ok(())
}

#[test]
fn packed_tensors_that_a_copy_engine_does_not_take_are_for_portable_kernels() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("h200"));
    let f = packed(1 << 44);
    let plan = attention.plan(&f)?;
    let mut repeats = f;
    k(&mut repeats).strides[2] = 0;
    let made = ferroflash::plan(&repeats, card("h200"))?;
    assert!(
        made.contract().symbol.ends_with("_packed") && made.reason().contains("a stride is 0"),
        "{made:?}"
    );
    let asked = ferroflash::plan(&repeats.config(PACKED), card("h200")).expect_err("by name").to_string();
    assert!(asked.contains(PACKED) && asked.contains("a stride is 0"), "{asked}");
    // SAFETY: the fake driver runs nothing.
    unsafe { attention.launch(&plan, &repeats, &0)? };
    let launches = attention.driver().launches();
    assert_eq!(launches.last().map(|told| &*told.symbol), Some(made.contract().symbol));
    let bound = plan.bind(&repeats)?;
    assert_eq!((bound.contract(), bound.reason()), (made.contract(), made.reason()));
    let mut old = card("h200").clone();
    old.tensor_maps = false;
    let made = ferroflash::plan(&f, &old)?;
    assert!(made.contract().symbol.ends_with("_packed") && made.reason().contains("CUDA 12.3"), "{made:?}");
    let slopes = ferroflash::plan(&f.alibi(AlibiSlopes::new(1 << 50, 16)), card("h200"))?;
    assert!(slopes.contract().symbol.ends_with("_packed"), "{slopes:?}");
    Ok(())
}
