//! Compiles the kernels to PTX in `OUT_DIR`, where `variant!` finds the files.
use kernels::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let contracts = [
        streaming_d64::CONTRACT,
        streaming_decode_d64::CONTRACT,
        documents_d64::CONTRACT,
        documents_dkdv_d64::CONTRACT,
        documents_dq_d64::CONTRACT,
        prefix_d64::CONTRACT,
        prefix_paged_d64::CONTRACT,
        chunked_d64::CONTRACT,
        neighbours_d64::CONTRACT,
        tree_paged_d64::CONTRACT,
        tree_decode_d64::CONTRACT,
        t5_d64::CONTRACT,
        t5_varlen_d64::CONTRACT,
        t5_decode_d64::CONTRACT,
        t5_dkdv_d64::CONTRACT,
        t5_dq_d64::CONTRACT,
        t5_table_d64::CONTRACT,
        alibi_d64::CONTRACT,
        alibi_dkdv_d64::CONTRACT,
        alibi_dq_d64::CONTRACT,
        alibi_table_d64::CONTRACT,
        capped_window_d64::CONTRACT,
        capped_window_dkdv_d64::CONTRACT,
        capped_window_dq_d64::CONTRACT,
    ];
    let kernels = cuda_builder::CudaBuilder::new("kernels").entries(contracts);
    kernels.copy_to(std::env::var("OUT_DIR")?).build()?.emit_rerun_if_changed();
    Ok(())
}
