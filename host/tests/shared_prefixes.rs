//! Tests shared prefixes: when the planner makes two passes, which kernels the launch has, and which requests
//! are refused.

use crate::fake::FakeDriver;
use crate::fake_ptx::with_ptx;
use crate::on_cache::{FAR, Shape, card, decode};
use ferroflash::{plan::ScratchBytes, request::*, *};
use spec::{DecodeParams, States};

/// 128 sequences of one query, and room for 256 pages each.
const BATCH: Shape = Shape {
    dtype: DType::F16,
    batch: 128,
    queries: 1,
    packed: false,
    heads: [32, 8],
    head_dim: 128,
    page: Some(16),
    max_k: 4096,
};

type Change = fn(AttentionRequest<'static>) -> AttentionRequest<'static>;

const REST: Index = Index::new(9 * FAR, 128);
const SCRATCH: Scratch = Scratch::workspace(20 * FAR, 1 << 40);

/// Returns the request with prefixes of 128 pages.
fn request(shape: Shape, prefixes: SharedPrefixes) -> AttentionRequest<'static> {
    decode(shape).mask(Mask::Causal).scratch(Scratch::Fastest).shared_prefixes(prefixes)
}

/// Returns groups whose rows of Q, prefixes and rests only the device knows: up to 128 queries per group.
const fn varlen(count: usize, pages: usize) -> SharedPrefixes {
    const fn index(n: u64, elements: usize) -> Index {
        Index::new(n * FAR, elements as u64)
    }
    let queries = VarlenQueries::new(count, index(10, count + 1), 128);
    let prefix = Level::new(index(11, count * pages), pages, index(12, count));
    SharedPrefixes::varlen(queries, prefix, Level::new(index(13, 128 * 20), 20, REST))
}

fn same(d: AttentionRequest<'static>) -> AttentionRequest<'static> {
    d
}

/// Returns the request on an e4m3 cache with scales of these strides between sequences and key heads.
fn e4m3(mut d: AttentionRequest<'static>, strides: [i64; 2]) -> AttentionRequest<'static> {
    let KeysValues::Cache(cache) = &mut d.kv else { panic!("a cache") };
    let scale = KvScale::Device { address: 15 * FAR, elements: 128 * 8, strides };
    let KvPages { keys, values, .. } = cache.pages;
    let of = |view| TensorView { dtype: DType::E4m3, ..view };
    cache.pages = KvPages::new(of(keys), of(values)).scales(scale, KvScale::One);
    d
}

const PORTABLE: &str = "paged_f16_d128_causal_128x48";
const HOPPER: &str = "hopper_paged_f16_d128_causal_128x128";
const DECODE: &str = "decode_f16_d128_causal_8_tiles_w4";
const CHUNKS: &str = "decode_f16_d128_causal_8_tiles";
const WIDE: &str = "decode_f16_d128_causal_16_tiles_w4";
const MIXED: &str = "mixed_few_f16_d128_causal_16_rows_w4";
const DECODE_E4M3: &str = "decode_f16_e4m3_d128_causal_8_tiles_native";
const MIXED_E4M3: &str = "mixed_few_f16_e4m3_d128_causal_16_rows_native";
const SHARED: &str = "share prefixes";

/// A card, a shape, prefixes, a change of the request, the first kernel of the plan, and words of the reason.
#[rustfmt::skip]
const PLANS: &[(&str, Shape, SharedPrefixes, Change, &str, &str)] = &[
    // Work tiles take the 128 queries of a group. One prefix is cut into parts, which share the rows of Q.
    ("h200", BATCH, SharedPrefixes::one(128, REST), same, HOPPER, SHARED),
    ("h200", BATCH, SharedPrefixes::one(127, REST), same, PORTABLE, SHARED),
    ("l4", BATCH, SharedPrefixes::one(128, REST), same, PORTABLE, SHARED),
    // Decode kernels take up to 64 rows per key head.
    ("h200", BATCH, SharedPrefixes::equal(8, 128, REST), same, WIDE, SHARED),
    ("h200", BATCH, SharedPrefixes::equal(64, 128, REST), same, DECODE, SHARED),
    ("h200", BATCH, varlen(8, 128), same, MIXED, SHARED),
    ("h200", Shape { queries: 16, ..BATCH }, SharedPrefixes::equal(2, 128, REST), same, HOPPER, SHARED),
    // Short prefixes do not pay, unless the request insists.
    ("h200", BATCH, SharedPrefixes::one(4, REST), same, DECODE, "too few bytes"),
    ("h200", BATCH, SharedPrefixes::one(4, REST).always(), same, PORTABLE, SHARED),
    ("h200", BATCH, SharedPrefixes::equal(128, 128, REST), same, DECODE, "too few bytes"),
    // Two passes would be wrong, or have no kernel.
    ("h200", BATCH, SharedPrefixes::one(128, REST),
        |d| d.mask(Mask::Window { left: Some(99), right: Some(0) }),
        "decode_f16_d128_local_8_rows_w4_s1", "by position"),
    ("h200", BATCH, SharedPrefixes::one(128, REST), |d| d.splits(Splits::CHUNK), CHUNKS, "states the splits"),
    ("h200", BATCH, SharedPrefixes::one(128, REST), |d| d.scratch(Scratch::None), DECODE, "need a workspace"),
    ("h200", BATCH, SharedPrefixes::one(128, REST), |d| d.config(DECODE), DECODE, "names a kernel"),
    ("h200", Shape { queries: 17, ..BATCH }, SharedPrefixes::one(128, REST), same, HOPPER, "than 64 rows"),
    ("h200", Shape { queries: 2, ..BATCH }, SharedPrefixes::one(128, REST), |mut d| {
        (d.q.strides[0], d.q.elements) = (3 * 4096, 1 << 30);
        d
    }, DECODE, "batches of q are not contiguous"),
    ("h200", Shape { queries: 2, ..BATCH }, SharedPrefixes::one(128, REST), |mut d| {
        (d.q.strides[0], d.q.elements) = (3 * 4096, 1 << 30);
        d.scratch(Scratch::None)
    }, DECODE, "batches of q are not contiguous"),
    // The host does not know the first sequence of a varlen group, whose scales would be the group's.
    ("h200", BATCH, varlen(8, 128), |d| e4m3(d, [0, 1]), MIXED_E4M3, SHARED),
    ("h200", BATCH, varlen(8, 128), |d| e4m3(d, [8, 1]), DECODE_E4M3, "scales per sequence"),
    ("h200", BATCH, SharedPrefixes::equal(64, 128, REST), |d| e4m3(d, [8, 1]), DECODE_E4M3, SHARED),
    ("h200", Shape { packed: true, ..BATCH }, SharedPrefixes::one(128, REST), same, MIXED, "varlen queries"),
];

#[test]
fn plans() {
    for (name, shape, prefixes, change, symbol, words) in PLANS {
        let request = change(request(*shape, *prefixes));
        let plan = plan(&request, card(name)).unwrap_or_else(|e| panic!("{e}: {request:?}"));
        let chosen = (plan.contract().symbol, plan.reason().contains(words));
        assert_eq!(chosen, (*symbol, true), "{name} {words}: {}", plan.reason());
    }
}

/// The prefix pass, and decode of the rest with the states of the prefix, with one workspace and one set of
/// counters. A launch with other tensors runs the same kernels. Hopper's tiles take a prefix in 4 parts.
#[test]
fn kernels_of_a_launch() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("h200"));
    let combine = "decode_combine_f16_d128";
    let one = SharedPrefixes::one(128, REST);
    let few = SharedPrefixes::equal(8, 128, REST);
    let cases: [(_, u32, &[&str], &[&str]); 2] = [
        (one, 4, &[HOPPER, DECODE], &[HOPPER, DECODE, combine]),
        (few, 1, &[WIDE, DECODE], &[WIDE, combine, DECODE, combine]),
    ];
    for (prefixes, parts, with_counters, without) in cases {
        let d = request(BATCH, prefixes);
        let plan = attention.plan(&d)?;
        let ScratchBytes { workspace, counters } = plan.scratch_bytes();
        let workspace = Workspace { address: 20 * FAR, bytes: workspace };
        let own = Counters { address: 21 * FAR, bytes: counters.max(4) };
        attention.load(&plan)?;
        for (counters, kernels) in [(Some(own), with_counters), (None, without)] {
            let scratch = Scratch::Memory { workspace, counters };
            let mut other = d.scratch(scratch);
            other.o.address += FAR / 2;
            for lse in [None, Some(LseView::contiguous(22 * FAR, 128 * 32, [128, 32, 1]))] {
                other.lse = lse;
                // SAFETY: the fake driver runs nothing.
                unsafe { attention.launch(&plan, &other, &7) }?;
                let launches = attention.driver().launches();
                let launches = &launches[launches.len() - kernels.len()..];
                let symbols = launches.iter().map(|launch| &*launch.symbol);
                assert_eq!(symbols.collect::<Vec<_>>(), kernels);
                let mut states = launches.iter().filter(|launch| launch.symbol != HOPPER).map(|launch| {
                    assert_eq!(launch.params.len(), size_of::<DecodeParams>());
                    // SAFETY: the launch has the size of the parameters, and every byte has a value.
                    unsafe { launch.params.as_ptr().cast::<DecodeParams>().read_unaligned() }.states
                });
                let (o, rows) = (20 * FAR, 128 * 32);
                let first = states.next_back().expect("the rest or its combine kernel");
                assert_eq!((first.count, first.first.o.base, first.o_bytes), (parts, o, rows * 256));
                let lse = o + u64::from(parts) * rows * 256;
                assert_eq!((first.first.lse.base, first.lse_bytes), (lse, rows * 4));
                let of_rest = if counters.is_some() { 0 } else { 1 };
                assert!(
                    states
                        .rev()
                        .enumerate()
                        .all(|(i, s)| s == if i < of_rest { first } else { States::NONE })
                );
            }
        }
        let short = Workspace { bytes: workspace.bytes - 1, ..workspace };
        let short = attention.plan(&d.scratch(Scratch::Memory { workspace: short, counters: None }))?;
        assert!(short.reason().contains("need a workspace"), "{}", short.reason());
    }
    Ok(())
}

/// The parts of a prefix are as many as fill the device once with the tiles of 32 heads: 4 of Hopper's
/// kernel, with one block per SM.
#[test]
fn one_prefix_fills_the_device() {
    for (name, least, most) in [("h200", 4, 4), ("a100", 2, 8), ("l4", 1, 8)] {
        let plan = plan(&request(BATCH, SharedPrefixes::one(128, REST)), card(name)).expect("a plan");
        let parts = plan.grid()[0] / 32;
        assert!((least..=most).contains(&parts) && 128 % parts == 0, "{name}: {parts}");
        let states = u64::from(parts) * 128 * 32 * (128 * 2 + 4);
        assert!(plan.scratch_bytes().workspace >= states, "{:?}", plan.scratch_bytes());
    }
    // A prime number of pages has no parts.
    let whole = request(BATCH, SharedPrefixes::one(127, REST));
    assert_eq!(ferroflash::plan(&whole, card("h200")).expect("a plan").grid(), [32, 1, 1]);
}

#[test]
fn latent_caches() {
    let rows = |width| TensorView::bshd(4 * FAR, 9000 * 64 * 576, DType::Bf16, [9000, 64, 1, width]);
    let view = |n: u64, width: usize| {
        TensorView::bshd(n * FAR, (64 * 16 * width) as u64, DType::Bf16, [64, 1, 16, width])
    };
    let table = Index::new(6 * FAR, 64 * 512);
    let pages = KvPages::latent(rows(576), 512);
    let cache = KvCache::paged(pages, table, 512, Index::new(3 * FAR, 64));
    let request = AttentionRequest::cached(view(1, 576), cache, view(2, 512)).scale(0.1);
    let request = request.mask(Mask::Causal).scratch(Scratch::Fastest);
    let shared = request.shared_prefixes(SharedPrefixes::one(128, Index::new(9 * FAR, 64)));
    let of_one = plan(&shared, card("h200")).expect("a plan");
    assert!(of_one.contract().symbol.starts_with("hopper_mla_bf16") && of_one.reason().contains(SHARED));
    let on_device = request.scratch(Scratch::None).shared_prefixes(varlen(8, 128).always());
    let message = plan(&on_device, card("h200")).expect_err("varlen groups").to_string();
    assert!(message.contains("latent caches need groups on the host"), "{message}");
}

/// Plans bind requests of the same groups only.
#[test]
fn other_groups_need_another_plan() {
    let of = |prefixes| request(BATCH, prefixes);
    let plan = plan(&of(SharedPrefixes::one(128, REST)), card("h200")).expect("a plan");
    plan.bind(&of(SharedPrefixes::one(128, Index::new(14 * FAR, 128))).scratch(SCRATCH)).expect("a launch");
    for other in [SharedPrefixes::one(64, REST), SharedPrefixes::equal(2, 128, REST), varlen(1, 128)] {
        let message = plan.bind(&of(other).scratch(SCRATCH)).expect_err("other groups").to_string();
        assert!(message.contains("shared_prefixes") && message.contains("1 groups with 128"), "{message}");
    }
    let mut without = of(SharedPrefixes::one(128, REST));
    without.shared_prefixes = None;
    let message = plan.bind(&without.scratch(SCRATCH)).expect_err("no groups").to_string();
    assert!(message.contains("shared_prefixes: none"), "{message}");
}

/// A plan of varlen groups with scales per key head binds no scales per sequence.
#[test]
fn scales_per_sequence_need_another_plan() {
    let of = |strides| e4m3(request(BATCH, varlen(8, 128)), strides).scratch(SCRATCH);
    let plan = plan(&of([0, 1]), card("h200")).expect("a plan");
    plan.bind(&of([0, 1])).expect("a launch");
    let message = plan.bind(&of([8, 1])).expect_err("scales per sequence").to_string();
    assert!(message.contains("scales per sequence; the plan is for scales per key head"), "{message}");
}

/// A plan of one pass does not bind a request that insists on two passes. A plan of two passes does.
#[test]
fn one_pass_binds_no_request_that_insists_on_two() {
    let of = |pages| request(BATCH, SharedPrefixes::one(pages, REST)).scratch(SCRATCH);
    let insisting = |pages| of(pages).shared_prefixes(SharedPrefixes::one(pages, REST).always());
    let mut without = of(4);
    without.shared_prefixes = None;
    for one_pass in [without, of(4)] {
        let plan = plan(&one_pass, card("h200")).expect("a plan");
        plan.bind(&of(4)).expect("a launch");
        let message = plan.bind(&insisting(4)).expect_err("two passes").to_string();
        assert!(message.contains("shared_prefixes: `always`; the plan makes one pass"), "{message}");
    }
    plan(&of(128), card("h200")).expect("a plan").bind(&insisting(128)).expect("a launch");
}

/// The fault, prefixes, a change of the request, and words of the refusal.
#[rustfmt::skip]
const REFUSED: &[(SharedPrefixes, Change, &[&str])] = &[
    (SharedPrefixes::equal(0, 128, REST), same, &["shared_prefixes.groups: 0", "at most 128"]),
    (SharedPrefixes::equal(129, 128, REST), same, &["shared_prefixes.groups: 129", "at most 128"]),
    (SharedPrefixes::equal(3, 128, REST), same, &["shared_prefixes.groups: 3", "divide 128"]),
    (SharedPrefixes::one(0, REST), same, &["shared_prefixes.pages: 0", "at most 255"]),
    (SharedPrefixes::one(256, REST), same, &["shared_prefixes.pages: 256", "at most 255"]),
    (SharedPrefixes::one(9, Index::new(9 * FAR, 127)), same, &["shared_prefixes.rest.lengths", "127"]),
    (SharedPrefixes::one(9, Index::new(2 * FAR, 128)), same, &["o must not overlap shared_prefixes.rest"]),
    (varlen(0, 128), same, &["shared_prefixes.groups: 0"]),
    (varlen(8, 0), same, &["shared_prefixes.prefix.entries: 0 columns"]),
    (SharedPrefixes::one(128, REST).always(), |d| d.alibi(AlibiSlopes::new(8 * FAR, 32)),
        &["always", "position"]),
    (SharedPrefixes::one(128, REST).always(), |d| d.scratch(Scratch::None), &["always", "workspace"]),
    (SharedPrefixes::one(128, REST), |_| decode(Shape { page: None, ..BATCH })
        .shared_prefixes(SharedPrefixes::one(128, REST)), &["shared_prefixes", "block table"]),
];

#[test]
fn refusals_name_the_value_and_the_requirement() {
    for (prefixes, change, words) in REFUSED {
        let request = change(request(BATCH, *prefixes));
        let error = plan(&request, card("h200")).expect_err(words[0]).to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}, should have {words:?}");
    }
}
