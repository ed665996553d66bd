//! The properties of keys and values that planning uses: their columns, and the KV cache that contains them.
use super::{MAX_ROWS, Problem};
use crate::DType;
use crate::request::{KvCache, KvPages, Paged};
use spec::{Keys, MAX_SEQUENCES, PageKind, Pass, Precision, ProblemKind};

/// The properties of a [`KvCache`] that planning uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheShape {
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
    /// Whether each query has a list of keys.
    pub listed: bool,
}

impl CacheShape {
    pub(super) fn new(cache: &KvCache) -> Self {
        let page = cache.pages.keys.shape[1];
        let tiled = match cache.paged {
            Paged::Dense { .. } => true,
            Paged::Table { .. } => page.is_multiple_of(16),
        };
        let latent = cache.pages.latent_columns().is_some();
        CacheShape { tiled, total_k: cache.total_k, latent, listed: false, ..Self::listed(&cache.pages) }
    }

    /// The properties of lists of keys in these pages.
    pub(super) fn listed(pages: &KvPages) -> Self {
        let (KvPages { keys, values, .. }, equal_strides) = (pages, pages.has_equal_strides());
        // One row is a key and its value, so a value may have all columns of the key.
        let latent = keys.address == values.address && values.shape[3] <= keys.shape[3] && equal_strides;
        CacheShape { page: keys.shape[1], tiled: false, total_k: None, latent, equal_strides, listed: true }
    }
}

impl Problem {
    /// Returns the properties that decide which kernels solve the problem.
    pub fn kind(&self) -> ProblemKind {
        let pages = |cache: CacheShape| if cache.tiled { PageKind::Tiles } else { PageKind::Rows };
        let (most, own) = (MAX_SEQUENCES as usize, self.variant.is_some());
        let counted = self.batch <= most && self.batch.saturating_mul(self.seqlen_k) < 1 << 31;
        let equal_counts = match self.cache {
            Some(_) => self.varlen.is_none(),
            None => counted && self.is_bottom_right() && (self.varlen.is_none() || self.has_single_queries()),
        };
        // A state is f32 whatever dtype its kernel stores otherwise.
        let o_dtype = if self.leaves_state() { self.dtype } else { self.o_dtype };
        // Kernels of tensors that are e4m3 in any case have the dtype of O.
        let dtypes = if self.is_eight_bit() { [self.o_dtype; 2] } else { [self.dtype, self.kv_dtype] };
        ProblemKind {
            pass: Pass::Forward,
            precision: self.precision,
            dtype: dtypes[0],
            kv_dtype: dtypes[1],
            o_dtype,
            grad_dtype: self.grad_dtype,
            keys: match self.cache {
                Some(cache) if cache.listed => Keys::Listed,
                Some(cache) if cache.latent => Keys::Latent,
                Some(_) if matches!(self.precision, Precision::Fp8 | Precision::Int8Fp8) => {
                    Keys::OperandCache
                }
                Some(cache) => Keys::Cache(pages(cache)),
                None if self.precision != Precision::Inputs => Keys::Quantised,
                None if self.varlen.is_some() => Keys::Varlen,
                None => Keys::Batched,
            },
            varlen: self.varlen.is_some(),
            columns: self.columns(),
            equal_strides: self.cache.is_none_or(|cache| cache.equal_strides),
            mask: self.mask_kind(),
            scores: self.score_kinds(),
            softcap: self.softcap.is_some(),
            slopes: self.alibi,
            causal_slopes: self.has_causal_slopes() && !own,
            maxima: false,
            few: self.precision == Precision::Inputs && equal_counts && self.rows() <= MAX_ROWS,
            mixed: self.cache.is_some() && self.varlen.is_some() && self.is_of_mixed_kernels() && !own,
            tile: self.block_tile,
        }
    }

    /// Returns whether O is a partial state in f32, which only kernels with split-KV write.
    pub(crate) fn leaves_state(&self) -> bool {
        self.o_dtype == DType::F32
    }

    /// Returns whether Q, K and V are tensors of e4m3, which no kernel rounds.
    pub(crate) fn is_eight_bit(&self) -> bool {
        [self.dtype, self.kv_dtype] == [DType::E4m3; 2] && self.cache.is_none()
    }

    /// Returns whether the kernels of mixed batches take the scores and the number of sequences.
    pub(crate) fn is_of_mixed_kernels(&self) -> bool {
        !self.alibi && self.bias.is_none() && self.batch <= MAX_SEQUENCES as usize
    }

    /// Returns the number of columns of a latent cache's values, or `None` on other keys and values.
    pub(crate) fn latent(&self) -> Option<usize> {
        self.cache.filter(|cache| cache.latent).map(|_| self.head_dim_v)
    }
}
