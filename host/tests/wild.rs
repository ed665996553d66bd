//! Tests random requests on caches, random appends and random merges. Most of them are invalid. Planning
//! returns a plan or an error and never panics. An accepted request stays inside its buffers.
use ferroflash::{request::*, *};
use proptest::prelude::*;

fn number() -> BoxedStrategy<usize> {
    prop_oneof![0usize..5, 1usize..300, Just(64), Just(usize::MAX), any::<u32>().prop_map(|x| x as usize)]
        .boxed()
}

fn stride() -> BoxedStrategy<i64> {
    prop_oneof![-64i64..64, (0i64..100_000).prop_map(|x| 16 * x), Just(1), any::<i64>()].boxed()
}

fn address() -> BoxedStrategy<u64> {
    prop_oneof![(1u64..64).prop_map(|x| x << 36), any::<u64>()].boxed()
}

fn elements() -> BoxedStrategy<u64> {
    prop_oneof![any::<u64>(), 0u64..1 << 20, Just(1 << 34)].boxed()
}

fn dtype() -> BoxedStrategy<DType> {
    prop_oneof![Just(DType::F16), Just(DType::Bf16), Just(DType::E4m3), Just(DType::Int8), Just(DType::F32)]
        .boxed()
}

fn view() -> BoxedStrategy<TensorView> {
    let (shape, strides) = (prop::array::uniform4(number()), prop::array::uniform4(stride()));
    (address(), elements(), dtype(), shape, strides)
        .prop_map(|(address, elements, dtype, shape, strides)| {
            TensorView::new(address, elements, dtype, shape, strides)
        })
        .boxed()
}

fn lse() -> BoxedStrategy<LseView> {
    (address(), elements(), prop::array::uniform3(number()), prop::array::uniform3(stride()))
        .prop_map(|(address, elements, shape, [batch, head, row])| {
            LseView::new(address, elements, shape, [batch, head]).row_stride(row)
        })
        .boxed()
}

fn scale() -> BoxedStrategy<KvScale> {
    let memory = (address(), elements(), prop::array::uniform2(stride()))
        .prop_map(|(address, elements, strides)| KvScale::Device { address, elements, strides });
    prop_oneof![Just(KvScale::One), any::<f32>().prop_map(KvScale::Value), memory].boxed()
}

/// Returns pages. Some values have a valid shape, and some have the keys' shape.
fn pages() -> BoxedStrategy<KvPages> {
    let shape = (1usize..100, 1usize..64, 1usize..9, 1usize..32);
    (view(), view(), scale(), scale(), shape, any::<[bool; 3]>())
        .prop_map(
            |(mut keys, mut values, k_scale, v_scale, (count, page, heads, eights), [alike, tame, plain])| {
                if tame {
                    let dtype = if plain { DType::F16 } else { keys.dtype };
                    keys = TensorView::bhsd(1 << 40, 1 << 34, dtype, [count, page, heads, 8 * eights]);
                }
                if alike {
                    values = TensorView { address: keys.address.wrapping_add(1 << 42), ..keys };
                }
                let pages = KvPages::new(keys, values);
                if plain { pages } else { pages.scales(k_scale, v_scale) }
            },
        )
        .boxed()
}

fn index() -> BoxedStrategy<Index> {
    (address(), elements()).prop_map(|(address, elements)| Index::new(address, elements)).boxed()
}

fn h200() -> &'static Capabilities {
    Capabilities::profile("h200").expect("known")
}

/// Returns whether the last element of a shape stays below `elements`.
fn fits(elements: u64, shape: &[usize], strides: &[i64]) -> bool {
    let steps = shape.iter().zip(strides).filter(|(extent, _)| **extent > 1);
    let last: i128 = steps.map(|(&extent, &stride)| (extent as i128 - 1) * i128::from(stride)).sum();
    (0..i128::from(elements)).contains(&last)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn caches(
        pages in pages(), table in index(), lengths in index(), numbers in prop::array::uniform4(number()),
        dense in any::<bool>(),
    ) {
        let [columns, stride, max_k, sequences] = numbers;
        let cache = match dense {
            true => KvCache::dense(pages, lengths).rows(table),
            false => KvCache::paged(pages, table, columns, lengths).table_stride(stride).max_k(max_k),
        };
        if cache.params(sequences).is_ok() {
            for view in [pages.keys, pages.values] {
                prop_assert!(fits(view.elements, &view.shape, &view.strides));
            }
            prop_assert!(lengths.elements >= sequences as u64);
        }
    }

    #[test]
    fn lists_of_keys(
        pages in pages(), q in view(), o in view(), indices in index(),
        scale in prop::option::of(any::<f32>()), numbers in prop::array::uniform4(number()),
        [tame, small, is_latent] in any::<[bool; 3]>(),
    ) {
        let [queries, heads, topk, columns] = numbers;
        let [_, _, latents, width] = pages.keys.shape;
        let pages = if is_latent { KvPages::latent(pages.keys, columns) } else { pages };
        let of = |n: u64, width| {
            let shape = [queries % 5000, 1, (heads % 20).saturating_mul(latents), width];
            TensorView::bshd(n << 50, 1 << 40, pages.keys.dtype, shape)
        };
        let (q, o) = if tame { (of(1, width), of(2, columns)) } else { (q, o) };
        let topk = if small { topk % 4096 } else { topk };
        let mut request = AttentionRequest::sparse(q, ListedKeys::new(pages, indices, topk), o);
        request.scores.scale = scale.map(f32::abs);
        if plan(&request, h200()).is_ok() {
            for view in [q, o, pages.keys, pages.values] {
                prop_assert!(fits(view.elements, &view.shape, &view.strides));
            }
            prop_assert!(indices.elements as u128 >= q.shape[0] as u128 * latents as u128 * topk as u128);
            prop_assert!(topk > 0 && q.shape[1] == 1 && pages.values.shape[3] == o.shape[3]);
        }
    }

    #[test]
    fn shared_prefixes(
        numbers in prop::array::uniform8(number()), at in prop::array::uniform5(index()),
        [varlen, always, small] in any::<[bool; 3]>(),
    ) {
        let view = |n: u64| TensorView::bshd(n << 44, 1 << 34, DType::F16, [6, 1, 8, 64]);
        let pages = |n: u64| TensorView::bshd(n << 44, 1 << 34, DType::F16, [900, 16, 2, 64]);
        let [columns, stride, groups, shared, most, level, apart, batch] = numbers;
        let (columns, groups) = if small { (columns % 300 + 2, groups % 7) } else { (columns, groups) };
        let table = Index::new(6 << 44, 1 << 40);
        let cache = KvCache::paged(KvPages::new(pages(4), pages(5)), table, columns, Index::new(7 << 44, 6));
        let [rest, starts, entries, lengths, other] = at;
        let prefixes = match varlen {
            true => SharedPrefixes::varlen(
                VarlenQueries::new(groups, starts, most),
                Level { entries, columns: level, stride: apart, lengths },
                Level { entries: other, columns: batch, stride, lengths: rest },
            ),
            false => SharedPrefixes::equal(groups, shared, rest),
        };
        let prefixes = if always { prefixes.always() } else { prefixes };
        let request = AttentionRequest::cached(view(1), cache.table_stride(stride), view(2));
        let request = request.scratch(Scratch::Fastest).shared_prefixes(prefixes);
        if plan(&request, h200()).is_ok() {
            prop_assert!((1..=6).contains(&groups) && rest.elements >= 6);
            let is_valid = if varlen { level > 0 && batch > 0 } else { shared < columns && 6 % groups == 0 };
            prop_assert!(is_valid);
        }
    }

    #[test]
    fn appends(
        mut k in view(), mut v in view(), pages in pages(), at in address(), tokens in elements(),
        [wide, alike, small, turns, few] in any::<[bool; 5]>(), mut cos in view(), q in view(),
        column in number(),
    ) {
        if alike {
            let [heads, head_dim] = [pages.keys.shape[2], pages.keys.shape[3]];
            for (t, at) in [(&mut k, 50u64), (&mut v, 51)] {
                *t = TensorView::bshd(at << 44, 1 << 34, DType::F16, [1, 128, heads, head_dim]);
            }
        }
        let slots = if wide { Slots::i64 } else { Slots::i32 };
        let slots = slots(at & !7, if small { tokens % 129 } else { tokens });
        let mut append = Append::new(k, v, pages, slots);
        if few {
            cos = TensorView::bshd(52 << 44, 1 << 34, DType::F32, [1, 100, 1, 16]);
        }
        if turns {
            let rotary = Rotary::cos_sin(cos, Positions::i32(at & !7, tokens)).first_column(column);
            append = append.rotary(if few { rotary } else { rotary.queries(q, q) });
        }
        if let Ok(plan) = plan(&append, h200()) {
            for view in [k, v].into_iter().chain(append.rotary.map(|rotary| rotary.sin)) {
                prop_assert!(fits(view.elements, &view.shape, &view.strides));
            }
            let heads = append.pages.keys.shape[2] as u64 * append.slots.elements;
            prop_assert!(plan.grid()[0] as u64 * plan.contract().threads as u64 >= heads);
        }
    }

    #[test]
    fn merges(
        mut states in prop::collection::vec((view(), lse()), 0..5), mut o in view(),
        result in prop::option::of(lse()), sinks in prop::option::of((address(), elements())),
        alike in any::<bool>(),
    ) {
        if alike {
            o = TensorView::bshd(60 << 40, 1 << 40, o.dtype, o.shape);
            let [batch, rows, heads, _] = o.shape;
            for (i, (view, lse)) in states.iter_mut().enumerate() {
                *view = TensorView { address: (70 + i as u64) << 42, ..o };
                *lse = LseView::contiguous((80 + i as u64) << 42, 1 << 40, [batch, heads, rows]);
            }
        }
        let states: Vec<_> = states.into_iter().map(|(o, lse)| State::new(o, lse)).collect();
        let mut merge = Merge::new(&states, o);
        merge.lse = result;
        merge.sinks = sinks.map(|(address, elements)| Sinks { address, elements });
        if plan(&merge, h200()).is_ok() {
            for view in states.iter().map(|state| state.o).chain([o]) {
                prop_assert!(fits(view.elements, &view.shape, &view.strides));
            }
        }
    }
}

#[test]
fn the_generators_make_requests_of_both_kinds() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let accepted = (0..1000).filter(|_| {
        let pages = pages().new_tree(&mut runner).expect("pages").current();
        KvCache::dense(pages, Index::new(1 << 60, 1)).params(1).is_ok()
    });
    let accepted = accepted.count();
    assert!((100..900).contains(&accepted), "{accepted} of 1000 accepted");
}
