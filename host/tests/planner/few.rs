//! Cases with few queries on many keys, and the tensors that decode kernels take.
use super::*;

/// `card, [batch, heads_q, heads_k, seqlen_q, seqlen_k, head_dim], mask, scratch -> prefix of the symbol`.
type Few = (&'static str, [usize; 6], Mask, Scratch, &'static str);
#[rustfmt::skip]
const FEW: &[Few] = &[
    // Decode kernels run with a workspace, or with enough sequences to fill the device without splits.
    ("h200", [64, 64, 8, 1, 4096, 128], Mask::Causal, Scratch::None,
        "decode_f16_d128_causal_8_tiles"),
    ("h200", [1, 32, 8, 1, 8192, 104], Mask::Full, Scratch::Fastest, "decode_f16_d128_causal_8_tiles"),
    ("h200", [1, 32, 8, 1, 8192, 104], Mask::Full, Scratch::None, "fwd_f16_d128_full_"),
    ("h200", [1, 32, 8, 1, 8192, 104], Mask::Full, Scratch::workspace(9 << 44, 1 << 12),
        "fwd_f16_d128_full_"),
    ("l4", [64, 32, 8, 1, 4096, 128], Mask::Full, Scratch::None, "decode_f16_d128_causal_8_tiles_w4"),
    ("a100", [8, 32, 8, 4, 1024, 128], Mask::Causal, Scratch::Fastest, "decode_f16_d128_causal_16_tiles"),
    ("h200", [8, 16, 2, 1, 1024, 64], SLIDING, Scratch::Fastest, "decode_f16_d64_local_16_rows"),
    ("h200", [8, 16, 16, 4, 512, 256], Mask::Full, Scratch::Fastest, "decode_f16_d256_causal_8_tiles"),
    // These cases have too few keys, or too many queries or rows.
    ("h200", [8, 16, 2, 1, 1023, 64], Mask::Full, Scratch::Fastest, "fwd_f16_d64_full_"),
    ("h200", [8, 16, 2, 5, 1024, 64], Mask::Full, Scratch::Fastest, "fwd_f16_d64_full_"),
    ("h200", [64, 32, 8, 1, 511, 128], Mask::Full, Scratch::Fastest, "fwd_f16_d128_full_"),
    ("h200", [8, 32, 32, 17, 512, 128], Mask::Full, Scratch::Fastest, "fwd_f16_d128_full_"),
    ("h200", [8, 32, 4, 16, 512, 128], Mask::Full, Scratch::Fastest, "fwd_f16_d128_full_"),
    ("h200", [8, 64, 4, 1, 512, 256], Mask::Full, Scratch::Fastest, "fwd_f16_d256_full_"),
];

#[test]
fn few_queries_on_many_keys_take_decode_kernels() {
    for (name, sizes, mask, scratch, entry) in FEW {
        let card = Capabilities::profile(name).expect("a known card");
        let case = Case { card: name, sizes: *sizes, mask: *mask, softcap: None, entry, tiles: 0, group: 0 };
        let (problem, f) = (problem(&case), forward(&problem(&case)).scratch(*scratch));
        let made = plan(&f, card).unwrap_or_else(|e| panic!("{name} {sizes:?}: {e}"));
        let symbol = made.contract().symbol;
        assert!(symbol.starts_with(entry), "{name} {sizes:?} {mask:?} {scratch:?}: {symbol}");
        let explained = explain(&problem, card, *scratch);
        assert_eq!(explained, Ok((made.contract(), made.reason())), "{name} {sizes:?}");
        let few = symbol.starts_with("decode");
        assert_eq!(made.reason().contains("few queries on many keys: decode"), few, "{}", made.reason());
    }
}

/// Decode kernels use one index for keys and values. If strides differ, or the mask aligns at the first key,
/// kernels with work tiles run. A merge kernel then adds sinks.
#[test]
fn few_queries_that_decode_kernels_do_not_take() {
    let h200 = Capabilities::profile("h200").expect("a known card");
    let case = Case { sizes: [64, 32, 8, 1, 4096, 128], entry: "", card: "", ..CASES[0] };
    let f = forward(&problem(&case)).mask(Mask::Causal);
    let made = plan(&f, h200).expect("valid");
    assert!(made.contract().symbol.starts_with("decode_"), "{}", made.contract().symbol);
    let mut apart = f;
    let [_, v] = apart.kv.tensors_mut().expect("tensors");
    *v = TensorView::bshd(v.address, v.elements, v.dtype, v.shape);
    let bound = made.bind(&apart).expect("work tiles take it");
    assert!(bound.contract().symbol.starts_with("fwd_"), "{}", bound.contract().symbol);
    assert!(bound.reason().contains("different strides"), "{}", bound.reason());
    let symbol = |f: &AttentionRequest<'_>| plan(f, h200).map(|made| made.contract().symbol);
    assert!(symbol(&apart).is_ok_and(|symbol| !symbol.starts_with("decode")));
    let top_left = f.alignment(Alignment::TopLeft);
    assert!(symbol(&top_left).is_ok_and(|symbol| !symbol.starts_with("decode")));
    assert_eq!(symbol(&f.config(made.contract().symbol)), Ok(made.contract().symbol), "by name");
    // The cases of decode kernels are repeated with sinks.
    let sinks = Sinks { address: 9 << 44, elements: 32 };
    assert!(symbol(&f.sinks(sinks)).is_ok_and(|symbol| symbol.starts_with("decode")));
    for tiles in
        [apart.sinks(sinks), top_left.sinks(sinks), f.sinks(sinks).alibi(AlibiSlopes::new(8 << 44, 32))]
    {
        let made = plan(&tiles.scratch(Scratch::Fastest), h200).expect("valid");
        let symbol = made.contract().symbol;
        assert!(!symbol.starts_with("decode") && symbol.contains("_sink_"), "{symbol}");
        assert_eq!(made.scratch_bytes().workspace, 0);
    }
}
