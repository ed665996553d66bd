//! Tests variants of the caller: which of their kernels run and why, the parameters of these kernels, and the
//! errors of wrong variants.

use crate::fake::FakeDriver;
use crate::fake_ptx::with_ptx;
use crate::on_cache::{FAR, Shape, card, decode};
use ferroflash::variant::{Variant, VariantKernel};
use ferroflash::{plan::*, request::*, *};
use spec::{
    And, BlockMask, BlockSparse, Causal, Decode, F16, Full, Fwd, FwdHopper, FwdParams, HopperParams,
    Integers, Local, MaskMarker, Paged, PagedParams, Rows, Scored, Sink, SinkParams, Split, SplitParams,
    TensorMap, Varlen, VarlenParams, With,
};

/// A mask of the caller's own.
#[derive(Clone, Copy)]
struct Near;

#[repr(C)]
#[derive(Clone, Copy)]
struct NearParams {
    reach: [u32; 3],
    last: f32,
}
spec::no_padding! { NearParams { reach, last } }

impl MaskMarker for Near {
    type Params = NearParams;
}

const NEAR: NearParams = NearParams { reach: [5, 6, 7], last: 0.5 };
const NEAR_BYTES: [u8; 16] = {
    let mut bytes = [0; 16];
    (bytes[0], bytes[4], bytes[8], bytes[15]) = (5, 6, 7, 0x3f);
    bytes
};

type Large = Fwd<F16, Near, 8, 2, 1, 4, 4, 4, 2>;
type Small = Fwd<F16, Near, 4, 2, 1, 4, 4, 4, 3>;
type Wide = Fwd<F16, Near, 8, 2, 1, 3, 8, 0, 2>;
type Hopper = FwdHopper<F16, Near, 2, 8, 8, 2, true>;
type OnCache = Decode<F16, F16, Near, Rows, 2, 4, 8, 3>;

/// Makes PTX of a kernel with parameters of this type. The PTX contains only what the host reads.
macro_rules! kernel {
    ($kernel:ty, $symbol:literal, $bytes:literal) => {
        VariantKernel::new::<With<$kernel>>(
            $symbol,
            concat!(".visible .entry ", $symbol, "(\n\t.param .align 8 .b8 p[", $bytes, "]\n)"),
        )
    };
}

static ALL: Variant<Near> = Variant::new(
    "near",
    &[
        kernel!(Large, "near_d64_128x64", "344"),
        kernel!(Small, "near_d64_64x64", "344"),
        kernel!(Wide, "near_d128_128x48", "344"),
        kernel!(Hopper, "near_hopper_d128", "656"),
        kernel!(Split<Large>, "near_d64_split", "384"),
        kernel!(Varlen<Large>, "near_packed_d64_128x64", "416"),
        kernel!(Varlen<Small>, "near_packed_d64_64x64", "416"),
        kernel!(Paged<Large>, "near_paged_d64", "528"),
        kernel!(OnCache, "near_decode_d64", "552"),
    ],
);

/// Returns a request on tensors `[batch, seqlen, heads, head_dim]`.
fn dense(shape: [usize; 4]) -> AttentionRequest<'static> {
    let elements = shape.iter().product::<usize>() as u64;
    let view = |n: u64| TensorView::bshd(n * FAR, elements, DType::F16, shape);
    AttentionRequest::dense(view(1), view(2), view(3), view(4))
}

fn varlen(longest: usize) -> AttentionRequest<'static> {
    let rows = 8 * longest;
    let view = |n: u64| TensorView::bshd(n * FAR, 1 << 30, DType::F16, [1, rows, 16, 64]);
    let starts = |n: u64| Index::new(n * FAR, 9);
    let (q, kv) = (VarlenQueries::new(8, starts(5), longest), VarlenKeys::new(starts(6), longest));
    AttentionRequest::varlen(view(1), view(2), view(3), view(4), q, kv)
}

fn cached(queries: usize) -> AttentionRequest<'static> {
    let (dtype, varlen, page) = (DType::F16, false, Some(16));
    decode(Shape { dtype, batch: 2, queries, varlen, heads: [4, 2], head_dim: 64, page, max_k: 2048 })
}

static LISTED: Variant<BlockSparse<Full>> = Variant::new(
    "listed",
    &[
        kernel!(Fwd<F16, BlockSparse<Full>, 8, 2, 1, 4, 4, 4, 2>, "listed_128x64", "384"),
        kernel!(Fwd<F16, BlockSparse<Full>, 8, 2, 1, 2, 4, 4, 2>, "listed_128x32", "384"),
        kernel!(Fwd<F16, BlockSparse<Full>, 4, 2, 1, 4, 4, 4, 3>, "listed_64x64", "384"),
    ],
);

#[test]
fn the_planner_selects_the_kernel_with_the_tile_of_the_lists() {
    let l4 = Capabilities::profile("l4").expect("a known card");
    let request = |tile: [u32; 2]| {
        let [tiles, blocks] = tile.map(|size| 2048u32.div_ceil(size));
        let integers = |base, count| Integers { base, count, reserved: 0 };
        let (lists, shape) = ([integers(5 * FAR, 4 * tiles), integers(6 * FAR, 9)], [1, 1, tiles, blocks]);
        let mask = BlockMask { tiles: lists[0], blocks: lists[1], shape, tile };
        dense([4, 2048, 16, 64]).variant(&LISTED, And::new((), mask))
    };
    for (tile, symbol) in
        [([128, 64], "listed_128x64"), ([128, 32], "listed_128x32"), ([64, 64], "listed_64x64")]
    {
        let plan = plan(&request(tile), l4).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(plan.contract().symbol, symbol);
        // A plan for other lists keeps its kernel.
        let other = plan.bind(&request([64, 32]));
        let other = other.expect_err("other lists").to_string();
        assert!(other.contains("plan again"), "{other}");
    }
    for (request, said) in [
        (request([64, 32]), "block_mask.tile: 64 x 32; kernels of variant listed"),
        (request([64, 32]).config("listed_64x64"), "listed_64x64 has tiles of 64 queries and 64 keys"),
    ] {
        let error = plan(&request, l4).map(|plan| plan.contract().symbol).expect_err(said).to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn the_planner_selects_among_the_variants_kernels_and_says_why() {
    #[rustfmt::skip]
    let cases = [
        // A tile that the table also has follows the table's lines: a card's class, the size, and the
        // workspace.
        ("l4", dense([4, 2048, 16, 64]), "near_d64_128x64", "key blocks of 64 in sequence"),
        ("h200", dense([16, 512, 16, 64]), "near_d64_128x64", "key blocks of 64 in sequence"),
        ("h200", dense([1, 8192, 1, 64]).scratch(Scratch::Fastest), "near_d64_split", "split-KV"),
        ("h200", dense([1, 8192, 1, 64]), "near_d64_64x64", "few queries for this device"),
        ("a100", dense([4, 2048, 16, 128]), "near_d128_128x48", "two with 48 do"),
        // For tiles without a line, the size decides.
        ("l4", dense([1, 128, 2, 64]), "near_d64_64x64", "few queries for this device"),
        // A head dim between two kernels' head dims runs on the next larger one.
        ("l4", dense([4, 2048, 16, 96]), "near_d128_128x48", "the only kernel"),
        ("h200", dense([4, 2048, 16, 128]), "near_hopper_d128", "warpgroups and TMA"),
        ("h200", dense([1, 256, 2, 128]), "near_d128_128x48", "the only kernel"),
        ("l4", varlen(1024), "near_packed_d64_128x64", "enough queries"),
        ("h200", varlen(64), "near_packed_d64_64x64", "few queries"),
        ("l4", cached(100), "near_paged_d64", "the only kernel"),
        ("l4", cached(2), "near_decode_d64", "without a workspace"),
        ("l4", dense([4, 2048, 16, 64]).config("near_d64_64x64"), "near_d64_64x64", "names this kernel"),
        ("l4", cached(2).config("near_paged_d64"), "near_paged_d64", "names this kernel"),
    ];
    for (on, request, symbol, why) in cases {
        let made = plan(&request.variant(&ALL, NEAR), card(on)).expect(symbol);
        assert_eq!(made.contract().symbol, symbol, "{on}: {}", made.reason());
        assert!(made.reason().contains(why), "{symbol} on {on}: {}", made.reason());
        assert!(supports(&made.problem(), card(on)).is_ok(), "{symbol}");
    }
}

/// The partial rows of a split-KV kernel have the values' columns, and so has the kernel that combines them.
#[test]
fn a_split_kernel_of_two_widths_is_combined_by_the_values_columns() {
    static WIDTHS: Variant<Near> = Variant::new(
        "two widths",
        &[kernel!(Split<Fwd<F16, Near, 8, 2, 1, 4, 8, 0, 2, 4>>, "near_d128x64_split", "384")],
    );
    with_ptx();
    let view = |n: u64, columns| TensorView::bshd(n * FAR, 1 << 30, DType::F16, [1, 8192, 1, columns]);
    let request = AttentionRequest::dense(view(1, 128), view(2, 128), view(3, 64), view(4, 64))
        .variant(&WIDTHS, NEAR)
        .config("near_d128x64_split")
        .scratch(Scratch::Fastest);
    let attention = Attention::new(FakeDriver::new("h200"));
    attention.load(&attention.plan(&request).expect("valid")).expect("loads");
    assert_eq!(attention.driver().loaded(), ["near_d128x64_split", "combine_f16_d64"]);
}

/// A variant of Hopper kernels alone runs the kernel with the fewest columns that fit, and the tile that the
/// table would take for this number of keys.
#[test]
fn a_variant_of_hopper_kernels_runs_the_smallest_that_fits() {
    static HOPPER: Variant<Near> = Variant::new(
        "on hopper",
        &[
            kernel!(Hopper, "near_hopper_d128", "656"),
            kernel!(FwdHopper<F16, Near, 3, 6, 4, 3, true>, "near_hopper_d64_192", "656"),
            kernel!(FwdHopper<F16, Near, 2, 8, 4, 3, true>, "near_hopper_d64", "656"),
        ],
    );
    for (head_dim, keys, symbol) in [
        (64, 2048, "near_hopper_d64"),
        (64, 4096, "near_hopper_d64_192"),
        (64, 64, "near_hopper_d64"),
        (96, 2048, "near_hopper_d128"),
    ] {
        let request = dense([4, keys, 16, head_dim]).variant(&HOPPER, NEAR);
        let made = plan(&request, card("h200")).expect(symbol);
        assert_eq!(made.contract().symbol, symbol, "{keys} keys");
    }
}

#[test]
fn parameters_follow_the_kernels_own() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("h200"));
    let maps = 4 * size_of::<TensorMap>();
    let decode = size_of::<spec::DecodeParams>();
    for (request, own) in [
        (dense([16, 512, 16, 64]), size_of::<FwdParams>()),
        (dense([4, 2048, 16, 128]), size_of::<HopperParams>()),
        (varlen(1024), size_of::<VarlenParams>()),
        (cached(100), size_of::<PagedParams>()),
        (cached(2).scratch(Scratch::workspace(20 * FAR, 1 << 30)), decode),
        (dense([1, 8192, 1, 64]).scratch(Scratch::workspace(20 * FAR, 1 << 30)), size_of::<SplitParams>()),
    ] {
        let request = request.variant(&ALL, NEAR);
        let made = attention.plan(&request)?;
        // SAFETY: the fake driver runs nothing.
        unsafe { attention.launch(&made, &request, &0)? };
        let launches = attention.driver().launches.lock().expect("no panic").drain(..).collect::<Vec<_>>();
        assert_eq!(launches[0].symbol, made.contract().symbol);
        assert_eq!(launches[0].params.len(), own + 16, "{}", launches[0].symbol);
        assert_eq!(launches[0].params[own..], NEAR_BYTES, "{}", launches[0].symbol);
        assert!(own < maps || launches[0].params[..8] != [0; 8]);
        let others = launches[1..].iter().all(|launch| launch.symbol.contains("combine"));
        assert!(others, "{launches:?}");
        // With other parameters, the same plan makes another launch. The variant is loaded once.
        let other = NearParams { last: 0.25, ..NEAR };
        let again = request.variant(&ALL, other);
        assert_ne!(made.bind(&again)?, made.bind(&request)?);
        // SAFETY: the fake driver runs nothing.
        unsafe { attention.launch(&made, &again, &0)? };
        attention.driver().launches.lock().expect("no panic").clear();
    }
    let loaded = attention.driver().loaded();
    let own: Vec<_> = loaded.iter().filter(|symbol| symbol.starts_with("near")).collect();
    assert_eq!(own.len(), 6, "{loaded:?}");
    Ok(())
}

/// The requests have a window, softcap, slopes or sinks beside the variant's own scores.
#[test]
fn a_local_variant_takes_the_requests_window() -> Result<(), Error> {
    static LOCAL: Variant<Scored<Local, Sink>> = Variant::new(
        "window with sinks",
        &[kernel!(Fwd<F16, Scored<Local, Sink>, 8, 2, 1, 4, 4, 4, 2>, "local_sink", "336")],
    );
    let window = Mask::Window { left: Some(100), right: Some(0) };
    let sinks = And::new((), SinkParams { base: 9 * FAR });
    let request = dense([4, 2048, 16, 64]).mask(window).softcap(30.0).variant(&LOCAL, sinks);
    let made = plan(&request, card("l4"))?;
    let launch = made.bind(&request)?;
    let plain = dense([4, 2048, 16, 64]).mask(window).softcap(30.0);
    let plain = plan(&plain, card("l4"))?.bind(&plain)?;
    assert_eq!(launch.params()[..size_of::<FwdParams>()], *plain.params());
    assert_eq!(launch.params()[size_of::<FwdParams>()..], (9 * FAR).to_le_bytes());
    Ok(())
}

#[test]
fn a_merge_kernel_adds_sinks_to_a_variant() {
    let sinks = Sinks { address: 14 * FAR, elements: 16 };
    let request = dense([4, 2048, 16, 64]).sinks(sinks).variant(&ALL, NEAR);
    let made = plan(&request.scratch(Scratch::Fastest), card("l4")).expect("valid");
    assert_eq!(made.contract().symbol, "near_d64_128x64");
    assert!(made.reason().contains("a merge kernel adds them"), "{}", made.reason());
    assert_eq!(made.scratch_bytes().workspace, 4 * 2048 * 16 * 4);
}

/// Kernels whose PTX belongs to another kernel, or is empty.
static WRONG: Variant<Near> = Variant::new(
    "wrong",
    &[
        VariantKernel::new::<With<Large>>("near_d64", ".visible .entry t5(.param .b8 p[344])"),
        VariantKernel::new::<With<Wide>>("near_d128", "// nothing"),
        VariantKernel::new::<With<Fwd<F16, Near, 4, 1, 1, 2, 16, 12, 2>>>(
            "near_d256",
            ".entry near_d256(\n.param .align 8 .b8 near_d256_param_0[328]\n)",
        ),
    ],
);
/// Kernels whose types do not take the mask's parameters, take them twice, or have PTX with other threads.
static BARE: Variant<Near> =
    Variant::new("bare", &[VariantKernel::new::<Large>("near_bare", ".entry near_bare(.param .b8 p[328])")]);
static TWICE: Variant<Near> =
    Variant::new("twice", &[VariantKernel::new::<With<With<Large>>>("near_twice", "// never read")]);
static THREADS: Variant<Near> = Variant::new(
    "threads",
    &[VariantKernel::new::<With<Large>>(
        "near_threads",
        ".entry near_threads(\n.param .b8 p[344]\n)\n.reqntid 64, 1, 1\n{}",
    )],
);
/// One variant has only a kernel of Hopper. The other variant has a split kernel of a head dim that no
/// combine kernel has.
static ON_HOPPER: Variant<Near> = Variant::new("on hopper", &[kernel!(Hopper, "near_hopper", "656")]);
static SPLIT: Variant<Near> =
    Variant::new("split", &[kernel!(Split<Fwd<F16, Near, 8, 2, 1, 4, 5, 4, 2>>, "near_d80_split", "384")]);
static CAUSAL: Variant<Scored<Causal, Sink>> = Variant::new(
    "causal with sinks",
    &[kernel!(Fwd<F16, Scored<Causal, Sink>, 8, 2, 1, 4, 4, 4, 2>, "causal_sink", "336")],
);

#[test]
fn a_wrong_variant_is_refused_in_words() {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("l4"));
    let near = |head_dim| dense([4, 2048, 16, head_dim]).variant(&WRONG, NEAR);
    let request = near(64);
    let mut bf16 = request;
    for view in [Some(&mut bf16.q), Some(&mut bf16.o)]
        .into_iter()
        .flatten()
        .chain(bf16.kv.tensors_mut().into_iter().flatten())
    {
        view.dtype = DType::Bf16;
    }
    let causal = |request: AttentionRequest<'static>| {
        request.variant(&CAUSAL, And::new((), SinkParams { base: 9 * FAR }))
    };
    let sinks = Sinks { address: 14 * FAR, elements: 16 };
    let bias = Bias::rows(9 * FAR, 1 << 30, DType::F16, [1, 1, 2048, 2048], 2048);
    let window = Mask::Window { left: Some(1), right: None };
    let varlen = varlen(64).variant(&WRONG, NEAR);
    #[rustfmt::skip]
    let cases: &[(AttentionRequest<'_>, &[&str])] = &[
        (bf16, &["variant wrong has no kernel for bf16, dense tensors",
            "near_d64 (forward, f16, head_dim 64)", "`entry!`"]),
        (near(512), &["head_dim 512", "variant wrong", "near_d256"]),
        (varlen, &["variant wrong has no kernel for f16, varlen tensors"]),
        (request.config("near_d63"), &["config: near_d63", "variant wrong",
            "[near_d64, near_d128, near_d256]"]),
        (request.mask(Mask::Causal), &["mask: causal", "variant wrong has its own mask, own", "unset"]),
        (request.softcap(30.0), &["softcap: 30", "variant wrong", "Scored<Local, ..>"]),
        (request.alibi(AlibiSlopes::new(9 * FAR, 16)), &["alibi: slopes", "variant wrong"]),
        (request.bias(bias), &["bias: f16", "variant wrong"]),
        (causal(dense([4, 2048, 16, 64])).sinks(sinks), &["sinks: one per head",
            "variant causal with sinks"]),
        (causal(dense([4, 2048, 16, 64]).mask(window)), &["mask: window 1,-1"]),
        (causal(dense([4, 2048, 16, 64])).scale(1e-30), &["scale 1e-30 with a variant's scores"]),
        (dense([4, 2048, 16, 64]).variant(&BARE, NEAR), &["near_bare", "takes 328 bytes",
            "launch has 344", "`With`"]),
        (dense([4, 2048, 16, 64]).variant(&TWICE, NEAR), &["near_twice", "takes 360 bytes",
            "launch has 344"]),
        (dense([4, 2048, 16, 128]).variant(&ON_HOPPER, NEAR), &["near_hopper", "sm_90a"]),
        (dense([4, 2048, 16, 80]).variant(&SPLIT, NEAR), &["variant split has no kernel", "near_d80_split"]),
        (dense([4, 2048, 16, 80]).variant(&SPLIT, NEAR).config("near_d80_split"), &["near_d80_split"]),
        // Only loading finds these faults.
        (dense([4, 2048, 16, 64]).variant(&THREADS, NEAR), &["variant: near_threads", "runs 64 threads",
            "its type 128", "same sources"]),
        (near(64), &["variant: near_d64", "its PTX has t5", "`CudaBuilder::entry`"]),
        (near(128), &["variant: near_d128", "its PTX has no kernel"]),
        (near(256), &["variant: near_d256", "takes 328 bytes of parameters and its type 344",
            "same sources"]),
    ];
    for (request, says) in cases {
        let made = attention.plan(request);
        let error = made.and_then(|made| attention.load(&made)).expect_err(says[0]).to_string();
        for words in *says {
            assert!(error.contains(words), "{error:?} should contain {words:?}");
        }
    }
    // A causal variant has its own mask, so a request need not set one. The request may set the causal mask.
    for request in [dense([4, 2048, 16, 64]), dense([4, 2048, 16, 64]).mask(Mask::Causal)] {
        let made = plan(&causal(request), card("l4")).expect("valid");
        assert_eq!(made.contract().symbol, "causal_sink");
    }
}

#[test]
fn a_plan_serves_its_variant_alone() {
    let request = dense([4, 2048, 16, 64]);
    let made = plan(&request.variant(&ALL, NEAR), card("l4")).expect("valid");
    for (other, says) in [(request.variant(&WRONG, NEAR), "variant: wrong"), (request, "variant: none")] {
        let error = made.bind(&other).expect_err("another problem").to_string();
        assert!(error.contains(says) && error.contains("the plan is for near"), "{error}");
    }
}
