//! Attention on tensors and KV caches on a GPU.
mod append;
pub(crate) mod backward;
mod cache;
mod extras;
pub(crate) mod forward;
mod here;
mod inputs;
mod latent;
mod latent_scale;
mod listed;
mod merge;
pub(crate) mod paged;
mod pages;
mod parts;
pub(crate) mod ranges;
mod rotary;
pub(crate) mod run;
mod shared;
mod step;

pub use append::{
    CacheScales, append, append_latent, append_latent_rotary, append_latent_scaled, append_rotary,
};
pub use cache::KvCache;
pub use latent::LatentCache;
pub use latent_scale::LatentScale;
pub use listed::ListedKv;
pub use merge::merge;
pub use paged::{PagedKv, SharedPages};
pub use pages::{PagePool, Sequence};
pub use rotary::RotaryTable;
pub use step::Step;
