//! The tasks that run other tasks: `demo` and `ci`.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::time::Instant;

use cuda_builder::Arch;

use crate::kernels::{self, Build, carried};
use crate::process::{Result, cargo, loud};
use crate::test::{self, FEATURES};
use crate::{budgets, candle, evidence, golden, package, python, setup, tidy};

/// On every card, the demo's problem runs on an entry whose name begins with this text.
/// *`host/cli/tests/program/options.rs` checks it.*
const DEMO: &str = "fwd_f16_d64_causal";

/// `cargo xtask demo`: builds, and computes attention on a small real input. If a source of the kernels has
/// changed, installs missing tools, and compiles the kernels that the demo may need.
pub fn demo(root: &Path, arguments: &[String]) -> Result {
    println!(
        "building the program: {:.0} minutes on two idle cores if nothing is compiled",
        budgets::DEMO_MINUTES / 2.0
    );
    let mut command = cargo();
    // The demo uses the profile of the tests. This profile optimises the code that matters, and compiles the
    // other code in half the time.
    command.args(["run", "--quiet", "--package", "ferroflash-cli", "--", "demo"]).args(arguments);
    if carried::folder(root).is_err() && !kernels::are_kept(root)? {
        println!("the demo's kernels alone; `cargo xtask build-ptx` compiles all");
        let is_dense = |e: &&spec::AttnInfo| e.class() == spec::Class::Dense && e.is_plain();
        let symbols = spec::ATTENTION.iter().filter(is_dense).map(|entry| entry.contract.symbol);
        let folder = root.join("target/demo-ptx");
        kernels::some(root, symbols.filter(|symbol| symbol.starts_with(DEMO)), &folder)?;
        command.env("FERROFLASH_PTX_DIR", folder);
    }
    loud(command.current_dir(root))?;
    budgets::show("demo", budgets::DEMO_MINUTES);
    Ok(())
}

/// `cargo xtask ci`: runs every check that a change must pass. The task runs all steps, even after a step has
/// failed; `only` selects steps. The last lines give the time of each step, and name the failed steps.
///
/// The steps share their builds: they use the same profile, the same features, and the same flags for rustc.
/// The kernels are those that the checkout carries; the step `kernels` compiles a part of them again.
pub fn ci(root: &Path, only: &[String]) -> Result {
    let begun = Instant::now();
    setup::run(root)?;
    let run = |arguments: &[&str]| {
        let mut command = cargo();
        // ci does not set RUSTFLAGS, because other flags in one step would compile every dependency again.
        command.args(arguments).env("RUSTDOCFLAGS", "-Dwarnings").current_dir(root);
        loud(&mut command)
    };
    let workspace = ["--quiet", "--workspace", "--features", FEATURES];
    let all = |first: &[&str], last: &[&str]| run(&[first, &workspace, last].concat());
    let is_asked = |name: &str| only.is_empty() || only.iter().any(|step| step == name);
    let sampled = RefCell::new(test::Sampled::default());
    type Step<'a> = (&'static str, &'a dyn Fn() -> Result);
    let steps: [Step<'_>; 13] = [
        ("tidy", &|| tidy::run(root)),
        ("evidence", &|| evidence::check(root)),
        ("fmt", &|| {
            run(&["fmt", "--all", "--check"])?;
            ["examples/your-own-attention", "examples/attention-gym", OWN].iter().try_for_each(|folder| {
                let manifest = format!("{folder}/Cargo.toml");
                run(&["fmt", "--all", "--check", "--manifest-path", &manifest])
            })
        }),
        ("kernels", &|| kernels_hold(root)),
        ("clippy", &|| {
            all(&["clippy"], &["--all-targets", "--", "-Dwarnings"])?;
            let manifest = format!("{OWN}/Cargo.toml");
            let mut clippy = cargo();
            clippy.args(["clippy", "--quiet", "--workspace", "--manifest-path", &manifest]);
            clippy.args(["--", "-Dwarnings"]).env("CARGO_TARGET_DIR", root.join(OUTSIDE));
            loud(clippy.current_dir(root))
        }),
        ("doc", &|| all(&["doc"], &["--no-deps"])),
        ("sample", &|| test::on_sample(root).map(|ran| _ = sampled.replace(ran))),
        ("test", &|| test::all(root, true, &sampled.borrow())),
        ("mutants", &|| test::mutate(root, &MUTANTS.map(str::to_owned))),
        ("cubins", &|| cubins_embed(root)),
        ("package", &|| package::run(root)),
        ("candle", &|| candle::check(root)),
        ("python", &|| python::check(root)),
    ];
    if let Some(other) = only.iter().find(|name| steps.iter().all(|(step, _)| step != name)) {
        let names = steps.map(|(name, _)| name).join(", ");
        return Err(format!("ci has no step {other}; its steps are {names}").into());
    }
    let (mut failed, mut costs) = (Vec::new(), Vec::new());
    for (name, step) in steps.into_iter().filter(|(name, _)| is_asked(name)) {
        let (start, before) = (Instant::now(), budgets::processor_time().unwrap_or_default());
        let outcome = step();
        let after = budgets::processor_time().unwrap_or_default();
        let processor = after.saturating_sub(before).as_secs_f64();
        let cost = format!("{:.0} s, {processor:.0} s of processors", start.elapsed().as_secs_f64());
        match outcome {
            Ok(()) => println!("ci: {name}: ok ({cost})"),
            Err(error) => {
                println!("ci: {name}: FAILED ({cost})\n{error}");
                failed.push(name);
            }
        }
        costs.push(format!("ci: {name:8} {cost}"));
    }
    println!("{}\nci: all      {:.0} s", costs.join("\n"), begun.elapsed().as_secs_f64());
    if let Some(used) = budgets::processor_time() {
        let minutes = used.as_secs_f64() / 60.0;
        let held = budgets::hold("ci", minutes, budgets::CI_MINUTES, "minutes of processor time");
        if let Err(error) = held {
            println!("{error}");
            failed.push("budget");
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", ")).into()) }
}

/// A caller's variants for measurements. No test runs them, because they need a Hopper GPU; clippy compiles
/// their kernels.
const OWN: &str = "bench/own";

/// The build folder of crates outside of this workspace. `tests/tests/template.rs` uses it, too: each such
/// folder compiles `core` for each target, in half a minute, and the build scripts' dependencies.
const OUTSIDE: &str = "target/tmp/template";

/// The mutants that ci runs: for two small kernels, one mutant per operator. This step of ci tests the whole
/// mutation tool: it mutates the PTX, runs the mutants, and writes the page of scores. The tests run more
/// mutants.
const MUTANTS: [&str; 8] =
    ["--entry", "merge_f16", "--entry", "append_copy", "--sample", "1", "--out", "target/ci-mutants"];

/// Entries that ci also compiles for a newer target, one per schedule. Other entries differ from these only
/// in sizes.
const NEWER: [&str; 6] = [
    "fwd_f16_d64_full_128x32",
    "fwd_bf16_d64_causal_128x64",
    "fwd_f16_d64_full_64x64_k2",
    "fwd_f16_d64_causal_64x32_specialised",
    "fwd_bf16_d128_causal_128x64_split",
    "combine_f16_d64",
];

/// Checks that the kernels that the checkout carries are those of its sources, keep the rules on every
/// target, match the golden figures, and fit the budget of a library.
fn kernels_hold(root: &Path) -> Result {
    // Compiling all kernels of other sources would take half an hour, and `bless` compiles them again.
    carried::folder(root)?;
    let output = kernels::ptx(root, &Build::all())?;
    golden::hold(root, &output.modules)?;
    carried::compare(root, &output)?;
    // For a newer target, this step only checks that the instructions compile.
    let newer = Build { arch: Arch::Sm89, entries: NEWER.map(str::to_owned).into(), ..Build::all() };
    let made = kernels::ptx(root, &newer)?.modules;
    if let Some(gone) = NEWER.iter().find(|name| made.iter().all(|module| module.contract.symbol != **name)) {
        return Err(
            format!("{gone}: no entry has this name any more; choose another for a newer target").into()
        );
    }
    let compressed = |feature| -> Result<f64> { Ok(carried::embedded(root, feature)? as f64 / 1e6) };
    budgets::hold("embedded kernels, compressed", compressed(None)?, budgets::EMBEDDED_MB, "MB")?;
    let training = compressed(Some("training"))?;
    budgets::hold("kernels of feature training, compressed", training, budgets::TRAINING_MB, "MB")
}

/// Checks that the feature `cubins` accepts the machine code of `build-cubin`. Machine code of all kernels
/// takes minutes, so this step uses two kernels: an attention kernel and a combine kernel.
fn cubins_embed(root: &Path) -> Result {
    let output = kernels::ptx(root, &Build::all())?;
    let folder = root.join("target/ci-cubins");
    let ptx = folder.join("source");
    if ptx.is_dir() {
        // The library embeds every file of the folder, so no module of an older table may remain there.
        fs::remove_dir_all(&ptx)?;
    }
    fs::create_dir_all(&ptx)?;
    let ends = [output.modules.first(), output.modules.last()];
    let modules: Vec<_> = ends.into_iter().flatten().collect();
    for module in &modules {
        fs::write(ptx.join(module.contract.symbol).with_extension("ptx"), &module.text)?;
    }
    kernels::cubins(root, &modules, &kernels::CUBIN_TARGETS, &folder)?;
    let test = ["test", "--quiet", "--package", "ferroflash", "--features", "cubins", "--lib"];
    // One test decompresses ten files, for which the library needs no optimisation.
    let profile = ["--config", "profile.dev.package.ferroflash.opt-level=0", "image::"];
    let folders = [("FERROFLASH_PTX_DIR", &ptx), ("FERROFLASH_CUBIN_DIR", &folder)];
    loud(cargo().args(test).args(profile).envs(folders).current_dir(root))
}
