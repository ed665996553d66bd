//! Attention on a paged KV cache of the caller.
use crate::append::CacheScales;
use crate::attend::{Attend, Outputs, both, device, run, stored};
use crate::errors::invalid;
use crate::extras::Reads;
use crate::here::Here;
use crate::inputs::{CacheNumber, Read, Stored, data, input, no_such_type};
use crate::merge::compute;
use candle::backend::BackendStorage;
use candle::cuda_backend::CudaDType;
use candle::cuda_backend::cudarc::driver::CudaView;
use candle::{DType, Result, Shape, Tensor};
use ferroflash::cudarc::{Cache, Element, Inputs, Number, Pages, PerHead, Scale};
use half::{bf16, f16};

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

/// The layout of the queries.
#[derive(Clone, Copy)]
pub(crate) enum Queries<'a> {
    /// `(sequences, queries, heads, head_dim)`.
    Even,
    /// `(rows of all sequences, heads, head_dim)`, with the sequences' offsets and the maximum number of
    /// queries per sequence.
    Packed { seqlens: &'a Tensor, max: usize },
}

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
            shared_prefixes: None,
        }
    }

    /// Sets the first pages that groups of sequences share.
    pub fn shared_prefixes(self, shared: SharedPages<'a>) -> Self {
        PagedKv { shared_prefixes: Some(shared), ..self }
    }

    /// Computes attention of `q`, `(sequences, queries, heads, head_dim)`. If there are few queries, decode
    /// kernels run.
    ///
    /// # Errors
    /// Returns [`candle::Error::Cuda`] with a [`ferroflash::Error`] inside.
    pub fn attend(&self, q: &Tensor, attend: &Attend) -> Result<Tensor> {
        Ok(self.run(q, Queries::Even, attend, false)?.0)
    }

    /// Returns the result of [`PagedKv::attend`] and the natural LSE of each row, f32 `(sequences, heads,
    /// queries)`.
    ///
    /// # Errors
    /// Returns the errors of [`PagedKv::attend`].
    pub fn attend_with_lse(&self, q: &Tensor, attend: &Attend) -> Result<(Tensor, Tensor)> {
        both(self.run(q, Queries::Even, attend, true)?)
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
        let queries = Queries::Packed { seqlens: seqlens_q, max: max_seqlen_q };
        Ok(self.run(q, queries, attend, false)?.0)
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
        let queries = Queries::Packed { seqlens: seqlens_q, max: max_seqlen_q };
        both(self.run(q, queries, attend, true)?)
    }

    pub(crate) fn run(
        &self,
        q: &Tensor,
        queries: Queries<'_>,
        attend: &Attend,
        lse: bool,
    ) -> Result<(Tensor, Option<Tensor>)> {
        run([q, self.keys, self.values], |inputs| match (inputs[0].0.dtype(), inputs[1].0.dtype()) {
            (DType::F16, DType::U8) if self.token_scales.is_some() => {
                self.on::<f16, i8>(inputs, queries, attend, lse)
            }
            (DType::BF16, DType::U8) if self.token_scales.is_some() => {
                self.on::<bf16, i8>(inputs, queries, attend, lse)
            }
            (DType::F16, DType::U8) => self.on::<f16, u8>(inputs, queries, attend, lse),
            (DType::BF16, DType::U8) => self.on::<bf16, u8>(inputs, queries, attend, lse),
            (DType::F16, _) => self.on::<f16, f16>(inputs, queries, attend, lse),
            (DType::BF16, _) => self.on::<bf16, bf16>(inputs, queries, attend, lse),
            (other, _) => Err(no_such_type("queries", other)),
        })
    }

    fn on<T: Element + CudaDType, C: CacheNumber>(
        &self,
        [q, k, v]: [Stored<'_>; 3],
        queries: Queries<'_>,
        attend: &Attend,
        with_lse: bool,
    ) -> Result<Outputs> {
        let device = device(q);
        let stream = device.cuda_stream();
        let here = Here::of(&stream)?;
        let q_data = data::<T>(q)?;
        let (k_data, v_data) = (C::view(&data::<C::Stored>(k)?), C::view(&data::<C::Stored>(v)?));
        let packed = matches!(queries, Queries::Packed { .. });
        let tensor = input("q", &q_data, q.1, packed)?;
        let heads = q.1.dims()[q.1.dims().len() - 2];
        let (mut pages, page, columns) = pages(k, v, [&k_data, &v_data])?;
        if let Some(CacheScales { keys, values }) = self.scales {
            pages = pages.scales(Scale::Value(keys), Scale::Value(values));
        }
        let names = ["k_scale", "v_scale"];
        let of_rows = self.token_scales.map(|[k, v]| [Read::of(names[0], k), Read::of(names[1], v)]);
        let of_rows = match &of_rows {
            Some([k, v]) => Some([k.contiguous()?, v.contiguous()?]),
            None => None,
        };
        if let Some([k, v]) = &of_rows {
            pages = pages.token_scales(k, v);
        }
        let (table, lengths) = (Read::of("block_table", self.block_table), Read::of("lengths", self.lengths));
        let table_columns = table.shape().dims2()?.1;
        let (entries, lengths) = (table.numbers(2)?, lengths.numbers(1)?);
        let max_k = self.max_seqlen_k.unwrap_or(usize::MAX).min(table_columns * page);
        let cache = Cache::paged(pages, entries.integers(), table_columns, lengths.integers());
        let cache = cache.table_stride(table.row_stride()).max_k(max_k);
        let mut request = Inputs::cached(tensor, cache)
            .mask(attend.mask(max_k))
            .scale(attend.softmax_scale)
            .softcap(attend.cap());

        let (starts, max) = match queries {
            Queries::Even => (None, 0),
            Queries::Packed { seqlens, max } => (Some(Read::of("seqlens_q", seqlens)), max),
        };
        let starts = starts.as_ref().map(|read| read.numbers(1)).transpose()?;
        if let Some(starts) = &starts {
            request = request.varlen_queries(starts.integers(), max);
        }
        let rest = self.shared_prefixes.map(|shared| (shared, Read::of("shared_prefixes.rest", shared.rest)));
        let rest = rest.as_ref().map(|(shared, read)| Ok::<_, candle::Error>((shared, read.numbers(1)?)));
        let rest = rest.transpose()?;
        if let Some((shared, rest)) = &rest {
            request = request.shared_prefixes(shared.groups, shared.pages, rest.integers());
        }
        let slopes = attend.alibi_slopes.as_ref().map(|slopes| Read::of("alibi_slopes", slopes));
        let slopes = slopes.as_ref().map(|read| read.per_head(heads)).transpose()?;
        if let Some(slopes) = &slopes {
            request = request.alibi(PerHead::new(slopes));
        }
        let sinks = attend.sinks.as_ref().map(|sinks| Read::of("sinks", sinks));
        let sinks = sinks.as_ref().map(|read| read.per_head(heads)).transpose()?;
        let extras = Reads::of(attend);
        let extras = extras.views()?;
        let tables = extras.tables();
        let request = extras.give(request, &tables);
        let dims = q.1.dims();
        let [batch, rows] = if packed { [1, dims[0]] } else { [dims[0], dims[1]] };
        let whole = [batch, rows, heads, columns];
        let (o, lse) = compute(&here, &stream, &request, sinks.as_ref(), with_lse, whole)?;
        let lse_shape: Shape = if packed { (heads, rows).into() } else { (batch, heads, rows).into() };
        let lse = lse.filter(|_| with_lse).map(|lse| (stored(lse, device), lse_shape));
        let shape = [&dims[..dims.len() - 1], &[columns]].concat().into();
        Ok(Outputs { o: stored(o, device), shape, lse })
    }
}

/// Returns pages, and the numbers of keys per page and of columns of a value. Values in the memory of keys
/// are a latent cache's.
fn pages<'a, C: Number>(
    (k, k_layout): Stored<'_>,
    (v, v_layout): Stored<'_>,
    [k_data, v_data]: [&'a CudaView<'a, C>; 2],
) -> Result<(Pages<'a, C>, usize, usize)> {
    let [(pages, page, heads, head_dim), of_values] = [k_layout.shape().dims4()?, v_layout.shape().dims4()?];
    let (shape, columns) = ([pages, page, heads, head_dim], of_values.3);
    if (of_values.0, of_values.1, of_values.2) != (pages, page, heads) {
        let expected = format_args!("[{pages}, {page}, {heads}, ..], as k's, {shape:?}");
        return Err(invalid("v.shape", format_args!("{:?}", v_layout.dims()), expected));
    }
    let [k_strides, v_strides] = [k_layout, v_layout].map(|layout| {
        let strides: [usize; 4] = layout.stride().try_into().unwrap_or_default();
        strides.map(|stride| stride as i64)
    });
    let shares = std::ptr::eq(k, v) && k_layout.start_offset() == v_layout.start_offset();
    let of = match shares && columns < head_dim && k_strides == v_strides {
        true => Pages::latent(k_data, shape, columns).strides(k_strides),
        false => Pages::new(k_data, v_data, shape).strides(k_strides).values(columns, v_strides),
    };
    Ok((of, page, columns))
}
