//! Tests prefill on paged caches through TMA, in the simulator: pages of every size that a kernel takes, and
//! garbage in device memory. `simulated.rs` runs each kernel on its edge cases.
use ferroflash::driver::SimDriver;
use ferroflash::request::Mask;
use ferroflash::spec::{AttnInfo, Class, Isa, plain};
use ferroflash::{Attention, DType, ptx};
use ferroflash_tests::clamps::{garbage_on_pages, unnoticed};
use ferroflash_tests::mutation::Subject;
use ferroflash_tests::on_cache::{check_garbage, check_on};
use ferroflash_tests::{is_carried, run};
use ptx_sim::{
    Options,
    mutate::{Mutant, Operator, mutants},
};
use reference::{Case, Pages, paged_edges};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An H200 with two SMs. Blocks are persistent, so each takes several tiles even in small problems.
fn h200() -> Attention<SimDriver> {
    let card = SimDriver::of_multiprocessors("h200", Options::default(), Some(2));
    Attention::new(card.expect("a known card"))
}

/// The f16 kernels of head dim 64: on caches of f16, and of e4m3.
fn smallest() -> [&'static AttnInfo; 2] {
    [DType::F16, DType::E4m3].map(|cache| {
        let want = (DType::F16, cache, 64);
        let is_it =
            |e: &&AttnInfo| (e.dtype, e.kv_dtype, e.head_dim) == want && is_carried(e.contract.symbol);
        plain(Isa::Sm90a, Class::Paged).find(is_it).expect("a build carries one of each")
    })
}

/// The mutants that move a wait until stores have left their buffer behind the next barrier.
fn late_waits(text: &str) -> impl Iterator<Item = Mutant> {
    const WAIT: &str = "cp.async.bulk.wait_group.read 0;";
    text.match_indices(WAIT).map(|(start, _)| {
        let rest = &text[start + WAIT.len()..];
        let barrier = rest.find("bar.sync").expect("a barrier follows");
        let len = barrier + rest[barrier..].find(';').expect("an instruction ends") + 1;
        Mutant {
            operator: Operator::SwapNeighbours,
            line: text[..start].lines().count() as u32,
            source: Vec::new(),
            description: format!("`{WAIT}` moves behind `{}`", &rest[barrier..len]),
            span: (start, start + WAIT.len() + len),
            replacement: format!("{}\n{WAIT}", &rest[..len]),
        }
    })
}

/// An H200 with two SMs that runs this text of a kernel, and gives up early.
fn mutated(symbol: &str, text: &str) -> Attention<SimDriver> {
    let options = Options { budget: 60_000_000, patience: 2_000_000, max_reports: 1, ..Options::default() };
    let card = SimDriver::of_multiprocessors("h200", options, Some(2)).expect("a known card");
    let attention = Attention::new(card);
    // SAFETY: only the simulator runs it, which checks every access.
    unsafe { attention.load_from(symbol, text) }.expect("a module");
    attention
}

/// Removes the instructions that order the tiles of a block, one at a time: waits until stores have left
/// their buffer, barriers of a consumer warpgroup around such a wait, and arrivals that release a stage or Q.
/// Also weakens each wait, and moves it behind the barrier. With one or two tiles per block, five of these
/// bugs would do no harm.
#[test]
fn an_order_between_the_tiles_of_a_block_that_is_missing_is_noticed() {
    smallest().into_iter().for_each(check_order);
}

fn check_order(entry: &AttnInfo) {
    let symbol = entry.contract.symbol;
    let text = ptx::source(symbol).expect("this build carries every kernel");
    let many = paged_edges(entry).pop().expect("an edge of many tiles a block");
    let orders = |mutant: &Mutant| {
        let of = |part: &str| mutant.description.contains(part);
        match mutant.operator {
            Operator::DeleteWait | Operator::WeakenWait => of("bulk.wait_group.read"),
            Operator::DeleteArrive => of("mbarrier.arrive.shared"),
            Operator::DeleteBarrier => of("bar.sync") && of(", 128;"),
            _ => false,
        }
    };
    let mutants = mutants(&text, symbol).expect("PTX").into_iter().filter(orders);
    let mutants: Vec<_> = mutants.chain(late_waits(&text)).collect();
    let operators: BTreeSet<_> = mutants.iter().map(|mutant| mutant.operator).collect();
    assert_eq!(operators.len(), 5, "{mutants:#?}");
    let unnoticed = mutants.iter().filter(|mutant| {
        let attention = mutated(symbol, &mutant.apply(&text));
        catch_unwind(AssertUnwindSafe(|| check_on(&attention, &many, Some(symbol)))).is_ok()
    });
    let unnoticed: Vec<_> = unnoticed.collect();
    // The last release of a stage in the text is the last one of a block, and no producer refills this stage.
    let releases = |mutant: &&Mutant| {
        let of_product = mutant.source.iter().any(|line| line.file.ends_with("tile/src/wgmma.rs"));
        mutant.operator == Operator::DeleteArrive && of_product
    };
    let last = mutants.iter().rfind(releases);
    assert!(unnoticed.iter().all(|mutant| Some(*mutant) == last), "{unnoticed:#?}");
}

/// Removes the instructions that order TMA, converter warps and products, one at a time: waits, arrivals,
/// their initialisation, and fences. (The simulator runs the lanes of a warp in step, so it notices no
/// barrier of a warp.)
#[test]
fn an_order_of_converter_warps_that_is_missing_is_noticed() {
    let [_, entry] = smallest();
    let text = ptx::source(entry.contract.symbol).expect("this build carries every kernel");
    let many = paged_edges(entry).pop().expect("an edge of many tiles a block");
    let many = Case { kv_dtype: Some(entry.kv_dtype), ..many };
    let orders = |mutant: &Mutant| {
        let is_of = |file| mutant.source.iter().any(|line| line.file.ends_with(file));
        let operators =
            [Operator::DeleteWait, Operator::DeleteArrive, Operator::DeleteFence, Operator::DeleteInit];
        is_of("pipeline/stage_converter.rs") && operators.contains(&mutant.operator)
    };
    let mutants: Vec<_> =
        mutants(&text, entry.contract.symbol).expect("PTX").into_iter().filter(orders).collect();
    let operators: BTreeSet<_> = mutants.iter().map(|mutant| mutant.operator).collect();
    assert_eq!(operators.len(), 4, "{mutants:#?}");
    let unnoticed = mutants.iter().filter(|mutant| {
        let attention = mutated(entry.contract.symbol, &mutant.apply(&text));
        catch_unwind(AssertUnwindSafe(|| check_on(&attention, &many, Some(entry.contract.symbol)))).is_ok()
    });
    let unnoticed: Vec<_> = unnoticed.collect();
    // Before the producer says that no stage follows, it waits for a stage that converter warps have left.
    let waits = |mutant: &&Mutant| {
        let of_producer = mutant.source.iter().any(|line| line.file.ends_with("hopper/mainloop.rs"));
        mutant.operator == Operator::DeleteWait && of_producer
    };
    assert!(unnoticed.len() <= 1 && unnoticed.iter().all(waits), "{unnoticed:#?}");
}

/// Tests boxes that are smaller than a page, equal to a page, and several stages large. Two sequences share
/// pages. Sequences end in the middle or at the end of a page, of a box or of a stage.
#[test]
fn pages_of_every_size() {
    let lengths = [261, 130, 256, 0, 37, 128];
    let sizes = [Pages::Nhd(8), Pages::Hnd(24), Pages::Interleaved(32), Pages::Nhd(64), Pages::Nhd(80)];
    let large = [Pages::Hnd(128), Pages::Interleaved(192), Pages::Nhd(256), Pages::Dense, Pages::Rows];
    for (turn, pages) in sizes.into_iter().chain(large).enumerate() {
        let case = Case { pages, mask: Mask::Causal, ..Case::new(lengths) };
        // The queries are varlen, or each sequence has the same number of queries.
        let case = match turn % 2 {
            0 => case.varlen_queries([1, 130, 20, 3, 0, 12]),
            _ => Case { queries: 9, ..case },
        };
        for entry in smallest() {
            let case = Case { kv_dtype: Some(entry.kv_dtype), ..case.clone() };
            check_on(&h200(), &case, Some(entry.contract.symbol));
        }
    }
}

/// The block table ends with the last sequence's row. The row of its padding would begin in the middle of
/// that row, and end behind the table.
#[test]
fn padding_reads_no_page() {
    let attention = h200();
    for entry in smallest() {
        let case = Case { pages: Pages::Nhd(16), mask: Mask::Causal, ..Case::new([150, 70]) };
        let case = Case { kv_dtype: Some(entry.kv_dtype), ..case }.varlen_queries([20, 3]);
        let memory = case.padded([70, 9]).memory();
        let outcome = run(&attention, entry.contract.symbol, &memory);
        // The first row of each sequence and of its padding, and the end.
        let rows = [0, 20, 90, 93, 102].map(|row| memory.o.row(row * memory.problem.heads_q));
        let zeros = rows.windows(2).map(|w| outcome.o()[w[0]..w[1]].iter().all(|bits| *bits == 0));
        assert_eq!(zeros.collect::<Vec<_>>(), [false, true, false, true]);
    }
}

#[test]
fn garbage_lengths_starts_and_pages() {
    for (entry, pages) in smallest().into_iter().zip([Pages::Nhd(16), Pages::Hnd(40)]) {
        check_garbage(h200, entry, Pages::Dense, |case| case);
        check_garbage(h200, entry, pages, |case| case);
    }
}

#[test]
fn a_clamp_that_is_missing_is_noticed() {
    for entry in smallest() {
        let subject = Subject::all().find(|subject| subject.kernel.symbol == entry.contract.symbol);
        // Boxes may begin in rows past a sequence's end, so the kernel has a separate clamp for columns of
        // the block table.
        let mut garbage = garbage_on_pages(Pages::Hnd(40));
        garbage.iter_mut().for_each(|launch| launch.case.kv_dtype = Some(entry.kv_dtype));
        let unnoticed = unnoticed(&subject.expect("in the table"), &garbage, &[]);
        assert!(unnoticed.is_empty(), "{}", unnoticed.join("\n"));
    }
}
