//! The scale of a latent cache of eight bits.
use crate::errors::invalid;
use candle::Result;
use ferroflash::DType;
use ferroflash::request::{KvPages, KvScale};

/// The scale of a latent cache of u8, which holds e4m3.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum LatentScale {
    /// One scale, above 0: a number of a row is the stored number times the scale.
    Number(f32),
    /// Each row has its own scales. A row is 656 bytes, for 576 columns: 512 e4m3, 4 f32, which are the
    /// scales of 128 e4m3 each, and 64 bf16 (FlashMLA's `is_fp8_kvcache`, vLLM's `fp8_ds_mla`). Queries are
    /// bf16 with 576 columns, and values are at most the first 512 columns.
    InRows,
}

impl LatentScale {
    /// Gives the pages of a latent cache this scale.
    pub(crate) fn give<M>(self, mut pages: KvPages<M>) -> Result<KvPages<M>> {
        let of = pages.keys.dtype;
        if of != DType::E4m3 {
            let value = format_args!("{self:?} of a cache of {}", of.name());
            return Err(invalid("latent_scale", value, "the cache must be u8; leave latent_scale None"));
        }
        Ok(match self {
            LatentScale::Number(scale) => pages.scales(KvScale::Value(scale), KvScale::One),
            LatentScale::InRows => {
                (pages.keys.dtype, pages.values.dtype) = (DType::E4m3Scaled, DType::E4m3Scaled);
                pages
            }
        })
    }
}
