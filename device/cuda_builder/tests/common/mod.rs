//! Compiles the kernels of `fixtures/std`, and runs them in the simulator.

use std::path::Path;

use cuda_builder::CudaBuilder;
use ptx_sim::{Gpu, Launch, Options, Profile};

/// Builds `fixtures/std`.
pub fn std() -> CudaBuilder {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/std");
    CudaBuilder::new(fixture).jobs(1)
}

/// Launches the module's only kernel with pointers to `buffers`, and returns the contents of the buffers
/// afterwards.
///
/// # Panics
/// Panics if the simulator reports an error.
#[track_caller]
pub fn run(
    module: &cuda_builder::Module,
    grid: [u32; 3],
    block: [u32; 3],
    buffers: &[Vec<u8>],
) -> Vec<Vec<u8>> {
    let (symbol, text) = (module.contract.symbol, &module.text);
    let parsed = ptx_sim::Module::parse(text).unwrap_or_else(|e| panic!("{symbol}: {e}\n{text}"));
    let mut gpu = Gpu::new(Profile::by_name("a100").unwrap(), Options::default());
    let mut addresses = Vec::new();
    for (n, bytes) in buffers.iter().enumerate() {
        let address = gpu.alloc(&format!("buffer {n}"), bytes.len(), 256).unwrap();
        gpu.write(address, bytes).unwrap();
        addresses.push(address);
    }
    let params: Vec<u8> = addresses.iter().flat_map(|a| a.to_le_bytes()).collect();
    let launch = Launch { dynamic_smem: 512, ..Launch::new(grid, block, &params) };
    let outcome = gpu.launch(&parsed, symbol, &launch).unwrap_or_else(|e| panic!("{symbol}: {e}\n{text}"));
    assert!(outcome.reports.is_empty(), "{symbol}: {:?}\n{text}", outcome.reports);
    let read = |(bytes, &address): (&Vec<u8>, &u64)| {
        let mut bytes = bytes.clone();
        gpu.read(address, &mut bytes).unwrap();
        bytes
    };
    buffers.iter().zip(&addresses).map(read).collect()
}
