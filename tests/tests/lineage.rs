//! Tests the predecessor's configurations by name: their entries, their results, and that the planner never
//! selects such a configuration unless the request names it.
use ferroflash::driver::SimDriver;
use ferroflash::kernels::{AttnInfo, Class, Contract, Isa, MaskKind, Path, Schedule, entry, plain};
use ferroflash::lineage::{CONFIGURATIONS, Configuration, names};
use ferroflash::plan::{Problem, supports};
use ferroflash::request::{AttentionRequest, Mask, TensorView};
use ferroflash::{Attention, Capabilities, DType, Error, Plan, plan};
use ferroflash_tests::{is_carried, lacks_kernel};
use reference::{Loaded, Reference, headline, reproducer};
use spec::TileScheduler::{self, *};
use {Path::*, Schedule::*};

/// The columns: name; queries, keys, stages and warps; path and schedules in the predecessor's table.
#[rustfmt::skip]
const TABLE: &[(&str, [u32; 4], Path, Schedule, TileScheduler)] = &[
    ("fa_s512/64x64w4", [64, 64, 2, 4], TensorCores, Sequential, SingleTile),
    ("fa_s512/128x32w8", [128, 32, 2, 8], TensorCores, Sequential, SingleTile),
    ("fa_s512/80x64w5", [80, 64, 2, 5], TensorCores, Sequential, SingleTile),
    ("fa_s512/64x64w8", [64, 64, 2, 8], TensorCores, Sequential, SingleTile),
    ("v3/0", [16, 64, 2, 1], TensorCores, Sequential, SingleTile),
    ("v3/1", [32, 64, 1, 2], TensorCores, Sequential, SingleTile),
    ("v3/2", [48, 64, 2, 3], TensorCores, Sequential, SingleTile),
    ("v3/3", [32, 32, 2, 2], TensorCores, Sequential, SingleTile),
    ("v3/4", [32, 64, 2, 2], TensorCores, Sequential, SingleTile),
    ("v3/0-scalar", [16, 64, 2, 1], CudaCores, Sequential, SingleTile),
    ("v3/1-scalar", [32, 64, 1, 2], CudaCores, Sequential, SingleTile),
    ("v3/2-scalar", [48, 64, 2, 3], CudaCores, Sequential, SingleTile),
    ("v3/3-scalar", [32, 32, 2, 2], CudaCores, Sequential, SingleTile),
    ("v3/4-scalar", [32, 64, 2, 2], CudaCores, Sequential, SingleTile),
    ("flashcore/32x32", [32, 32, 2, 2], TensorCores, Sequential, SingleTile),
    ("flashcore/64x32-cpasync", [64, 32, 2, 4], TensorCores, Sequential, SingleTile),
    ("flashcore/64x32-specialised", [64, 32, 2, 5], TensorCores, Specialised, SingleTile),
    ("flashcore/64x32-persistent", [64, 32, 2, 4], TensorCores, Sequential, Persistent),
];

fn l4() -> &'static Capabilities {
    Capabilities::profile("l4").expect("a known card")
}

fn forward(p: Problem, config: Option<&str>) -> AttentionRequest<'_> {
    let view =
        |n: u64| TensorView::bhsd(n << 40, 1 << 38, p.dtype, [p.batch, p.seqlen_q, p.heads_q, p.head_dim]);
    let f = AttentionRequest::dense(view(1), view(2), view(3), view(4)).mask(p.mask);
    let mut f = f.softcap(p.softcap.unwrap_or_default());
    f.config = config;
    f
}

fn entries(name: &str) -> Vec<&'static AttnInfo> {
    let configuration = Configuration::find(name).unwrap_or_else(|| panic!("{name} is one of the lineage"));
    configuration.entries().unwrap_or_else(|e| panic!("{name}: {e}")).collect()
}

/// The entry that a plan runs.
fn planned(plan: &Plan) -> &'static AttnInfo {
    entry(plan.contract().symbol).expect("in the table")
}

#[test]
fn every_configuration_is_what_its_name_says() {
    for &(name, tile, path, schedule, scheduler) in TABLE {
        let entries = entries(name);
        assert_eq!(
            entries.iter().map(|e| e.mask).collect::<Vec<_>>(),
            [MaskKind::Full, MaskKind::Causal],
            "{name}"
        );
        for e in entries {
            assert_eq!([e.tile_m, e.tile_n, e.stages, e.contract.threads / 32], tile, "{name}");
            assert_eq!(
                (e.path, e.schedule, e.scheduler, e.dtype, e.head_dim),
                (path, schedule, scheduler, DType::F16, 64),
                "{name}"
            );
            assert!(e.contract.smem_bytes <= l4().smem_per_block, "{name} was meant for an L4");
            assert!(names(e).any(|other| other == name), "{name}");
        }
    }
    let rejected = CONFIGURATIONS.iter().filter(|c| c.entries().is_err()).map(|c| c.name);
    let listed: Vec<_> = TABLE.iter().map(|row| row.0).chain(rejected).collect();
    assert!(CONFIGURATIONS.iter().all(|c| listed.contains(&c.name)), "every configuration is in this table");
    assert_eq!(listed.len(), CONFIGURATIONS.len());
}

#[test]
fn names_reach_their_entry_by_mask() {
    for &(name, ..) in TABLE {
        for mask in [Mask::Full, Mask::Causal] {
            let f = forward(Problem::new(DType::F16, 2, 512, 8, 64).mask(mask), Some(name));
            let plan = plan(&f, l4()).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(names(planned(&plan)).any(|other| other == name), "{name} {mask:?}");
            assert_eq!(planned(&plan).mask == MaskKind::Full, mask == Mask::Full, "{name}");
        }
    }
}

/// The columns: the name, the problem, whether the error is `Unsupported`, and words of the error.
#[test]
fn what_has_no_kernel_is_refused_by_name() {
    let good = Problem::new(DType::F16, 2, 512, 8, 64);
    let window = good.mask(Mask::Window { left: Some(9), right: Some(0) });
    let uneven = "80 queries are 5 row tiles of 16";
    let cases = [
        ("fa_s512/80x64w8", good, true, ["fa_s512/80x64w8", uneven, "neither 8 nor 4 warps"]),
        ("fa_s512/80x64w4", good, true, ["fa_s512/80x64w4", uneven, "fa_s512/80x64w5"]),
        ("v3/2", window, true, ["v3/2 with mask local", "full and causal", ""]),
        ("v3/5", good, false, ["config", "v3/5", "`ferroflash kernels` lists them"]),
        ("v3/2", good.dtype(DType::Bf16), false, ["v3/2", "bf16", "mask full"]),
        ("v3/2", good.head_dim(128), false, ["v3/2", "head_dim 128", ""]),
    ];
    for (name, problem, unsupported, words) in cases {
        let error = plan(&forward(problem, Some(name)), l4()).map(|p| p.contract().symbol).expect_err(name);
        assert_eq!(matches!(error, Error::Unsupported { .. }), unsupported, "{error}");
        let message = error.to_string();
        assert!(words.iter().all(|w| message.contains(w)), "{message}");
    }
}

#[test]
fn the_planner_chooses_none_by_itself() {
    for (_, capabilities) in Capabilities::PROFILES {
        for mask in [Mask::Full, Mask::Causal] {
            for (batch, heads) in [(1, 1), (1, 8), (2, 8), (8, 32), (64, 32)] {
                for seqlen in [1, 16, 32, 48, 64, 512, 2048] {
                    for head_dim in [40, 64] {
                        let problem = Problem::new(DType::F16, batch, seqlen, heads, head_dim).mask(mask);
                        let kernel = supports(&problem, capabilities).expect("valid");
                        let entry = entry(kernel.symbol).expect("in the table");
                        assert_eq!(names(entry).next(), None, "{problem}: {}", entry.contract.symbol);
                    }
                }
            }
        }
    }
    assert!(plain(Isa::Sm80, Class::Dense).filter(|e| names(e).next().is_some()).all(|e| (
        e.dtype, e.head_dim
    ) == (
        DType::F16,
        64
    )));
}

#[test]
fn a_persistent_grid_is_what_the_card_holds() {
    let name = "flashcore/64x32-persistent";
    for (card, capabilities) in Capabilities::PROFILES {
        let resident = |kernel: &Contract| capabilities.sms * capabilities.blocks_per_sm(kernel);
        for (batch, tiles) in [(1, 8 * 8), (64, 64 * 8 * 8)] {
            let f = forward(Problem::new(DType::F16, batch, 512, 8, 64), Some(name));
            let plan = plan(&f, capabilities).expect("valid");
            assert_eq!(plan.grid(), [tiles.min(resident(plan.contract())), 1, 1], "{card}");
        }
        let e = entries(name)[0];
        assert!(
            capabilities.blocks_per_sm(&e.contract) * e.contract.threads <= capabilities.threads_per_sm(),
            "{card}"
        );
        assert!(
            capabilities.blocks_per_sm(&e.contract) * (e.contract.smem_bytes + 1024)
                <= capabilities.smem_per_sm,
            "{card}"
        );
        assert!(capabilities.blocks_per_sm(&e.contract) >= e.contract.min_blocks_per_sm, "{card}");
    }
}

/// The largest error of `config` on each case whose kernel is in this build. The cases run in the simulator,
/// which checks every access, barrier and copy.
fn errors(config: &str, cases: Vec<reference::Case>) -> Vec<f64> {
    let attention = Attention::new(SimDriver::new("l4").expect("a known card"));
    let error = |case: reference::Case| {
        let memory = case.memory();
        let outcome = match Loaded::new(&attention, &memory, Some(config)).and_then(|loaded| loaded.run()) {
            Err(error) if lacks_kernel(&error) => return None,
            outcome => outcome.unwrap_or_else(|e| panic!("{config}: {case}: {e}")),
        };
        let reference = Reference::new(&memory.inputs().expect("valid"));
        let verdict = outcome.judge(&reference, DType::F16).expect("the problem's shape");
        let failures: Vec<_> = verdict.failures().collect();
        assert!(failures.is_empty(), "{config}: {case}: {failures:?}");
        Some(verdict.out.error)
    };
    let errors: Vec<_> = cases.into_iter().filter_map(error).collect();
    let is_due = entries(config).iter().any(|entry| is_carried(entry.contract.symbol));
    assert_eq!(is_due, !errors.is_empty(), "{config}");
    errors
}

#[test]
fn the_smallest_reproducer_is_right_in_every_configuration() {
    for &(name, ..) in TABLE {
        for error in errors(name, reproducer(1)) {
            assert!(error < 2e-3, "{name}: {error}");
        }
    }
}

#[test]
fn the_headline_workload_is_right_where_the_predecessor_was_off_by_a_third() {
    // These configurations only run with batch 1, because `ferroflash verify --all-configs` runs every batch
    // on a GPU.
    for name in ["flashcore/32x32", "flashcore/64x32-persistent"] {
        let cases = headline(1).into_iter().filter(|case| case.batch() == 1).collect();
        for error in errors(name, cases) {
            assert!(error < 2e-3, "{name}: {error}");
        }
    }
}
