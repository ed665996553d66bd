//! `ferroflash kernels`: the table of compiled kernels.
use super::{console::Console, error::Error};
use ferroflash::{DType, ENTRIES, EntryInfo, Grid, entries, lineage};
use serde::Serialize;
use std::fmt;

/// List every compiled kernel: tile, threads, shared memory, schedule.
///
/// Tile is queries of a thread block x keys of a stage. A head dim that is not in the table runs on the next
/// larger one.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  ferroflash kernels
  ferroflash kernels --dtype bf16 --head-dim 128
  ferroflash kernels --config flashcore/64x32-persistent
  ferroflash kernels --json")]
pub(super) struct Args {
    /// Only kernels of this element type: f16 or bf16.
    #[arg(long, value_parser = super::options::dtype)]
    dtype: Option<DType>,
    /// Only kernels that a head dim of this size runs on.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    head_dim: Option<u32>,
    /// Only kernels of this mask: full, causal or local.
    #[arg(long, value_parser = ["full", "causal", "local"])]
    mask: Option<String>,
    /// Only the kernels of this name: a kernel's own, or one of the lineage's configurations.
    #[arg(long, value_name = "NAME")]
    config: Option<String>,
}

#[derive(Serialize)]
struct Report {
    kernels: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    dtype: &'static str,
    head_dim: u32,
    mask: &'static str,
    schedule: &'static str,
    /// What multiplies tiles.
    path: &'static str,
    /// Which blocks a launch has.
    grid: &'static str,
    /// Its names in the lineage: only by these or its own is it ever chosen.
    lineage: Vec<&'static str>,
    tile_m: u32,
    tile_n: u32,
    stages: u32,
    threads: u32,
    shared_memory_bytes: u32,
    min_blocks_per_sm: u32,
}

impl From<&EntryInfo> for Row {
    fn from(e: &EntryInfo) -> Self {
        Row {
            name: e.contract.symbol,
            dtype: e.dtype.name(),
            head_dim: e.head_dim,
            mask: e.mask.name(),
            schedule: e.schedule.name(),
            path: e.path.name(),
            grid: match e.grid {
                Grid::OneTileABlock => "one tile a block",
                Grid::Persistent => "persistent",
                Grid::Split => "several blocks a tile",
                Grid::Packed => "packed sequences",
            },
            lineage: lineage::names(e).collect(),
            tile_m: e.tile_m,
            tile_n: e.tile_n,
            stages: e.stages,
            threads: e.contract.threads,
            shared_memory_bytes: e.contract.smem_bytes,
            min_blocks_per_sm: e.contract.min_blocks_per_sm,
        }
    }
}

pub(super) fn run(args: Args, console: &Console) -> Result<(), Error> {
    let named = super::options::entries(args.config.as_deref())?;
    let holds = |e: &&EntryInfo| {
        let next = |d: u32| ENTRIES.iter().map(|e| e.head_dim).filter(|held| *held >= d).min();
        args.dtype.is_none_or(|dtype| e.dtype == dtype)
            && args.head_dim.is_none_or(|d| next(d) == Some(e.head_dim))
            && named.contains(e)
            && args.mask.as_ref().is_none_or(|mask| e.mask.name() == mask)
    };
    let kernels: Vec<Row> = entries().filter(holds).map(Row::from).collect();
    if kernels.is_empty() {
        return Err(Error::Invalid("no kernel is like that; `ferroflash kernels` lists all of them".into()));
    }
    console.report(&Report { kernels }, Ok(()))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.kernels.iter().map(|row| row.name.len()).max().unwrap_or(0);
        writeln!(f, "{:name$}  {:>9}  stages  threads  shared memory  how", "kernel", "tile")?;
        for row in &self.kernels {
            let tile = format!("{} x {}", row.tile_m, row.tile_n);
            let shared = f64::from(row.shared_memory_bytes) / 1024.0;
            write!(f, "{:name$}  {tile:>9}  {:>6}  {:>7}", row.name, row.stages, row.threads)?;
            let how = [row.schedule, row.path, row.grid].join(", ");
            let lineage = row.lineage.iter().map(|name| format!("; {name}")).collect::<String>();
            writeln!(f, "  {shared:>9.1} KiB  {how}{lineage}")?;
        }
        writeln!(f, "{} kernels", self.kernels.len())
    }
}
