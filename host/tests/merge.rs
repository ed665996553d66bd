//! Tests the parameters of merges.

use crate::fake::FakeDriver;
use crate::fake_ptx::with_ptx;
use ferroflash::spec::MergeParams;
use ferroflash::{request::*, *};

const FAR: u64 = 1 << 40;
const SHAPE: [usize; 4] = [2, 50, 4, 64];

/// Returns state `n`, with separate buffers.
fn state(n: u64, dtype: DType) -> State {
    let o = TensorView::bshd(2 * n * FAR, 2 * 50 * 4 * 64, dtype, SHAPE);
    State::new(o, LseView::contiguous((2 * n + 1) * FAR, 2 * 50 * 4, [2, 4, 50]))
}

#[test]
fn a_launch_is_what_was_planned_and_a_plan_serves_other_states() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("a100"));
    let two = [state(1, DType::F16), state(5, DType::F16)];
    let lse = |n: u64| LseView::contiguous(n * FAR, 2 * 50 * 4, [2, 4, 50]);
    let first = Merge::new(&two, state(9, DType::F16).o).lse(lse(21).unit(LseUnit::Two));
    let plan = attention.plan(&first)?;
    let five = [7, 1, 2, 3, 4].map(|n| state(n, DType::F16));
    let other = Merge::new(&five, state(9, DType::F16).o).sinks(Sinks { address: 40 * FAR, elements: 4 });
    for request in [first, other] {
        // SAFETY: the fake driver runs nothing.
        unsafe { attention.launch(&plan, &request, &7)? };
    }
    assert_eq!(attention.driver().loaded(), ["merge_f16"]);
    let launches = attention.driver().launches();
    let sent = launches.iter().map(|launch| {
        assert_eq!((launch.symbol.as_str(), launch.grid), ("merge_f16", [13, 1, 1]));
        assert_eq!(launch.params.len(), size_of::<MergeParams>());
        // SAFETY: the launch has the size of the parameters, and every byte that a host writes has a value.
        unsafe { launch.params.as_ptr().cast::<MergeParams>().read_unaligned() }
    });
    let [one, other] = <[_; 2]>::try_from(sent.collect::<Vec<_>>()).expect("two launches");
    assert_eq!((one.first.o.base, one.others.first.o.base, one.others.count), (2 * FAR, 10 * FAR, 1));
    assert_eq!((one.result.lse.base, one.from_two, one.to_two), (21 * FAR, 1.0, std::f32::consts::LOG2_E));
    assert_eq!((one.sinks.base, one.sinks.value), (0, f32::NEG_INFINITY));
    assert_eq!((other.first.o.base, other.others.first.o.base, other.others.count), (14 * FAR, 2 * FAR, 4));
    assert_eq!((other.others.o_bytes, other.others.lse_bytes), (2 * FAR, 2 * FAR));
    assert_eq!((other.result.lse.base, other.sinks.base, other.sinks.head_bytes), (0, 40 * FAR, 4));

    let floats = [state(1, DType::F32)];
    let others = Merge::new(&floats, state(9, DType::F16).o);
    // SAFETY: nothing is launched.
    let message = unsafe { attention.launch(&plan, &others, &7) }.expect_err("types").to_string();
    assert!(message.contains("f16 of f32") && message.contains("merges f16 to f16"), "{message}");
    // The launch refuses a list with fewer states, even if nothing else differs.
    let plan = attention.plan(&other_of(&five))?;
    let mut short = five;
    short[4].o.elements -= 1;
    // SAFETY: nothing is launched.
    let message = unsafe { attention.launch(&plan, &other_of(&short), &7) }.expect_err("short").to_string();
    assert!(message.contains("states.o.elements"), "{message}");
    Ok(())
}

fn other_of(states: &[State]) -> Merge<'_> {
    Merge::new(states, state(9, DType::F16).o)
}
