//! Options that several commands share.
use super::error::Error;
use clap::ValueEnum;
use clap::builder::PossibleValuesParser;
use ferroflash::DType;
use ferroflash::kernels::AttnInfo;
use ferroflash::plan::Problem;
use ferroflash::request::{Alignment, Invariance, Mask, Precision, Prefix};
use reference::{Layout, Subject};

/// Options of the mask and of the score transformations.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct ScoreOptions {
    /// Causal mask: a query sees the keys up to its own position.
    #[arg(long, group = "mask")]
    causal: bool,
    /// Sliding window: a query sees the keys from L before its position to R after it, both inclusive. -1 is
    /// unbounded. `--window 255,0` is a causal window of 256 keys.
    #[arg(long, value_name = "L,R", value_parser = window, allow_hyphen_values = true, group = "mask")]
    window: Option<Mask>,
    /// Prefix-LM mask: a query sees the keys up to its own position, and also the first N keys.
    #[arg(long, value_name = "N", group = "mask")]
    prefix: Option<u32>,
    /// Chunked-local mask (Llama 4): a query at position P sees the keys from P / N * N up to P.
    #[arg(long, value_name = "N", group = "mask", value_parser = clap::value_parser!(u32).range(1..))]
    chunked: Option<u32>,
    /// The tensor mask_bits has bits for the last N keys of a sequence [default: for all keys if a row is
    /// long enough, otherwise for the last seqlen_q keys].
    #[arg(long, value_name = "N", conflicts_with = "mask")]
    pub mask_keys: Option<usize>,
    /// Top-left alignment: query 0 has the position of key 0 (PyTorch's is_causal). The default is
    /// bottom-right: the last query has the position of the last key (FlashAttention).
    #[arg(long)]
    top_left: bool,
    /// Softmax scale, above 0 [default: 1 / sqrt(head_dim)].
    #[arg(long, allow_hyphen_values = true)]
    scale: Option<f32>,
    /// Replace each score by CAP * tanh(score / CAP). 0 turns it off.
    #[arg(long, value_name = "CAP", allow_hyphen_values = true)]
    softcap: Option<f32>,
    /// Precision of the products. A lower precision than that of the inputs is less accurate, and faster only
    /// where the products take most of the time: see docs/accuracy.md and docs/limits.md.
    #[arg(long, value_enum, default_value_t)]
    precision: PrecisionOption,
    /// Batch invariance. batch: the bits of a sequence depend on its own tensors and lengths only. chunks:
    /// they also do not depend on how its queries are divided among launches.
    #[arg(long, value_name = "OF", num_args = 0..=1, default_missing_value = "batch")]
    invariant: Option<Invariant>,
}

/// The precision of the products.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum PrecisionOption {
    /// of the inputs' elements
    #[default]
    Inputs,
    /// scores of int8; dense and varlen tensors, full and causal masks and windows, softcap, slopes
    #[value(name = "int8-f16")]
    Int8F16,
    /// scores of int8, probabilities and values of e4m3; dense and varlen tensors, and I8 caches with more
    /// than 64 rows (queries x query heads per key head), full and causal masks and windows, softcap, slopes,
    /// compute capability 8.9, and 10.0 and newer
    Int8Fp8,
    /// queries, keys, values and probabilities of e4m3; dense and varlen tensors, and F8_E4M3 caches with
    /// more than 64 rows (queries x query heads per key head), full and causal masks and windows, softcap,
    /// compute capability 9.0
    Fp8,
}

/// The bits of a sequence do not depend on these.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Invariant {
    /// The batch.
    Batch,
    /// The batch, and the division of queries among launches.
    Chunks,
}

impl ScoreOptions {
    fn mask(&self) -> Mask {
        let prefix = self.prefix.map(|keys| Mask::Prefix(Prefix::All(keys)));
        let chunked = self.chunked.map(|chunk| Mask::Chunked { chunk });
        let plain = if self.causal { Mask::Causal } else { Mask::Full };
        self.window.or(prefix).or(chunked).unwrap_or(plain)
    }

    /// Returns the option that names the mask, if any.
    pub(super) fn mask_option(&self) -> Option<&'static str> {
        let options = [
            ("--causal", self.causal),
            ("--window", self.window.is_some()),
            ("--prefix", self.prefix.is_some()),
            ("--chunked", self.chunked.is_some()),
        ];
        options.into_iter().find(|(_, is_given)| *is_given).map(|(name, _)| name)
    }

    /// Applies these options to `problem`.
    pub(super) fn of(&self, mut problem: Problem) -> Problem {
        problem.scale = self.scale;
        problem.invariance = match self.invariant {
            None => Invariance::None,
            Some(Invariant::Batch) => Invariance::Batch,
            Some(Invariant::Chunks) => Invariance::BatchAndChunks,
        };
        problem
            .mask(self.mask())
            .alignment(if self.top_left { Alignment::TopLeft } else { Alignment::BottomRight })
            .softcap(self.softcap.unwrap_or_default())
            .precision(match self.precision {
                PrecisionOption::Inputs => Precision::Inputs,
                PrecisionOption::Int8F16 => Precision::Int8F16,
                PrecisionOption::Int8Fp8 => Precision::Int8Fp8,
                PrecisionOption::Fp8 => Precision::Fp8,
            })
    }
}

/// The order of a tensor's sizes in a file.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(super) enum FileLayout {
    /// [batch, seqlen, heads, head_dim], FlashAttention's
    #[default]
    Bshd,
    /// [batch, heads, seqlen, head_dim], PyTorch's
    Bhsd,
}

impl From<FileLayout> for Layout {
    fn from(layout: FileLayout) -> Self {
        match layout {
            FileLayout::Bshd => Layout::Bshd,
            FileLayout::Bhsd => Layout::Bhsd,
        }
    }
}

/// The default card of the simulator.
pub(super) const PROFILE: &str = "l4";

/// The help of `--device` for a command that needs a GPU.
pub(super) const ONLY_GPU: &str = "\
The GPU that the command measures. auto and gpu: CUDA device 0; gpu:1: CUDA device 1. On a machine without a \
GPU, the command fails with exit code 3";

/// The help of `--device` for a command that needs a GPU, and has a dry run in the simulator.
pub(super) const GPU_OR_DRY_RUN: &str = "\
The device of the kernels. auto: the GPU, or the simulator if --profile is given. gpu: CUDA device 0; gpu:1: \
CUDA device 1. sim: a dry run in the simulator. On a machine without a GPU, the command fails with exit code \
3, unless the simulator is requested";

/// The device that computes attention.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct DeviceOptions {
    /// Where attention runs. auto: the GPU, or the simulator if the machine has no GPU or --profile is given.
    /// gpu: CUDA device 0; gpu:1: CUDA device 1. sim: the simulator, which runs the kernels' PTX on the CPU
    /// and checks every access. cpu: the f64 reference, without a kernel.
    #[arg(long, value_name = "DEVICE", value_parser = device, default_value = "auto")]
    device: DeviceKind,
    /// The GPU that the simulator models [default: l4].
    #[arg(long, value_parser = profile())]
    profile: Option<String>,
}

impl DeviceOptions {
    /// Returns the simulated card.
    pub(super) fn profile(&self) -> &str {
        self.profile.as_deref().unwrap_or(PROFILE)
    }

    /// Returns the requested kind of device; a profile requests the simulator.
    ///
    /// # Errors
    /// Returns an error if a profile is given for a device other than the simulator.
    pub(super) fn kind(&self) -> Result<DeviceKind, Error> {
        match (self.device, &self.profile) {
            (DeviceKind::Auto, Some(_)) => Ok(DeviceKind::Sim),
            (DeviceKind::Gpu(_) | DeviceKind::Cpu, Some(profile)) => Err(Error::Invalid(format!(
                "--profile {profile}: only the simulator takes a profile; use --device sim, or leave it out"
            ))),
            (kind, _) => Ok(kind),
        }
    }

    /// Returns the ordinal of the requested GPU. Without a number from the user, the ordinal is 0.
    pub(super) fn ordinal(&self) -> u32 {
        if let DeviceKind::Gpu(ordinal) = self.device { ordinal } else { 0 }
    }

    /// Returns the options that make a child process use the same device: the simulator, or the GPU.
    pub(super) fn words(&self, simulated: bool) -> Vec<String> {
        match simulated {
            true => ["--device", "sim", "--profile", self.profile()].map(str::to_owned).into(),
            false => vec!["--device".into(), format!("gpu:{}", self.ordinal())],
        }
    }

    /// Returns the requested GPU, for a command that only a GPU can run. `what` says why.
    ///
    /// # Errors
    /// Returns an error if another device was requested.
    pub(super) fn gpu(&self, what: &str) -> Result<u32, Error> {
        match self.kind()? {
            DeviceKind::Auto | DeviceKind::Gpu(_) => Ok(self.ordinal()),
            DeviceKind::Sim | DeviceKind::Cpu => {
                Err(Error::Invalid(format!("{what}, and only a GPU has a meaningful time; use --device gpu")))
            }
        }
    }
}

/// Options of commands that run the table's kernels one after another.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct KernelOptions {
    /// Run only the kernel of this name, or the kernels of this configuration of the predecessor (`ferroflash
    /// kernels` lists both). The name of a combine kernel or of one pass of the backward runs all kernels
    /// whose launches have it. May be repeated.
    #[arg(long, value_name = "NAME")]
    pub config: Vec<String>,
    /// Seed of the inputs.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub device: DeviceOptions,
}

impl KernelOptions {
    /// Returns the requested kernels, of all families.
    ///
    /// # Errors
    /// Returns an error for a name that matches no kernel.
    pub(super) fn subjects(&self) -> Result<Vec<&'static dyn Subject>, Error> {
        all_of(&self.config, subjects)
    }
}

/// Returns the items with these names; without names, all items.
pub(super) fn all_of<T>(
    names: &[String],
    of: impl Fn(Option<&str>) -> Result<Vec<T>, Error>,
) -> Result<Vec<T>, Error> {
    if names.is_empty() {
        return of(None);
    }
    let each = names.iter().map(|name| of(Some(name)));
    Ok(each.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// Returns the kernels of all families with this name: a kernel's symbol, the symbol of a kernel in their
/// launches, or a configuration of the lineage. Without a name, returns all kernels.
///
/// # Errors
/// Returns an error for a name that matches no kernel.
pub(super) fn subjects(name: Option<&str>) -> Result<Vec<&'static dyn Subject>, Error> {
    let own = name.map_or_else(|| reference::subjects().collect(), reference::subjects_with);
    if !own.is_empty() {
        return Ok(own);
    }
    Ok(entries(name)?.into_iter().map(|entry| entry as &dyn Subject).collect())
}

/// Returns the entries with this name: a symbol, or a configuration of the lineage. Without a name, returns
/// all entries.
///
/// # Errors
/// Returns an error for a name that matches no entry.
pub(super) fn entries(name: Option<&str>) -> Result<Vec<&'static AttnInfo>, Error> {
    match name {
        Some(name) => Ok(ferroflash::kernels::named(name)?),
        None => Ok(ferroflash::kernels::entries().collect()),
    }
}

/// A way to compute attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceKind {
    /// Use the GPU if there is one, otherwise the simulator.
    Auto,
    /// The CUDA device with this ordinal.
    Gpu(u32),
    /// The PTX simulator: the real kernels with all checks, on the CPU.
    Sim,
    /// The f64 reference; no kernel runs.
    Cpu,
}

/// Parses a device.
fn device(text: &str) -> Result<DeviceKind, String> {
    match text {
        "auto" => Ok(DeviceKind::Auto),
        "gpu" => Ok(DeviceKind::Gpu(0)),
        "sim" => Ok(DeviceKind::Sim),
        "cpu" => Ok(DeviceKind::Cpu),
        _ => text
            .strip_prefix("gpu:")
            .and_then(|number| number.parse().ok())
            .map(DeviceKind::Gpu)
            .ok_or_else(|| "it must be auto, gpu, gpu:N (CUDA device N), sim or cpu".into()),
    }
}

/// Parses an element type.
pub(super) fn dtype(text: &str) -> Result<DType, String> {
    let all = [DType::F16, DType::Bf16];
    let caches =
        if text == DType::E4m3.name() { ": only a KV cache may be e4m3, queries may not" } else { "" };
    let wrong = || format!("it must be f16 or bf16{caches}");
    all.into_iter().find(|dtype| dtype.name() == text).ok_or_else(wrong)
}

/// Parses the name of a card that can be simulated.
pub(super) fn profile() -> PossibleValuesParser {
    PossibleValuesParser::new(ferroflash::Capabilities::PROFILES.iter().map(|(name, _)| *name))
}

fn window(text: &str) -> Result<Mask, String> {
    let side = |text: &str| match text.trim() {
        "-1" => Some(None),
        number => number.parse::<u32>().ok().map(Some),
    };
    let sides = text.split_once(',').and_then(|(left, right)| Some((side(left)?, side(right)?)));
    let (left, right) =
        sides.ok_or("it must be two numbers like 255,0, each 0 or more, or -1 for unbounded")?;
    Ok(Mask::Window { left, right })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices() {
        assert_eq!(device("gpu"), Ok(DeviceKind::Gpu(0)));
        assert_eq!(device("gpu:3"), Ok(DeviceKind::Gpu(3)));
        for text in ["", "gpu:", "gpu:-1", "gpu:x", "tpu", "GPU"] {
            assert!(device(text).is_err(), "{text}");
        }
    }

    #[test]
    fn windows() {
        let sides = |left, right| Ok(Mask::Window { left, right });
        assert_eq!(window("255,0"), sides(Some(255), Some(0)));
        assert_eq!(window("-1, 7"), sides(None, Some(7)));
        for text in ["", "3", "3,", "-2,0", "a,b", "1,2,3", "4294967296,0"] {
            assert!(window(text).is_err(), "{text}");
        }
    }
}
