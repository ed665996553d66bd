//! Tests appends: the planner's kernels, their parameters, and the refused requests.

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

fn card(name: &str) -> &'static Capabilities {
    Capabilities::profile(name).expect("known")
}

#[test]
fn the_kernel_follows_from_types_and_device() {
    use DType::{Bf16, E4m3, F16};
    let check = |name: &str, dtype: DType, cache: DType, symbol: &str, why: &str| {
        let plan = plan(&append(0, dtype, cache), card(name)).expect("valid");
        assert_eq!(plan.contract().symbol, symbol, "{name}");
        assert!(plan.reason().contains(why), "{name}: {}", plan.reason());
        // There are 180 rows of 8 parts, and 32 rows per block.
        assert_eq!(plan.grid(), [6, 1, 1]);
    };
    check("a100", F16, F16, "append_copy", "copies");
    check("h200", Bf16, Bf16, "append_copy", "copies");
    check("a100", F16, E4m3, "append_f16_e4m3", "integer");
    check("a10", Bf16, E4m3, "append_bf16_e4m3", "integer");
    check("l4", F16, E4m3, "append_f16_e4m3_native", "instruction");
    check("b200", Bf16, E4m3, "append_bf16_e4m3_native", "instruction");
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

type Change = fn(&mut Append);

/// The name of the fault, the change that makes it, and words of the refusal.
#[rustfmt::skip]
const REFUSED: &[(&str, Change, &[&str])] = &[
    ("batches", |a| a.k.shape[0] = 2, &["k.shape", "[2, 100, 2, 64]", "[1, tokens, heads, head_dim]"]),
    ("nothing", |a| a.k.shape[1] = 0, &["k.shape", "1 or more"]),
    ("values with other heads", |a| a.v.shape[2] = 1, &["v.shape", "[1, tokens, 2, 64]"]),
    ("values of another type", |a| a.v.dtype = DType::Bf16, &["v.dtype: bf16", "the dtype of k, f16"]),
    ("cache of another type", |a| { a.pages.keys.dtype = DType::Bf16; a.pages.values.dtype = DType::Bf16 },
        &["not supported: f16 tokens and an bf16 cache"]),
    ("tokens of eight bits", |a| *a = append(0, DType::E4m3, DType::E4m3), &["not supported: e4m3 tokens"]),
    ("cache of other heads", |a| { a.pages.keys.shape[2] = 1; a.pages.values.shape[2] = 1 },
        &["cache.keys.shape", "[pages, page, 2, 64]"]),
    ("more slots than keys", |a| a.slots.elements = 101, &["slots.elements: 101", "at most 100"]),
    ("more slots than values", |a| a.v.shape[1] = 89, &["slots.elements: 90", "at most 89"]),
    ("no slot", |a| a.slots.elements = 0, &["slots.elements: 0", "1 or more"]),
    ("slots misaligned", |a| a.slots.address += 4, &["slots.address", "multiple of 8"]),
    ("slots beyond 64 bits", |a| a.slots.address = u64::MAX - 15, &["slots.elements", "64 bits"]),
    ("k misaligned", |a| a.k.address += 8, &["k.address", "multiple of 16"]),
    ("pages overlap", |a| { a.pages.keys.strides[0] = 128; a.pages.values.strides[0] = 128 },
        &["cache.keys.strides", "overlap"]),
    ("keys on values", |a| a.pages.values.address = a.pages.keys.address,
        &["cache.values must not overlap cache.keys"]),
    ("cache on k", |a| a.pages.keys.address = a.k.address, &["cache.keys must not overlap k.address"]),
    ("cache on slots", |a| a.pages.values.address = a.slots.address, &["must not overlap slots.address"]),
    ("scales of sequences", |a| {
        *a = append(0, DType::F16, DType::E4m3);
        let scale = KvScale::Device { address: 9 * FAR, elements: 100, strides: [2, 1] };
        a.pages = a.pages.scales(KvScale::One, scale);
    }, &["not supported: cache.v_scale.strides", "sequence"]),
    ("rows too wide", |a| {
        let wide = [1, 100, 2, 2056];
        [a.k, a.v] = [a.k, a.v].map(|view| TensorView::bshd(view.address, 1 << 30, view.dtype, wide));
        let wide = [20, 16, 2, 2056];
        let [keys, values] = [3, 4].map(|n| TensorView::bshd(n * FAR, 1 << 30, DType::F16, wide));
        a.pages = KvPages::new(keys, values);
    }, &["not supported: 90 tokens of 2 heads of 2056 columns"]),
];

#[test]
fn refusals_name_the_value_and_what_would_be_right() {
    for (name, change, says) in REFUSED {
        let mut request = append(0, DType::F16, DType::F16);
        change(&mut request);
        let message = plan(&request, card("l4")).expect_err(name).to_string();
        for words in *says {
            assert!(message.contains(words), "{name}: {message:?} should contain {words:?}");
        }
    }
}
