//! Tests random requests, views of packed tensors, and tensors above 4 GiB. `tests/refusals.txt` has the
//! refused requests.

use crate::parts::{forward_params, main_params};
use ferroflash::{plan::*, request::*, *};
use spec::{BwdDkDvParams, BwdHopperParams};

/// Distance of the buffers, so that no two of them overlap by accident.
const FAR: u64 = 1 << 40;

fn l4() -> &'static Capabilities {
    Capabilities::profile("l4").expect("known")
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
}

/// The vectors of -LSE and delta have 6 GiB each, and the sums of dQ have 384 GiB.
#[test]
fn the_parts_of_a_backward_workspace_above_4_gib_keep_their_offsets() {
    let shape = [64, 3 << 12, 2048, 64];
    let view = |n: u64| TensorView::bshd(n * FAR, 1 << 37, DType::F16, shape);
    let lse = LseView::contiguous(5 * FAR, 1 << 31, [64, 2048, 3 << 12]);
    let forward = AttentionRequest::dense(view(1), view(2), view(3), view(4)).lse(lse);
    let backward = AttentionBackward::new(forward, view(6), view(7), view(8), view(9));
    let [on_l4, on_h200] = ["l4", "h200"].map(|name| {
        let plan = plan(&backward, Capabilities::profile(name).expect("known")).expect("valid");
        let bytes = plan.scratch_bytes().workspace;
        let launch = plan.bind(&backward.scratch(Scratch::workspace(10 * FAR, bytes))).expect("room");
        (launch, bytes)
    });
    let vectors = [10 * FAR, 10 * FAR + (6 << 30)];
    let portable = main_params::<BwdDkDvParams>(&on_l4.0).problem;
    assert_eq!(([portable.minus_lse.base, portable.delta.base], on_l4.1), (vectors, 12 << 30));
    let params = main_params::<BwdHopperParams>(&on_h200.0);
    assert_eq!([params.minus_lse.base, params.delta.base], vectors);
    let sums = params.sums;
    assert_eq!(sums.counters(), 10 * FAR + (12 << 30));
    assert!(sums.base() >= sums.counters() + 4 * u64::from(sums.tiles()) * u64::from(sums.heads()));
    assert!((sums.base() + (384 << 30)..sums.base() + (385 << 30)).contains(&(10 * FAR + on_h200.1)));
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
        // A tensor without rows may have no memory.
        for t in [&f.q, k, v, &f.o].into_iter().filter(|t| !t.shape.contains(&0)) {
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
