//! `cargo xtask ptx-stats`: prints the resources of every entry on every target, and compares them with the
//! golden figures, which reveal changes.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use clap::Args;
use cuda_builder::occupancy::{Multiprocessor, Occupancy};
use cuda_builder::report::{EntryReport, Reporter};
use cuda_builder::toolchain::DeviceCompiler;
use cuda_builder::{Arch, Module, gate};
use serde::Serialize;
use serde_json::{Value, json};

use crate::kernels::{self, Build};
use crate::process::Result;

/// The file of golden figures, relative to the root.
pub const GOLDEN: &str = "tests/golden/ptx-stats.txt";

/// What to show
#[derive(Args)]
pub struct Stats {
    #[command(flatten)]
    build: Build,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Compare with the golden figures, and fail if any differs
    #[arg(long)]
    check: bool,
}

/// Prints the report. Then returns an error if a kernel breaks a rule.
pub fn run(root: &Path, stats: &Stats) -> Result {
    let output = kernels::ptx(root, &stats.build)?;
    let reports = kernels::reports(root, &output.modules, &kernels::targets_of(stats.build.arch))?;
    if stats.check {
        return check(root, &reports);
    }
    let rows: Vec<_> = reports.iter().map(|(module, report)| row(module, report)).collect();
    if stats.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        print!("{}", table(&rows));
    }
    Ok(gate::check(reports.iter().map(|(m, r)| (&m.contract, r)))?)
}

/// The second half of `cargo xtask bless`: writes today's figures to the golden file.
pub fn bless(root: &Path) -> Result {
    let output = kernels::ptx(root, &Build::all())?;
    let reports = kernels::reports(root, &output.modules, &kernels::TARGETS)?;
    let path = root.join(GOLDEN);
    fs::create_dir_all(path.parent().unwrap_or(root))?;
    fs::write(&path, golden(root, &reports)?)?;
    println!("{GOLDEN}: {} lines", reports.len());
    Ok(())
}

/// Compares the figures with the golden figures. If the tools have other versions, their figures would not
/// show changes of the kernels, so the task compares nothing, and prints a note. In CI, the task fails if
/// ptxas has another version, because setup installs a fixed version. The compiler may come from any
/// toolchain that has the sources of `core`.
pub fn check(root: &Path, reports: &[(&Module, EntryReport)]) -> Result {
    let old = read_golden(root)?;
    let new = golden(root, reports)?;
    let (old_tools, old) = header(&old);
    let (new_tools, new) = header(&new);
    if old_tools != new_tools {
        let in_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
        return not_compared(old_tools, new_tools, in_ci);
    }
    let mut changes = String::new();
    for line in old.lines().filter(|&line| !new.lines().any(|n| n == line)) {
        writeln!(changes, "- {line}")?;
    }
    for line in new.lines().filter(|&line| !old.lines().any(|o| o == line)) {
        writeln!(changes, "+ {line}")?;
    }
    if changes.is_empty() {
        return Ok(());
    }
    Err(format!(
        "the kernels' figures differ from the golden figures; `cargo xtask bless` stores the new figures\n\
         {changes}"
    )
    .into())
}

/// Prints clearly that the figures were not compared. In CI, returns an error, unless only the compiler
/// differs. The first line of `old_tools` and of `new_tools` names the compiler; the other lines name
/// NVIDIA's tools.
fn not_compared(old_tools: &str, new_tools: &str, in_ci: bool) -> Result {
    let assembler = |tools: &str| tools.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    let versions = format!("they belong to\n{old_tools}and this machine has\n{new_tools}");
    if in_ci && assembler(old_tools) != assembler(new_tools) {
        let cure = "unset PTXAS and NVDISASM, and remove other versions from PATH: `cargo xtask setup` \
                    fetches the right ones";
        return Err(format!("the golden figures cannot be compared: {versions}{cure}").into());
    }
    eprintln!(
        "NOTE: THE GOLDEN FIGURES WERE NOT COMPARED: {versions}A change of the kernels' figures does not \
         show here."
    );
    Ok(())
}

fn golden(root: &Path, reports: &[(&Module, EntryReport)]) -> Result<String> {
    let compiler = DeviceCompiler::locate(root)?;
    let reporter = Reporter::new(root, kernels::cache(root))?;
    let version = |line: &&str| line.contains("release");
    let mut text = format!("# {}\n", compiler.version.split(" (built").next().unwrap_or_default());
    for line in reporter.assembler().version().lines().filter(version) {
        writeln!(text, "# {line}")?;
    }
    for (module, r) in reports {
        let smem = r.static_smem + module.contract.smem_bytes;
        write!(text, "{} {}: {} registers, {smem} bytes of shared memory", r.entry, r.target, r.registers)?;
        write!(text, ", spills {}/{}", r.spill_stores, r.spill_loads)?;
        write!(text, ", main loop {}:", r.sass.loop_length())?;
        for (opcode, count) in &r.sass.main_loop {
            write!(text, " {opcode} {count}")?;
        }
        text.push('\n');
    }
    Ok(text)
}

/// The golden figures as text.
pub fn read_golden(root: &Path) -> Result<String> {
    let text = fs::read_to_string(root.join(GOLDEN));
    Ok(text.map_err(|e| format!("{GOLDEN}: {e}; `cargo xtask bless` writes it"))?)
}

/// A line of the golden figures.
#[derive(Debug, PartialEq, Serialize)]
pub struct Figure<'a> {
    pub entry: &'a str,
    pub target: &'a str,
    pub registers: &'a str,
    pub smem_bytes: &'a str,
    /// Bytes of spill stores and spill loads, as `0/0`.
    pub spills: &'a str,
    /// The number of instructions of the main loop, then the number of each opcode.
    pub main_loop: &'a str,
}

/// The lines of the golden figures, as [`golden`] writes them.
pub fn figures(text: &str) -> impl Iterator<Item = Figure<'_>> {
    header(text).1.lines().filter_map(|line| {
        let (name, rest) = line.split_once(": ")?;
        let (entry, target) = name.split_once(' ')?;
        let (registers, rest) = rest.split_once(" registers, ")?;
        let (smem_bytes, rest) = rest.split_once(" bytes of shared memory, spills ")?;
        let (spills, main_loop) = rest.split_once(", main loop ")?;
        Some(Figure { entry, target, registers, smem_bytes, spills, main_loop })
    })
}

/// The lines that name the tools, and all other lines.
fn header(text: &str) -> (&str, &str) {
    let end = text.split_inclusive('\n').take_while(|line| line.starts_with('#')).map(str::len).sum();
    text.split_at(end)
}

/// The figures of one entry on one target. Without a launch contract, the number of threads, the dynamic
/// shared memory and thus the occupancy are null.
fn row(module: &Module, report: &EntryReport) -> Value {
    let contract = &module.contract;
    let device = match report.target.parse() {
        Ok(Arch::Sm80) => Multiprocessor::A100,
        Ok(Arch::Sm86 | Arch::Sm89) => Multiprocessor::L4,
        _ => Multiprocessor::H200,
    };
    // The builder gives 0 threads to a kernel without a launch contract.
    let has_contract = contract.threads > 0;
    let smem = report.static_smem + contract.smem_bytes;
    let occupancy = has_contract.then(|| Occupancy::new(&device, contract.threads, report.registers, smem));
    json!({
        "entry": report.entry,
        "target": report.target,
        "threads": has_contract.then_some(contract.threads),
        "registers": report.registers,
        "stack_bytes": report.stack,
        "spill_store_bytes": report.spill_stores,
        "spill_load_bytes": report.spill_loads,
        "spill_allowance": contract.spills.map(|allowance| allowance.reason),
        "local_depot": report.local_depot,
        "static_smem_bytes": report.static_smem,
        "dynamic_smem_bytes": has_contract.then_some(contract.smem_bytes),
        // The occupancy is computed for this GPU.
        "device": device.name,
        "blocks_per_sm": occupancy.map(|o| o.blocks),
        "warps_per_sm": occupancy.map(|o| o.warps),
        "limited_by": occupancy.map(|o| o.limited_by),
        "hmma": report.sass.kernel_count("HMMA"),
        "ldsm": report.sass.kernel_count("LDSM"),
        "ldgsts": report.sass.kernel_count("LDGSTS"),
        "bar": report.sass.kernel_count("BAR"),
        "local_loads_in_loops": report.sass.local_loads_in_loops,
        "local_stores_in_loops": report.sass.local_stores_in_loops,
        "kernel_instructions": report.sass.kernel_length(),
        "main_loop_instructions": report.sass.loop_length(),
        "main_loop": report.sass.main_loop,
    })
}

fn table(rows: &[Value]) -> String {
    let wide = rows.iter().filter_map(|row| row["entry"].as_str()).map(str::len).max().unwrap_or(0);
    let mut text = format!(
        "{:wide$}  target  regs  spill st/ld  smem KiB  blocks/SM on           HMMA  LDSM  LDGSTS  main \
         loop: all  HMMA  LDSM  MUFU\n",
        "entry"
    );
    for row in rows {
        let name = |key: &str| row[key].as_str().unwrap_or_default();
        let number = |key: &str| row[key].as_u64();
        let count = |key: &str| number(key).unwrap_or(0);
        let in_loop = |opcode: &str| row["main_loop"][opcode].as_u64().unwrap_or(0);
        let spills = format!("{}/{}", count("spill_store_bytes"), count("spill_load_bytes"));
        let blocks = number("blocks_per_sm").map_or_else(
            || "-".to_owned(),
            |blocks| format!("{blocks} {} ({})", name("device"), name("limited_by")),
        );
        let smem = number("dynamic_smem_bytes").map_or_else(
            || "-".to_owned(),
            |bytes| format!("{:.1}", (count("static_smem_bytes") + bytes) as f64 / 1024.0),
        );
        let _ = writeln!(
            text,
            "{:wide$}  {:6}  {:4}  {spills:>11}  {smem:>8}  {blocks:22}  {:4}  {:4}  {:6}  {:14}  {:4}  \
             {:4}  {:4}",
            name("entry"),
            name("target"),
            count("registers"),
            count("hmma"),
            count("ldsm"),
            count("ldgsts"),
            count("main_loop_instructions"),
            in_loop("HMMA"),
            in_loop("LDSM"),
            in_loop("MUFU"),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_golden_line_is_read_back() {
        let text = "# rustc\nfwd sm_80: 252 registers, 28672 bytes of shared memory, spills 4/8, main loop \
                    3: BAR 3\n";
        let figure = Figure {
            entry: "fwd",
            target: "sm_80",
            registers: "252",
            smem_bytes: "28672",
            spills: "4/8",
            main_loop: "3: BAR 3",
        };
        assert_eq!(figures(text).collect::<Vec<_>>(), [figure]);
    }

    #[test]
    fn another_compiler_is_a_note_and_another_assembler_fails_in_ci() {
        let golden = "# rustc 1.96.0\n# ptxas 13.0\n# nvdisasm 13.2\n";
        let cases = [
            ("# rustc 1.95.0\n# ptxas 13.0\n# nvdisasm 13.2\n", true, true),
            ("# rustc 1.96.0\n# ptxas 13.1\n# nvdisasm 13.2\n", true, false),
            ("# rustc 1.96.0\n# ptxas 13.0\n# nvdisasm 13.1\n", true, false),
            ("# rustc 1.96.0\n# ptxas 13.1\n# nvdisasm 13.2\n", false, true),
        ];
        for (tools, in_ci, passes) in cases {
            let outcome = not_compared(golden, tools, in_ci);
            assert_eq!(outcome.is_ok(), passes, "{tools} {in_ci}");
            let named = |error: Box<dyn std::error::Error>| error.to_string().contains(tools);
            assert!(outcome.err().is_none_or(named), "{tools}");
        }
    }
}
