//! Every request that must be refused, with the words that it is refused with; and that nothing else makes planning fail or panic.
use ferroflash::*;

/// Buffers lie this far apart: nothing overlaps by accident.
const FAR: u64 = 1 << 40;

fn forward() -> Forward<'static> {
    let view = |n: u64, shape: [usize; 4]| {
        TensorView::bshd(n * FAR, shape.iter().product::<usize>() as u64, DType::F16, shape)
    };
    let (q, kv) = ([2, 128, 4, 64], [2, 100, 2, 64]);
    Forward::new(view(1, q), view(2, kv), view(3, kv), view(4, q))
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

struct Case {
    name: &'static str,
    change: Change,
    kind: Kind,
    /// What the message must contain: the value, and what would be right.
    says: &'static [&'static str],
}

/// All four tensors at once.
fn all(f: &mut Forward<'_>, change: impl Fn(&mut TensorView)) {
    [&mut f.q, &mut f.k, &mut f.v, &mut f.o].into_iter().for_each(change);
}

#[rustfmt::skip]
const CASES: &[Case] = &[
    Case { name: "base misaligned", change: |f| f.k.address += 2, kind: Invalid, says: &["k.address", "0x20000000002", "multiple of 16"] },
    Case { name: "base null", change: |f| f.q.address = 0, kind: Invalid, says: &["q.address", "0x0", "device address"] },
    Case { name: "row stride misaligned", change: |f| f.v.strides[1] = 132, kind: Invalid, says: &["v.strides", "132", "multiples of 8 elements (16 bytes)"] },
    Case { name: "columns not contiguous", change: |f| f.q.strides[3] = 2, kind: Invalid, says: &["q.strides", "last (head_dim) must be 1"] },
    Case { name: "negative stride", change: |f| f.k.strides[1] = -128, kind: Invalid, says: &["k.strides", "-128", "negative"] },
    Case { name: "heads overlap", change: |f| f.k.strides[2] = 8, kind: Invalid, says: &["k.strides", "overlap"] },
    Case { name: "rows overlap", change: |f| f.q.strides[1] = 128, kind: Invalid, says: &["q.strides", "128", "overlap"] },
    Case { name: "stride beyond 64 bits", change: |f| f.q.strides[0] = i64::MAX, kind: Invalid, says: &["q.", "64"] },
    Case { name: "dtypes differ", change: |f| f.v.dtype = DType::Bf16, kind: Invalid, says: &["v.dtype", "bf16", "q's, f16"] },
    Case { name: "output dtype differs", change: |f| f.o.dtype = DType::Bf16, kind: Invalid, says: &["o.dtype", "bf16", "f16"] },
    Case { name: "no batch", change: |f| all(f, |t| t.shape[0] = 0), kind: Invalid, says: &["batch", "0", "1 or more"] },
    Case { name: "no query", change: |f| { f.q.shape[1] = 0; f.o.shape[1] = 0 }, kind: Invalid, says: &["seqlen_q", "1 or more"] },
    Case { name: "no key", change: |f| { f.k.shape[1] = 0; f.v.shape[1] = 0 }, kind: Invalid, says: &["seqlen_k", "1 or more"] },
    Case { name: "no head", change: |f| { f.k.shape[2] = 0; f.v.shape[2] = 0 }, kind: Invalid, says: &["heads_k", "1 or more"] },
    Case { name: "no column", change: |f| all(f, |t| t.shape[3] = 0), kind: Invalid, says: &["head_dim", "1 or more"] },
    Case { name: "heads do not divide", change: |f| { f.k.shape[2] = 3; f.v.shape[2] = 3 }, kind: Invalid, says: &["heads_q: 4", "multiple of heads_k = 3"] },
    Case { name: "k and v differ", change: |f| f.v.shape[1] = 99, kind: Invalid, says: &["v.shape", "[2, 99, 2, 64]", "[2, 100, 2, 64]"] },
    Case { name: "q and k batches differ", change: |f| { f.k.shape[0] = 1; f.v.shape[0] = 1 }, kind: Invalid, says: &["k.shape", "[1, 100, 2, 64]", "[2, 100, 2, 64]"] },
    Case { name: "q and o differ", change: |f| f.o.shape[1] = 127, kind: Invalid, says: &["o.shape", "[2, 127, 4, 64]", "[2, 128, 4, 64]"] },
    Case { name: "k narrower than q", change: |f| f.k.shape[3] = 32, kind: Invalid, says: &["k.shape", "32]", "64]"] },
    Case { name: "head dim not a multiple of 8", change: |f| all(f, |t| t.shape[3] = 60), kind: Unsupported, says: &["head_dim 60", "multiples of 8 up to 256"] },
    Case { name: "head dim too large", change: |f| all(f, |t| t.shape[3] = 264), kind: Unsupported, says: &["head_dim 264", "up to 256"] },
    Case { name: "scale infinite", change: |f| f.scale = Some(f32::INFINITY), kind: Invalid, says: &["scale: inf", "finite"] },
    Case { name: "scale NaN", change: |f| f.scale = Some(f32::NAN), kind: Invalid, says: &["scale: NaN", "finite"] },
    Case { name: "scale 0", change: |f| f.scale = Some(0.0), kind: Unsupported, says: &["scale 0", "above 0"] },
    Case { name: "scale negative", change: |f| f.scale = Some(-0.5), kind: Unsupported, says: &["scale -0.5", "negate Q"] },
    Case { name: "scale overflows in base 2", change: |f| f.scale = Some(f32::MAX), kind: Invalid, says: &["scale", "normal f32"] },
    Case { name: "softcap negative", change: |f| f.softcap = Some(-1.0), kind: Invalid, says: &["softcap: -1", "above 0"] },
    Case { name: "softcap infinite", change: |f| f.softcap = Some(f32::INFINITY), kind: Invalid, says: &["softcap: inf", "finite"] },
    Case { name: "scale vanishes against softcap", change: |f| { f.scale = Some(1e-30); f.softcap = Some(1e30) }, kind: Invalid, says: &["softcap 1000", "normal f32"] },
    Case { name: "q too small", change: |f| f.q.elements -= 1, kind: Invalid, says: &["q.elements: 65535", "need 65536"] },
    Case { name: "o too small for its strides", change: |f| f.o.strides[0] *= 2, kind: Invalid, says: &["o.elements: 65536", "need 98304"] },
    Case { name: "buffer beyond 64 bits", change: |f| f.k.address = u64::MAX - 15, kind: Invalid, says: &["k.elements", "64 bits"] },
    Case { name: "rows too far apart", change: |f| { f.k.strides = [100 << 26, 1 << 26, 64, 1]; f.k.elements = 1 << 36 }, kind: Unsupported, says: &["k.strides", "134217728 bytes apart", "less than 134217728"] },
    Case { name: "too many queries", change: |f| { f.q.shape = [1, 1 << 30, 4, 64]; f.o.shape = f.q.shape; f.k.shape[0] = 1; f.v.shape[0] = 1 }, kind: Unsupported, says: &["seqlen_q 1073741824", "at most 1073741568"] },
    Case { name: "too many heads", change: |f| all(f, |t| t.shape[0] = 1 << 29), kind: Unsupported, says: &["batch 536870912 with 4", "2^31"] },
    Case { name: "too many tiles", change: |f| {
        all(f, |t| { t.shape[0] = 1 << 20; t.elements = u64::MAX; });
        f.q.shape[1] = 1 << 20; f.o.shape[1] = 1 << 20;
        for t in [&mut f.q, &mut f.o] { *t = TensorView::bshd(t.address, 1 << 62, t.dtype, t.shape); t.address = 1 << 50 }
        f.o.address = 1 << 60;
    }, kind: Unsupported, says: &["query blocks", "2^31"] },
    Case { name: "output on q", change: |f| f.o.address = f.q.address, kind: Invalid, says: &["o.address", "o must not overlap q.address"] },
    Case { name: "output on the last row of k", change: |f| f.o.address = f.k.address + 2 * 2 * 100 * 2 * 64 - 16, kind: Invalid, says: &["o must not overlap k.address"] },
    Case { name: "output broadcast", change: |f| f.o.strides[0] = 0, kind: Invalid, says: &["o.strides", "stride 0"] },
    Case { name: "output rows overlap", change: |f| f.o.strides[1] = 64, kind: Invalid, says: &["o.strides", "overlap"] },
    Case { name: "lse misaligned", change: |f| f.lse = Some(lse(5 * FAR + 2)), kind: Invalid, says: &["lse.address", "multiple of 4"] },
    Case { name: "lse of another shape", change: |f| f.lse = Some(LseView::contiguous(5 * FAR, 1 << 20, [2, 128, 4])), kind: Invalid, says: &["lse.shape", "[2, 128, 4]", "[2, 4, 128]"] },
    Case { name: "lse too small", change: |f| f.lse = Some(LseView { elements: 1023, ..lse(5 * FAR) }), kind: Invalid, says: &["lse.elements: 1023", "need 1024"] },
    Case { name: "lse heads overlap", change: |f| f.lse = Some(LseView { strides: [512, 127], ..lse(5 * FAR) }), kind: Invalid, says: &["lse.strides", "127", "overlap"] },
    Case { name: "lse negative", change: |f| f.lse = Some(LseView { strides: [512, -128], ..lse(5 * FAR) }), kind: Invalid, says: &["lse.strides", "-128"] },
    Case { name: "lse on v", change: |f| f.lse = Some(lse(f.v.address + 16)), kind: Invalid, says: &["lse must not overlap v.address"] },
    Case { name: "lse on o", change: |f| f.lse = Some(lse(f.o.address)), kind: Invalid, says: &["lse must not overlap o.address"] },
    Case { name: "no such entry", change: |f| f.config = Some("fwd_f8"), kind: Invalid, says: &["config", "fwd_f8", "name of an entry"] },
    Case { name: "entry of another type", change: |f| f.config = Some("fwd_bf16_d64_full_128x64"), kind: Invalid, says: &["fwd_bf16", "needs f16"] },
    Case { name: "entry of another mask", change: |f| f.config = Some("fwd_f16_d64_causal_128x64"), kind: Invalid, says: &["mask full"] },
    Case { name: "workspace misaligned", change: |f| f.workspace = Some(Workspace { address: 6 * FAR + 8, bytes: 64 }), kind: Invalid, says: &["workspace.address", "multiple of 16"] },
    Case { name: "workspace null", change: |f| f.workspace = Some(Workspace { address: 0, bytes: 64 }), kind: Invalid, says: &["workspace.address: 0x0", "device address"] },
    Case { name: "workspace of nothing", change: |f| f.workspace = Some(Workspace { address: 6 * FAR, bytes: 0 }), kind: Invalid, says: &["workspace.bytes: 0", "1 or more"] },
    Case { name: "workspace beyond 64 bits", change: |f| f.workspace = Some(Workspace { address: 6 * FAR, bytes: u64::MAX }), kind: Invalid, says: &["workspace.bytes", "64 bits"] },
    Case { name: "workspace over q", change: |f| f.workspace = Some(Workspace { address: f.q.address - 16, bytes: 17 }), kind: Invalid, says: &["workspace must not overlap q.address"] },
    Case { name: "workspace over o", change: |f| f.workspace = Some(Workspace { address: f.o.address, bytes: 1 }), kind: Invalid, says: &["workspace must not overlap o.address"] },
    Case { name: "workspace over lse", change: |f| { f.lse = Some(lse(5 * FAR)); f.workspace = Some(Workspace { address: 5 * FAR, bytes: 16 }) }, kind: Invalid, says: &["workspace must not overlap lse.address"] },
    Case { name: "no workspace for an entry that needs one", change: |f| f.config = Some("fwd_f16_d64_full_128x64_split"), kind: Invalid, says: &["workspace.bytes: 0", "128x64_split needs 266240"] },
    Case { name: "entry too narrow", change: |f| f.config = Some("fwd_f16_d32_full_128x64"), kind: Invalid, says: &["head_dim 64"] },
];

#[test]
fn refusals_name_the_value_and_what_would_be_right() {
    let check = |case: &Case| {
        let mut f = forward();
        (case.change)(&mut f);
        let error = plan(&f, l4()).expect_err(case.name);
        let kind = match error {
            Error::Invalid { .. } => Invalid,
            Error::Unsupported { .. } => Unsupported,
            ref other => panic!("{}: {other}", case.name),
        };
        let message = error.to_string();
        assert_eq!(kind, case.kind, "{}: {message}", case.name);
        for words in case.says {
            assert!(message.contains(words), "{}: {message:?} should contain {words:?}", case.name);
        }
    };
    plan(&forward(), l4()).expect("valid before it is changed");
    CASES.iter().for_each(check);
}

#[test]
fn devices_below_sm_80_are_refused_by_name() {
    let turing = Capabilities { name: "NVIDIA T4".into(), compute_capability: (7, 5), ..l4().clone() };
    let message = plan(&forward(), &turing).expect_err("too old").to_string();
    assert!(message.contains("7.5 (NVIDIA T4)") && message.contains("8.0 or newer"), "{message}");
}

#[test]
fn devices_with_too_little_shared_memory_are_refused() {
    let tiny = Capabilities { smem_per_block: 8 << 10, ..l4().clone() };
    let message = plan(&forward(), &tiny).expect_err("too small").to_string();
    assert!(message.contains("8192 bytes of shared memory"), "{message}");
    let message = plan(&forward().config("fwd_f16_d64_full_128x64"), &tiny).expect_err("too small").to_string();
    assert!(message.contains("the device has 8192"), "{message}");
}

type Change = fn(&mut Forward<'_>);

/// What looks odd and is right.
#[rustfmt::skip]
const ACCEPTED: &[(&str, Change)] = &[
    ("strides of extents of 1 are not looked at", |f| all(f, |t| { t.shape[0] = 1; t.strides[0] = -7 })),
    ("inputs may be broadcast", |f| { f.k.strides[0] = 0; f.v.strides[2] = 0 }),
    ("inputs may overlap", |f| f.v.address = f.k.address + 16),
    ("rows may be padded", |f| { f.q.strides = [1 << 20, 512, 64, 1]; f.q.elements = 1 << 21 }),
    ("PyTorch's layout", |f| f.o = TensorView::bhsd(f.o.address, f.o.elements, f.o.dtype, f.o.shape)),
    ("rows just near enough", |f| { f.k.strides = [1 << 33, (1 << 26) - 8, 64, 1]; f.k.elements = 1 << 34 }),
    ("output beside its input", |f| f.o.address = f.q.address + 2 * f.q.elements),
    ("log-sum-exp with padded heads", |f| f.lse = Some(LseView::new(5 * FAR, 2048, [2, 4, 128], [1024, 256]))),
    ("windows larger than the sequence", |f| f.mask = Mask::Window { left: Some(u32::MAX), right: Some(u32::MAX) }),
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
    // [batch][seqlen][q, k, v, o][heads][head_dim], and the same with o one head too early.
    let (batch, seqlen, heads, d) = (2usize, 100usize, 4usize, 64usize);
    let row = 4 * heads * d;
    let part = |skipped: usize| {
        let strides = [(seqlen * row) as i64, row as i64, d as i64, 1];
        let elements = (batch * seqlen * row - skipped) as u64;
        TensorView::new(FAR + 2 * skipped as u64, elements, DType::Bf16, [batch, seqlen, heads, d], strides)
    };
    let [q, k, v, o] = [0, 1, 2, 3].map(|n| part(n * heads * d));
    plan(&Forward::new(q, k, v, o), l4()).expect("disjoint");
    let message = plan(&Forward::new(q, k, v, part(3 * heads * d - d)), l4()).expect_err("overlaps v").to_string();
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
    plan(&Forward::new(q, k, v, o), l4()).expect("valid");
}

#[test]
fn tensors_above_4_gib_keep_their_offsets() {
    // 3 batches of 2^31 elements: the last begins 8 GiB behind the first.
    let shape = [3, 1 << 16, 256, 128];
    let view = |n: u64| TensorView::bshd(n * FAR, 3 << 31, DType::F16, shape);
    let f =
        Forward::new(view(1), view(2), view(3), view(4)).lse(LseView::contiguous(5 * FAR, 3 << 24, [3, 256, 1 << 16]));
    let params = plan(&f, l4()).and_then(|p| p.params(&f)).expect("valid");
    assert_eq!((params.o.batch_bytes, params.o.row_bytes, params.o.head_bytes), (1 << 32, 65_536, 256));
    assert_eq!((params.lse.batch_bytes, params.lse.head_bytes), (1 << 26, 1 << 18));
    let smaller = Forward { o: TensorView { elements: (3 << 31) - 1, ..f.o }, ..f };
    plan(&smaller, l4()).expect_err("one element short");
}

/// Random requests, mostly wrong: an answer, never a panic; and what is accepted stays inside its buffers.
mod random {
    use super::*;
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;

    fn number() -> impl Strategy<Value = usize> {
        prop_oneof![
            0usize..5,
            1usize..3000,
            Just(64),
            Just(usize::MAX),
            any::<u32>().prop_map(|x| x as usize),
            any::<usize>()
        ]
    }
    fn stride() -> impl Strategy<Value = i64> {
        prop_oneof![-64i64..64, (0i64..100_000).prop_map(|x| 8 * x), Just(1), any::<i64>()]
    }
    fn dtype() -> impl Strategy<Value = DType> {
        prop_oneof![9 => Just(DType::F16), 1 => Just(DType::Bf16)]
    }
    fn view() -> impl Strategy<Value = TensorView> {
        let address = prop_oneof![(1u64..64).prop_map(|x| x << 36), any::<u64>()];
        let elements = prop_oneof![any::<u64>(), 0u64..1 << 20];
        (address, elements, dtype(), prop::array::uniform4(number()), prop::array::uniform4(stride())).prop_map(
            |(address, elements, dtype, shape, strides)| TensorView { address, elements, dtype, shape, strides },
        )
    }
    fn mask() -> impl Strategy<Value = Mask> {
        let window = any::<(Option<u32>, Option<u32>)>().prop_map(|(left, right)| Mask::Window { left, right });
        prop_oneof![Just(Mask::Full), Just(Mask::Causal), Just(Mask::CausalTopLeft), window]
    }
    fn lse() -> impl Strategy<Value = LseView> {
        (any::<u64>(), any::<u64>(), prop::array::uniform3(number()), prop::array::uniform2(stride()))
            .prop_map(|(address, elements, shape, strides)| LseView { address, elements, shape, strides })
    }

    fn wild() -> impl Strategy<Value = Forward<'static>> {
        let scores = (prop::option::of(any::<f32>()), prop::option::of(any::<f32>()));
        (prop::array::uniform4(view()), mask(), scores, prop::option::of(lse())).prop_map(
            |([q, k, v, o], mask, (scale, softcap), lse)| Forward {
                scale,
                softcap,
                lse,
                ..Forward::new(q, k, v, o).mask(mask)
            },
        )
    }

    /// Shapes that go together, with wild strides, addresses and sizes.
    fn tame() -> impl Strategy<Value = Forward<'static>> {
        (wild(), 1usize..4, prop::array::uniform2(1usize..3000), 1usize..5, 1usize..5, 1usize..33, any::<[bool; 4]>())
            .prop_map(|(mut f, batch, [sq, sk], heads_k, group, chunks, contiguous)| {
                let shapes = [[batch, sq, heads_k * group, 8 * chunks], [batch, sk, heads_k, 8 * chunks]];
                for (n, (t, own)) in [&mut f.q, &mut f.k, &mut f.v, &mut f.o].into_iter().zip([0, 1, 1, 0]).enumerate()
                {
                    (t.shape, t.dtype) = (shapes[own], DType::F16);
                    if contiguous[n] {
                        *t = TensorView::bhsd((n as u64 + 1) << 40, 1 << 34, t.dtype, t.shape);
                    }
                }
                (f.scale, f.softcap) = (f.scale.map(f32::abs), f.softcap.map(f32::abs));
                f.lse = f.lse.map(|lse| LseView { shape: [batch, heads_k * group, sq], ..lse });
                f
            })
    }

    fn last_element(t: &TensorView) -> i128 {
        let steps = t.shape.iter().zip(&t.strides).filter(|(extent, _)| **extent > 1);
        steps.map(|(&extent, &stride)| (extent as i128 - 1) * i128::from(stride)).sum()
    }

    /// Returns whether the request was accepted.
    fn check(f: &Forward<'_>) -> Result<bool, TestCaseError> {
        let Ok(plan) = plan(f, l4()) else { return Ok(false) };
        for t in [&f.q, &f.k, &f.v, &f.o] {
            prop_assert!(last_element(t) < i128::from(t.elements));
            prop_assert!(i128::from(t.address) + 2 * i128::from(t.elements.min(last_element(t) as u64 + 1)) <= 1 << 64);
        }
        let params = plan.params(f).expect("planned");
        prop_assert!(params.scale_log2.is_finite() && params.scale_log2 > 0.0 && params.softcap >= 0.0);
        prop_assert_eq!(plan.grid, [params.order.tiles, 1, 1]);
        prop_assert_eq!(supports(&f.problem(), l4()).map(|e| e.symbol), Ok(plan.entry.symbol));
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
