//! The properties of keys and values that planning uses: their columns, and the KV cache that contains them.
use super::Problem;
use crate::request::{KvCache, Paged};
use crate::{AttnInfo, DType};

/// The properties of a [`KvCache`] that planning uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheShape {
    /// Element type of keys and values.
    pub dtype: DType,
    /// Keys per page.
    pub page: usize,
    /// Whether 16 consecutive keys always lie in one page, if the first one's index is a multiple of 16.
    pub tiled: bool,
    /// Maximum number of keys of all sequences together, if known.
    pub total_k: Option<usize>,
    /// Whether values are the first columns of keys (MLA).
    pub latent: bool,
    /// Whether values have the strides of keys.
    pub equal_strides: bool,
}

impl CacheShape {
    pub(super) fn new(cache: &KvCache) -> Self {
        let page = cache.pages.keys.shape[1];
        let tiled = match cache.paged {
            Paged::Dense { .. } => true,
            Paged::Table { .. } => page.is_multiple_of(16),
        };
        let pages = &cache.pages;
        let (latent, equal_strides) = (pages.latent_columns().is_some(), pages.has_equal_strides());
        CacheShape { dtype: pages.keys.dtype, page, tiled, total_k: cache.total_k, latent, equal_strides }
    }
}

impl Problem {
    /// Whether a kernel takes the numbers of columns of keys and of values, and their strides.
    pub(crate) fn has_columns_for(&self, e: &AttnInfo) -> bool {
        e.takes_columns(self.columns()) && (e.has_own_values() || self.has_equal_strides())
    }

    /// Whether one index addresses keys and values in a KV cache. Tensors have no index.
    pub(crate) fn has_equal_strides(&self) -> bool {
        self.cache.is_none_or(|cache| cache.equal_strides)
    }

    /// Whether keys and values have equal numbers of columns, and in a KV cache equal strides.
    pub(crate) fn has_equal_rows(&self) -> bool {
        self.head_dim == self.head_dim_v && self.has_equal_strides()
    }

    /// Returns the number of columns of a latent cache's values, or `None` on other keys and values.
    pub(crate) fn latent(&self) -> Option<usize> {
        self.cache.filter(|cache| cache.latent).map(|_| self.head_dim_v)
    }
}
