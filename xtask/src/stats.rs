//! `cargo xtask ptx-stats`: prints the resources of every entry on every target.

use std::fmt::Write;
use std::path::Path;

use clap::Args;
use cuda_builder::occupancy::{Multiprocessor, Occupancy};
use cuda_builder::report::EntryReport;
use cuda_builder::{Arch, Module, gate};
use serde_json::{Value, json};

use crate::golden;
use crate::kernels::{self, Build};
use crate::process::Result;

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
    if stats.check {
        return golden::hold(root, &output.modules);
    }
    let reports = kernels::reports(root, &output.modules, &kernels::targets_of(stats.build.arch))?;
    let rows: Vec<_> = reports.iter().map(|(module, report)| row(module, report)).collect();
    if stats.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        print!("{}", table(&rows));
    }
    Ok(gate::check(reports.iter().map(|(m, r)| (&m.contract, r)))?)
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
