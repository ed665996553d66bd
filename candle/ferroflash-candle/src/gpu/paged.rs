//! Attention on a paged KV cache of the caller.
use crate::attend::Attend;
use crate::errors::invalid;
use crate::gpu::append::CacheScales;
use crate::gpu::forward::compute;
use crate::gpu::inputs::{Read, Stored, input};
use crate::gpu::latent_scale::LatentScale;
use crate::gpu::run::{Outputs, Results, both, device, run};
use candle::{Result, Tensor};
use ferroflash::DType;
use ferroflash::cudarc::{Cache, Inputs, Pages};
use ferroflash::request::{KvScale, Queries, RowOutputs, SharedPrefixes, TokenScales, VarlenQueries};

/// A paged KV cache of the caller. The device reads lengths and page indices when a launch runs. Invalid
/// lengths and indices give wrong results, but no invalid memory access.
#[derive(Clone, Copy, Debug)]
#[must_use]
#[non_exhaustive]
pub struct PagedKv<'a> {
    /// Keys: `(pages, page, heads, head_dim)` of the queries' dtype, or of u8 (e4m3, or int8 with
    /// [`PagedKv::token_scales`]). Pages may have any size.
    pub keys: &'a Tensor,
    /// Values, with the pages and heads of the keys. With another head dim, or other strides, prefill kernels
    /// run, even for few queries. In a latent cache (MLA), the values are the first columns of the keys:
    /// `keys.narrow(3, 0, 512)?`. The output has the head dim of the values.
    pub values: &'a Tensor,
    /// The block table, u32 or i32 `(sequences, columns)`: key `j` of sequence `b` is in page
    /// `block_table[b][j / page]`.
    pub block_table: &'a Tensor,
    /// The number of keys of each sequence, u32 or i32 `(sequences)`.
    pub lengths: &'a Tensor,
    /// Maximum number of keys per sequence, if it is below the block table's capacity.
    pub max_seqlen_k: Option<usize>,
    /// Scales of an e4m3 KV cache. Without them, both scales are 1.
    pub scales: Option<CacheScales>,
    /// Scales of keys and of values of an int8 KV cache: f32 `(pages, page, heads)`, contiguous.
    pub token_scales: Option<[&'a Tensor; 2]>,
    /// The scale of a latent cache of u8.
    pub latent_scale: Option<LatentScale>,
    /// The first pages that groups of sequences share.
    pub shared_prefixes: Option<SharedPages<'a>>,
}

/// The first pages that groups of sequences share on a paged KV cache. If that pays, a launch reads these
/// pages once for all queries of a group ([`ferroflash::request::SharedPrefixes`]).
#[derive(Clone, Copy, Debug)]
pub struct SharedPages<'a> {
    /// Number of groups of equal numbers of consecutive sequences; 1 if all sequences share their first
    /// pages.
    pub groups: usize,
    /// Number of shared pages, fewer than the block table has columns.
    pub pages: usize,
    /// The number of keys of each sequence behind the shared pages, u32 or i32 `(sequences)`. Padding
    /// sequences, too, need at least the keys of these pages in [`PagedKv::lengths`].
    pub rest: &'a Tensor,
}

/// The offsets of varlen queries, and the maximum number of queries per sequence.
type Varlen<'a> = (&'a Tensor, usize);

impl<'a> PagedKv<'a> {
    /// Returns a KV cache. The block table's capacity is the maximum number of keys per sequence.
    pub fn new(keys: &'a Tensor, values: &'a Tensor, block_table: &'a Tensor, lengths: &'a Tensor) -> Self {
        PagedKv {
            keys,
            values,
            block_table,
            lengths,
            max_seqlen_k: None,
            scales: None,
            token_scales: None,
            latent_scale: None,
            shared_prefixes: None,
        }
    }

    /// Sets the first pages that groups of sequences share.
    pub fn shared_prefixes(self, shared: SharedPages<'a>) -> Self {
        PagedKv { shared_prefixes: Some(shared), ..self }
    }

    /// Sets the scale of a latent cache of u8.
    pub fn latent_scale(self, scale: LatentScale) -> Self {
        PagedKv { latent_scale: Some(scale), ..self }
    }

    /// Computes attention of `q`, `(sequences, queries, heads, head_dim)`. If there are few queries, decode
    /// kernels run.
    ///
    /// # Errors
    /// Returns [`candle::Error::Cuda`] with a [`ferroflash::Error`] inside.
    pub fn attend(&self, q: &Tensor, attend: &Attend) -> Result<Tensor> {
        Ok(self.run(q, None, attend, RowOutputs::NONE)?.0)
    }

    /// Returns the result of [`PagedKv::attend`] and the natural LSE of each row, f32 `(sequences, heads,
    /// queries)`.
    ///
    /// # Errors
    /// Returns the errors of [`PagedKv::attend`].
    pub fn attend_with_lse(&self, q: &Tensor, attend: &Attend) -> Result<(Tensor, Tensor)> {
        both(self.run(q, None, attend, RowOutputs::LSE)?)
    }

    /// Computes attention of varlen queries. `q` is `(rows of all sequences, heads, head_dim)`. Sequence `b`
    /// begins at row `seqlens_q[b]` and has at most `max_seqlen_q` rows.
    ///
    /// # Errors
    /// Returns the errors of [`PagedKv::attend`].
    pub fn attend_varlen(
        &self,
        q: &Tensor,
        seqlens_q: &Tensor,
        max_seqlen_q: usize,
        attend: &Attend,
    ) -> Result<Tensor> {
        Ok(self.run(q, Some((seqlens_q, max_seqlen_q)), attend, RowOutputs::NONE)?.0)
    }

    /// Returns the result of [`PagedKv::attend_varlen`] and the natural LSE of each row, f32 `(heads, rows)`.
    /// In a padding row, O is 0 and LSE is `-inf`; with sinks, LSE is `-inf` or the sink.
    ///
    /// # Errors
    /// Returns the errors of [`PagedKv::attend`].
    pub fn attend_varlen_with_lse(
        &self,
        q: &Tensor,
        seqlens_q: &Tensor,
        max_seqlen_q: usize,
        attend: &Attend,
    ) -> Result<(Tensor, Tensor)> {
        both(self.run(q, Some((seqlens_q, max_seqlen_q)), attend, RowOutputs::LSE)?)
    }

    /// Computes attention of `q`: `(sequences, queries, heads, head_dim)`, or with offsets `(rows, heads,
    /// head_dim)`.
    pub(crate) fn run(
        &self,
        q: &Tensor,
        varlen: Option<Varlen<'_>>,
        attend: &Attend,
        wanted: RowOutputs<bool>,
    ) -> Result<Results> {
        run([q, self.keys, self.values], attend, |inputs| self.on(inputs, varlen, attend, wanted))
    }

    fn on(
        &self,
        [q, k, v]: [Stored<'_>; 3],
        varlen: Option<Varlen<'_>>,
        attend: &Attend,
        wanted: RowOutputs<bool>,
    ) -> Result<Outputs> {
        let (device, q) = (device(q), input("q", q, varlen.is_some())?);
        let mut pages = pages(k, v)?;
        let (page, heads) = (pages.keys.shape[1], pages.keys.shape[2]);
        if let Some(CacheScales { keys, values }) = self.scales {
            pages = pages.scales(KvScale::Value(keys), KvScale::Value(values));
        }
        if let Some(scale) = self.latent_scale {
            pages = scale.give(pages)?;
        }
        let of_rows = self.token_scales.map(|[k, v]| [Read::of("k_scale", k), Read::of("v_scale", v)]);
        if let Some([k, v]) = &of_rows {
            (pages.keys.dtype, pages.values.dtype) = (DType::Int8, DType::Int8);
            let of = |scales| KvScale::Tokens(TokenScales::contiguous(scales, u64::MAX, heads));
            pages = pages.scales(of(k.contiguous()?), of(v.contiguous()?));
        }
        let (table, lengths) = (Read::of("block_table", self.block_table), Read::of("lengths", self.lengths));
        let columns = table.layout.shape().dims2()?.1;
        let max_k = self.max_seqlen_k.unwrap_or(usize::MAX).min(columns * page);
        let cache = Cache::paged(pages, table.numbers(2)?, columns, lengths.numbers(1)?);
        let cache = cache.table_stride(table.layout.stride()[0]).max_k(max_k);
        let mut inputs = Inputs::of_cache(q, cache);

        let varlen = varlen.map(|(starts, max)| (Read::of("seqlens_q", starts), max));
        if let Some((starts, max)) = &varlen {
            inputs = inputs.queries(Queries::Varlen(VarlenQueries::of_all(starts.numbers(1)?, *max)));
        }
        let rest = self.shared_prefixes.map(|shared| (shared, Read::of("shared_prefixes.rest", shared.rest)));
        if let Some((SharedPages { groups, pages, .. }, rest)) = &rest {
            inputs = inputs.shared_prefixes(SharedPrefixes::equal(*groups, *pages, rest.numbers(1)?));
        }
        compute(device, inputs, attend, max_k, wanted)
    }
}

/// Returns pages. Values in the memory of keys are a latent cache's.
fn pages<'a>(k: Stored<'a>, v: Stored<'a>) -> Result<Pages<'a>> {
    let [of_k, of_v] = [k, v].map(|(_, layout)| layout.dims());
    if of_k.len() != 4 || of_v.len() != 4 || of_k[..3] != of_v[..3] {
        let expected = format_args!("[pages, page, heads, ..], as k's, {of_k:?}");
        return Err(invalid("v.shape", format_args!("{of_v:?}"), expected));
    }
    Ok(Pages::new(input("k", k, false)?, input("v", v, false)?))
}
