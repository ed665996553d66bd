//! Masks and scores of attention-gym, FlexAttention's collection, beside those of the template
//! `your-own-attention`.
#![no_std]
mod masks;
mod relu;
mod video;

#[cfg(not(target_arch = "nvptx64"))]
pub use kernels_gpu::exact;
use kernels_gpu::prelude::*;
pub use masks::*;
pub use relu::*;
pub use video::*;

/// Tiles of 128 queries and 64 keys for head dim 64.
type Large<Mask> = Fwd<F16, Mask, 8, 2, 1, 4, 4, 4, 2>;
/// Tiles of 128 queries and 32 keys, for functions that need many registers.
type Small<Mask> = Fwd<F16, Mask, 8, 2, 1, 2, 4, 4, 2>;

entry!(drafts_d64: With<Large<Drafts>>);
entry!(dilated_d64: With<Small<Dilated>>);
entry!(global_window_d64: With<Small<GlobalWindow>>);
entry!(video_tiles_d64: With<Small<VideoTiles>>);
entry!(spatial_d64: With<Large<Spatial>>);
entry!(temporal_d64: With<Small<Temporal>>);
entry!(diffusion_d64: With<Small<Diffusion>>);
entry!(shared_prefix_d64: With<Small<SharedPrefix>>);
entry!(images_d64: With<Small<Images>>);
entry!(relu_d64: With<Large<Scored<Causal, Relu>>>);
entry!(relu_dkdv_d64: With<BwdDkDv<F16, Scored<Causal, Relu>, 8, 1, 2, 1, 4, 4, 4, 2>>);
entry!(relu_dq_d64: With<BwdDq<F16, Scored<Causal, Relu>, 8, 1, 2, 4, 0, 2>>);
