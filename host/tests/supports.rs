//! Tests that [`supports`] and [`explain`] agree with planning on the kernel, the reason, and every refusal
//! that does not depend on tensors.

use crate::on_cache::{FAR, Shape, card, decode};
use ferroflash::{plan::*, request::*, *};

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

fn cached() -> AttentionRequest<'static> {
    decode(LLAMA)
}

/// Returns a request on an e4m3 cache, at this head dim.
fn e4m3(head_dim: usize) -> AttentionRequest<'static> {
    let mut f = decode(Shape { head_dim, ..LLAMA });
    if let KeysValues::Cache(cache) = &mut f.kv {
        (cache.pages.keys.dtype, cache.pages.values.dtype) = (DType::E4m3, DType::E4m3);
    }
    f
}

/// Returns a request with few queries on tensors, at this head dim.
fn tensors(head_dim: usize) -> AttentionRequest<'static> {
    let view =
        |n: u64, rows, heads| TensorView::bshd(n * FAR, 1 << 40, DType::F16, [2, rows, heads, head_dim]);
    AttentionRequest::dense(view(1, 300, 8), view(2, 500, 8), view(3, 500, 8), view(4, 300, 8))
}

const SINKS: Sinks = Sinks { address: 14 * FAR, elements: 32 };

fn total_k(mut f: AttentionRequest<'static>, keys: usize) -> AttentionRequest<'static> {
    if let KeysValues::Cache(cache) = &mut f.kv {
        cache.total_k = Some(keys);
    }
    f
}

/// Requests, and words of their refusal. The words are empty for requests that are planned.
#[rustfmt::skip]
fn requests() -> Vec<(AttentionRequest<'static>, &'static str)> {
    let splits = |splits| cached().splits(splits);
    vec![
        (cached(), ""),
        (splits(Splits::CHUNK).scratch(Scratch::Fastest), ""),
        (splits(Splits::CHUNK), "workspace.bytes: 0"),
        (splits(Splits::Exactly(1)), ""),
        (splits(Splits::Exactly(0)), "splits: 0"),
        (splits(Splits::Exactly(u32::MAX)), "less than 2^16 splits"),
        (splits(Splits::Chunk(0)), "splits of 0 keys"),
        (splits(Splits::Chunk(u32::MAX)), "a multiple of 128 keys"),
        (tensors(64).splits(Splits::Exactly(2)), "only requests on a KV cache"),
        (cached().alignment(Alignment::TopLeft), "alignment top-left on a KV cache"),
        (decode(Shape { batch: 5000, ..LLAMA }), "at most 4096 sequences"),
        (total_k(cached(), 0), "cache.total_k: 0"),
        (e4m3(128), ""),
        (e4m3(72), "head_dim 72 of an e4m3 cache"),
        (cached().mask(Mask::Chunked { chunk: 0 }), "mask.chunk: 0"),
        (tensors(64).mask(Mask::Chunked { chunk: 0 }), "mask.chunk: 0"),
        (tensors(192), ""),
        // A merge kernel needs room for the log-sum-exps.
        (tensors(192).sinks(SINKS).scratch(Scratch::Fastest), ""),
        (tensors(192).sinks(SINKS), "workspace.bytes: 0"),
    ]
}

#[test]
fn what_planning_says_of_requests_is_said_of_problems() {
    for (f, refusal) in requests() {
        let problem = f.problem();
        let made = plan(&f, card("h200")).map(|plan| (plan.contract().symbol, plan.reason()));
        let said = explain(&problem, card("h200"), f.scratch).map(|(kernel, reason)| (kernel.symbol, reason));
        assert_eq!(said, made, "{problem}");
        match said {
            Ok(_) => assert_eq!(refusal, "", "{problem}"),
            Err(error) => {
                let error = error.to_string();
                assert!(!refusal.is_empty() && error.contains(refusal), "{problem}: {error}");
            }
        }
    }
}
