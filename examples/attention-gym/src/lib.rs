//! The variants that requests can name with `AttentionRequest::variant`.
use ferroflash::configuration::{Causal, Scored};
use ferroflash::variant;
use ferroflash::variant::Variant;
pub use gym_kernels::*;

pub static DRAFTS: Variant<Drafts> = variant!("drafts", gym_kernels::{drafts_d64});
pub static DILATED: Variant<Dilated> = variant!("dilated", gym_kernels::{dilated_d64});
pub static GLOBAL_WINDOW: Variant<GlobalWindow> = variant!("global-window", gym_kernels::{global_window_d64});
pub static VIDEO_TILES: Variant<VideoTiles> = variant!("video-tiles", gym_kernels::{video_tiles_d64});
pub static SPATIAL: Variant<Spatial> = variant!("spatial", gym_kernels::{spatial_d64});
pub static TEMPORAL: Variant<Temporal> = variant!("temporal", gym_kernels::{temporal_d64});
pub static DIFFUSION: Variant<Diffusion> = variant!("diffusion", gym_kernels::{diffusion_d64});
pub static SHARED_PREFIX: Variant<SharedPrefix> = variant!("shared-prefix", gym_kernels::{shared_prefix_d64});
pub static IMAGES: Variant<Images> = variant!("images", gym_kernels::{images_d64});
pub static RELU: Variant<Scored<Causal, Relu>> =
    variant!("relu", gym_kernels::{relu_d64, relu_dkdv_d64, relu_dq_d64});
