//! Makes requests on caches, from the shapes in the tests' tables.
use ferroflash::{request::*, *};

/// Distance of the buffers, so that no two of them overlap by accident.
pub const FAR: u64 = 1 << 44;

/// The shape of a request.
#[derive(Clone, Copy)]
pub struct Shape {
    pub dtype: DType,
    pub batch: usize,
    /// Number of queries per sequence; for varlen queries, the maximum.
    pub queries: usize,
    pub varlen: bool,
    /// Numbers of query heads and of key heads.
    pub heads: [usize; 2],
    pub head_dim: usize,
    /// Keys per page, or `None` for a dense cache.
    pub page: Option<usize>,
    pub max_k: usize,
}

/// 128 sequences of one query on at most 4096 keys, in pages of 16.
pub const MANY: Shape = Shape {
    dtype: DType::F16,
    batch: 128,
    queries: 1,
    varlen: false,
    heads: [32, 8],
    head_dim: 128,
    page: Some(16),
    max_k: 4096,
};

/// Returns the request without a mask. Each buffer ends at its tensor's last element.
pub fn decode(shape: Shape) -> AttentionRequest<'static> {
    let Shape { dtype, batch, queries, varlen, heads: [heads_q, heads_k], head_dim, page, max_k } = shape;
    let q =
        if varlen { [1, batch * queries, heads_q, head_dim] } else { [batch, queries, heads_q, head_dim] };
    let view = |n: u64| TensorView::bshd(n * FAR, q.iter().product::<usize>() as u64, dtype, q);
    let lengths = Index::new(3 * FAR, batch as u64);
    let pool = |pages: usize, page: usize| {
        let shape = [pages, page, heads_k, head_dim];
        let view = |n: u64| TensorView::bshd(n * FAR, shape.iter().product::<usize>() as u64, dtype, shape);
        KvPages::new(view(4), view(5))
    };
    let cache = match page {
        None => KvCache::dense(pool(batch, max_k), lengths),
        Some(page) => {
            let columns = max_k.div_ceil(page);
            let table = Index::new(6 * FAR, (batch * columns) as u64);
            KvCache::paged(pool(1000, page), table, columns, lengths).max_k(max_k)
        }
    };
    let decode = AttentionRequest::cached(view(1), cache, view(2));
    let starts = VarlenQueries::new(batch, Index::new(7 * FAR, batch as u64 + 1), queries);
    if varlen { decode.queries(Queries::Varlen(starts)) } else { decode }
}

/// Returns a known card.
pub fn card(name: &str) -> &'static Capabilities {
    Capabilities::profile(name).expect("a known card")
}
