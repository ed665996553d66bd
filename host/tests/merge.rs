//! Tests merges: which kernel the planner selects, which parameters it gets, and which requests are refused.

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

fn card() -> &'static Capabilities {
    Capabilities::profile("a100").expect("known")
}

#[test]
fn the_kernel_follows_from_types() {
    use DType::{Bf16, E4m3, F16, F32};
    let symbol = |states: DType, output: DType| {
        let states = [state(1, states), state(2, states)];
        plan(&Merge::new(&states, state(9, output).o), card()).map(|plan| {
            // There are 400 rows of 8 parts, and 32 rows per block.
            assert_eq!(plan.grid(), [13, 1, 1]);
            plan.contract().symbol
        })
    };
    for (states, output, name) in [
        (F16, F16, "merge_f16"),
        (Bf16, Bf16, "merge_bf16"),
        (F32, F32, "merge_f32"),
        (F32, F16, "merge_f32_f16"),
        (F32, Bf16, "merge_f32_bf16"),
    ] {
        assert_eq!(symbol(states, output), Ok(name));
    }
    for (states, output) in [(F16, Bf16), (F16, F32), (E4m3, F16)] {
        let message = symbol(states, output).expect_err("no kernel").to_string();
        assert!(message.contains(&format!("{} of {} states", output.name(), states.name())), "{message}");
    }
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

type Change = fn(&mut [State; 4], &mut Merge<'static>);

/// The name of the fault, the change that makes it, and words of the refusal.
#[rustfmt::skip]
const REFUSED: &[(&str, Change, &[&str])] = &[
    ("nothing", |_, m| m.o.shape[1] = 0, &["o.shape", "1 or more"]),
    ("head dim", |s, m| { m.o.shape[3] = 60; s.iter_mut().for_each(|s| s.o.shape[3] = 60) },
        &["not supported: head_dim 60", "multiples of 8"]),
    ("a state of another shape", |s, _| s[2].o.shape[1] = 49,
        &["states.o.shape", "[2, 49, 4, 64] of states[2]", "[2, 50, 4, 64]"]),
    ("a state of another type", |s, _| s[1].o.dtype = DType::Bf16, &["states.o.dtype: bf16 of states[1]"]),
    ("logarithms mixed up", |s, _| s[3].lse = s[3].lse.unit(LseUnit::Two),
        &["states.lse.unit: Two of states[3]", "Natural"]),
    ("lse of another shape", |s, _| s[0].lse.shape = [2, 50, 4], &["states.lse.shape", "[2, 4, 50]"]),
    ("lse too small", |s, _| s[0].lse.elements = 399, &["states.lse.elements: 399", "400"]),
    ("o too small", |_, m| m.o.elements -= 1, &["o.elements", "25600"]),
    ("o repeats itself", |_, m| m.o.strides[2] = 0, &["o.strides", "overlap"]),
    ("states not in a row", |s, _| s[3].o.address += 16, &["not supported: states[3]", "equally far apart"]),
    ("states of other strides", |s, _| {
        s[2].lse = s[2].lse.row_stride(2);
        s[2].lse.elements = 1 << 20;
    }, &["not supported: states[2]", "equal strides"]),
    ("sinks of other heads", |_, m| m.sinks = Some(Sinks { address: 40 * FAR, elements: 3 }),
        &["sinks.elements: 3", "4 or more, one per query head"]),
    ("sinks misaligned", |_, m| m.sinks = Some(Sinks { address: 40 * FAR + 2, elements: 4 }),
        &["sinks.address", "multiple of 4"]),
    ("o on sinks", |_, m| m.sinks = Some(Sinks { address: m.o.address, elements: 4 }),
        &["o must not overlap sinks.address"]),
    ("o across a state", |s, m| m.o.address = s[1].o.address + 16, &["o must not overlap states.o.address"]),
    ("o on a state's lse", |s, m| m.o.address = s[1].lse.address, &["o must not overlap states.lse"]),
    ("lse across a state's", |s, m| {
        m.lse = Some(LseView { address: s[2].lse.address + 4, ..s[2].lse });
    }, &["lse must not overlap states.lse.address"]),
    ("rows of lse on one place", |_, m| {
        m.lse = Some(LseView::contiguous(50 * FAR, 400, [2, 4, 50]).row_stride(0));
    }, &["lse.strides", "overlap"]),
];

#[test]
fn refusals_name_the_value_and_what_would_be_right() {
    for (name, change, says) in REFUSED {
        let mut states = [1, 2, 3, 4].map(|n| state(n, DType::F16));
        let mut request = Merge::new(&[], state(9, DType::F16).o);
        change(&mut states, &mut request);
        let mut own = Merge::new(&states, request.o);
        (own.lse, own.sinks) = (request.lse, request.sinks);
        let message = plan(&own, card()).expect_err(name).to_string();
        for words in *says {
            assert!(message.contains(words), "{name}: {message:?} should contain {words:?}");
        }
    }
    let message = plan(&other_of(&[]), card()).expect_err("no state").to_string();
    assert!(message.contains("states: 0"), "{message}");
}

#[test]
fn a_result_may_take_a_states_place_and_rows_may_hold_heads() {
    let states = [1, 2, 3].map(|n| state(n, DType::F16));
    for place in states {
        plan(&Merge::new(&states, place.o).lse(place.lse.unit(LseUnit::Two)), card()).expect("in place");
    }
    let lse = LseView::new(50 * FAR, 400, [2, 4, 50], [200, 1]).row_stride(4);
    plan(&Merge::new(&states, state(9, DType::F16).o).lse(lse), card()).expect("[rows][heads]");
    let attention = AttentionRequest::dense(states[0].o, states[1].o, states[1].o, state(9, DType::F16).o);
    for (lse, says) in [(lse, "lse.row_stride 4"), (lse.row_stride(1).unit(LseUnit::Two), "lse.unit base 2")]
    {
        let message = plan(&attention.lse(lse), card()).expect_err(says).to_string();
        assert!(message.contains(says), "{message}");
    }
}
