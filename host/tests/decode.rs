//! Tests decode requests: a table of plans, and every refused request.

use crate::on_cache::{FAR, Shape, card, decode};
use crate::parts::cache;
use ferroflash::{plan::*, request::*, *};

/// Llama 3 with 8 billion parameters has 32 query heads on 8 key heads.
const LLAMA: Shape = Shape {
    dtype: DType::F16,
    batch: 16,
    queries: 1,
    packed: false,
    heads: [32, 8],
    head_dim: 128,
    page: Some(16),
    max_k: 8192,
};

const GPT_OSS: Shape = Shape { batch: 64, heads: [64, 8], head_dim: 64, ..LLAMA };

/// A card, a shape, a change of the request, and the plan of the request with the full workspace. The plan
/// has an entry, a number of blocks, and the bytes of workspace and of counters.
type Planned = (
    &'static str,
    Shape,
    fn(AttentionRequest<'static>) -> AttentionRequest<'static>,
    &'static str,
    u32,
    [u64; 2],
);

#[rustfmt::skip]
const PLANS: &[Planned] = &[
    // With at most two waves of work items, each place for a partial result has one block. There are 16
    // places of 8 key heads of 4 rows, with 129 floats each.
    ("h200", LLAMA, |d| d, "decode_f16_d128_causal_8_tiles", 128, [16 * 8 * 4 * 129 * 4, 16 * 8 * 4]),
    ("h200", Shape { batch: 1, ..LLAMA }, |d| d, "decode_f16_d128_causal_8_tiles", 128,
        [16 * 8 * 4 * 129 * 4, 32]),
    // With more work items than SMs, there are two blocks per SM. If all sequences are equally long, each
    // gets 1.75 shares of the device. The launch has the number of blocks that fit together, at most two
    // shares per work item.
    ("h200", Shape { batch: 20, ..LLAMA }, |d| d, "decode_f16_d128_causal_8_tiles_w4", 280,
        [35 * 8 * 4 * 129 * 4, 20 * 8 * 4]),
    ("h200", Shape { batch: 33, ..LLAMA }, |d| d, "decode_f16_d128_causal_8_tiles_w4", 712,
        [57 * 8 * 4 * 129 * 4, 33 * 8 * 4]),
    ("h200", Shape { batch: 34, ..LLAMA }, |d| d, "decode_f16_d128_causal_8_tiles_w4", 264,
        [33 * 8 * 4 * 129 * 4, 34 * 8 * 4]),
    // With more than two waves, there is one block per work item. With more than four waves, splits fill only
    // three quarters of the block slots.
    ("h200", Shape { batch: 64, ..LLAMA }, |d| d, "decode_f16_d128_causal_8_tiles_w4", 768,
        [33 * 8 * 4 * 129 * 4, 64 * 8 * 4]),
    ("h200", Shape { batch: 256, ..LLAMA }, |d| d, "decode_f16_d128_causal_8_tiles_w4", (255 + 24) * 8,
        [24 * 8 * 4 * 129 * 4, 256 * 8 * 4]),
    ("h200", Shape { batch: 256, page: Some(1), ..LLAMA }, |d| d, "decode_f16_d128_causal_8_rows",
        (255 + 12) * 8, [12 * 8 * 4 * 129 * 4, 256 * 8 * 4]),
    // The device has 3 shares for all sequences, which are too few for a split.
    ("h200", Shape { batch: 64, heads: [40, 40], page: Some(1), ..LLAMA }, |d| d,
        "decode_f16_d128_causal_8_rows", (63 + 3) * 40, [3 * 40 * 129 * 4, 64 * 40 * 4]),
    // The launch has all blocks of one wave, although whole shares would need fewer blocks.
    ("h200", Shape { batch: 6, heads: [48, 48], ..LLAMA }, |d| d, "decode_f16_d128_causal_8_tiles_w4", 264,
        [5 * 48 * 129 * 4, 6 * 48 * 4]),
    // With equal numbers of key heads and SMs, nothing is split.
    ("orin", Shape { heads: [32, 8], ..LLAMA }, |d| d, "decode_f16_d128_causal_8_tiles", 128, [0, 0]),
    // This card has 99 KiB of shared memory per block.
    ("l4", LLAMA, |d| d, "decode_f16_d128_causal_8_tiles_w4", 176, [7 * 8 * 4 * 129 * 4, 16 * 8 * 4]),
    // The first case has pages that are no multiple of a tile, the second a dense cache of any capacity, and
    // the third pages of whole tiles.
    ("h200", Shape { page: Some(1), ..LLAMA }, |d| d, "decode_f16_d128_causal_8_rows", 128,
        [16 * 8 * 4 * 129 * 4, 16 * 8 * 4]),
    ("h200", Shape { page: None, max_k: 1000, ..LLAMA }, |d| d, "decode_f16_d128_causal_8_tiles", 128,
        [16 * 8 * 4 * 129 * 4, 16 * 8 * 4]),
    // Speculative decoding has more rows. Other cases have windows, and head dims between two entries' head
    // dims.
    ("h200", Shape { queries: 4, ..LLAMA }, |d| d.mask(Mask::Causal), "decode_f16_d128_causal_16_tiles", 128,
        [16 * 8 * 16 * 129 * 4, 16 * 8 * 4]),
    ("h200", Shape { batch: 32, queries: 8, ..LLAMA }, |d| d.mask(Mask::Causal),
        "decode_f16_d128_causal_32_tiles_w4", 264, [33 * 8 * 32 * 129 * 4, 0]),
    // With very few sequences, two or four blocks of 8 rows share the rows of each sequence, if each sequence
    // still has at least four splits.
    ("h200", Shape { batch: 2, queries: 4, ..LLAMA }, |d| d.mask(Mask::Causal),
        "decode_f16_d128_causal_8_tiles", 128, [8 * 8 * 16 * 129 * 4, 2 * 2 * 8 * 4]),
    ("h200", Shape { batch: 3, queries: 4, ..LLAMA }, |d| d.mask(Mask::Causal),
        "decode_f16_d128_causal_16_tiles", 128, [16 * 8 * 16 * 129 * 4, 3 * 8 * 4]),
    ("h200", Shape { batch: 1, queries: 8, max_k: 4096, ..LLAMA }, |d| d.mask(Mask::Causal),
        "decode_f16_d128_causal_8_tiles", 128, [4 * 8 * 32 * 129 * 4, 4 * 8 * 4]),
    // With more keys than this, four blocks per sequence would read too many bytes, because each of them
    // reads all keys.
    ("h200", Shape { batch: 1, queries: 8, ..LLAMA }, |d| d.mask(Mask::Causal),
        "decode_f16_d128_causal_16_tiles", 128, [8 * 8 * 32 * 129 * 4, 2 * 8 * 4]),
    ("h200", Shape { batch: 1, queries: 4, page: Some(3), ..LLAMA }, |d| d.mask(Mask::Causal),
        "decode_f16_d128_causal_8_rows", 128, [8 * 8 * 16 * 129 * 4, 2 * 8 * 4]),
    // With chunks, the splits of a sequence depend on the sequence alone.
    ("h200", Shape { batch: 1, queries: 4, ..LLAMA }, |d| d.mask(Mask::Causal).splits(Splits::CHUNK),
        "decode_f16_d128_causal_16_tiles_w4", 64, [8 * 8 * 16 * 129 * 4, 8 * 4]),
    // With few sequences, two blocks share the rows, on SMs that would be idle. With some more sequences,
    // the two blocks share an SM.
    ("h200", Shape { batch: 2, queries: 8, ..LLAMA }, |d| d.mask(Mask::Causal),
        "decode_f16_d128_causal_16_tiles", 128, [8 * 8 * 32 * 129 * 4, 2 * 2 * 8 * 4]),
    ("h200", Shape { queries: 8, ..LLAMA }, |d| d.mask(Mask::Causal), "decode_f16_d128_causal_16_tiles_w4",
        256, [16 * 8 * 32 * 129 * 4, 2 * 16 * 8 * 4]),
    // Two blocks read the same keys, so the plan has half the number of splits.
    ("h200", Shape { batch: 17, queries: 12, ..LLAMA }, |d| d.mask(Mask::Causal),
        "decode_f16_d128_causal_32_tiles_w4", 264, [16 * 8 * 48 * 129 * 4, 0]),
    ("h200", Shape { queries: 17, max_k: 127, ..LLAMA }, |d| d, "paged_f16_d128_causal_128x48", 512, [0, 0]),
    ("h200", LLAMA, |d| d.mask(Mask::Window { left: Some(127), right: Some(0) }),
        "decode_f16_d128_local_16_rows_w4", 128, [0, 0]),
    // Many work items of few keys, by the window or by the longest sequence, take kernels with twice the
    // warps per SM. Longer sequences, chunks and few work items do not.
    ("h200", GPT_OSS, |d| d.mask(Mask::Window { left: Some(127), right: Some(0) }),
        "decode_f16_d64_local_8_rows_w4_s2", 512, [0, 0]),
    ("h200", GPT_OSS, |d| d.mask(Mask::Window { left: Some(1024), right: Some(0) }),
        "decode_f16_d64_local_8_rows_w4_s2", (63 + 112) * 8, [112 * 8 * 8 * 65 * 4, 64 * 8 * 4]),
    ("h200", GPT_OSS, |d| d.mask(Mask::Window { left: Some(1025), right: Some(0) }),
        "decode_f16_d64_local_16_rows", (63 + 12) * 8, [12 * 8 * 8 * 65 * 4, 64 * 8 * 4]),
    ("h200", Shape { batch: 16, ..GPT_OSS }, |d| d.mask(Mask::Window { left: Some(127), right: Some(0) }),
        "decode_f16_d64_local_16_rows", 128, [0, 0]),
    ("h200", Shape { batch: 16, max_k: 1024, ..GPT_OSS }, |d| d, "decode_f16_d64_causal_8_tiles", 128,
        [16 * 8 * 8 * 65 * 4, 16 * 8 * 4]),
    ("h200", Shape { batch: 17, max_k: 1024, ..GPT_OSS }, |d| d, "decode_f16_d64_local_8_rows_w4_s2", 528,
        [66 * 8 * 8 * 65 * 4, 17 * 8 * 4]),
    ("h200", Shape { batch: 128, max_k: 64, ..LLAMA }, |d| d, "decode_f16_d128_local_8_rows_w4_s1", 528,
        [0, 0]),
    ("h200", Shape { batch: 128, max_k: 64, ..LLAMA }, |d| d.splits(Splits::CHUNK),
        "decode_f16_d128_causal_8_tiles", 1024, [0, 0]),
    ("h200", Shape { head_dim: 80, ..LLAMA }, |d| d, "decode_f16_d96_causal_16_tiles", 128,
        [16 * 8 * 4 * 97 * 4, 16 * 8 * 4]),
    // Head dims above 256 have 8 rows per block. Head dim 256 has 16 rows per block.
    ("h200", Shape { batch: 1, heads: [8, 4], head_dim: 512, ..LLAMA }, |d| d, "decode_f16_d512_local_8_rows",
        256, [64 * 4 * 2 * 513 * 4, 0]),
    ("h200", Shape { heads: [64, 4], head_dim: 512, ..LLAMA }, |d| d, "decode_f16_d512_local_8_rows", 392,
        [49 * 4 * 16 * 513 * 4, 0]),
    ("l4", Shape { heads: [32, 2], head_dim: 256, ..LLAMA }, |d| d, "decode_f16_d256_local_16_rows", 58,
        [29 * 2 * 16 * 257 * 4, 0]),
    // The request sets the number of splits.
    ("h200", LLAMA, |d| d.splits(Splits::Exactly(1)), "decode_f16_d128_causal_8_tiles", 128, [0, 0]),
    ("h200", LLAMA, |d| d.splits(Splits::Exactly(3)), "decode_f16_d128_causal_8_tiles", 384,
        [48 * 8 * 4 * 129 * 4, 16 * 8 * 4]),
    ("h200", LLAMA, |d| d.splits(Splits::CHUNK), "decode_f16_d128_causal_8_tiles", 1024,
        [16 * 8 * 8 * 4 * 129 * 4, 16 * 8 * 4]),
    ("h200", LLAMA, |mut d| { *cache(&mut d) = cache(&mut d).total_k(20 * 1024); d.splits(Splits::CHUNK) },
        "decode_f16_d128_causal_8_tiles", 288, [36 * 8 * 4 * 129 * 4, 16 * 8 * 4]),
];

#[test]
fn plans() {
    for (name, shape, change, entry, blocks, [workspace, counters]) in PLANS {
        let request = change(decode(*shape));
        let plan = plan(&request.scratch(Scratch::Fastest), card(name)).expect("a plan");
        let ScratchBytes { workspace: own, counters: zeros } = plan.scratch_bytes();
        let got = (plan.contract().symbol, plan.grid(), [own, zeros]);
        assert_eq!(got, (*entry, [*blocks, 1, 1], [*workspace, *counters]), "{name} {request:?}");
    }
}

/// The test uses the largest numbers of sequences and of heads that the device can count.
#[test]
fn as_many_as_are_counted() {
    for (batch, heads) in [(1024, (1 << 20) - 1), (1025, 1 << 14)] {
        let plan = plan(&many_heads(batch, heads), card("h200")).expect("a plan");
        assert_eq!(plan.grid(), [(batch * heads) as u32, 1, 1]);
    }
}

/// Every plan gives a reason.
#[test]
fn reasons() {
    for (name, change, shape, words) in REASONS {
        let mut request = decode(*shape).mask(Mask::Causal);
        change(&mut request);
        let plan = plan(&request.scratch(Scratch::Fastest), card(name)).expect("a plan");
        assert!(plan.reason().contains(words), "{}: {}, not {words}", plan.contract().symbol, plan.reason());
    }
}

type Reason = (&'static str, fn(&mut AttentionRequest<'static>), Shape, &'static str);

#[rustfmt::skip]
const REASONS: &[Reason] = &[
    ("h200", |_| {}, LLAMA, "few rows: the smallest block"),
    ("h200", |_| {}, Shape { batch: 64, ..LLAMA }, "more blocks than SMs"),
    ("h200", |_| {}, Shape { batch: 64, max_k: 128, ..GPT_OSS }, "many short sequences or windows"),
    ("h200", |_| {}, Shape { batch: 1, queries: 8, ..LLAMA }, "few sequences: smaller blocks split the rows"),
    ("h200", |_| {}, Shape { batch: 1, queries: 12, head_dim: 64, ..LLAMA },
        "several blocks read the same keys"),
    ("h200", |d| d.config = Some("decode_f16_d128_causal_8_rows"), LLAMA, "the request names this kernel"),
    ("a100", |_| {}, Shape { queries: 17, ..LLAMA }, "more than 64 rows"),
    ("h200", |_| {}, Shape { queries: 17, max_k: 127, ..LLAMA }, "too few queries or keys per sequence"),
    ("h200", |d| d.scores.alibi = Some(SLOPES), LLAMA, "ALiBi slopes, which decode kernels lack"),
];

/// Without a workspace, the planner splits only if it must.
#[test]
fn no_workspace() {
    let made = plan(&decode(LLAMA), card("h200")).expect("a plan");
    assert_eq!(made.scratch_bytes(), ScratchBytes::default());
    assert!(made.reason().contains("without a workspace, no sequence is split"), "{}", made.reason());
    let error = plan(&decode(LLAMA).splits(Splits::Exactly(2)), card("h200")).expect_err("no room");
    assert!(error.to_string().contains("workspace.bytes: 0"), "{error}");
}

const SLOPES: AlibiSlopes = AlibiSlopes::new(7 * FAR, 32);

fn e4m3(d: &mut AttentionRequest<'static>) {
    cache(d).pages.keys.dtype = DType::E4m3;
    cache(d).pages.values.dtype = DType::E4m3;
}

/// Returns a request with equal numbers of key heads and query heads. The head dim is 8.
fn many_heads(batch: usize, heads: usize) -> AttentionRequest<'static> {
    decode(Shape { batch, heads: [heads; 2], head_dim: 8, page: Some(1), max_k: 4, ..LLAMA })
}

/// A change that makes a request wrong, and words of the refusal.
type Refused = (fn(&mut AttentionRequest<'static>), bool, &'static [&'static str]);

#[rustfmt::skip]
const REFUSED: &[Refused] = &[
    (|d| d.q.dtype = DType::Bf16, false, &["queries of bf16 on a cache of f16"]),
    (|d| cache(d).pages.keys.dtype = DType::E4m3, true, &["cache.values.dtype", "e4m3"]),
    (|d| d.o.dtype = DType::Bf16, true, &["o.dtype", "bf16", "f16"]),
    (|d| d.o.shape[0] = 3, true, &["o.shape", "[3, 1, 32, 128]", "[16, 1, 32, 128]"]),
    (|d| d.q.shape[0] = 0, true, &["batch", "0", "1 or more"]),
    (|d| d.q.shape[3] = 64, true, &["cache.keys.shape", "head_dim 64"]),
    (|d| { d.q.shape[2] = 30; d.o.shape[2] = 30 }, true, &["heads_q: 30", "multiple of heads_k = 8"]),
    (|d| { d.q.shape[0] = 5000; d.o.shape[0] = 5000 }, false, &["batch 5000", "4096 sequences"]),
    (|d| cache(d).lengths.elements = 15, true, &["cache.lengths.elements", "15", "16 or more"]),
    (|d| cache(d).max_k = 8193, true, &["cache.max_k", "8193", "8192"]),
    (|d| cache(d).max_k = 0, true, &["cache.max_k: 0", "1 or more"]),
    (|d| columns(d, 0), true, &["cache.table: 0 columns", "1 column or more"]),
    (|d| { columns(d, 1 << 27); cache(d).max_k = 1 << 31 }, false, &["cache.max_k 2147483648", "at most"]),
    (|d| d.queries = Queries::Varlen(VarlenQueries::new(0, Index::new(FAR, 1), 1)), true, &["batch: 0"]),
    (|d| {
        d.q = TensorView { shape: [128, 1, 32, 128], strides: [0, 0, 128, 1], ..d.q };
        d.o.shape[0] = 128;
        columns(d, 1 << 25);
        cache(d).max_k = 1 << 29;
    }, false, &["128 sequences of up to 536870912 keys", "less than 2^32 tiles"]),
    // Work items, multiplied by the numbers of heads and of blocks of rows, must fit 32 bits on the device.
    (|d| *d = many_heads(1024, 1 << 20), false,
        &["up to 1024 splits of 1024 sequences, each with 1048576 key heads", "fewer than 1073741824"]),
    (|d| *d = many_heads(1025, (1 << 14) + 1), false, &["up to 65535 splits of 1025 sequences"]),
    (|d| d.scores.scale = Some(-1.0), false, &["scale -1", "above 0"]),
    (|d| d.scores.softcap = Some(f32::NAN), true, &["softcap", "NaN"]),
    (|d| d.scores.sinks = Some(Sinks { address: 7 * FAR + 2, elements: 32 }),
        true, &["sinks.address", "multiple of 4"]),
    (|d| d.scores.sinks = Some(Sinks { address: 7 * FAR, elements: 31 }),
        true, &["sinks.elements", "31", "32 or more"]),
    (|d| d.splits = Splits::Exactly(0), true, &["splits", "0", "1 or more"]),
    (|d| d.splits = Splits::Exactly(5000), false, &["Exactly(5000) of 16 sequences", "less than 2^16"]),
    (|d| d.splits = Splits::Chunk(100), false, &["splits of 100 keys", "multiple of 128"]),
    (|d| d.o.address = cache(d).pages.values.address, true, &["o.address", "must not overlap"]),
    (|d| d.o.address = cache(d).lengths.address, true, &["o.address", "cache.lengths.address"]),
    (|d| d.scratch = Scratch::workspace(2 * FAR, 1 << 30),
        true, &["workspace", "must not overlap o"]),
    (|d| counters(d, Counters { address: FAR, bytes: 512 }), true, &["counters", "must not overlap q"]),
    (|d| counters(d, Counters { address: 9 * FAR, bytes: 508 }),
        true, &["counters.bytes", "508", "512"]),
    (|d| d.config = Some("fwd_f16_d64_full_128x64"), true, &["config", "for caches of keys and values"]),
    (|d| { *d = decode(Shape { queries: 17, head_dim: 272, ..LLAMA }); e4m3(d) },
        false, &["cache of e4m3", "head_dim up to 256", "at most 64 rows"]),
    (|d| {
        *d = decode(Shape { head_dim: 512, ..LLAMA });
        e4m3(d);
        d.scores.alibi = Some(SLOPES);
    }, false, &["cache of e4m3", "no ALiBi slopes"]),
    (|d| {
        *d = decode(Shape { head_dim: 512, ..LLAMA });
        d.scores.alibi = Some(SLOPES);
    }, false, &["ALiBi slopes on a KV cache support head_dim up to 256"]),
    (|d| d.config = Some("decode_f16_d64_causal_8_tiles"), true,
        &["config", "4 rows (queries x query heads per key head), head_dim 128"]),
];

/// Sets counters beside the workspace.
fn counters(d: &mut AttentionRequest<'static>, given: Counters) {
    if let Scratch::Memory { counters, .. } = &mut d.scratch {
        *counters = Some(given);
    }
}

/// Sets a block table with this number of columns.
fn columns(d: &mut AttentionRequest<'static>, columns: usize) {
    cache(d).paged = Paged::Table { entries: Index::new(6 * FAR, 16), columns, stride: columns };
}

#[test]
fn refusals() {
    for (i, (change, invalid, words)) in REFUSED.iter().enumerate() {
        let mut request = decode(LLAMA).scratch(Scratch::workspace(8 * FAR, 1 << 30));
        change(&mut request);
        let error = plan(&request, card("h200")).expect_err(&format!("{i}: {words:?}"));
        assert_eq!(matches!(error, Error::Invalid { .. }), *invalid, "{i}: {error}");
        let text = error.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{i}: {text}, not {words:?}");
    }
}

/// If the bits of a sequence must not depend on its batch, the page size may only change how the kernel finds
/// keys.
#[test]
fn chunks_are_cut_alike_for_any_pages() {
    let cards = ["orin", "l4", "a100", "h200"].map(|name| (name, card(name)));
    let head_dims = spec::head_dims(spec::DECODES).map(|head_dim| head_dim as usize);
    for (head_dim, rows) in head_dims.flat_map(|d| [1, 8, 9, 16, 32].map(|n| (d, n))) {
        for (name, on) in cards {
            let entry = |page: usize| {
                let shape = Shape { heads: [rows, 1], head_dim, page: Some(page), ..LLAMA };
                let plan = plan(&decode(shape).splits(Splits::CHUNK).scratch(Scratch::Fastest), on).ok()?;
                let found = spec::DECODES.iter().find(|e| e.contract == *plan.contract());
                found.map(|e| (e.head_dim, e.tile_m, e.warps()))
            };
            assert_eq!(entry(16), entry(5), "{name}, head dim {head_dim}, {rows} rows");
        }
    }
}
