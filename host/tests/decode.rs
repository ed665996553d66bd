//! Tests that the splits of a batch-invariant sequence do not depend on the pages.

use crate::on_cache::{Shape, card, decode};
use ferroflash::{request::*, *};
use spec::{Class, Isa};

/// Llama 3 with 8 billion parameters has 32 query heads on 8 key heads.
const LLAMA: Shape = Shape {
    dtype: DType::F16,
    batch: 16,
    queries: 1,
    varlen: false,
    heads: [32, 8],
    head_dim: 128,
    page: Some(16),
    max_k: 8192,
};

/// If the bits of a sequence must not depend on its batch, the page size may only change how the kernel finds
/// keys.
#[test]
fn splits_are_cut_alike_for_any_pages() {
    let cards = ["orin", "l4", "a100", "h200"].map(|name| (name, card(name)));
    let head_dims = spec::head_dims(spec::plain(Isa::Sm80, Class::Decode)).map(|head_dim| head_dim as usize);
    for (head_dim, rows) in head_dims.flat_map(|d| [1, 8, 9, 16, 32].map(|n| (d, n))) {
        for (name, on) in cards {
            let entry = |page: usize| {
                let shape = Shape { heads: [rows, 1], head_dim, page: Some(page), ..LLAMA };
                let plan =
                    plan(&decode(shape).invariance(Invariance::Batch).scratch(Scratch::Fastest), on).ok()?;
                let found = spec::attention().find(|e| e.decodes() && e.contract == *plan.contract());
                found.map(|e| (e.head_dim, e.tile_m, e.warps()))
            };
            assert_eq!(entry(16), entry(5), "{name}, head dim {head_dim}, {rows} rows");
        }
    }
}
