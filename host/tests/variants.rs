//! Tests biases, sinks, and masks by prefix, chunk and bits: the words of each refusal, the kernels that run,
//! and their parameters.

use crate::fake::FakeDriver;
use crate::fake_ptx::with_ptx;
use crate::on_cache::{FAR, Shape, card, decode};
use ferroflash::{plan::*, request::*, *};
use spec::MergeParams;

/// Numbers of sequences, query heads, queries and keys of the requests that cases change.
const SIZES: [usize; 4] = [2, 4, 128, 100];

fn dense() -> AttentionRequest<'static> {
    let [batch, heads, queries, keys] = SIZES;
    let view = |n: u64, shape: [usize; 4]| TensorView::bshd(n * FAR, 1 << 20, DType::F16, shape);
    let (q, kv) = ([batch, queries, heads, 64], [batch, keys, 2, 64]);
    AttentionRequest::dense(view(1, q), view(2, kv), view(3, kv), view(4, q))
}

/// Returns a request with one query per sequence, as a decoder makes it: K and V contain all earlier tokens.
fn one_query() -> AttentionRequest<'static> {
    let [batch, heads, _, keys] = SIZES;
    let view = |n: u64, shape: [usize; 4]| TensorView::bshd(n * FAR, 1 << 20, DType::F16, shape);
    let (q, kv) = ([batch, 1, heads, 64], [batch, keys, 2, 64]);
    AttentionRequest::dense(view(1, q), view(2, kv), view(3, kv), view(4, q))
}

/// Returns a varlen request with equally long sequences of 150 rows in all.
fn varlen() -> AttentionRequest<'static> {
    let [batch, heads, queries, keys] = SIZES;
    let view = |n: u64, heads| TensorView::bshd(n * FAR, 1 << 20, DType::F16, [1, 150, heads, 64]);
    let starts = |n: u64| Index::new(n * FAR, batch as u64 + 1);
    let (q, kv) = (VarlenQueries::new(batch, starts(5), queries), VarlenKeys::new(starts(6), keys));
    AttentionRequest::varlen(view(1, heads), view(2, 2), view(3, 2), view(4, heads), q, kv)
}

/// Returns a request with the same queries on a cache.
fn cached() -> AttentionRequest<'static> {
    let [batch, heads, queries, max_k] = SIZES;
    let (dtype, packed, page) = (DType::F16, false, Some(16));
    decode(Shape { dtype, batch, queries, packed, heads: [heads, 2], head_dim: 64, page, max_k })
}

fn bias(shape: [usize; 4]) -> Bias {
    Bias::rows(12 * FAR, 1 << 20, DType::F16, shape, shape[3].next_multiple_of(8))
}

fn bits(shape: [usize; 4]) -> MaskBits {
    MaskBits::contiguous(13 * FAR, 1 << 20, shape)
}

const SINKS: Sinks = Sinks { address: 14 * FAR, elements: 4 };

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Invalid,
    Unsupported,
}
use Kind::*;

type Change = fn(AttentionRequest<'static>) -> AttentionRequest<'static>;

/// A name, a change that makes a request wrong, the kind of the error, and words of its message.
struct Case(&'static str, Change, Kind, &'static [&'static str]);

/// Changes that are wrong for tensors, varlen sequences and caches.
#[rustfmt::skip]
const REFUSED: &[Case] = &[
    Case("bias of another batch", |f| f.bias(bias([3, 4, 128, 100])),
        Invalid, &["bias.shape: [3, 4, 128, 100]", "[2 or 1, 4 or 1, 128 or 1, 100]"]),
    Case("bias of other heads", |f| f.bias(bias([1, 2, 128, 100])), Invalid, &["bias.shape", "4 or 1"]),
    Case("bias of other rows", |f| f.bias(bias([1, 1, 127, 100])), Invalid, &["bias.shape", "128 or 1"]),
    Case("bias of fewer keys", |f| f.bias(bias([1, 1, 1, 99])), Invalid, &["bias.shape", "128 or 1, 100]"]),
    Case("bias of no keys", |f| f.bias(bias([1, 1, 1, 0])), Invalid, &["bias.shape", "100]"]),
    Case("bias of eight bits", |f| f.bias(Bias { dtype: DType::E4m3, ..bias([1, 1, 1, 100]) }),
        Unsupported, &["a bias of e4m3", "f16, bf16 or f32"]),
    Case("bias misaligned", |f| f.bias(Bias { address: 12 * FAR + 2, ..bias([1, 1, 1, 100]) }),
        Invalid, &["bias.address", "multiple of 4"]),
    Case("bias null", |f| f.bias(Bias { address: 0, ..bias([1, 1, 1, 100]) }),
        Invalid, &["bias.address: 0x0", "device address"]),
    Case("bias of odd rows", |f| f.bias(Bias { strides: [0, 0, 101, 1], ..bias([1, 1, 128, 100]) }),
        Invalid, &["bias.strides: [0, 0, 101]", "multiples of 2 elements (4 bytes)", "copy"]),
    Case("bias backwards", |f| f.bias(Bias { strides: [0, -1024, 104, 1], ..bias([1, 4, 128, 100]) }),
        Invalid, &["bias.strides", "-1024", "negative"]),
    Case("bias by columns", |f| f.bias(Bias { strides: [0, 0, 1, 128], ..bias([1, 1, 128, 100]) }),
        Invalid, &["bias.strides: [0, 0, 1, 128]", "last stride (keys) must be 1"]),
    Case("bias too small", |f| f.bias(Bias { elements: 127 * 104 + 99, ..bias([1, 1, 128, 100]) }),
        Invalid, &["bias.elements: 13307", "need 13308"]),
    Case("bias beyond 64 bits", |f| f.bias(Bias { address: u64::MAX - 3, ..bias([1, 1, 1, 100]) }),
        Invalid, &["bias.elements", "64 bits"]),
    Case("bias with strides beyond 64 bits",
        |f| f.bias(Bias { strides: [0, i64::MAX, 104, 1], dtype: DType::F32, ..bias([1, 4, 128, 100]) }),
        Invalid, &["bias.strides", "2^64"]),
    Case("bias rows too far apart", |f| {
        let far = Bias { strides: [0, 0, 1 << 31, 1], elements: 1 << 40, ..bias([1, 1, 128, 100]) };
        f.bias(far)
    }, Unsupported, &["bias.strides", "4294967296 bytes apart", "less than 2^32"]),
    Case("bias on the output", |f| f.bias(Bias { address: f.o.address, ..bias([1, 1, 1, 100]) }),
        Invalid, &["o must not overlap bias.address"]),
    Case("bias beside a tiny scale", |f| f.bias(bias([1, 1, 1, 100])).scale(1e-30),
        Unsupported, &["scale 1e-30 with a bias", "between 1e-20 and 1e20"]),
    Case("bias beside a huge softcap", |f| f.bias(bias([1, 1, 1, 100])).softcap(1e30),
        Unsupported, &["softcap 1e30 with a bias", "divide the bias"]),
    Case("a chunk of nothing", |f| f.mask(Mask::Chunked { chunk: 0 }),
        Invalid, &["mask.chunk: 0", "1 or more"]),
    Case("too few prefixes", |f| f.mask(Mask::Prefix(Prefix::Each(Index::new(13 * FAR, 1)))),
        Invalid, &["mask.prefix.elements: 1", "2 or more, one per sequence"]),
    Case("prefixes misaligned", |f| f.mask(Mask::Prefix(Prefix::Each(Index::new(13 * FAR + 2, 2)))),
        Invalid, &["mask.prefix.address", "multiple of 4"]),
    Case("prefixes on the output", |f| f.mask(Mask::Prefix(Prefix::Each(Index::new(f.o.address, 2)))),
        Invalid, &["o must not overlap mask.prefix.address"]),
    Case("bits of another batch", |f| f.mask(Mask::Bits(bits([3, 1, 128, 8]))),
        Invalid, &["mask.bits.shape", "[2 or 1, 4 or 1, 128, 8]"]),
    Case("bits of other heads", |f| f.mask(Mask::Bits(bits([1, 2, 128, 8]))), Invalid, &["mask.bits.shape"]),
    Case("bits of other rows", |f| f.mask(Mask::Bits(bits([1, 1, 1, 8]))),
        Invalid, &["mask.bits.shape", "128"]),
    Case("bits of no key", |f| f.mask(Mask::Bits(bits([1, 1, 128, 0]))),
        Invalid, &["mask.bits.shape", "columns", "1 to 100"]),
    Case("bits of more keys", |f| f.mask(Mask::Bits(bits([1, 1, 128, 101]))), Invalid, &["1 to 100"]),
    Case("rows of bits on each other", |f| {
        f.mask(Mask::Bits(MaskBits { strides: [0, 0, 1], ..bits([1, 1, 128, 9]) }))
    }, Invalid, &["mask.bits.strides: [0, 0, 1]", "2 bytes apart or more"]),
    Case("bits too few", |f| f.mask(Mask::Bits(MaskBits { bytes: 255, ..bits([1, 1, 128, 9]) })),
        Invalid, &["mask.bits.bytes: 255", "need 256"]),
    Case("bits null", |f| f.mask(Mask::Bits(MaskBits { address: 0, ..bits([1, 1, 128, 9]) })),
        Invalid, &["mask.bits.address: 0x0"]),
    Case("bits on the output",
        |f| f.mask(Mask::Bits(MaskBits { address: f.o.address, ..bits([1, 1, 128, 9]) })),
        Invalid, &["o must not overlap mask.bits.address"]),
    Case("softcap with a prefix", |f| f.mask(Mask::Prefix(Prefix::All(9))).softcap(30.0),
        Unsupported, &["softcap with mask prefix 9", "neither softcap nor slopes"]),
    Case("slopes with chunks", |f| f.mask(Mask::Chunked { chunk: 9 }).alibi(AlibiSlopes::new(15 * FAR, 4)),
        Unsupported, &["ALiBi slopes with mask chunked 9"]),
    Case("softcap with bits", |f| f.mask(Mask::Bits(bits([1, 1, 128, 9]))).softcap(30.0),
        Unsupported, &["softcap with mask bits [1, 1, 128, 9]"]),
    Case("too few sinks", |f| f.sinks(Sinks { elements: 3, ..SINKS }),
        Invalid, &["sinks.elements: 3", "4 or more, one per query head"]),
];

fn refused(f: &AttentionRequest<'_>, &Case(name, _, kind, says): &Case) {
    let error = plan(&f.scratch(Scratch::Fastest), card("h200")).expect_err(name);
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
}

#[test]
fn refusals_name_the_value_and_what_would_be_right() {
    for base in [dense, varlen, cached] {
        plan(&base(), card("h200")).expect("valid before it is changed");
        for case in REFUSED {
            refused(&case.1(base()), case);
        }
    }
}

/// Tensors, a change, a card, and the kernel that the planner selects.
type Selected = (fn() -> AttentionRequest<'static>, Change, &'static str, &'static str);

/// Requests of head dim 64. If a mask has no kernel of this head dim, the next larger head dim's kernel runs.
#[rustfmt::skip]
const SELECTED: &[Selected] = &[
    (dense, |f| f.sinks(SINKS), "a100", "fwd_f16_d64_local_sink_128x64"),
    (dense, |f| f.mask(Mask::Causal).sinks(SINKS), "h200", "fwd_f16_d64_causal_sink_128x64"),
    (varlen, |f| f.mask(Mask::Causal).sinks(SINKS), "l4", "fwd_f16_d64_causal_sink_128x64_packed"),
    (cached, |f| f.mask(Mask::Causal).sinks(SINKS), "l4", "paged_f16_d64_causal_sink_128x64"),
    (cached, |f| f.sinks(SINKS).softcap(30.0), "l4", "paged_f16_d64_local_sink_128x64"),
    (dense, |f| f.bias(bias([2, 4, 128, 100])), "l4", "fwd_f16_d64_full_bias_128x32"),
    (varlen, |f| f.bias(bias([1, 4, 1, 100])), "l4", "fwd_f16_d64_full_bias_128x32_packed"),
    (one_query, |f| f.bias(bias([1, 4, 1, 100])), "l4", "fwd_f16_d64_full_bias_128x32"),
    (dense, |f| f.mask(Mask::Causal).bias(bias([1, 4, 128, 100])), "l4", "fwd_f16_d64_causal_bias_128x32"),
    (dense, |f| f.bias(Bias { dtype: DType::F32, ..bias([1, 1, 1, 100]) }), "l4",
        "fwd_f16_d64_full_bias_f32_128x32"),
    (dense, |f| f.mask(Mask::Prefix(Prefix::All(9))), "h200", "fwd_f16_d64_prefix_128x64"),
    (varlen, |f| f.mask(Mask::Prefix(Prefix::Each(Index::new(13 * FAR, 2)))), "l4",
        "fwd_f16_d64_prefix_128x64_packed"),
    (cached, |f| f.mask(Mask::Prefix(Prefix::All(9))), "l4", "paged_f16_d64_prefix_128x64"),
    (dense, |f| f.mask(Mask::Chunked { chunk: 9 }), "l4", "fwd_f16_d64_chunked_128x64"),
    (varlen, |f| f.mask(Mask::Chunked { chunk: 9 }), "a100", "fwd_f16_d64_chunked_128x64_packed"),
    (cached, |f| f.mask(Mask::Chunked { chunk: 9 }), "l4", "paged_f16_d64_chunked_128x64"),
    (dense, |f| f.mask(Mask::Bits(bits([2, 4, 128, 100]))), "l4", "fwd_f16_d64_bits_128x64"),
    (varlen, |f| f.mask(Mask::Bits(bits([1, 1, 128, 8]))), "l4", "fwd_f16_d64_bits_128x64_packed"),
    (cached, |f| f.mask(Mask::Bits(bits([1, 1, 128, 8]))), "l4", "paged_f16_d64_bits_128x64"),
    (tree, |f| f, "l4", "decode_f16_d64_bits_16_tiles"),
    (long, |f| f.mask(Mask::Causal).sinks(SINKS), "h200", "hopper_f16_d64_causal_sink_192x96"),
    (middle, |f| f.mask(Mask::Causal).sinks(SINKS), "h200", "hopper_f16_d64_causal_sink_128x128"),
    (wide, |f| f.mask(Mask::Causal).sinks(SINKS), "h200", "hopper_f16_d128_causal_sink_128x128"),
    (wide, |f| f.sinks(SINKS).softcap(30.0), "h200", "hopper_f16_d128_local_sink_128x96"),
    (wide, |f| f.sinks(SINKS).softcap(30.0), "l4", "fwd_f16_d128_local_sink_128x32"),
    (long, |f| f.mask(Mask::Chunked { chunk: 9 }), "h200", "hopper_f16_d64_chunked_192x96"),
    (middle, |f| f.mask(Mask::Prefix(Prefix::All(9))), "h200", "hopper_f16_d64_prefix_128x128"),
    (wide, |f| f.mask(Mask::Chunked { chunk: 9 }), "h200", "hopper_f16_d128_chunked_128x128"),
    (wide, |f| f.mask(Mask::Prefix(Prefix::All(9))), "h200", "hopper_f16_d128_prefix_128x112"),
    (wide, |f| f.mask(Mask::Prefix(Prefix::All(9))), "l4", "fwd_f16_d128_prefix_128x48"),
    (long, |f| f.bias(rows(4096)), "h200", "hopper_f16_d64_full_bias_128x128"),
    (wide, |f| f.mask(Mask::Causal).bias(rows(4096)), "h200", "hopper_f16_d128_causal_bias_128x96"),
    (wide, |f| f.bias(rows(4096)), "l4", "fwd_f16_d128_full_bias_128x32"),
    (long, |f| f.mask(Mask::Causal).alibi(slopes()), "h200", "hopper_f16_d64_causal_alibi_128x128"),
    (wide, |f| f.mask(Mask::Causal).alibi(slopes()), "h200", "hopper_f16_d128_causal_alibi_128x128"),
    (long, |f| f.sinks(SINKS), "h200", "hopper_f16_d64_local_sink_128x128"),
    (long, |f| f.sinks(SINKS), "l4", "fwd_f16_d64_local_sink_128x64"),
];

/// Returns queries and keys that fill an H200.
fn filling(length: usize, head_dim: usize) -> AttentionRequest<'static> {
    let view = |n: u64, heads| TensorView::bshd(n * FAR, 1 << 30, DType::F16, [8, length, heads, head_dim]);
    AttentionRequest::dense(view(1, 4), view(2, 2), view(3, 2), view(4, 4))
}

fn long() -> AttentionRequest<'static> {
    filling(4096, 64)
}

fn middle() -> AttentionRequest<'static> {
    filling(2048, 64)
}

fn wide() -> AttentionRequest<'static> {
    filling(4096, 128)
}

/// Returns a bias of 4096 queries and keys, with rows `row` elements apart.
fn rows(row: usize) -> Bias {
    Bias::rows(12 * FAR, 1 << 30, DType::F16, [1, 4, 4096, 4096], row)
}

/// A bias that TMA does not accept has the portable kernel, and the plan names the reason.
#[test]
fn a_bias_that_tma_does_not_accept_has_a_portable_kernel() {
    let shared = Bias { shape: [1, 4, 1, 4096], ..rows(4096) };
    let apart = Bias { address: 12 * FAR + 4, ..rows(4096) };
    for (bias, words) in [(rows(4098), "16 bytes apart"), (shared, "one row"), (apart, "does not begin")] {
        let f = long().bias(bias);
        let made = plan(&f, card("h200")).expect("valid");
        assert_eq!(made.contract().symbol, "fwd_f16_d64_full_bias_128x32", "{words}");
        assert!(made.reason().contains(words), "{}", made.reason());
        let named = plan(&f.config("hopper_f16_d64_full_bias_128x128"), card("h200"));
        assert!(named.expect_err("by name").to_string().contains(words), "{words}");
    }
    let batches = Bias { strides: [0, 1 << 24, 4096, 1], shape: [8, 4, 4096, 4096], ..rows(4096) };
    let made = plan(&long().bias(batches), card("h200")).expect("valid");
    assert_eq!(made.contract().symbol, "hopper_f16_d64_full_bias_128x128");
}

fn slopes() -> AlibiSlopes {
    AlibiSlopes::new(7 * FAR, 4)
}

/// Returns a tree of eight drafts for each sequence of a cache.
fn tree() -> AttentionRequest<'static> {
    let (dtype, packed, page) = (DType::F16, false, Some(16));
    let shape = Shape { dtype, batch: 2, queries: 8, packed, heads: [4, 2], head_dim: 64, page, max_k: 100 };
    decode(shape).mask(Mask::Bits(bits([2, 1, 8, 8])))
}

#[test]
fn masks_scores_and_fronts_have_their_kernels() {
    for &(base, change, device, symbol) in SELECTED {
        let made = plan(&change(base()), card(device)).unwrap_or_else(|error| panic!("{symbol}: {error}"));
        assert_eq!(made.contract().symbol, symbol, "{}", made.reason());
    }
}

/// Valid requests that no kernel in the table solves, and words of the refusal. Remove a line when its first
/// kernel exists.
#[rustfmt::skip]
const WITHOUT_KERNEL: &[Selected] = &[
    (dense, |f| f.mask(Mask::Causal).bias(Bias { dtype: DType::F32, ..bias([1, 1, 1, 100]) }), "h200",
        "mask causal and a bias of f32"),
    (dense, |f| f.bias(bias([1, 1, 1, 100])).sinks(SINKS).softcap(30.0), "h200", "a bias of f16"),
    (varlen, |f| f.mask(Mask::Causal).bias(bias([1, 1, 1, 100])), "h200", "mask causal and a bias of f16"),
    (cached, |f| f.bias(bias([1, 1, 1, 100])), "h200", "mask full and a bias of f16"),
];

#[test]
fn masks_and_biases_without_a_kernel_are_refused_by_name() {
    for &(base, change, device, words) in WITHOUT_KERNEL {
        let f = change(base()).scratch(Scratch::Fastest);
        let error = plan(&f, card(device)).expect_err("no kernel");
        let message = error.to_string();
        assert!(matches!(error, Error::Unsupported { .. }) && message.contains(words), "{message}");
        assert!(message.contains(" and keys ") && message.contains("use what has kernels: "), "{message}");
    }
}

/// A mask that shows exactly the keys of a simpler mask runs the simpler mask's kernel.
#[test]
fn the_simplest_kernel_of_a_mask_runs() {
    let causal = plan(&dense().mask(Mask::Causal), card("h200")).expect("valid").contract().symbol;
    let full = plan(&dense(), card("h200")).expect("valid").contract().symbol;
    for (mask, symbol) in [
        (Mask::Prefix(Prefix::All(0)), causal),
        (Mask::Prefix(Prefix::All(100)), full),
        (Mask::Prefix(Prefix::All(u32::MAX)), full),
        (Mask::Chunked { chunk: 128 }, causal),
        (Mask::Chunked { chunk: u32::MAX }, causal),
    ] {
        let made = plan(&dense().mask(mask), card("h200")).expect("valid");
        assert_eq!(made.contract().symbol, symbol, "{mask}");
    }
    let shift = |mask| plan(&dense().mask(mask), card("l4")).and_then(|made| made.bind(&dense().mask(mask)));
    let [prefix, causal] =
        [Mask::Prefix(Prefix::All(0)), Mask::Causal].map(|mask| shift(mask).expect("valid"));
    assert_eq!(prefix.params(), causal.params());
}

/// Head dim 192 has no kernel with sinks. A merge kernel adds the sinks in place, from an LSE in the
/// workspace.
#[test]
fn a_merge_kernel_adds_sinks() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("a100"));
    let view = |n: u64, rows| TensorView::bshd(n * FAR, 1 << 30, DType::Bf16, [2, rows, 8, 192]);
    let f = AttentionRequest::dense(view(1, 300), view(2, 500), view(3, 500), view(4, 300));
    let f = f.sinks(Sinks { address: 14 * FAR, elements: 8 });
    let made = attention.plan(&f.scratch(Scratch::Fastest))?;
    assert!(made.reason().contains("a merge kernel adds them"), "{}", made.reason());
    assert_eq!(made.scratch_bytes(), attention.plan(&f.scratch(Scratch::Fastest))?.scratch_bytes());
    assert_eq!(made.scratch_bytes().workspace, 2 * 300 * 8 * 4);
    let lse = LseView::new(15 * FAR, 1 << 20, [2, 8, 300], [1 << 12, 1 << 9]);
    let launch = f.lse(lse).scratch(Scratch::workspace(16 * FAR, 2 * 300 * 8 * 4));
    // SAFETY: the fake driver runs nothing.
    unsafe { attention.launch(&made, &launch, &0)? };
    assert_eq!(attention.driver().loaded().len(), 2);
    let launches = attention.driver().launches();
    let [forward, merge] = launches.as_slice() else { panic!("{launches:?}") };
    assert!(forward.symbol.starts_with("fwd_bf16_d192_full"), "{}", forward.symbol);
    assert_eq!((merge.symbol.as_str(), merge.params.len()), ("merge_bf16", size_of::<MergeParams>()));
    // SAFETY: the bytes have the size of the parameters, and every byte that a host writes has a value.
    let told = unsafe { merge.params.as_ptr().cast::<MergeParams>().read_unaligned() };
    assert_eq!((told.first.o, told.first.o.base, told.others.count), (told.result.o, 4 * FAR, 0));
    assert_eq!((told.first.lse.base, told.first.lse.head_bytes), (16 * FAR, 300 * 4));
    assert_eq!((told.result.lse.base, told.result.lse.head_bytes), (15 * FAR, 1 << 11));
    assert_eq!((told.sinks.base, told.sinks.head_bytes), (14 * FAR, 4));

    let few = f.scratch(Scratch::workspace(16 * FAR, 2 * 300 * 8 * 4 - 1));
    for wrong in [f, few] {
        let error = plan(&wrong, card("a100")).expect_err("no room").to_string();
        assert!(error.contains("workspace.bytes") && error.contains("needs 19200"), "{error}");
    }
    // The plan has a merge. The launch of the other request has no merge kernel.
    let mut none = launch;
    none.scores.sinks = None;
    let error = made.bind(&none).expect_err("no sinks").to_string();
    assert!(error.contains("sinks: false") && error.contains("the plan is for true"), "{error}");
    Ok(())
}

/// Decode kernels run with and without sinks, so a plan without sinks serves requests with sinks. The
/// fallback of such a plan does not.
#[test]
fn a_fallback_without_sinks_refuses_them() -> Result<(), Error> {
    let view = |make: fn(u64, u64, DType, [usize; 4]) -> TensorView, n: u64, rows, heads| {
        make(n * FAR, 1 << 40, DType::F16, [2, rows, heads, 128])
    };
    let (q, o) = (view(TensorView::bshd, 1, 1, 32), view(TensorView::bshd, 4, 1, 32));
    let with = |values| {
        let (k, v) = (view(TensorView::bshd, 2, 4096, 8), view(values, 3, 4096, 8));
        AttentionRequest::dense(q, k, v, o).scratch(Scratch::workspace(16 * FAR, 1 << 30))
    };
    let (alike, other) = (with(TensorView::bshd), with(TensorView::bhsd));
    let made = plan(&alike, card("h200"))?;
    let symbol = |f: &AttentionRequest<'_>| made.bind(f).map(|launch| launch.contract().symbol);
    let sinks = Sinks { elements: 32, ..SINKS };
    assert_eq!(symbol(&alike.sinks(sinks))?, made.contract().symbol);
    assert!(symbol(&other)?.starts_with("fwd_"));
    let error = symbol(&other.sinks(sinks)).expect_err("no kernel adds them").to_string();
    assert!(error.contains("sinks: true; the plan is for false"), "{error}");
    Ok(())
}

/// Tensors, a change, and the words of the refusal.
type SinksRefused = (fn() -> AttentionRequest<'static>, Change, &'static [&'static str]);

/// Requests whose sinks neither a kernel nor a merge adds.
#[rustfmt::skip]
const SINKS_REFUSED: &[SinksRefused] = &[
    (dense, |f| f.config("fwd_f16_d64_full_128x64_split"),
        &["fwd_f16_d64_full_128x64_split with attention sinks", "a launch has two kernels"]),
    (varlen, |f| f.config("fwd_f16_d64_full_128x32_packed"), &["attention sinks", "padding rows", "`Merge`"]),
    (dense, |f| f.splits(Splits::Exactly(2)), &["Exactly(2)"]),
    (cached, |f| f.splits(Splits::Exactly(2)), &["Exactly(2)", "only decode kernels"]),
];

#[test]
fn sinks_that_no_launch_adds() {
    for (base, change, says) in SINKS_REFUSED {
        let f = change(base().sinks(SINKS).scratch(Scratch::Fastest));
        let message = plan(&f, card("h200")).expect_err("refused").to_string();
        assert!(says.iter().all(|words| message.contains(words)), "{message}");
    }
}
