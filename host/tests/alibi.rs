//! Tests ALiBi slopes: the planner's kernels, their parameters, and the refused requests.

use crate::parts::forward_params;
use ferroflash::{kernels::*, plan::*, request::*, *};

/// Distance of the buffers.
const FAR: u64 = 1 << 40;

fn slopes(n: u64) -> AlibiSlopes {
    AlibiSlopes::new(n * FAR, 8).strides([4, 1])
}

/// Returns a request with two sequences of 4 query heads on 2 key heads.
fn forward(head_dim: usize, mask: Mask) -> AttentionRequest<'static> {
    let view = |n: u64, heads| TensorView::bshd(n * FAR, 1 << 30, DType::F16, [2, 128, heads, head_dim]);
    AttentionRequest::dense(view(1, 4), view(2, 2), view(3, 2), view(4, 4)).mask(mask).alibi(slopes(7))
}

fn plain(mut f: AttentionRequest<'static>) -> AttentionRequest<'static> {
    f.scores.alibi = None;
    f
}

fn l4() -> &'static Capabilities {
    Capabilities::profile("l4").expect("known")
}

#[test]
fn general_entries_are_told() {
    for (mask, head_dim) in [(Mask::Full, 64), (Mask::Causal, 128), (Mask::Causal, 200)] {
        let f = forward(head_dim, mask);
        let made = plan(&f, l4()).expect("valid");
        let symbol = made.contract().symbol;
        assert_eq!(entry(symbol).expect("in the table").mask, MaskKind::Local, "{symbol}");
        assert_eq!(supports(&f.problem(), l4()), Ok(made.contract()));
        let told = forward_params(&made.bind(&f.alibi(slopes(8))).expect("the same problem")).alibi;
        assert_eq!((told.base, told.sequence_bytes, told.head_bytes), (8 * FAR, 16, 4));
        let without = made.bind(&plain(f)).expect_err("another problem").to_string();
        assert!(without.contains("make another"), "{without}");
    }
    let plain = plain(forward(64, Mask::Causal));
    let params = forward_params(&plan(&plain, l4()).and_then(|made| made.bind(&plain)).expect("valid"));
    assert_eq!(params.alibi.base, 0, "no slopes");
}

#[test]
fn every_key_is_seen_from_somewhere() {
    // Without slopes, a query that sees all keys gives the same result at every position. With slopes, the
    // position matters.
    let aligned = |f: AttentionRequest<'static>| {
        plan(&f, l4()).and_then(|made| made.bind(&f.alignment(Alignment::TopLeft)))
    };
    let mut f = forward(64, Mask::Full);
    (f.q.shape[1], f.o.shape[1]) = (99, 99);
    assert!(aligned(plain(f)).is_ok());
    assert!(aligned(f).is_err());
}

type Change = fn(&mut AttentionRequest<'static>);

#[rustfmt::skip]
const REFUSED: &[(Change, &[&str])] = &[
    (|f| f.scores.alibi = Some(AlibiSlopes::new(7 * FAR + 2, 4)),
        &["invalid alibi.address", "multiple of 4"]),
    (|f| f.scores.alibi = Some(AlibiSlopes::new(0, 4)), &["invalid alibi.address", "0x0"]),
    (|f| f.scores.alibi = Some(AlibiSlopes::new(7 * FAR, 3)), &["invalid alibi.elements: 3", "need 4"]),
    (|f| f.scores.alibi = Some(AlibiSlopes::new(7 * FAR, 7).strides([4, 1])),
        &["invalid alibi.elements: 7", "need 8"]),
    (|f| f.scores.alibi = Some(AlibiSlopes::new(7 * FAR, 99).strides([-4, 1])),
        &["invalid alibi.strides", "0 or more"]),
    (|f| f.scores.alibi = Some(AlibiSlopes::new(4 * FAR + 64, 4)),
        &["invalid o.address", "must not overlap alibi"]),
    (|f| f.scratch = Scratch::workspace(7 * FAR, 64),
        &["workspace", "must not overlap alibi"]),
    (|f| f.scores.scale = Some(1e-25), &["not supported: scale 1e-25 with ALiBi slopes", "1e-20"]),
    (|f| f.scores.softcap = Some(1e25), &["not supported: softcap 1e25 with ALiBi slopes", "1e20"]),
    (|f| f.config = Some("fwd_f16_d64_full_128x64"), &["invalid config", "mask local"]),
];

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    for (number, (change, words)) in REFUSED.iter().enumerate() {
        let mut f = forward(64, Mask::Full);
        assert!(plan(&f, l4()).is_ok());
        change(&mut f);
        let error = plan(&f, l4()).expect_err("wrong").to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{number}: {error}, should have {words:?}");
    }
}

#[test]
fn on_a_cache_kernels_of_many_queries_have_them() {
    let view = |n: u64| TensorView::bshd(n * FAR, 1 << 20, DType::F16, [2, 1, 4, 128]);
    let shape = [2, 512, 2, 128];
    let pool = |n: u64| TensorView::bshd(n * FAR, 1 << 30, DType::F16, shape);
    let cache = KvCache::dense(KvPages::new(pool(2), pool(3)), Index::new(5 * FAR, 2));
    let decode = AttentionRequest::cached(view(1), cache, view(4));
    let symbol = |decode: &AttentionRequest<'_>| plan(decode, l4()).map(|made| made.contract().symbol);
    assert_eq!(symbol(&decode), Ok("decode_f16_d128_causal_8_tiles_w4"));
    assert_eq!(symbol(&decode.alibi(slopes(7))), Ok("paged_f16_d128_local_128x32"));
    let sinks = decode.alibi(slopes(7)).sinks(Sinks { address: 8 * FAR, elements: 4 });
    for (wrong, word) in [
        (decode.alibi(slopes(7)).splits(Splits::Exactly(3)), "without ALiBi slopes"),
        (decode.alibi(slopes(7)).config("decode_f16_d128_causal_8_tiles_w4"), "config"),
        (decode.alibi(AlibiSlopes::new(7 * FAR, 3)), "alibi.elements"),
        (decode.alibi(slopes(4)), "must not overlap alibi"),
    ] {
        let error = symbol(&wrong).expect_err("refused").to_string();
        assert!(error.contains(word), "{error}");
    }
    assert_eq!(symbol(&sinks), Ok("paged_f16_d128_local_sink_128x32"));
}

/// On Hopper, slopes under a causal mask have kernels of their own. Other masks and softcap have not.
#[test]
fn causal_slopes_have_kernels_on_hopper() {
    let h200 = Capabilities::profile("h200").expect("known");
    let view = |n: u64, heads| TensorView::bshd(n * FAR, 1 << 30, DType::Bf16, [8, 4096, heads, 128]);
    let f = AttentionRequest::dense(view(1, 4), view(2, 2), view(3, 2), view(4, 4))
        .alibi(AlibiSlopes::new(7 * FAR, 4));
    let (causal, fast) = (f.mask(Mask::Causal), "hopper_bf16_d128_causal_alibi_128x128");
    for f in [causal, causal.config(fast)] {
        assert_eq!(plan(&f, h200).map(|made| made.contract().symbol), Ok(fast));
    }
    for other in [causal.softcap(30.0), f, plain(causal)] {
        assert!(plan(&other.config(fast), h200).is_err());
        let symbol = plan(&other, h200).expect("valid").contract().symbol;
        assert_ne!(symbol, fast);
    }
}
