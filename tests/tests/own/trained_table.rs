//! Backward kernels of a caller's table: gradients agree with f64, and errors in entries are found.
use super::*;
use ferroflash::spec::With;
use own_kernels::block_bias::DistanceParams;
use own_kernels::exact::MaskFn;
use own_kernels::trained::{DkDv, Dq};
use own_kernels::trained_table::*;
use ptx_sim::{Completion, Kind, Options};
use reference::variant::{Failure, Report, verify};
use reference::{BackwardMemory, Case, Layout, OnDevice, Pages, Written};

/// More entries than a block has.
const DISTANCES: u32 = 100;

/// A variant whose kernels of dK and dV, of dQ and of the table have this PTX.
fn variant_of_three<const ERROR: u8>([dkdv, dq, table]: [String; 3]) -> &'static Variant<Between<ERROR>> {
    let kernels = vec![
        VariantKernel::new::<With<DkDv<Between<ERROR>>>>("learned_dkdv", dkdv.leak()),
        VariantKernel::new::<With<Dq<Between<ERROR>>>>("learned_dq", dq.leak()),
        VariantKernel::new::<With<Table<Between<ERROR>>>>("learned_table", table.leak()),
    ];
    Box::leak(Box::new(Variant::new("learned", kernels.leak())))
}

fn run<M: MaskFn<Params = BetweenParams>>(variant: &'static Variant<M>) -> Result<Report, Failure> {
    let cap = |cap| OwnSoftcapParams { cap, reserved: 0 };
    verify(&card(), variant, |buffers, case| {
        let entries = 0..case.heads[0] as u32 * DISTANCES;
        let bias = buffers.floats(entries.map(|entry| (entry as f32 * 0.7).sin()))?;
        let learned = DistanceParams { bias, distances: DISTANCES, reserved: 0 };
        Ok(And::new((), And::new(cap(2.0), And::new(learned, cap(1.5)))))
    })
}

/// The PTX of the right kernels, with this kernel of the table.
fn with_table(symbol: &str) -> [String; 3] {
    let table = module(symbol).text.replace(symbol, "learned_table");
    [module("learned_dkdv").text.clone(), module("learned_dq").text.clone(), table]
}

#[test]
fn a_table_between_scores_trains() -> Result<(), Failure> {
    let report = run(variant_of_three::<0>(with_table("learned_table")))?;
    println!("{report}");
    let launches: Vec<_> = report.kernels.iter().map(|kernel| (kernel.symbol, kernel.launches)).collect();
    assert_eq!(launches, [("learned_dkdv", 9), ("learned_dq", 9), ("learned_table", 9)]);
    assert!(report.kernels[2].worst.iter().any(|worst| worst.tensor == "dtable"), "{report}");
    Ok(())
}

#[test]
fn a_wrong_entry_or_weight_is_found_before_a_launch() {
    // These variants have no PTX.
    let none = || [(); 3].map(|()| "// none".to_owned());
    let wrong = [run(variant_of_three::<1>(none())), run(variant_of_three::<2>(none()))];
    for found in wrong.map(|found| found.expect_err("an error")) {
        let words = found.to_string();
        assert!(matches!(found, Failure::Entry { .. }), "{words}");
        assert!(words.contains("`ScoreMod::entry` must name the entry that `score` reads"), "{words}");
    }
}

#[test]
fn a_kernel_with_another_weight_than_its_functions_is_found() {
    let wrong = run(variant_of_three::<0>(with_table("learned_table_wrong")));
    let words = wrong.expect_err("another weight").to_string();
    assert!(words.contains("dtable[batch "), "{words}");
}

/// Computes all gradients with this kernel of the table, in two batches whose heads have several work tiles,
/// on a card with this number of SMs. Returns the kinds of the simulator's reports, if there are any.
fn launch(kernels: [String; 3], options: Options, sms: Option<u32>) -> Result<Written, Vec<Kind>> {
    let card = Attention::new(SimDriver::of_multiprocessors("l4", options, sms).expect("a card"));
    let pages = Pages::Tensors(Layout::Bshd);
    let forward = Case { queries: 70, heads: [2, 1], head_dim: 64, pages, ..Case::new([50, 90]) };
    let entries = 2 * DISTANCES;
    let numbers = (0..entries).flat_map(|entry| (entry as f32 * 0.7).sin().to_le_bytes());
    let (_bias, base) = upload(&card, &numbers.collect::<Vec<_>>());
    let bias = Integers { base, count: entries, reserved: 0 };
    let cap = |cap| OwnSoftcapParams { cap, reserved: 0 };
    let learned = DistanceParams { bias, distances: DISTANCES, reserved: 0 };
    let params = And::new((), And::new(cap(2.0), And::new(learned, cap(1.5))));
    let mut memory = BackwardMemory::new(&forward.backward(false));
    memory.forward.variant = Some(variant_of_three::<0>(kernels).with(params));
    memory.table = entries as usize;
    let written = OnDevice::new(&card, &memory, None).expect("room").run();
    written.map_err(|_| card.driver().take_reports().iter().map(|report| report.kind).collect())
}

/// Computes all gradients with this kernel of the table under several schedules: warps run and copies land in
/// another order, and another work tile is the last one of its head.
fn under_every_schedule(kernels: &[String; 3]) -> [Written; 4] {
    let schedules = [
        (0, Completion::Late, 58),
        (1, Completion::Eager, 1),
        (2, Completion::Random, 2),
        (3, Completion::Random, 3),
    ];
    schedules.map(|(seed, completion, sms)| {
        let options = Options { seed, completion, ..Options::default() };
        launch(kernels.clone(), options, Some(sms)).expect("no report")
    })
}

#[test]
fn every_schedule_gives_a_table_equal_bits() {
    let [first, others @ ..] = under_every_schedule(&with_table("learned_table"));
    assert_eq!(first.kernels.last(), Some(&"learned_table"));
    assert!(others.iter().all(|other| *other == first), "other bits under another schedule");
}

/// In the mutant, the work tile that ends last decides the order in which it adds the sums of all tiles.
#[test]
fn an_order_that_depends_on_the_schedule_is_found() {
    let [dkdv, dq, table] = with_table("learned_table");
    // `Warp::total` pairs lanes whose numbers differ in one bit. A rotation of lanes would keep the pairs.
    let (before, epilogue) = table.split_once("atom.acq_rel.").expect("the kernel counts");
    let (between, total) = epilogue.split_once("shfl.sync.bfly.b32").expect("lanes add");
    let sum = total.split(',').nth(1).expect("an operand").trim();
    let permute = format!(
        "{{
        .reg .b32 from;
        .reg .b32 tile;
        mov.u32 from, %laneid;
        mov.u32 tile, %ctaid.x;
        shr.u32 tile, tile, 1;
        and.b32 tile, tile, 3;
        add.u32 tile, tile, 1;
        shr.u32 tile, from, tile;
        xor.b32 from, from, tile;
        shfl.sync.idx.b32 {sum}, {sum}, from, 31, -1;
        }}"
    );
    let mutant = format!("{before}atom.acq_rel.{between}{permute}\nshfl.sync.bfly.b32{total}");
    let [first, others @ ..] = under_every_schedule(&[dkdv, dq, mutant]);
    assert!(others.iter().any(|other| *other != first), "every schedule gives equal bits");
}

/// The last work tile of a head reads the sums of the other tiles, which the counter orders before it.
#[test]
fn a_counter_without_order_is_found() {
    let right = with_table("learned_table");
    for weaker in ["release", "acquire", "relaxed"] {
        let [dkdv, dq, table] = right.clone();
        let mutant = table.replace("atom.acq_rel.", &format!("atom.{weaker}."));
        assert!(mutant != table, "the kernel counts");
        let kinds = launch([dkdv, dq, mutant], Options::default(), None).expect_err(weaker);
        assert!(kinds.contains(&Kind::GlobalRace), "{weaker}: {kinds:?}");
    }
}
