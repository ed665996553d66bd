//! Compiles the kernels to PTX in `OUT_DIR`, where `variant!` finds the files.
use kernels::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let contracts = [
        causal_f16_d64::CONTRACT,
        causal_f16_d64_short::CONTRACT,
        causal_f16_d128::CONTRACT,
        softcap_f16_d64::CONTRACT,
        softcap_f16_d128::CONTRACT,
        alibi_f16_d64::CONTRACT,
        alibi_f16_d128::CONTRACT,
        natten_f16_d64::CONTRACT,
        natten_f16_d128::CONTRACT,
        natten_bf16_d64::CONTRACT,
        natten_bf16_d128::CONTRACT,
        natten_lists_d64::CONTRACT,
        natten_lists_d128::CONTRACT,
        blocks_f16_d64::CONTRACT,
        blocks_f16_d128::CONTRACT,
        blocks_bf16_d64::CONTRACT,
        blocks_bf16_d128::CONTRACT,
    ];
    let kernels = cuda_builder::CudaBuilder::new("kernels").entries(contracts);
    kernels.copy_to(std::env::var("OUT_DIR")?).build()?.emit_rerun_if_changed();
    Ok(())
}
