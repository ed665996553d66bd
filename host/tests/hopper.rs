//! Tests launches of Hopper's kernels: tensor maps, split-KV, and tensors that TMA does not accept.

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

/// Returns a request with heads of 128 queries.
fn few([heads, keys]: [usize; 2], head_dim: usize) -> AttentionRequest<'static> {
    let view = |n: u64, rows| {
        TensorView::bshd((1 << 44) + (n << 36), 1 << 34, DType::F16, [1, rows, heads, head_dim])
    };
    AttentionRequest::dense(view(0, 128), view(1, keys), view(2, keys), view(3, 128))
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
    let symbols: Vec<_> = launches.iter().map(|launch| &*launch.symbol).collect();
    let both = ["hopper_f16_d128_full_128x128_split", "combine_f16_d128"];
    assert_eq!(symbols[..4], [both, both].concat());
    assert!(symbols.len() == 5 && symbols[4].starts_with("fwd_f16_d128_full_"), "{symbols:?}");
    for (launch, room) in launches[..4].iter().zip([1 << 50, 1 << 50, 3 << 50, 3 << 50]) {
        let partials = if launch.symbol.starts_with("combine") { 0 } else { size_of::<HopperParams>() };
        assert_eq!(word(&launch.params, partials), room, "{}", launch.symbol);
    }
    Ok(())
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
    let launch = &launches[0];
    assert_eq!((&*launch.symbol, launch.grid, launch.threads, launch.stream), (LONG, [132, 1, 1], 384, 7));
    assert_eq!((launch.params.len(), &launches[3]), (size_of::<HopperParams>(), launch));
    let row = 128 * 2;
    for (name, at, view, rows, heads) in [
        ("q", offset_of!(HopperParams, q), f.q, 64, 16),
        ("k", offset_of!(HopperParams, k), *k(&mut f), 128, 4),
        ("v", offset_of!(HopperParams, v), *v(&mut f), 128, 4),
        ("o", offset_of!(HopperParams, o), f.o, 64, 16),
    ] {
        let words = std::array::from_fn(|i| word(&launch.params, at + 8 * i));
        let batch = view.strides[0] as u64 * 2;
        assert_eq!(words, [view.address, 64, rows, heads * row, row, batch], "{name}");
    }
    assert_eq!(word(&launches[2].params, offset_of!(HopperParams, v)), v(&mut other).address);
    assert_eq!(word(&launch.params, offset_of!(HopperParams, lse)), 1 << 50);
    let lengths = offset_of!(HopperParams, q_len);
    assert_eq!(word(&launch.params, lengths), 2048 << 32 | 2048);
    Ok(())
}

/// The fallback is loaded with the plan, and gets the parameters of its own plan.
#[test]
fn other_tensors_of_a_plan_may_be_any() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("h200"));
    let f = long(1 << 44);
    let plan = attention.plan(&f)?;
    attention.load(&plan)?;
    let loaded = attention.driver().loaded();
    let mut strange = f;
    k(&mut strange).strides[2] = 0;
    // SAFETY: the fake driver runs nothing.
    unsafe { attention.launch(&plan, &strange, &0)? };
    assert_eq!(attention.driver().loaded(), loaded);
    let portable = ferroflash::plan(&strange, attention.capabilities())?;
    let bound = plan.bind(&strange)?;
    assert_eq!((bound.contract(), bound.grid()), (portable.contract(), portable.grid()));
    assert_eq!(forward_params(&bound), forward_params(&portable.bind(&strange)?));
    Ok(())
}

/// Returns a request with four sequences of 4000 rows in total, at most 2000 each.
fn varlen(address: u64) -> AttentionRequest<'static> {
    let view =
        |n: u64, heads| TensorView::bshd(address + (n << 36), 1 << 34, DType::Bf16, [1, 4000, heads, 128]);
    let starts = Index::new(address + (5 << 36), 5);
    let (queries, keys) = (VarlenQueries::new(4, starts, 2000), VarlenKeys::new(starts, 2000));
    AttentionRequest::varlen(view(0, 16), view(1, 4), view(2, 4), view(3, 16), queries, keys)
}

const PACKED: &str = "hopper_packed_bf16_d128_full_128x128";

#[test]
fn maps_of_varlen_sequences_follow_from_tensors_alone() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("h200"));
    let encoded = || attention.driver().maps.swap(0, Ordering::Relaxed);
    let f = varlen(1 << 44);
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
    let launch = &launches[0];
    assert_eq!(
        (&*launch.symbol, launch.params.len()),
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
