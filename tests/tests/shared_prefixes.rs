//! Tests shared prefixes in the simulator: groups of every kind, empty rests, other lengths under one plan,
//! invalid integers, and planted errors.
use ferroflash::driver::SimDriver;
use ferroflash::request::Mask;
use ferroflash::spec::{DecodeParams, States};
use ferroflash::{Attention, DType, ptx};
use ferroflash_tests::on_cache::attention;
use ptx_sim::{Kind, Options};
use reference::{Case, DeviceLengths, Loaded, Memory, OnDevice, Pages, Rule, Shared, Work};
use std::mem::offset_of;

const PAGES: Pages = Pages::Nhd(16);

/// A case of groups, each with its number of sequences and of shared pages. Sequence `i` of a group has
/// `rests[i % rests.len()]` keys behind the prefix.
fn case(groups: &[[usize; 2]], rests: &[usize], pages: Pages) -> Case {
    let page = match pages {
        Pages::Nhd(page) | Pages::Hnd(page) | Pages::Interleaved(page) => page,
        Pages::Tensors(_) | Pages::Dense | Pages::DenseHnd | Pages::Rows => panic!("sequences share pages"),
    };
    let filled = groups.iter().flat_map(|[count, shared]| {
        (0..*count).map(move |i| shared * page + rests[i % rests.len()]).collect::<Vec<_>>()
    });
    let filled: Vec<_> = filled.collect();
    let max_k = filled.iter().max().copied().unwrap_or(1) + page;
    Case { pages, max_k, shared: Some(Shared::new(groups)), ..Case::new(filled) }
}

fn lengths(case: &Case) -> Vec<i32> {
    case.filled.iter().map(|keys| *keys as i32).collect()
}

/// Launches a case, and returns the failures. The launch must make two passes.
fn failures(attention: &Attention<SimDriver>, case: &Case, memory: &Memory) -> Vec<String> {
    let mut loaded = Loaded::new(attention, memory, None).expect("a plan");
    let (plan, outcome) = loaded.launch(None, &lengths(case)).unwrap_or_else(|error| {
        let reports: Vec<_> = attention.driver().take_reports();
        panic!("{case:?}: {error}\n{}", reports.iter().map(|r| r.to_string()).collect::<String>())
    });
    assert!(plan.reason().contains("share prefixes"), "{case:?}: {}", plan.reason());
    memory.failures(&outcome, &lengths(case)).expect("a case")
}

#[track_caller]
fn check(case: &Case) {
    let wrong = failures(&attention(), case, &case.memory());
    assert!(wrong.is_empty(), "{case:?}: {}", wrong.join("\n"));
}

/// Launches a case once for each of its lists of integers under one plan, and judges the results of each
/// launch. The names of kernels begin with `name`.
#[track_caller]
fn check_launches(attention: &Attention<SimDriver>, case: &Case, name: &str) {
    let memory = case.memory();
    let judge = memory.judge(Rule::Tolerance).expect("a case");
    let mut device = OnDevice::new(attention, &memory, None).expect("a plan");
    for (round, written) in device.run_all().expect("launches").iter().enumerate() {
        assert!(written.entry.starts_with(name), "{}", written.entry);
        let failures = judge(round, written).failures;
        assert!(failures.is_empty(), "{case:?}, {:?}: {failures:?}", case.device_lengths[round]);
    }
}

/// Groups of 1, 2 and 5 sequences, prefixes of one page and of several pages, empty rests, and rests that end
/// within a page.
#[test]
fn groups_of_every_kind() {
    let groups: [&[[usize; 2]]; 6] =
        [&[[1, 1]], &[[2, 1]], &[[5, 3]], &[[2, 4], [2, 4]], &[[1, 1], [2, 3], [5, 2]], &[[2, 0], [3, 20]]];
    for groups in groups {
        for rests in [&[0][..], &[1, 0, 40], &[17]] {
            for (pages, counters) in [(PAGES, true), (Pages::Hnd(24), false), (Pages::Interleaved(5), true)] {
                check(&Case { counters, ..case(groups, rests, pages) });
            }
        }
    }
}

/// Query heads per key head, queries per sequence, masks, scores and dtypes. Under a causal mask, a sequence
/// has at least the keys of all but one of its queries behind its prefix.
#[test]
fn queries_heads_and_scores() {
    let plain = |groups: &[[usize; 2]]| case(groups, &[3, 20, 9], PAGES);
    for heads in [[2, 2], [4, 1], [8, 1]] {
        for (queries, mask) in [(1, Mask::Causal), (2, Mask::Full), (3, Mask::Causal), (4, Mask::Causal)] {
            for groups in [&[[4, 6]][..], &[[2, 3], [2, 3]], &[[3, 2], [1, 5]]] {
                check(&Case { heads, queries, mask, ..plain(groups) });
            }
        }
    }
    let of = plain(&[[3, 4]]);
    check(&Case { sinks: true, ..of.clone() });
    check(&Case { softcap: Some(20.0), mask: Mask::Causal, ..of.clone() });
    check(&Case { kv_dtype: Some(DType::E4m3), ..of.clone() });
    check(&Case { scale: Some(0.3), counters: false, ..of });
    check(&Case { sinks: true, ..plain(&[[3, 2], [1, 5]]) });
}

/// More than 64 rows of a group's queries take work tiles. On a device with idle SMs, the pass cuts a single
/// prefix into parts.
#[test]
fn many_queries_of_a_group() {
    let of = |groups: &[[usize; 2]]| Case { heads: [8, 2], ..case(groups, &[0, 21], PAGES) };
    for groups in [&[[20, 40]][..], &[[20, 33]], &[[17, 34], [17, 34]], &[[18, 4], [1, 9]]] {
        check(&of(groups));
    }
}

/// Hopper's tiles take the queries of two groups, whose LSE lie beside each other, or the parts of one
/// prefix, which share the rows of Q. `sms` is the number of SMs of the device.
#[test]
fn hopper() {
    let groups = Case { heads: [8, 2], queries: 4, ..case(&[[33, 25], [33, 25]], &[3, 20], PAGES) };
    let device_lengths = vec![DeviceLengths::Filled, DeviceLengths::Fewer(3), DeviceLengths::Garbage(5)];
    let parts = |sequences, heads, queries| {
        let device_lengths = device_lengths.clone();
        Case {
            head_dim: 128,
            device_lengths,
            heads,
            queries,
            ..case(&[[sequences, 32]], &[3, 10, 20], PAGES)
        }
    };
    for (case, sms, name) in [
        (groups, 8, "hopper_paged_f16_d64_"),
        (parts(64, [4, 1], 4), 16, "hopper_paged_f16_d128_"),
        (parts(35, [8, 1], 2), 16, "hopper_paged_f16_d128_"),
    ] {
        let card =
            SimDriver::of_multiprocessors("h200", Options::default(), Some(sms)).expect("a known card");
        check_launches(&Attention::new(card), &case, name);
    }
}

/// A plan only knows bounds, because a replayed graph may find other lengths. If a sequence lacks keys of its
/// prefix, or if integers are invalid, no access leaves the tensors. The other sequences of varlen groups
/// have right results.
#[test]
fn other_integers_under_one_plan() {
    let groups: [&[[usize; 2]]; 4] = [&[[5, 3]], &[[2, 4], [2, 4]], &[[1, 1], [2, 3], [5, 2]], &[[20, 32]]];
    for groups in groups {
        let device_lengths = vec![
            DeviceLengths::Filled,
            DeviceLengths::Fewer(3),
            DeviceLengths::Fewer(4),
            DeviceLengths::Garbage(5),
            DeviceLengths::Garbage(6),
        ];
        let case = Case { heads: [8, 2], device_lengths, ..case(groups, &[70, 0, 33], PAGES) };
        check_launches(&attention(), &case, "");
    }
}

/// The last sequences pad a batch. They have the keys of their prefix and no other key.
#[test]
fn padding_has_the_prefix() {
    for groups in [&[[20, 40]][..], &[[2, 4], [2, 4]], &[[17, 34], [17, 34]], &[[1, 1], [2, 3], [5, 2]]] {
        let case = Case { heads: [8, 2], ..case(groups, &[5, 21], PAGES) };
        let (attention, memory) = (attention(), case.memory());
        let prefixes = groups.iter().flat_map(|[count, pages]| vec![(16 * pages) as i32; *count]);
        for real in [0, 1, 3] {
            let padded = prefixes.clone().enumerate().zip(lengths(&case));
            let padded: Vec<_> =
                padded.map(|((b, prefix), all)| if b < real { all } else { prefix }).collect();
            let mut loaded = Loaded::new(&attention, &memory, None).expect("a plan");
            let (_, outcome) = loaded.launch(None, &padded).expect("a launch");
            let wrong = memory.failures(&outcome, &padded).expect("a case");
            assert!(wrong.is_empty(), "{groups:?}, {real}: {}", wrong.join("\n"));
        }
    }
}

/// With invalid groups and page indices, groups may write the same rows of the workspace, and the pass over
/// the rest may read rows of no group. Nothing else is reported.
#[test]
fn invalid_groups_and_pages() {
    for groups in [&[[2, 4], [2, 4]][..], &[[1, 1], [2, 3], [5, 2]], &[[20, 3], [1, 2]]] {
        for seed in 0..6 {
            let device_lengths = vec![DeviceLengths::Lost(seed)];
            let case = Case { heads: [8, 2], device_lengths, ..case(groups, &[70, 0, 33], PAGES) };
            let (attention, memory) = (attention(), case.memory());
            let device = OnDevice::new(&attention, &memory, None).expect("a plan");
            let launched = device.run();
            let in_workspace = [Kind::GlobalRace, Kind::UninitialisedGlobal];
            let (allowed, reports): (Vec<_>, Vec<_>) = attention
                .driver()
                .take_reports()
                .into_iter()
                .partition(|report| in_workspace.contains(&report.kind));
            let fine = reports.is_empty() && (launched.is_ok() || !allowed.is_empty());
            assert!(fine, "{groups:?}, {seed}: {:?} {reports:?}", launched.err());
        }
    }
}

/// Two launches of one request write the same bits. Without an LSE in the request, O has the same bits.
#[test]
fn equal_requests_give_equal_bits() {
    for groups in [&[[5, 3]][..], &[[20, 32]], &[[1, 1], [2, 3], [5, 2]]] {
        let case = Case { heads: [8, 2], ..case(groups, &[70, 0, 33], PAGES) };
        let (attention, memory) = (attention(), case.memory());
        let device = OnDevice::new(&attention, &memory, None).expect("a plan");
        let written = device.run().expect("a launch");
        assert_eq!(written, device.run().expect("a launch"), "{case:?}");
        let without = device.without_lse().run().expect("a launch");
        assert_eq!(written.outputs[0], without.outputs[0], "{case:?}");
    }
}

/// Launches a case after changes of its integers, and returns the failures.
fn after(attention: &Attention<SimDriver>, case: &Case, change: Option<Planted>) -> Vec<String> {
    let memory = case.memory();
    let mut device = OnDevice::new(attention, &memory, None).expect("a plan");
    if let Some((name, plant)) = change {
        let mut input = Work::inputs(&memory).into_iter().find(|input| input.name == name).expect(name);
        let integers = input.period.as_chunks().0.iter().map(|bytes| i32::from_ne_bytes(*bytes));
        let mut integers: Vec<_> = integers.collect();
        plant(&mut integers);
        input.period = integers.iter().flat_map(|x| x.to_ne_bytes()).collect();
        device.change([input]).expect("as many integers");
    }
    let written = device.run().expect("a launch");
    memory.judge(Rule::Tolerance).expect("a case")(0, &written).failures
}

/// The name of a buffer of integers, and a change of its integers.
type Planted = (&'static str, fn(&mut [i32]));

/// The kernel of the rest of each sequence.
const REST: &str = "decode_f16_d64_causal_8_tiles";

/// Plants pages and lengths that are off by one, and a decode kernel that ignores the states of prefixes.
#[test]
fn planted_errors_are_reported() {
    let case = case(&[[1, 1], [2, 3], [5, 2]], &[40, 17], PAGES);
    assert_eq!(after(&attention(), &case, None), [""; 0]);
    let planted: [Planted; 5] = [
        ("prefix_table", |pages| pages.rotate_left(1)),
        ("rest_table", |pages| pages.rotate_left(1)),
        ("prefix_lengths", |lengths| lengths[1] -= 1),
        ("rest_lengths", |lengths| lengths[0] -= 1),
        ("groups", |starts| starts[1] += 1),
    ];
    for change in planted {
        assert_ne!(after(&attention(), &case, Some(change)), [""; 0], "{}", change.0);
    }
    let text = ptx::source(REST).expect("a build carries it");
    let count = offset_of!(DecodeParams, states) + offset_of!(States, count);
    let count = format!("[{REST}_param_0+{count}]");
    let line =
        text.lines().find(|line| line.contains(&count)).expect("the kernel reads the number of states");
    let ignored = text.replace(line, &line.replace("ld.param", "mov").replace(&count, "0"));
    let attention = attention();
    // SAFETY: the simulator checks every access.
    unsafe { attention.load_from(REST, &ignored) }.expect("PTX");
    assert_ne!(after(&attention, &case, None), [""; 0]);
}
