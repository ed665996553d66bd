//! Random options on random requests of attention: outputs of rows and heads, padded queries, precisions,
//! promises and scratch memory. Planning and binding return a launch or an error that names a field, and
//! never panic. A plan bound to other memory gives the launch that a plan of this memory gives.
use crate::drawn::{FAR, KINDS, Random, Request};
use ferroflash::{request::*, *};

/// Numbers of sizes, strides and addresses that no request should have.
const WILD: [u64; 10] = [0, 1, 2, 7, 1 << 30, (1 << 32) - 1, 1 << 33, 1 << 62, u64::MAX / 2, u64::MAX];

/// Adds random options.
fn with_options<'a>(random: &mut Random, mut f: AttentionRequest<'a>) -> AttentionRequest<'a> {
    let [batches, rows, heads, _] = f.q.shape;
    let row_output = |n: u64| LseView::contiguous(n * FAR, 1 << 40, [batches, heads, rows]);
    f.max_logits = random.some(3, row_output(40));
    f.entropy = random.some(4, row_output(41));
    f.max_logits_head = random.some(2, Sinks { address: 42 * FAR, elements: heads as u64 });
    if let Queries::Varlen(queries) = &mut f.queries {
        queries.seqused_q = random.some(2, Index::new(43 * FAR, queries.batch as u64));
    }
    let eight = [Precision::Int8F16, Precision::Int8Fp8, Precision::Fp8];
    f.precision = if random.once_in(2) { Precision::Inputs } else { random.one_of(&eight) };
    if f.precision != Precision::Inputs && !random.once_in(4) {
        (f.scores, f.mask) = (Scores::new(), random.one_of(&[Mask::Full, Mask::Causal]));
        (f.max_logits, f.entropy, f.max_logits_head) = (None, None, None);
    }
    f.invariance = random.one_of(&[Invariance::None, Invariance::None, Invariance::Batch]);
    f.scratch = random.one_of(&[Scratch::None, Scratch::Fastest, Scratch::Fastest]);
    f
}

/// Spoils a number of a request.
fn spoil(random: &mut Random, f: &mut AttentionRequest<'_>) {
    let wild = random.one_of(&WILD);
    let dim = random.one_of(&[0usize, 1, 2, 3]);
    let view = |view: &mut TensorView, which: u64| match which {
        0 => view.address = wild,
        1 => view.elements = wild,
        2 => view.shape[dim] = wild as usize,
        _ => view.strides[dim] = wild as i64,
    };
    let of_rows = |rows: &mut Option<LseView>, which: u64| {
        let Some(rows) = rows else { return };
        match which {
            0 => rows.address = wild,
            1 => rows.elements = wild,
            2 => rows.shape[dim % 3] = wild as usize,
            _ => rows.strides[dim % 2] = wild as i64,
        }
    };
    let which = random.one_of(&[0u64, 1, 2, 3]);
    match random.one_of(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]) {
        0 => view(&mut f.q, which),
        1 => view(&mut f.o, which),
        2 => {
            if let Some([k, _]) = f.kv.tensors_mut() {
                view(k, which)
            }
        }
        3 => {
            if let Some([_, v]) = f.kv.tensors_mut() {
                view(v, which)
            }
        }
        4 => of_rows(&mut f.max_logits, which),
        5 => of_rows(&mut f.entropy, which),
        6 => of_rows(&mut f.lse, which),
        7 => {
            if let Some(heads) = &mut f.max_logits_head {
                if which < 2 { heads.address = wild } else { heads.elements = wild }
            }
        }
        8 => {
            if let Queries::Varlen(queries) = &mut f.queries {
                match (which, &mut queries.seqused_q) {
                    (0, Some(used)) => used.address = wild,
                    (1, Some(used)) => used.elements = wild,
                    (2, _) => queries.batch = wild as usize,
                    _ => queries.max_seqlen_q = wild as usize,
                }
            }
        }
        9 => f.scores.scale = Some(random.one_of(&[0.0, 1e-38, 1e-45, 3e38, f32::NAN, f32::INFINITY, -1.0])),
        _ => {
            // All tensors become as long.
            let rows = [&mut f.q, &mut f.o].into_iter();
            if which < 2 {
                rows.for_each(|view| view.shape[dim] = wild as usize)
            } else if let Some(views) = f.kv.tensors_mut() {
                views.into_iter().for_each(|view| view.shape[dim] = wild as usize)
            }
        }
    }
}

/// Moves all memory of a request.
fn moved<'a>(f: &AttentionRequest<'a>) -> AttentionRequest<'a> {
    let mut f = *f;
    let by = 1 << 35;
    f.q.address = f.q.address.wrapping_add(by);
    f.o.address = f.o.address.wrapping_add(by);
    if let Some(views) = f.kv.tensors_mut() {
        views.into_iter().for_each(|view| view.address = view.address.wrapping_add(by));
    }
    if let KeysValues::Cache(cache) = &mut f.kv {
        cache.lengths.address = cache.lengths.address.wrapping_add(by);
    }
    for rows in [&mut f.lse, &mut f.max_logits, &mut f.entropy].into_iter().flatten() {
        rows.address = rows.address.wrapping_add(by);
    }
    if let Some(heads) = &mut f.max_logits_head {
        heads.address = heads.address.wrapping_add(by);
    }
    if let Queries::Varlen(queries) = &mut f.queries {
        queries.cu_seqlens_q.address = queries.cu_seqlens_q.address.wrapping_add(by);
        if let Some(used) = &mut queries.seqused_q {
            used.address = used.address.wrapping_add(by);
        }
    }
    if let Scratch::Memory { workspace, .. } = &mut f.scratch {
        workspace.address = workspace.address.wrapping_add(by);
    }
    f
}

/// Returns scratch memory of these bytes from `address` on.
fn memory(address: u64, [workspace, counters]: [u64; 2]) -> Scratch {
    match [workspace, counters] {
        [0, 0] => Scratch::None,
        [bytes, counters] => Scratch::Memory {
            workspace: Region { address, bytes },
            counters: (counters > 0).then_some(Region { address: 45 * FAR, bytes: counters }),
        },
    }
}

/// Plans a request and binds it: with the scratch memory that the plan states, at other addresses, and with
/// memory that the launch must refuse. Returns whether it was planned.
#[track_caller]
fn check(name: &str, f: &AttentionRequest<'_>, card: &Capabilities) -> bool {
    let Ok(made) = plan(f, card) else { return false };
    let bytes = made.scratch_bytes();
    let at = |address| f.scratch(memory(address, [bytes.workspace, bytes.counters]));
    let exact = at(44 * FAR);
    made.bind(&exact).unwrap_or_else(|error| panic!("{name}: {error}: {exact:?}"));
    // A launch without queries does nothing, whatever its memory is.
    if bytes.workspace > 0 && !f.q.shape.contains(&0) {
        for address in [16_u64.wrapping_neg(), f.o.address] {
            let refused = made.bind(&at(address));
            assert!(matches!(refused, Err(Error::Invalid { .. })), "{name}: {address:#x}: {refused:?}");
        }
    }
    let (other, planned) = (moved(&exact), plan(&exact, card).expect("as planned"));
    let text = |error: Error| error.to_string();
    let bound = planned.bind(&other).map_err(text);
    let own = plan(&other, card).and_then(|own| own.bind(&other)).map_err(text);
    assert_eq!(bound, own, "{name}: {other:?}");
    true
}

/// Draws requests of every kind and adds options; half of the requests then get a wild number.
#[test]
fn requests_with_options_are_planned_or_refused() {
    let [mut planned, mut all] = [0; 2];
    for (card, own) in Capabilities::PROFILES {
        for (place, (kind, draw)) in KINDS.iter().enumerate() {
            for seed in 0..40 {
                let random = &mut Random::new(seed * 64 + place as u64 + 1000);
                let Request::Attention(f, _) = draw(random) else { continue };
                let mut f = with_options(random, f);
                if random.once_in(2) {
                    spoil(random, &mut f);
                }
                planned += usize::from(check(&format!("{kind} on {card}, {seed}"), &f, own));
                all += 1;
            }
        }
    }
    assert!(planned > all / 8 && planned < all, "{planned} of {all}");
}
