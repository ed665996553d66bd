//! Attention variants of our own. Each defines which keys a query sees, and how its scores change.
#![no_std]
mod masks;
mod scores;

#[cfg(not(target_arch = "nvptx64"))]
pub use kernels_gpu::exact;
use kernels_gpu::prelude::*;
pub use masks::*;
pub use scores::*;

/// A window, a softcap and an attention sink at once (gpt-oss, Gemma 2).
pub type CappedWindow = Scored<Window, (Softcap, Sink)>;

/// Tiles of 128 queries and 64 keys for head dim 64. `docs/your-own-attention.md` has measurements.
type Large<Mask> = Fwd<F16, Mask, 8, 2, 1, 4, 4, 4, 2>;
/// Tiles of 128 queries and 32 keys. These tiles need half the registers for scores, which helps functions
/// that need many registers.
type Small<Mask> = Fwd<F16, Mask, 8, 2, 1, 2, 4, 4, 2>;
/// Blocks of 16 rows, for few queries on a KV cache.
type Few<Mask> = Decode<F16, F16, Mask, Rows, 2, 4, 8, 3>;
/// Gradients of keys and values: tiles of 128 keys and 32 queries. FerroFlash's own kernels take 64 queries
/// at once (4 instead of 2), if the functions leave enough registers.
type KeyGradients<Mask> = BwdDkDv<F16, Mask, 8, 1, 2, 1, 4, 4, 4, 2>;
/// Gradients of queries: tiles of 128 queries and 32 keys.
type QueryGradients<Mask> = BwdDq<F16, Mask, 8, 1, 2, 4, 0, 2>;
/// Gradients of a table that scores read: tiles of 64 queries and 32 keys.
type TableGradients<Mask> = BwdTable<F16, Mask, 4, 1, 2, 4, 2>;

entry!(streaming_d64: With<Large<Streaming>>);
entry!(streaming_decode_d64: With<Few<Streaming>>);
entry!(documents_d64: With<Large<Documents>>);
entry!(documents_dkdv_d64: With<KeyGradients<Documents>>);
entry!(documents_dq_d64: With<QueryGradients<Documents>>);
entry!(prefix_d64: With<Large<PrefixLm>>);
entry!(prefix_paged_d64: With<Paged<Large<PrefixLm>>>);
entry!(chunked_d64: With<Large<Chunks>>);
entry!(neighbours_d64: With<Small<Neighbours>>);
entry!(tree_paged_d64: With<Paged<Large<Tree>>>);
entry!(tree_decode_d64: With<Few<Tree>>);
entry!(t5_d64: With<Small<Scored<Causal, T5>>>);
entry!(t5_varlen_d64: With<Varlen<Large<Scored<Causal, T5>>>>);
entry!(t5_decode_d64: With<Few<Scored<Causal, T5>>>);
entry!(t5_dkdv_d64: With<KeyGradients<Scored<Causal, T5>>>);
entry!(t5_dq_d64: With<QueryGradients<Scored<Causal, T5>>>);
entry!(t5_table_d64: With<TableGradients<Scored<Causal, T5>>>);
entry!(alibi_d64: With<Large<Scored<Causal, Alibi>>>);
entry!(alibi_dkdv_d64: With<KeyGradients<Scored<Causal, Alibi>>>);
entry!(alibi_dq_d64: With<QueryGradients<Scored<Causal, Alibi>>>);
entry!(alibi_table_d64: With<TableGradients<Scored<Causal, Alibi>>>);
entry!(capped_window_d64: With<Small<CappedWindow>>);
entry!(capped_window_dkdv_d64: With<KeyGradients<CappedWindow>>);
entry!(capped_window_dq_d64: With<QueryGradients<CappedWindow>>);
