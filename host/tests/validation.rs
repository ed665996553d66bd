//! Tests every refused request, with words of its error. With every other request, planning succeeds.

use crate::parts::{forward_params, k, v};
use ferroflash::{plan::*, request::*, *};

/// Distance of the buffers, so that no two of them overlap by accident.
const FAR: u64 = 1 << 40;

fn forward() -> AttentionRequest<'static> {
    let view = |n: u64, shape: [usize; 4]| {
        TensorView::bshd(n * FAR, shape.iter().product::<usize>() as u64, DType::F16, shape)
    };
    let (q, kv) = ([2, 128, 4, 64], [2, 100, 2, 64]);
    AttentionRequest::dense(view(1, q), view(2, kv), view(3, kv), view(4, q))
}

fn lse(address: u64) -> LseView {
    LseView::contiguous(address, 2 * 4 * 128, [2, 4, 128])
}

fn l4() -> &'static Capabilities {
    Capabilities::profile("l4").expect("known")
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Invalid,
    Unsupported,
}
use Kind::*;

/// The name of the fault, the change that makes it, and the kind of refusal. The message contains these
/// words, the value and the requirement.
struct Case(&'static str, Change, Kind, &'static [&'static str]);

/// Changes all four tensors.
fn all(f: &mut AttentionRequest<'_>, change: impl Fn(&mut TensorView)) {
    [&mut f.q, &mut f.o].into_iter().chain(f.kv.tensors_mut().expect("tensors")).for_each(change);
}

#[rustfmt::skip]
const CASES: &[Case] = &[
    Case("misaligned", |f| k(f).address += 2, Invalid, &["k.address", "0x20000000002", "multiple of 16"]),
    Case("base null", |f| f.q.address = 0, Invalid, &["q.address", "0x0", "device address"]),
    Case("row stride misaligned", |f| v(f).strides[1] = 132,
        Invalid, &["v.strides", "132", "multiples of 8 elements (16 bytes)"]),
    Case("columns not contiguous", |f| f.q.strides[3] = 2,
        Invalid, &["q.strides", "last stride (head_dim) must be 1"]),
    Case("negative stride", |f| k(f).strides[1] = -128, Invalid, &["k.strides", "-128", "negative"]),
    Case("stride beyond 64 bits", |f| f.q.strides[0] = i64::MAX, Invalid, &["q.", "64"]),
    Case("dtypes differ", |f| v(f).dtype = DType::Bf16, Invalid, &["v.dtype", "bf16", "the dtype of q, f16"]),
    Case("output dtype differs", |f| f.o.dtype = DType::Bf16, Invalid, &["o.dtype", "bf16", "f16"]),
    Case("no batch", |f| all(f, |t| t.shape[0] = 0), Invalid, &["batch", "0", "1 or more"]),
    Case("no query", |f| { f.q.shape[1] = 0; f.o.shape[1] = 0 }, Invalid, &["seqlen_q", "1 or more"]),
    Case("no key", |f| { k(f).shape[1] = 0; v(f).shape[1] = 0 }, Invalid, &["seqlen_k", "1 or more"]),
    Case("no head", |f| { k(f).shape[2] = 0; v(f).shape[2] = 0 }, Invalid, &["heads_k", "1 or more"]),
    Case("no column", |f| all(f, |t| t.shape[3] = 0), Invalid, &["head_dim", "1 or more"]),
    Case("heads do not divide", |f| { k(f).shape[2] = 3; v(f).shape[2] = 3 },
        Invalid, &["heads_q: 4", "multiple of heads_k = 3"]),
    Case("k, v differ", |f| v(f).shape[1] = 99, Invalid, &["v.shape", "[2, 99, 2, 64]", "[2, 100, 2, 64]"]),
    Case("q and k batches differ", |f| { k(f).shape[0] = 1; v(f).shape[0] = 1 },
        Invalid, &["k.shape", "[1, 100, 2, 64]", "[2, 100, 2, 64]"]),
    Case("q and o differ", |f| f.o.shape[1] = 127,
        Invalid, &["o.shape", "[2, 127, 4, 64]", "[2, 128, 4, 64]"]),
    Case("k narrower than q", |f| k(f).shape[3] = 32, Invalid, &["k.shape", "32]", "64]"]),
    Case("head dim not a multiple of 8", |f| all(f, |t| t.shape[3] = 60),
        Unsupported, &["head_dim 60", "multiples of 8 up to 512"]),
    Case("head dim too large", |f| all(f, |t| t.shape[3] = 520), Unsupported, &["head_dim 520", "up to 512"]),
    Case("scale infinite", |f| f.scores.scale = Some(f32::INFINITY), Invalid, &["scale: inf", "finite"]),
    Case("scale NaN", |f| f.scores.scale = Some(f32::NAN), Invalid, &["scale: NaN", "finite"]),
    Case("scale 0", |f| f.scores.scale = Some(0.0), Unsupported, &["scale 0", "above 0"]),
    Case("scale negative", |f| f.scores.scale = Some(-0.5), Unsupported, &["scale -0.5", "negate q"]),
    Case("scale overflows in base 2", |f| f.scores.scale = Some(f32::MAX),
        Invalid, &["scale: 3.4028235e38", "scale * log2(e) is inf", "normal f32"]),
    Case("scale vanishes", |f| f.scores.scale = Some(1e-39),
        Invalid, &["scale: 1e-39", "scale * log2(e)", "normal f32"]),
    Case("softcap overflows in base 2", |f| f.scores.softcap = Some(3e38),
        Invalid, &["softcap: 3e38", "softcap * log2(e) is inf", "normal f32"]),
    Case("softcap negative", |f| f.scores.softcap = Some(-1.0), Invalid, &["softcap: -1", "above 0"]),
    Case("softcap inf", |f| f.scores.softcap = Some(f32::INFINITY), Invalid, &["softcap: inf", "finite"]),
    Case("scale below softcap", |f| { f.scores.scale = Some(1e-30); f.scores.softcap = Some(1e30) },
        Invalid, &["scale: 1e-30", "scale / softcap is 0e0", "normal f32"]),
    Case("scale above softcap", |f| { f.scores.scale = Some(1e30); f.scores.softcap = Some(1e-30) },
        Invalid, &["scale: 1e30", "scale / softcap is inf", "normal f32"]),
    Case("q too small", |f| f.q.elements -= 1, Invalid, &["q.elements: 65535", "need 65536"]),
    Case("o too small for its strides", |f| f.o.strides[0] *= 2,
        Invalid, &["o.elements: 65536", "need 98304"]),
    Case("buffer beyond 64 bits", |f| k(f).address = u64::MAX - 15, Invalid, &["k.elements", "64 bits"]),
    Case("rows too far apart", |f| { k(f).strides = [100 << 26, 1 << 26, 64, 1]; k(f).elements = 1 << 36 },
        Unsupported, &["k.strides", "134217728 bytes apart", "less than 134217728"]),
    Case("too many queries", |f| {
        f.q.shape = [1, 1 << 30, 4, 64];
        f.o.shape = f.q.shape;
        (k(f).shape[0], v(f).shape[0]) = (1, 1)
    }, Unsupported, &["seqlen_q 1073741824", "at most 1073741568"]),
    Case("too many heads", |f| all(f, |t| t.shape[0] = 1 << 29),
        Unsupported, &["batch 536870912 with 4", "2^31"]),
    Case("too many tiles", |f| {
        all(f, |t| { t.shape[0] = 1 << 20; t.elements = u64::MAX; });
        (f.q.shape[1], f.o.shape[1]) = (1 << 20, 1 << 20);
        for t in [&mut f.q, &mut f.o] {
            *t = TensorView::bshd(t.address, 1 << 62, t.dtype, t.shape);
            t.address = 1 << 50
        }
        f.o.address = 1 << 60;
    }, Unsupported, &["query blocks", "2^31"]),
    Case("output on q", |f| f.o.address = f.q.address,
        Invalid, &["o.address", "o must not overlap q.address"]),
    Case("output on the last row of k", |f| f.o.address = k(f).address + 2 * 2 * 100 * 2 * 64 - 16,
        Invalid, &["o must not overlap k.address"]),
    Case("output broadcast", |f| f.o.strides[0] = 0, Invalid, &["o.strides", "no stride may be 0"]),
    Case("output heads overlap", |f| f.o.strides[2] = 8, Invalid, &["o.strides", "8", "overlap"]),
    Case("output rows overlap", |f| f.o.strides[1] = 64, Invalid, &["o.strides", "overlap"]),
    Case("lse misaligned", |f| f.lse = Some(lse(5 * FAR + 2)), Invalid, &["lse.address", "multiple of 4"]),
    Case("lse of another shape", |f| f.lse = Some(LseView::contiguous(5 * FAR, 1 << 20, [2, 128, 4])),
        Invalid, &["lse.shape", "[2, 128, 4]", "[2, 4, 128]"]),
    Case("lse too small", |f| f.lse = Some(LseView { elements: 1023, ..lse(5 * FAR) }),
        Invalid, &["lse.elements: 1023", "need 1024"]),
    Case("lse heads overlap", |f| f.lse = Some(LseView { strides: [512, 127], ..lse(5 * FAR) }),
        Invalid, &["lse.strides", "127", "overlap"]),
    Case("lse negative", |f| f.lse = Some(LseView { strides: [512, -128], ..lse(5 * FAR) }),
        Invalid, &["lse.strides", "-128"]),
    Case("lse on v", |f| f.lse = Some(lse(v(f).address + 16)), Invalid, &["lse must not overlap v.address"]),
    Case("lse on o", |f| f.lse = Some(lse(f.o.address)), Invalid, &["lse must not overlap o.address"]),
    Case("no such entry", |f| f.config = Some("fwd_f8"), Invalid, &["config", "fwd_f8", "name of a kernel"]),
    Case("no splits", |f| f.splits = Splits::Exactly(0), Invalid, &["splits: 0", "1 or more"]),
    Case("splits of tensors", |f| f.splits = Splits::Exactly(9), Unsupported, &["splits Exactly(9)", "Auto"]),
    Case("entry of another type", |f| f.config = Some("fwd_bf16_d64_full_128x64"),
        Invalid, &["fwd_bf16", "needs f16"]),
    Case("entry of another mask", |f| f.config = Some("fwd_f16_d64_causal_128x64"), Invalid, &["mask full"]),
    Case("workspace misaligned", |f| f.scratch = Scratch::workspace(6 * FAR + 8, 64),
        Invalid, &["workspace.address", "multiple of 16"]),
    Case("workspace null", |f| f.scratch = Scratch::workspace(0, 64),
        Invalid, &["workspace.address: 0x0", "device address"]),
    Case("workspace of nothing", |f| f.scratch = Scratch::workspace(6 * FAR, 0),
        Invalid, &["workspace.bytes: 0", "1 or more"]),
    Case("workspace beyond 64 bits", |f| f.scratch = Scratch::workspace(6 * FAR, u64::MAX),
        Invalid, &["workspace.bytes", "64 bits"]),
    Case("workspace over q", |f| f.scratch = Scratch::workspace(f.q.address - 16, 17),
        Invalid, &["workspace must not overlap q.address"]),
    Case("workspace over o", |f| f.scratch = Scratch::workspace(f.o.address, 1),
        Invalid, &["workspace must not overlap o.address"]),
    Case("workspace on lse", |f| { f.lse = Some(lse(5 * FAR)); f.scratch = Scratch::workspace(5 * FAR, 16) },
        Invalid, &["workspace must not overlap lse.address"]),
    Case("no workspace for an entry that needs one", |f| f.config = Some("fwd_f16_d64_full_128x64_split"),
        Invalid, &["workspace.bytes: 0", "128x64_split needs 266240"]),
    Case("entry too narrow", |f| f.config = Some("fwd_f16_d32_full_128x64"), Invalid, &["head_dim 64"]),
];

#[test]
fn refusals_name_the_value_and_what_would_be_right() {
    let check = |&Case(name, change, kind, says): &Case| {
        let mut f = forward();
        change(&mut f);
        let error = plan(&f, l4()).expect_err(name);
        let refused = match error {
            Error::Invalid { .. } => Invalid,
            Error::Unsupported { .. } => Unsupported,
            ref other => panic!("{name}: {other}"),
        };
        let message = error.to_string();
        assert_eq!(refused, kind, "{name}: {message}");
        for words in says {
            assert!(message.contains(words), "{name}: {message:?} should contain {words:?}");
        }
    };
    plan(&forward(), l4()).expect("valid before it is changed");
    CASES.iter().for_each(check);
}

#[test]
fn devices_below_sm_80_are_refused_by_name() {
    let mut turing = l4().clone();
    (turing.name, turing.compute_capability) = ("NVIDIA T4".into(), (7, 5));
    let message = plan(&forward(), &turing).expect_err("too old").to_string();
    assert!(message.contains("7.5 (NVIDIA T4)") && message.contains("8.0 or newer"), "{message}");
}

#[test]
fn devices_with_too_little_shared_memory_are_refused() {
    let mut tiny = l4().clone();
    tiny.smem_per_block = 8 << 10;
    let message = plan(&forward(), &tiny).expect_err("too small").to_string();
    assert!(message.contains("8192 bytes of shared memory"), "{message}");
    let message =
        plan(&forward().config("fwd_f16_d64_full_128x64"), &tiny).expect_err("too small").to_string();
    assert!(message.contains("the device has 8192"), "{message}");
}

type Change = fn(&mut AttentionRequest<'_>);

/// Unusual requests that are valid.
#[rustfmt::skip]
const ACCEPTED: &[(&str, Change)] = &[
    ("strides of extents of 1 are not looked at", |f| all(f, |t| { t.shape[0] = 1; t.strides[0] = -7 })),
    ("inputs may be broadcast", |f| { k(f).strides[0] = 0; v(f).strides[2] = 0 }),
    ("inputs may overlap", |f| v(f).address = k(f).address + 16),
    ("an input's heads may overlap", |f| k(f).strides[2] = 8),
    ("an input's rows may overlap", |f| f.q.strides[1] = 8),
    ("an input may be one row", |f| v(f).strides = [0, 0, 0, 1]),
    ("the least scale", |f| f.scores.scale = Some(f32::MIN_POSITIVE)),
    ("the largest scale", |f| f.scores.scale = Some(2e38)),
    ("the largest softcap", |f| (f.scores.scale, f.scores.softcap) = (Some(8.0), Some(2e38))),
    ("rows may be padded", |f| { f.q.strides = [1 << 20, 512, 64, 1]; f.q.elements = 1 << 21 }),
    ("PyTorch's layout", |f| f.o = TensorView::bhsd(f.o.address, f.o.elements, f.o.dtype, f.o.shape)),
    ("rows near enough", |f| { k(f).strides = [1 << 33, (1 << 26) - 8, 64, 1]; k(f).elements = 1 << 34 }),
    ("output beside its input", |f| f.o.address = f.q.address + 2 * f.q.elements),
    ("log-sum-exp with padded heads",
        |f| f.lse = Some(LseView::new(5 * FAR, 2048, [2, 4, 128], [1024, 256]))),
    ("windows larger than the sequence",
        |f| f.mask = Mask::Window { left: Some(u32::MAX), right: Some(u32::MAX) }),
    ("a more general entry", |f| f.config = Some("fwd_f16_d128_local_128x32")),
    ("softcap 0 is none", |f| *f = f.softcap(0.0)),
];

#[test]
fn odd_but_right_requests_are_planned() {
    for (name, change) in ACCEPTED {
        let mut f = forward();
        change(&mut f);
        plan(&f, l4()).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn an_output_between_packed_inputs_is_disjoint() {
    // The tensors are parts of [batch][seqlen][q, k, v, o][heads][head_dim]. In a second layout, o begins one
    // head too early.
    let (batch, seqlen, heads, d) = (2usize, 100usize, 4usize, 64usize);
    let row = 4 * heads * d;
    let part = |skipped: usize| {
        let strides = [(seqlen * row) as i64, row as i64, d as i64, 1];
        let elements = (batch * seqlen * row - skipped) as u64;
        TensorView::new(FAR + 2 * skipped as u64, elements, DType::Bf16, [batch, seqlen, heads, d], strides)
    };
    let [q, k, v, o] = [0, 1, 2, 3].map(|n| part(n * heads * d));
    plan(&AttentionRequest::dense(q, k, v, o), l4()).expect("disjoint");
    let message = plan(&AttentionRequest::dense(q, k, v, part(3 * heads * d - d)), l4())
        .expect_err("overlaps v")
        .to_string();
    assert!(message.contains("o must not overlap v.address"), "{message}");
}

#[test]
fn packed_views_are_what_their_layout_says() {
    let [q, k, v] = TensorView::packed_qkv(FAR, 2 * 10 * (8 + 2 * 2) * 64, DType::F16, [2, 10, 8, 64], 2);
    assert_eq!((q.shape, k.shape, v.shape), ([2, 10, 8, 64], [2, 10, 2, 64], [2, 10, 2, 64]));
    assert!([q, k, v].iter().all(|t| t.strides == [10 * 12 * 64, 12 * 64, 64, 1]));
    assert_eq!([k.address - FAR, v.address - FAR], [8 * 64 * 2, 10 * 64 * 2]);
    assert_eq!([q.elements, k.elements, v.elements], [15_360, 15_360 - 512, 15_360 - 640]);
    let o = TensorView::bshd(2 * FAR, 2 * 10 * 8 * 64, DType::F16, [2, 10, 8, 64]);
    plan(&AttentionRequest::dense(q, k, v, o), l4()).expect("valid");
}

#[test]
fn tensors_above_4_gib_keep_their_offsets() {
    // There are 3 batches of 2^31 elements. The last batch begins 8 GiB after the first.
    let shape = [3, 1 << 16, 256, 128];
    let view = |n: u64| TensorView::bshd(n * FAR, 3 << 31, DType::F16, shape);
    let f = AttentionRequest::dense(view(1), view(2), view(3), view(4)).lse(LseView::contiguous(
        5 * FAR,
        3 << 24,
        [3, 256, 1 << 16],
    ));
    let params = forward_params(&plan(&f, l4()).and_then(|p| p.bind(&f)).expect("valid"));
    assert_eq!((params.o.batch_bytes, params.o.row_bytes, params.o.head_bytes), (1 << 32, 65_536, 256));
    assert_eq!((params.lse.batch_bytes, params.lse.head_bytes), (1 << 26, 1 << 18));
    let mut smaller = f;
    smaller.o.elements = (3 << 31) - 1;
    plan(&smaller, l4()).expect_err("one element short");
}

/// Random requests, mostly invalid. Planning returns a plan or an error and never panics. An accepted request
/// stays inside its buffers.
mod random {
    use super::*;
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;

    fn number() -> BoxedStrategy<usize> {
        prop_oneof![
            0usize..5,
            1usize..3000,
            Just(64),
            Just(usize::MAX),
            any::<u32>().prop_map(|x| x as usize),
            any::<usize>()
        ]
        .boxed()
    }
    fn stride() -> BoxedStrategy<i64> {
        prop_oneof![-64i64..64, (0i64..100_000).prop_map(|x| 8 * x), Just(1), any::<i64>()].boxed()
    }
    fn dtype() -> impl Strategy<Value = DType> {
        prop_oneof![9 => Just(DType::F16), 1 => Just(DType::Bf16)]
    }
    fn view() -> BoxedStrategy<TensorView> {
        let address = prop_oneof![(1u64..64).prop_map(|x| x << 36), any::<u64>()];
        let elements = prop_oneof![any::<u64>(), 0u64..1 << 20];
        (address, elements, dtype(), prop::array::uniform4(number()), prop::array::uniform4(stride()))
            .prop_map(|(address, elements, dtype, shape, strides)| TensorView {
                address,
                elements,
                dtype,
                shape,
                strides,
            })
            .boxed()
    }
    fn mask() -> impl Strategy<Value = Mask> {
        let window =
            any::<(Option<u32>, Option<u32>)>().prop_map(|(left, right)| Mask::Window { left, right });
        prop_oneof![Just(Mask::Full), Just(Mask::Causal), window]
    }
    fn lse() -> BoxedStrategy<LseView> {
        (any::<u64>(), any::<u64>(), prop::array::uniform3(number()), prop::array::uniform2(stride()))
            .prop_map(|(address, elements, shape, strides)| LseView::new(address, elements, shape, strides))
            .boxed()
    }

    fn wild() -> BoxedStrategy<AttentionRequest<'static>> {
        let scores = (prop::option::of(any::<f32>()), prop::option::of(any::<f32>()));
        (prop::array::uniform4(view()), mask(), scores, prop::option::of(lse()))
            .prop_map(|([q, k, v, o], mask, scores, lse)| {
                let mut f = AttentionRequest::dense(q, k, v, o).mask(mask);
                ((f.scores.scale, f.scores.softcap), f.lse) = (scores, lse);
                f
            })
            .boxed()
    }

    /// Returns requests with matching shapes, and random strides, addresses and sizes.
    fn tame() -> impl Strategy<Value = AttentionRequest<'static>> {
        (
            wild(),
            1usize..4,
            prop::array::uniform2(1usize..3000),
            1usize..5,
            1usize..5,
            1usize..33,
            any::<[bool; 4]>(),
        )
            .prop_map(|(mut f, batch, [sq, sk], heads_k, group, chunks, contiguous)| {
                let shapes = [[batch, sq, heads_k * group, 8 * chunks], [batch, sk, heads_k, 8 * chunks]];
                let [k, v] = f.kv.tensors_mut().expect("tensors");
                for (n, (t, own)) in [&mut f.q, k, v, &mut f.o].into_iter().zip([0, 1, 1, 0]).enumerate() {
                    (t.shape, t.dtype) = (shapes[own], DType::F16);
                    if contiguous[n] {
                        *t = TensorView::bhsd((n as u64 + 1) << 40, 1 << 34, t.dtype, t.shape);
                    }
                }
                f.scores.scale = f.scores.scale.map(f32::abs);
                f.scores.softcap = f.scores.softcap.map(f32::abs);
                f.lse = f.lse.map(|lse| LseView { shape: [batch, heads_k * group, sq], ..lse });
                f
            })
    }

    fn last_element(t: &TensorView) -> i128 {
        let steps = t.shape.iter().zip(&t.strides).filter(|(extent, _)| **extent > 1);
        steps.map(|(&extent, &stride)| (extent as i128 - 1) * i128::from(stride)).sum()
    }

    /// Returns whether the request was accepted.
    fn check(f: &AttentionRequest<'_>) -> Result<bool, TestCaseError> {
        let Ok(plan) = plan(f, l4()) else { return Ok(false) };
        let [k, v] = f.kv.tensors().expect("tensors");
        for t in [&f.q, k, v, &f.o] {
            prop_assert!(last_element(t) < i128::from(t.elements));
            prop_assert!(
                i128::from(t.address) + 2 * i128::from(t.elements.min(last_element(t) as u64 + 1)) <= 1 << 64
            );
        }
        let params = forward_params(&plan.bind(f).expect("planned"));
        prop_assert!(params.scale_log2.is_finite() && params.scale_log2 > 0.0 && params.softcap >= 0.0);
        prop_assert_eq!(plan.grid(), [params.order.tiles, 1, 1]);
        prop_assert_eq!(supports(&f.problem(), l4()).map(|kernel| kernel.symbol), Ok(plan.contract().symbol));
        Ok(true)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn wild_requests_never_panic(f in wild()) { check(&f)?; }
        #[test]
        fn plausible_requests_never_panic(f in tame()) { check(&f)?; }
    }

    #[test]
    fn the_generator_makes_requests_of_both_kinds() {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let mut accepted = 0;
        for _ in 0..1000 {
            let f = tame().new_tree(&mut runner).expect("a request").current();
            accepted += usize::from(check(&f).expect("no failure"));
        }
        assert!((20..980).contains(&accepted), "{accepted} of 1000 accepted");
    }
}
