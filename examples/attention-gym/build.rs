//! Compiles the kernels to PTX in `OUT_DIR`, where `variant!` finds the files.
use gym_kernels::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let contracts = [
        drafts_d64::CONTRACT,
        dilated_d64::CONTRACT,
        global_window_d64::CONTRACT,
        video_tiles_d64::CONTRACT,
        spatial_d64::CONTRACT,
        temporal_d64::CONTRACT,
        diffusion_d64::CONTRACT,
        shared_prefix_d64::CONTRACT,
        images_d64::CONTRACT,
        relu_d64::CONTRACT,
        relu_dkdv_d64::CONTRACT,
        relu_dq_d64::CONTRACT,
    ];
    let kernels = cuda_builder::CudaBuilder::new("kernels").entries(contracts);
    kernels.copy_to(std::env::var("OUT_DIR")?).build()?.emit_rerun_if_changed();
    Ok(())
}
