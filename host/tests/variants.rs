//! Tests the launch of a merge kernel that adds sinks, and the parameters of a mask that is a simpler mask.

use crate::fake::FakeDriver;
use crate::fake_ptx::with_ptx;
use crate::on_cache::{FAR, card};
use ferroflash::{plan::*, request::*, *};
use spec::MergeParams;
/// A mask that shows exactly the keys of a simpler mask has the simpler mask's parameters.
#[test]
fn a_mask_that_is_a_simpler_mask_has_its_parameters() {
    let view = |n: u64, rows, heads| TensorView::bshd(n * FAR, 1 << 20, DType::F16, [2, rows, heads, 64]);
    let dense = AttentionRequest::dense(view(1, 128, 4), view(2, 100, 2), view(3, 100, 2), view(4, 128, 4));
    let launch = |mask| plan(&dense.mask(mask), card("l4")).and_then(|made| made.bind(&dense.mask(mask)));
    let [prefix, causal] =
        [Mask::Prefix(Prefix::All(0)), Mask::Causal].map(|mask| launch(mask).expect("valid"));
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
    let params = unsafe { merge.params.as_ptr().cast::<MergeParams>().read_unaligned() };
    assert_eq!((params.first.o, params.first.o.base, params.others.count), (params.result.o, 4 * FAR, 0));
    assert_eq!((params.first.lse.base, params.first.lse.head_bytes), (16 * FAR, 300 * 4));
    assert_eq!((params.result.lse.base, params.result.lse.head_bytes), (15 * FAR, 1 << 11));
    assert_eq!((params.sinks.base, params.sinks.head_bytes), (14 * FAR, 4));

    Ok(())
}
