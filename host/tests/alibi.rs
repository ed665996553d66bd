//! Tests the parameters of ALiBi slopes.

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
        let slopes_of = forward_params(&made.bind(&f.alibi(slopes(8))).expect("the same problem")).alibi;
        assert_eq!((slopes_of.base, slopes_of.sequence_bytes, slopes_of.head_bytes), (8 * FAR, 16, 4));
    }
    let plain = plain(forward(64, Mask::Causal));
    let params = forward_params(&plan(&plain, l4()).and_then(|made| made.bind(&plain)).expect("valid"));
    assert_eq!(params.alibi.base, 0, "no slopes");
}
