//! The variants that requests can name with `AttentionRequest::variant`.
use ferroflash::configuration::{Causal, Scored};
use ferroflash::variant;
use ferroflash::variant::Variant;
pub use kernels::*;

pub static STREAMING: Variant<Streaming> =
    variant!("streaming", kernels::{streaming_d64, streaming_decode_d64});
pub static DOCUMENTS: Variant<Documents> =
    variant!("documents", kernels::{documents_d64, documents_dkdv_d64, documents_dq_d64});
pub static PREFIX_LM: Variant<PrefixLm> = variant!("prefix-lm", kernels::{prefix_d64, prefix_paged_d64});
pub static CHUNKS: Variant<Chunks> = variant!("chunks", kernels::{chunked_d64});
pub static NEIGHBOURS: Variant<Neighbours> = variant!("neighbours", kernels::{neighbours_d64});
pub static TREE: Variant<Tree> = variant!("tree", kernels::{tree_paged_d64, tree_decode_d64});
pub static T5_BIAS: Variant<Scored<Causal, T5>> =
    variant!("t5", kernels::{t5_d64, t5_varlen_d64, t5_decode_d64, t5_dkdv_d64, t5_dq_d64, t5_table_d64});
pub static ALIBI: Variant<Scored<Causal, Alibi>> =
    variant!("alibi", kernels::{alibi_d64, alibi_dkdv_d64, alibi_dq_d64, alibi_table_d64});
pub static CAPPED_WINDOW: Variant<CappedWindow> = variant!(
    "capped-window",
    kernels::{capped_window_d64, capped_window_dkdv_d64, capped_window_dq_d64}
);
