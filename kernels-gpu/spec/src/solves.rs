//! Which problems a kernel solves. The host, the tests and callers' variants use this one predicate.
use crate::{AttnInfo, DType, Keys, MaskKind, PageKind, Pass, Precision, Queries, ScoreKinds};

/// The properties of a problem that decide which kernels solve it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProblemKind {
    /// The results.
    pub pass: Pass,
    /// The precision of the products.
    pub precision: Precision,
    /// Dtype of Q.
    pub dtype: DType,
    /// Dtype of K and V.
    pub kv_dtype: DType,
    /// Dtype of O.
    pub o_dtype: DType,
    /// Dtype of the gradients, if the results are gradients.
    pub grad_dtype: DType,
    /// The layout of keys and values. Tensors have no pages, so decode kernels for tiled pages take them.
    pub keys: Keys,
    /// Whether queries are varlen.
    pub varlen: bool,
    /// Columns of Q and K, and of V and O.
    pub columns: [usize; 2],
    /// Whether one index addresses keys and values in a KV cache.
    pub equal_strides: bool,
    /// The mask of the cheapest kernel.
    pub mask: MaskKind,
    /// The score modifications, without the request's slopes.
    pub scores: ScoreKinds,
    /// Whether the request has a softcap.
    pub softcap: bool,
    /// Whether the request has ALiBi slopes.
    pub slopes: bool,
    /// Whether the slopes stand under a causal mask without softcap, which kernels with
    /// [`ScoreKinds::alibi`] compute.
    pub causal_slopes: bool,
    /// Whether the caller wants the largest score of each row.
    pub maxima: bool,
    /// Whether decode kernels can take the queries: few rows, and equal query counts.
    pub few: bool,
    /// Whether the kernels of mixed batches can take the queries.
    pub mixed: bool,
    /// Queries and keys of a block of the block mask, if there is one.
    pub tile: Option<[u32; 2]>,
}

/// The class of a kernel: the kind of problems, or of parts of problems, that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Work tiles of dense tensors.
    Dense,
    /// Work tiles of varlen tensors.
    Varlen,
    /// Work tiles of dense or varlen tensors, which are quantised first.
    Quantised,
    /// Work tiles on a KV cache.
    Paged,
    /// Few queries on many keys.
    Decode,
    /// Few queries on a latent cache.
    Latent,
    /// Queries with lists of keys of a latent cache.
    Listed,
    /// The sequences of few queries of a mixed batch.
    Few,
    /// The sequences of many queries of a mixed batch.
    Many,
}

impl ProblemKind {
    /// The class of kernels that take the whole problem as work tiles, or, on a latent cache, at all.
    pub const fn class(&self) -> Class {
        match self.keys {
            Keys::Batched => Class::Dense,
            Keys::Varlen => Class::Varlen,
            Keys::Quantised | Keys::QuantisedAlone => Class::Quantised,
            Keys::Cache(_) | Keys::OperandCache => Class::Paged,
            Keys::Latent => Class::Latent,
            Keys::Listed => Class::Listed,
        }
    }

    /// Whether neither the mask nor the scores have parameters.
    pub fn is_plain(&self) -> bool {
        is_plain(self.mask, self.scores)
    }

    /// Whether keys and values have equal numbers of columns, and in a KV cache equal strides.
    pub const fn has_equal_rows(&self) -> bool {
        self.columns[0] == self.columns[1] && self.equal_strides
    }
}

/// Whether neither a mask nor scores have parameters.
fn is_plain(mask: MaskKind, scores: ScoreKinds) -> bool {
    matches!(mask, MaskKind::Full | MaskKind::Causal | MaskKind::Local) && scores == ScoreKinds::NONE
}

impl AttnInfo {
    /// Whether neither the mask nor the scores have parameters.
    pub fn is_plain(&self) -> bool {
        is_plain(self.mask, self.scores)
    }

    /// The kernel's class.
    pub const fn class(&self) -> Class {
        match (self.queries, self.keys) {
            (Queries::Mixed, _) if self.decodes() => Class::Few,
            (Queries::Mixed, _) => Class::Many,
            (_, Keys::Batched) => Class::Dense,
            (_, Keys::Varlen) => Class::Varlen,
            (_, Keys::Quantised | Keys::QuantisedAlone) => Class::Quantised,
            (_, Keys::Latent) => Class::Latent,
            (_, Keys::Listed) => Class::Listed,
            (_, Keys::Cache(_)) if self.decodes() => Class::Decode,
            (_, Keys::Cache(_) | Keys::OperandCache) => Class::Paged,
        }
    }

    /// Whether the kernel solves a problem, or, in a mixed batch, its part of the problem.
    pub fn solves(&self, p: &ProblemKind) -> bool {
        self.pass == p.pass
            && self.precision() == p.precision
            && self.has_dtypes_of(p)
            && self.has_columns_for(p)
            && self.reads(p)
            && self.computes(p)
            && p.tile.is_none_or(|tile| tile == [self.tile_m, self.tile_n])
    }

    /// Whether the kernel takes the dtypes of all tensors.
    pub fn has_dtypes_of(&self, p: &ProblemKind) -> bool {
        [self.dtype, self.kv_dtype, self.o_dtype] == [p.dtype, p.kv_dtype, p.o_dtype]
            && self.grad_dtype.is_none_or(|dtype| dtype == p.grad_dtype)
    }

    /// Whether the kernel takes the numbers of columns of keys and of values, and their strides.
    pub const fn has_columns_for(&self, p: &ProblemKind) -> bool {
        self.takes_columns(p.columns) && (self.has_own_values() || p.equal_strides)
    }

    /// Whether the kernel solves problems of a mask. Windows describe full and causal masks too. On a KV
    /// cache, causal kernels also run full masks. On a latent cache, the host accepts only windows without a
    /// left bound, which causal kernels run.
    pub const fn covers(&self, mask: MaskKind) -> bool {
        match (self.mask, mask) {
            (MaskKind::Local, MaskKind::Full | MaskKind::Causal) => true,
            (MaskKind::Causal, MaskKind::Full) => {
                !matches!(self.class(), Class::Dense | Class::Varlen | Class::Quantised)
            }
            (MaskKind::Causal, MaskKind::Local) => matches!(self.keys, Keys::Latent),
            _ => self.mask as u8 == mask as u8,
        }
    }

    /// Whether the kernel reads the problem's queries and keys.
    fn reads(&self, p: &ProblemKind) -> bool {
        let pages = matches!(self.keys, Keys::Cache(PageKind::Rows)) || p.keys != Keys::Cache(PageKind::Rows);
        match self.class() {
            Class::Decode => p.few && pages && !matches!(p.keys, Keys::Latent | Keys::Listed),
            Class::Few | Class::Many => p.mixed,
            Class::Quantised => p.class() == Class::Quantised && self.is_varlen() == p.varlen,
            class => class == p.class(),
        }
    }

    /// Whether the kernel computes the problem's mask and scores.
    pub fn computes(&self, p: &ProblemKind) -> bool {
        let sloped = p.causal_slopes && self.scores.alibi && self.mask == MaskKind::Causal;
        // Decode kernels take sinks, whatever their scores are. Above head dim 256, page lookups leave no
        // register for slopes.
        let sink = if self.decodes() { self.scores.sink } else { p.scores.sink };
        // Portable kernels write maxima without keeping them for it. No kernel keeps them in vain.
        let maxima = self.scores.maxima && p.maxima;
        let maps = self.has_maps() && self.pass == Pass::Forward;
        let slopes = self.class() == Class::Paged && self.head_dim > 256
            || self.decodes()
            || maps
            || self.is_unmodified();
        (sloped || self.covers(p.mask))
            && self.scores == (ScoreKinds { sink, alibi: sloped || p.scores.alibi, maxima, ..p.scores })
            && (!p.slopes || sloped || !slopes)
            && (!p.softcap || self.takes_softcap())
    }

    /// Whether the kernel computes a softcap. Forward kernels of bits do, too: their tests of the parameter
    /// cost less than kernels beside them.
    pub const fn takes_softcap(&self) -> bool {
        match self.mask {
            MaskKind::Local => !self.is_unmodified(),
            MaskKind::Bits => matches!(self.pass, Pass::Forward),
            _ => false,
        }
    }

    /// Whether the kernel computes neither softcap nor slopes, whatever its mask is: [`crate::Windowed`].
    pub const fn is_unmodified(&self) -> bool {
        matches!(self.pass, Pass::Gradients) && self.tile_m * self.head_dim > 128 * 64
    }
}
