//! Tests the parameters of appends.

use crate::fake::FakeDriver;
use crate::fake_ptx::with_ptx;
use ferroflash::spec::AppendParams;
use ferroflash::{request::*, *};

const FAR: u64 = 1 << 40;

/// Returns an append of 100 tokens of 2 heads of 64 columns, in buffers from `at` on, for 20 pages of 16.
fn append(at: u64, dtype: DType, cache: DType) -> Append {
    let [k, v] = [1, 2].map(|n| TensorView::bshd(at + n * FAR, 100 * 128, dtype, [1, 100, 2, 64]));
    let [keys, values] =
        [3, 4].map(|n| TensorView::bshd(at + n * FAR, 20 * 16 * 128, cache, [20, 16, 2, 64]));
    Append::new(k, v, KvPages::new(keys, values), Slots::i64(at + 5 * FAR, 90))
}

#[test]
fn a_launch_is_what_was_planned_and_a_plan_serves_other_tokens() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("h200"));
    let first = append(0, DType::F16, DType::F16);
    let plan = attention.plan(&first)?;
    attention.load(&plan)?;
    let mut fewer = append(1 << 50, DType::F16, DType::F16);
    fewer.slots = Slots::i32(9 * FAR, 1);
    for request in [first, fewer] {
        // SAFETY: the fake driver runs nothing.
        unsafe { attention.launch(&plan, &request, &7)? };
    }
    assert_eq!(attention.driver().loaded(), ["append_copy"]);
    let launches = attention.driver().launches();
    let sent = launches.iter().map(|launch| {
        assert_eq!(launch.params.len(), size_of::<AppendParams>());
        // SAFETY: the launch has the size of the parameters, and every byte that a host writes has a value.
        (launch.grid, unsafe { launch.params.as_ptr().cast::<AppendParams>().read_unaligned() })
    });
    let [(all, one), (few, other)] = <[_; 2]>::try_from(sent.collect::<Vec<_>>()).expect("two launches");
    assert_eq!((all, few), ([6, 1, 1], [1, 1, 1]));
    assert_eq!((one.slots.base, one.slots.count, one.slots.wide), (5 * FAR, 90, 1));
    assert_eq!((other.slots.base, other.slots.count, other.slots.wide), (9 * FAR, 1, 0));
    assert_eq!((one.k.base, other.k.base), (FAR, (1 << 50) + FAR));
    assert_eq!((one.parts.rows, one.heads.get(), one.cache.pages, one.cache.page.get()), (180, 2, 20, 16));

    let others = append(0, DType::Bf16, DType::Bf16);
    // SAFETY: nothing is launched.
    let message = unsafe { attention.launch(&plan, &others, &7) }.expect_err("types").to_string();
    assert!(message.contains("the plan is for f16 tokens and an f16 cache"), "{message}");
    Ok(())
}
