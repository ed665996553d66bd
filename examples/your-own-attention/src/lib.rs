//! The variants that requests can name with `AttentionRequest::variant`.
use ferroflash::spec::{Causal, Scored};
use ferroflash::variant;
use ferroflash::variant::Variant;
pub use kernels::{Documents, Neighbours, NeighboursParams, Streaming, StreamingParams, T5, T5Params, exact};

pub static STREAMING: Variant<Streaming> =
    variant!("streaming", kernels::{streaming_d64, streaming_decode_d64});
pub static DOCUMENTS: Variant<Documents> = variant!("documents", kernels::{documents_d64});
pub static NEIGHBOURS: Variant<Neighbours> = variant!("neighbours", kernels::{neighbours_d64});
pub static T5_BIAS: Variant<Scored<Causal, T5>> = variant!("t5", kernels::{t5_d64, t5_varlen_d64});
