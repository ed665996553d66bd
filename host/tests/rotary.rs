//! Tests the parameters of rotary embedding in appends.

use crate::fake::FakeDriver;
use crate::fake_ptx::with_ptx;
use ferroflash::spec::{PartPairs, RotaryAppendParams};
use ferroflash::{request::*, *};

const FAR: u64 = 1 << 40;

/// Returns a view of 100 tokens.
fn tokens(at: u64, dtype: DType, heads: usize, head_dim: usize) -> TensorView {
    TensorView::bshd(at * FAR, (100 * heads * head_dim) as u64, dtype, [1, 100, heads, head_dim])
}

/// Returns a table of 500 positions, for `dims` columns.
fn table(dtype: DType, dims: usize) -> TensorView {
    TensorView::bshd(6 * FAR, 500 * dims as u64, dtype, [1, 500, 1, dims])
}

/// Returns an append of 90 tokens of 2 key heads and 8 query heads of 64 columns, of which 32 rotate.
fn append(dtype: DType, cache: DType) -> Append {
    let [keys, values] = [3, 4].map(|n| TensorView::bshd(n * FAR, 20 * 16 * 128, cache, [20, 16, 2, 64]));
    let rotary = Rotary::cos_sin(table(DType::F32, 32), Positions::i64(7 * FAR, 90))
        .queries(tokens(8, dtype, 8, 64), tokens(9, dtype, 8, 64));
    let pages = KvPages::new(keys, values);
    Append::new(tokens(1, dtype, 2, 64), tokens(2, dtype, 2, 64), pages, Slots::i64(5 * FAR, 90))
        .rotary(rotary)
}

#[test]
fn the_parameters_are_the_requests() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("h200"));
    let first = append(DType::F16, DType::F16);
    let [cos, mut sin] = [table(DType::F16, 16); 2];
    sin.address += 64 * FAR;
    let rotary = Rotary::new(cos, sin, Positions::i32(7 * FAR, 90));
    let second = first.rotary(rotary.style(RotaryStyle::Interleaved).first_column(8));
    let rows = tokens(1, DType::F16, 1, 576);
    let pages = TensorView::bshd(3 * FAR, 320 * 576, DType::F16, [20, 16, 1, 576]);
    let latent = Append::latent(rows, KvPages::latent(pages, 512), Slots::i64(5 * FAR, 90));
    let latent =
        latent.rotary(Rotary::cos_sin(table(DType::F32, 64), Positions::i64(7 * FAR, 90)).first_column(512));
    let plan = attention.plan(&first)?;
    attention.load(&plan)?;
    for request in [first, second, latent] {
        // SAFETY: the fake driver runs nothing.
        unsafe { attention.launch(&plan, &request, &7)? };
    }
    let launches = attention.driver().launches();
    let sent = launches.iter().map(|launch| {
        assert_eq!(launch.params.len(), size_of::<RotaryAppendParams>());
        // SAFETY: the launch has the size of the parameters, and every byte that a host writes has a value.
        unsafe { launch.params.as_ptr().cast::<RotaryAppendParams>().read_unaligned() }
    });
    let [one, two, three] = <[_; 3]>::try_from(sent.collect::<Vec<_>>()).expect("three launches");
    assert_eq!((one.append.heads.get(), one.append.parts.rows, one.key_heads), (10, 900, 2));
    assert_eq!((one.q.base, one.rotated_q.base, one.append.v.chunks), (8 * FAR, 9 * FAR, 8));
    assert_eq!((one.pairs, one.interleaved), (PartPairs::halves(0, 2), 0));
    let angles = one.angles;
    assert_eq!((angles.cos, angles.sin, angles.row_bytes), (6 * FAR, 6 * FAR + 64, 128));
    assert_eq!((angles.rows, angles.eights, angles.tokens), (500, 2, 90));
    assert_eq!((angles.positions, angles.wide_positions, angles.wide), (7 * FAR, 1, 1));
    assert_eq!((two.append.heads.get(), two.q.base, two.q.rows), (2, 0, 0));
    assert_eq!((two.pairs, two.interleaved), (PartPairs::neighbours(1, 2), 1));
    assert_eq!((two.angles.sin, two.angles.row_bytes), (70 * FAR, 32));
    assert_eq!((two.angles.wide_positions, two.angles.wide), (0, 0));
    assert_eq!((three.append.v.chunks, three.append.cache.chunks, three.append.k.chunks), (0, 72, 72));
    assert_eq!(three.pairs, PartPairs::halves(64, 4));
    let mut plain = first;
    plain.rotary = None;
    // SAFETY: nothing is launched.
    let message = unsafe { attention.launch(&plan, &plain, &7) }.expect_err("other kernel").to_string();
    assert!(message.contains("without rotary embedding; the plan is for"), "{message}");
    Ok(())
}
