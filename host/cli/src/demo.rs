//! `ferroflash demo`: the first command to try.
use super::console::Console;
use super::device::Device;
use super::error::Error;
use super::files::{self, Stored};
use super::options::DeviceOptions;
use super::run;
use ferroflash::DType;
use ferroflash::plan::Problem;
use ferroflash::request::Mask;
use reference::{Layout, Memory};
use std::path::PathBuf;

/// Seed of the demo's input.
const SEED: u64 = 2026;

/// Compute causal attention on a small input and check the result against the f64 reference.
///
/// The demo runs on the GPU, or in the simulator if the machine has no GPU. The report names the device.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  ferroflash demo
  ferroflash demo --device sim --profile a100
  ferroflash demo --save-input qkv.safetensors
  ferroflash run --input qkv.safetensors --causal --check     on the saved input")]
pub(super) struct Args {
    #[command(flatten)]
    device: DeviceOptions,
    /// Also write the input (q, k, v) to this file.
    #[arg(long, value_name = "FILE")]
    save_input: Option<PathBuf>,
}

pub(super) fn run(args: Args, console: &Console) -> Result<(), Error> {
    let problem = Problem::new(DType::F16, 1, 128, 2, 64).mask(Mask::Causal);
    let memory = Memory::random(problem, Layout::Bshd, SEED);
    if let Some(path) = &args.save_input {
        let tensor = |place: reference::Place| Stored {
            dtype: problem.dtype,
            shape: place.shape,
            bits: memory.buffers[place.buffer].clone(),
        };
        files::write_qkv(path, &[memory.q, memory.k, memory.v].map(tensor))?;
    }
    let device = Device::open(&args.device, console)?;
    // On the CPU, the result is the reference itself, so there is nothing to check.
    let check = device.runner().is_some();
    run::attention(&device, &memory, None, check, console, |_| Ok(None))
}
