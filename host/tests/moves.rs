//! Tests that a plan bound to other memory gives the launch, or the error, that a plan of this memory gives.
use crate::on_cache::{FAR, MANY, card, decode};
use ferroflash::{plan::*, request::*, *};
use std::fmt::Debug;

/// A change of a request, and the beginning of its error, if the request is then invalid.
type Case<R> = (fn(&mut R), Option<&'static str>);

/// Checks a plan of a request that binds the changed request.
fn check<R: Request + Clone + Debug>(planned: &R, cases: &[Case<R>]) {
    let plan = |request: &R| plan(request, card("h200"));
    let made = plan(planned).expect("valid");
    for (change, error) in cases {
        let mut other = planned.clone();
        change(&mut other);
        let bound = made.bind(&other).map_err(|error| error.to_string());
        let own = plan(&other).and_then(|own| own.bind(&other)).map_err(|error| error.to_string());
        assert_eq!(bound, own, "{other:?}");
        match (bound, error) {
            (Ok(launch), None) => assert_ne!(Ok(launch), made.bind(planned), "{other:?}"),
            (Err(text), Some(error)) => assert!(text.starts_with(error), "{text}"),
            (bound, _) => panic!("{error:?} expected, not {bound:?}"),
        }
    }
}

fn view(n: u64, shape: [usize; 4]) -> TensorView {
    TensorView::bshd(n * FAR, shape.iter().product::<usize>() as u64, DType::F16, shape)
}

fn pages<'a>(f: &'a mut AttentionRequest<'_>) -> &'a mut KvPages {
    match &mut f.kv {
        KeysValues::Cache(cache) => &mut cache.pages,
        _ => panic!("no cache"),
    }
}

fn lists<'a>(f: &'a mut AttentionRequest<'_>) -> &'a mut ListedKeys {
    match &mut f.kv {
        KeysValues::Listed(keys) => keys,
        _ => panic!("no lists"),
    }
}

#[test]
fn tensors() {
    let at = |n: u64| view(n, [2, 512, 8, 64]);
    let bias = Bias::new(6 * FAR, 1 << 18, DType::F16, [1, 1, 512, 512], [0, 0, 512, 1]);
    let lse = LseView::contiguous(5 * FAR, 2 * 8 * 512, [2, 8, 512]);
    let f = AttentionRequest::dense(at(1), at(2), at(3), at(4)).mask(Mask::Causal).lse(lse);
    let cases: [Case<AttentionRequest<'_>>; 8] = [
        (|f| f.q.address += 32, None),
        (|f| (f.q.address, f.o.address) = (f.o.address, f.q.address), None),
        (|f| f.q.address = f.kv.tensors().map_or(0, |[k, _]| k.address), None),
        (|f| f.o.address += 8, Some("invalid o.address")),
        (|f| f.q.address = 0, Some("invalid q.address")),
        (|f| f.o.address = 4096_u64.wrapping_neg(), Some("invalid o.elements")),
        (|f| f.o.address = f.q.address + 16, Some("invalid o.address")),
        (|f| f.lse.as_mut().expect("an LSE").address = f.o.address + 64, Some("invalid lse.address")),
    ];
    check(&f, &cases);
    check(&f.bias(bias), &cases);
    // TMA takes a bias from multiples of 16 bytes on.
    check(&f.bias(bias), &[(|f| f.scores.bias.as_mut().expect("a bias").address += 4, None)]);
}

/// Returns the address of a scale of Q.
fn of_queries<'a>(f: &'a mut AttentionRequest<'_>) -> &'a mut u64 {
    match &mut f.descales.q {
        KvScale::Device { address, .. } => address,
        _ => panic!("no scales in device memory"),
    }
}

#[test]
fn tensors_of_e4m3() {
    let at = |n: u64| TensorView { dtype: DType::E4m3, ..view(n, [2, 512, 8, 64]) };
    let scale = |n: u64| KvScale::Device { address: n * FAR, elements: 16, strides: [8, 1] };
    let f = AttentionRequest::dense(at(1), at(2), at(3), view(4, [2, 512, 8, 64]));
    let f = f.descales(Descales::new(scale(5), KvScale::Value(0.5), scale(6)));
    let cases: [Case<AttentionRequest<'_>>; 6] = [
        (|f| f.q.address += 32, None),
        (|f| *of_queries(f) += 16, None),
        (|f| *of_queries(f) += 4, None),
        (|f| *of_queries(f) += 2, Some("invalid q_descale.address")),
        (|f| *of_queries(f) = f.o.address, Some("invalid o.address")),
        (|f| f.scratch = Scratch::workspace(21 * FAR, 1 << 30), None),
    ];
    check(&f.scratch(Scratch::workspace(20 * FAR, 1 << 30)), &cases);
}

#[test]
fn caches() {
    let memory = Scratch::Memory {
        workspace: Region { address: 20 * FAR, bytes: 1 << 30 },
        counters: Some(Region { address: 21 * FAR, bytes: 1 << 20 }),
    };
    let cases: [Case<AttentionRequest<'_>>; 4] = [
        (|f| f.q.address += 32, None),
        (|f| pages(f).keys.address += 32, None),
        (|f| pages(f).values.address = pages(f).keys.address, None),
        (|f| f.scratch = Scratch::workspace(f.o.address, 1 << 30), Some("invalid workspace.address")),
    ];
    let f = decode(MANY).mask(Mask::Causal).scratch(memory);
    check(&f, &cases);
    let shared = f.shared_prefixes(SharedPrefixes::one(128, Index::new(9 * FAR, 128)).always());
    check(&shared, &cases);
    check(
        &shared,
        &[(
            |f| f.shared_prefixes = Some(SharedPrefixes::one(128, Index::new(f.o.address, 128)).always()),
            Some("invalid o.address"),
        )],
    );
    let rows = view(4, [1000, 64, 1, 576]);
    let cache =
        KvCache::paged(KvPages::latent(rows, 512), Index::new(5 * FAR, 64), 8, Index::new(6 * FAR, 8));
    let latent = AttentionRequest::cached(view(1, [8, 1, 16, 576]), cache, view(2, [8, 1, 16, 512]));
    let latent = latent.scale(0.1).scratch(memory);
    let moved = |f: &mut AttentionRequest<'_>| *pages(f) = KvPages::latent(view(8, [1000, 64, 1, 576]), 512);
    check(&latent, &[(moved, None), (|f| pages(f).values.address += 32, Some("not supported"))]);
    let keys = ListedKeys::new(KvPages::latent(rows, 512), Index::new(5 * FAR, 8 * 100), 100);
    let listed = AttentionRequest::sparse(view(1, [8, 1, 16, 576]), keys, view(2, [8, 1, 16, 512]));
    let listed = listed.scale(0.1).scratch(memory);
    let cases: [Case<AttentionRequest<'_>>; 5] = [
        (|f| lists(f).indices.address += 4, None),
        (|f| lists(f).pages = KvPages::latent(view(8, [1000, 64, 1, 576]), 512), None),
        (|f| lists(f).indices.address += 2, Some("invalid indices.address")),
        (|f| lists(f).indices.address = f.o.address, Some("invalid o.address")),
        (|f| lists(f).indices.elements = 799, Some("invalid indices.elements")),
    ];
    check(&listed, &cases);
}

#[test]
#[cfg(feature = "training")]
fn gradients() {
    let at = |n: u64| view(n, [2, 512, 8, 64]);
    let lse = LseView::contiguous(5 * FAR, 2 * 8 * 512, [2, 8, 512]);
    let f = AttentionRequest::dense(at(1), at(2), at(3), at(4)).mask(Mask::Causal).lse(lse);
    let memory = |n: u64| Scratch::workspace(n * FAR, 1 << 30);
    let of = |f| AttentionBackward::new(f, at(6), at(7), at(8), at(9)).scratch(memory(20));
    let cases: [Case<AttentionBackward<'_>>; 7] = [
        (|b| b.forward.q.address += 128, None),
        (|b| b.d_o.address = b.forward.o.address, None),
        (|b| (b.dq.address, b.dk.address) = (b.dk.address, b.dq.address), None),
        // Counters begin at multiples of 128 bytes.
        (|b| b.scratch = Scratch::workspace(30 * FAR + 16, 1 << 30), None),
        (|b| b.dq.address = b.forward.q.address, Some("invalid dq.address")),
        (|b| b.dv.address += 8, Some("invalid dv.address")),
        (|b| b.scratch = Scratch::workspace(b.dk.address, 1 << 30), Some("invalid workspace.address")),
    ];
    check(&of(f), &cases);
    let sinks = |n: u64| Sinks { address: n * FAR, elements: 8 };
    check(&of(f.sinks(sinks(10))).dsinks(sinks(11)), &cases);
    let bias = |n: u64| Bias::new(n * FAR, 1 << 18, DType::F16, [1, 1, 512, 512], [0, 0, 512, 1]);
    let biased = of(f.bias(bias(12))).dbias(bias(13));
    check(&biased, &cases);
    let moved: Case<AttentionBackward<'_>> = (|b| b.dbias.as_mut().expect("a bias").address += 64, None);
    check(&biased, &[moved]);
}

#[test]
fn appends() {
    let pages = KvPages::new(view(3, [100, 16, 8, 128]), view(4, [100, 16, 8, 128]));
    let append =
        Append::new(view(1, [1, 64, 8, 128]), view(2, [1, 64, 8, 128]), pages, Slots::i64(5 * FAR, 64));
    let cases: [Case<Append>; 4] = [
        (|a| a.k.address += 32, None),
        (|a| a.v.address = a.k.address, None),
        (|a| a.slots.address += 4, Some("invalid slots.address")),
        (|a| a.pages.keys.address = a.v.address, Some("invalid cache.keys.address")),
    ];
    check(&append, &cases);
    // Queries that rotate in place leave their place.
    let [cos, sin] = [6, 7].map(|n| TensorView::bshd(n * FAR, 1 << 20, DType::F32, [1, 4096, 1, 64]));
    let q = view(8, [1, 64, 32, 128]);
    let rotary = Rotary::new(cos, sin, Positions::i64(9 * FAR, 64)).queries(q, q);
    check(&append.rotary(rotary), &cases);
    let apart: Case<Append> = (
        |a| {
            let rotary = a.rotary.as_mut().and_then(|rotary| rotary.queries.as_mut());
            rotary.expect("queries").q.address += 256;
        },
        Some("invalid rotary.rotated.address"),
    );
    check(&append.rotary(rotary), &[apart]);
}

#[test]
fn appends_to_latent_caches() {
    let rows = TensorView::bshd(FAR, 64 * 576, DType::Bf16, [1, 64, 1, 576]);
    let cache =
        |columns, dtype| TensorView::bshd(3 * FAR, 1600 * columns as u64, dtype, [100, 16, 1, columns]);
    let moved: [Case<Append>; 3] = [
        (|a| (a.k.address, a.v.address) = (9 * FAR, 9 * FAR), None),
        (|a| (a.pages.keys.address, a.pages.values.address) = (8 * FAR, 8 * FAR), None),
        (|a| a.slots.address += 8, None),
    ];
    let rotary = || {
        let table = TensorView::bshd(6 * FAR, 1 << 20, DType::F32, [1, 4096, 1, 64]);
        Rotary::cos_sin(table, Positions::i64(7 * FAR, 64)).first_column(512)
    };
    for pages in [
        KvPages::latent(cache(576, DType::Bf16), 512),
        KvPages::latent(cache(576, DType::E4m3), 512),
        KvPages::latent_scaled(cache(656, DType::E4m3), 512),
    ] {
        let append = Append::latent(rows, pages, Slots::i64(5 * FAR, 64));
        check(&append, &moved);
        check(&append.rotary(rotary()), &moved);
    }
}

#[test]
fn merges() {
    let state = |n: u64| {
        State::new(view(n, [2, 64, 8, 64]), LseView::contiguous(n * FAR + (1 << 40), 1 << 10, [2, 8, 64]))
    };
    static STATES: std::sync::OnceLock<[[State; 3]; 2]> = std::sync::OnceLock::new();
    let [states, _] = STATES.get_or_init(|| [[1, 2, 3].map(state), [11, 12, 13].map(state)]);
    let cases: [Case<Merge<'_>>; 6] = [
        (|m| m.o.address += 32, None),
        (|m| m.states = &STATES.get().expect("set")[1], None),
        (|m| m.o.address = m.states[2].o.address, None),
        (|m| m.o.address = m.states[2].o.address + 16, Some("invalid o.address")),
        (|m| m.o.address = m.states[1].o.address - 16, Some("invalid o.address")),
        (|m| m.o.address = m.states[0].lse.address, Some("invalid o.address")),
    ];
    check(&Merge::new(states, view(9, [2, 64, 8, 64])), &cases);
}
