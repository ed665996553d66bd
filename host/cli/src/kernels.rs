//! `ferroflash kernels`: the table of compiled kernels.
use super::{console::Console, error::Error};
use ferroflash::kernels::{AttnInfo, Contract};
use ferroflash::spec::{
    APPENDS, COMBINES, CONVERT_DQS, Class, DELTAS, DSINKS, EXTRAS, GRADIENTS, KERNELS, Keys, MERGES,
    PageKind, QUANTISES, Queries, STATISTICS, SUM_HEADS, SplitKernels, TileScheduler, attention,
};
use ferroflash::{DType, lineage};
use reference::Subject;
use serde::Serialize;
use std::fmt;

/// List every compiled kernel: tile, threads, shared memory, schedule.
///
/// The tile is queries per thread block x keys per stage. In kernels of dK and dV (bwd_dkdv, bwd_hopper), the
/// tile is keys per thread block x queries per stage. A head dim that no kernel has runs on the kernel
/// with the next larger head dim.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  ferroflash kernels
  ferroflash kernels --dtype bf16 --head-dim 128
  ferroflash kernels --family decode --mask local
  ferroflash kernels --config flashcore/64x32-persistent
  ferroflash kernels --json")]
pub(super) struct Args {
    /// List only kernels of this family: forward, split (split-KV), packed (varlen), hopper (sm_90a
    /// instructions), decode (few queries on a KV cache), mla (decode on a latent cache), sparse (a list of
    /// keys of a latent cache for each query), paged (many queries on a KV cache), mixed (few queries of some
    /// sequences and many of others on a KV cache), quantised (products of eight bits), append, merge,
    /// backward (in a build with the feature `training`).
    /// A Hopper kernel for varlen or paged attention is in both families.
    #[arg(long, value_parser = FAMILIES, hide_possible_values = true)]
    family: Option<String>,
    /// List only kernels whose queries have this element type: f16 or bf16.
    #[arg(long, value_parser = super::options::dtype)]
    dtype: Option<DType>,
    /// List only kernels that support this head dim.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    head_dim: Option<u32>,
    /// List only kernels of this mask: full, causal, local (windows, softcap), prefix (prefix-LM), chunked
    /// (chunked-local), bits (trees of drafts). Causal decode and paged kernels also compute the full mask.
    #[arg(long, value_parser = ["full", "causal", "local", "prefix", "chunked", "bits"])]
    mask: Option<String>,
    /// List only the kernel of this name, or the kernels of this configuration of the predecessor.
    #[arg(long, value_name = "NAME")]
    config: Option<String>,
}

const FAMILIES: [&str; 14] = [
    "forward",
    "split",
    "packed",
    "hopper",
    "decode",
    "mla",
    "sparse",
    "paged",
    "mixed",
    "quantised",
    "append",
    "merge",
    "extra",
    "backward",
];

#[derive(Serialize)]
struct Report {
    kernels: Vec<Row>,
}

/// A kernel. If a kernel's family does not have a field, the field is `None`.
#[derive(Default, Serialize)]
struct Row {
    name: &'static str,
    family: &'static str,
    /// Dtype of the inputs. If keys have another dtype than queries, this field has the dtype of queries.
    dtype: Option<&'static str>,
    /// Dtype of the KV cache, if it may differ from the dtype of queries.
    cache: Option<&'static str>,
    head_dim: Option<u32>,
    mask: Option<&'static str>,
    /// Whether the kernel adds attention sinks from its own parameters.
    sinks: Option<bool>,
    /// Element type of the kernel's bias.
    bias: Option<&'static str>,
    schedule: Option<&'static str>,
    /// The instructions that multiply tiles.
    path: Option<&'static str>,
    /// The blocks of a launch.
    grid: Option<&'static str>,
    /// The kernel's other properties.
    what: Option<String>,
    /// The kernel's aliases in the lineage. A lineage kernel runs only if the user requests it by a name.
    lineage: Vec<&'static str>,
    /// Queries per block; in kernels of dK and dV keys. In decode kernels, this number counts the queries of
    /// all heads that share a key head.
    tile_m: Option<u32>,
    tile_n: Option<u32>,
    stages: Option<u32>,
    threads: u32,
    shared_memory_bytes: u32,
    /// The GPUs that can run the kernel, for example `from sm_80`.
    target: String,
    min_blocks_per_sm: u32,
}

impl Row {
    fn new(family: &'static str, contract: &Contract) -> Self {
        Row {
            name: contract.symbol,
            family,
            threads: contract.threads,
            shared_memory_bytes: contract.smem_bytes,
            target: contract.target.to_string(),
            min_blocks_per_sm: contract.min_blocks_per_sm,
            ..Row::default()
        }
    }

    /// Returns the row of a kernel that runs beside attention.
    fn beside(
        family: &'static str,
        contract: &Contract,
        dtype: Option<DType>,
        head_dim: Option<u32>,
        what: impl Into<String>,
    ) -> Self {
        let (dtype, what) = (dtype.map(DType::name), Some(what.into()));
        Row { dtype, head_dim, what, ..Row::new(family, contract) }
    }
}

impl From<&AttnInfo> for Row {
    fn from(e: &AttnInfo) -> Self {
        let row = Row {
            dtype: Some(e.dtype.name()),
            head_dim: Some(e.head_dim),
            mask: Some(e.mask.name()),
            sinks: Some(e.scores.sink || e.decodes()),
            bias: e.scores.bias.map(DType::name),
            tile_m: Some(e.tile_m),
            ..Row::new(e.family(), &e.contract)
        };
        let persistent = e.scheduler == TileScheduler::Persistent;
        let (what, shows_tile) = match e.keys {
            Keys::Cache(pages) if e.decodes() => {
                let pages = match pages {
                    PageKind::Tiles => "pages of a multiple of 16 keys",
                    PageKind::Rows => "pages of any size",
                };
                let few = if e.queries == Queries::Mixed { ", sequences of few queries" } else { "" };
                (format!("{} warps share keys, {pages}{few}", e.warps()), false)
            }
            Keys::Latent => {
                (format!("{} warps share keys of a latent cache, {} stages", e.warps(), e.stages), true)
            }
            Keys::Listed => {
                (format!("{} warps share a query's list of keys, {} stages", e.warps(), e.stages), true)
            }
            Keys::Cache(_) => {
                let what = match (e.queries, persistent) {
                    (Queries::Mixed, _) => "one tile per block, on a KV cache, sequences of many queries",
                    (_, true) => "persistent, on a KV cache",
                    (_, false) => "one tile per block, on a KV cache",
                };
                (what.into(), true)
            }
            Keys::QuantisedAlone => (format!("precision {}, on quantised keys", e.precision().name()), true),
            Keys::Quantised => {
                (format!("precision {}, on quantised keys and values", e.precision().name()), true)
            }
            Keys::OperandCache => {
                let (precision, cache) = (e.precision().name(), e.kv_dtype.name());
                (format!("precision {precision}, on a KV cache of {cache}, quantised queries"), true)
            }
            Keys::Batched | Keys::Varlen => {
                return Row {
                    schedule: Some(e.schedule.name()),
                    path: Some(e.path.name()),
                    grid: Some(match (persistent, e.is_varlen(), e.splits) {
                        (false, false, false) => "one tile per block",
                        (false, false, true) => "several blocks per tile (split-KV)",
                        (false, true, _) => "varlen",
                        (true, true, _) => "persistent, varlen",
                        (true, false, true) => "persistent, split-KV",
                        (true, false, false) if e.has_maps() => "persistent, TMA",
                        (true, false, false) => "persistent",
                    }),
                    lineage: lineage::names(e).collect(),
                    tile_n: Some(e.tile_n),
                    stages: Some(e.stages),
                    ..row
                };
            }
        };
        // The keys of a quantised launch are no cache.
        let cache = (e.class() != Class::Quantised).then(|| e.kv_dtype.name());
        Row { cache, tile_n: shows_tile.then_some(e.tile_n), what: Some(what), ..row }
    }
}

/// Returns every kernel, family by family.
fn rows() -> Vec<Row> {
    let of_class = |class| attention().filter(move |e| e.class() == class).map(Row::from);
    let of_gradients = |beside| GRADIENTS.iter().filter(move |e| e.pass.is_beside() == beside).map(Row::from);
    let mut rows: Vec<_> = ferroflash::kernels::entries().map(Row::from).collect();
    let classes = [Class::Decode, Class::Latent, Class::Listed, Class::Paged, Class::Few, Class::Quantised];
    rows.extend(classes.into_iter().flat_map(of_class));
    rows.extend(STATISTICS.iter().map(Row::from));
    rows.extend(APPENDS.iter().map(|e| {
        let what = match e.rounds {
            Some([from, to]) => format!("new keys and values, from {} to {}", from.name(), to.name()),
            None => "new keys and values of 16 bits, without conversion".into(),
        };
        let cache = e.rounds.map(|[_, cache]| cache.name());
        Row { cache, ..Row::beside(e.family(), &e.contract, e.rounds.map(|[of, _]| of), None, what) }
    }));
    rows.extend(MERGES.iter().map(|e| {
        let what = format!("merges states of {} into one of {}", e.states.name(), e.output.name());
        Row::beside(e.family(), &e.contract, Some(e.states), None, what)
    }));
    rows.extend(EXTRAS.iter().map(|e| Row::beside("extra", &e.contract, None, None, e.what)));
    rows.extend(of_gradients(false).chain(of_gradients(true)));
    rows.extend(DELTAS.iter().map(|e| {
        let what = "two numbers per query, for the other backward kernels";
        Row::beside("backward", &e.contract, Some(e.dtype), Some(e.head_dim), what)
    }));
    rows.extend(CONVERT_DQS.iter().map(|e| {
        let what = "rounds the sums of dQ, which hopper backward kernels leave";
        Row::beside("hopper backward", &e.contract, Some(e.dtype), Some(e.head_dim), what)
    }));
    let what = "gradients of sinks";
    rows.extend(DSINKS.iter().map(|e| Row::beside("backward", &e.contract, None, None, what)));
    let what = "sums of dK and dV of blocks that share a key head";
    rows.extend(SUM_HEADS.iter().map(|e| Row::beside("backward", &e.contract, Some(e.dtype), None, what)));
    rows.extend(of_class(Class::Many));
    rows.extend(COMBINES.iter().map(|e| {
        let (family, what) = match e.of {
            SplitKernels::Prefill => ("split", "finishes split kernels"),
            SplitKernels::Decoding => ("decode", "finishes decode kernels"),
            SplitKernels::Seesaw => ("hopper mla", "finishes decode kernels"),
            SplitKernels::Mixed => ("mixed few", "finishes decode kernels"),
        };
        Row::beside(family, &e.contract, Some(e.dtype), Some(e.head_dim), what)
    }));
    rows.extend(QUANTISES.iter().map(|e| {
        let what = "quantises keys and values";
        Row::beside("quantised", &e.contract, Some(e.dtype), Some(e.head_dim), what)
    }));
    rows
}

pub(super) fn run(args: Args, console: &Console) -> Result<(), Error> {
    let mut kernels = rows();
    if let Some(wanted) = args.head_dim {
        // Among kernels for equal problems, the smallest kernel that takes the head dim is selected.
        let takes = |row: &Row| match row.family {
            "split" | "hopper" => ("forward", row.cache),
            "hopper packed" => ("packed", row.cache),
            "hopper paged" => ("paged", row.cache),
            family => (family, row.cache),
        };
        let held: Vec<_> = kernels.iter().map(|row| (takes(row), row.head_dim)).collect();
        kernels.retain(|row| {
            let like = held.iter().filter(|held| held.0 == takes(row));
            let next = like.filter_map(|held| held.1).filter(|held| *held >= wanted).min();
            row.head_dim.is_some() && row.head_dim == next
        });
    }
    if let Some(name) = &args.config {
        let named = match KERNELS.iter().any(|kernel| kernel.symbol == name) {
            true => vec![name.as_str()],
            false => super::options::entries(Some(name))?.iter().map(|e| e.contract.symbol).collect(),
        };
        kernels.retain(|row| named.contains(&row.name));
    }
    let is = |wanted: Option<&str>, own: Option<&str>| wanted.is_none() || wanted == own;
    kernels.retain(|row| {
        let family = |wanted: &String| row.family.split(' ').any(|word| word == wanted);
        args.family.as_ref().is_none_or(family)
            && is(args.dtype.map(DType::name), row.dtype)
            && is(args.mask.as_deref(), row.mask)
    });
    if kernels.is_empty() {
        return Err(Error::Invalid(
            "no kernel matches these options; `ferroflash kernels` lists all kernels".into(),
        ));
    }
    console.report(&Report { kernels }, Ok(()))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.kernels.iter().map(|row| row.name.len()).max().unwrap_or(0);
        let on = self.kernels.iter().map(|row| row.target.len()).max().unwrap_or(0);
        let head = ["kernel", "tile", "stages  threads  shared memory", "runs on"];
        writeln!(f, "{:name$}  {:>9}  {}  {:<on$}  how", head[0], head[1], head[2], head[3])?;
        for row in &self.kernels {
            let number = |number: Option<u32>| number.map_or("-".into(), |number| number.to_string());
            let tile = match (row.tile_m, row.tile_n) {
                (None, None) => "-".into(),
                (m, n) => format!("{} x {}", number(m), number(n)),
            };
            let shared = f64::from(row.shared_memory_bytes) / 1024.0;
            let stages = number(row.stages);
            write!(f, "{:name$}  {tile:>9}  {stages:>6}  {:>7}", row.name, row.threads)?;
            let how = [row.schedule, row.path, row.grid, row.what.as_deref()];
            let how = how.into_iter().flatten().collect::<Vec<_>>().join(", ");
            let lineage = row.lineage.iter().map(|name| format!("; {name}")).collect::<String>();
            writeln!(f, "  {shared:>9.1} KiB  {:<on$}  {how}{lineage}", row.target)?;
        }
        writeln!(f, "{} kernels", self.kernels.len())
    }
}
