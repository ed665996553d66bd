//! Attention of queries that have lists of keys of a latent cache (sparse MLA).
use crate::attend::Attend;
use crate::errors::invalid;
use crate::gpu::forward::compute;
use crate::gpu::inputs::{Read, input};
use crate::gpu::latent_scale::LatentScale;
use crate::gpu::run::{Results, both, device, run};
use candle::{Result, Tensor};
use ferroflash::cudarc::{Inputs, Pages};
use ferroflash::request::{ListedKeys, RowOutputs};

/// A latent cache, and a list of its keys for each query (DeepSeek Sparse Attention), in decode and prefill.
/// The device reads the lists when a launch runs. [`ListedKeys`] says what their entries mean.
///
/// ```no_run
/// # fn main() -> candle::Result<()> {
/// use candle::{DType, Device, Tensor};
/// use ferroflash_candle::{Attend, ListedKv};
///
/// let device = Device::new_cuda(0)?;
/// let rows = Tensor::zeros((1000, 64, 1, 576), DType::BF16, &device)?; // pages of 64 keys
/// let q = Tensor::zeros((8, 128, 576), DType::BF16, &device)?; // the queries of all sequences
/// let indices = Tensor::zeros((8, 1, 2048), DType::I32, &device)?;
/// let attend = Attend::full(192f32.sqrt().recip()); // the list is the mask
/// let o = ListedKv::new(&rows, 512, &indices).attend(&q, &attend)?; // (8, 128, 512)
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
#[non_exhaustive]
pub struct ListedKv<'a> {
    /// The latent cache, `(pages, page, latent heads, columns)` of the queries' dtype or of u8 (e4m3). A
    /// cache of one page is a tensor of rows: `rows.unsqueeze(0)?`.
    pub rows: &'a Tensor,
    /// The number of a row's first columns that are the value.
    pub value_columns: usize,
    /// The lists, i32 or u32 `(queries, latent heads, topk)`, contiguous: slots, page x page size + row. -1
    /// is no key.
    pub indices: &'a Tensor,
    /// The scale of a latent cache of u8. Without it, the scale is 1.
    pub scale: Option<LatentScale>,
}

impl<'a> ListedKv<'a> {
    /// Returns a latent cache with lists of its keys.
    pub fn new(rows: &'a Tensor, value_columns: usize, indices: &'a Tensor) -> Self {
        ListedKv { rows, value_columns, indices, scale: None }
    }

    /// Sets the scale of a latent cache of u8.
    pub fn scale(self, scale: LatentScale) -> Self {
        ListedKv { scale: Some(scale), ..self }
    }

    /// Computes attention of `q`, `(queries, heads, columns)`, on the keys of its lists. The result is
    /// `(queries, heads, value columns)`. With `q` of `(sequences, queries, heads, columns)`, the result also
    /// has four dimensions, and lists for one latent head may be `(sequences, queries, topk)`. `attend` has
    /// no mask, because the lists are the mask.
    ///
    /// # Errors
    /// Returns [`candle::Error::Cuda`] with a [`ferroflash::Error`] inside.
    pub fn attend(&self, q: &Tensor, attend: &Attend) -> Result<Tensor> {
        Ok(self.run(q, attend, RowOutputs::NONE)?.0)
    }

    /// Returns the result of [`ListedKv::attend`] and the natural LSE of each row, f32 `(queries, heads)`, or
    /// `(sequences, heads, queries)` if `q` has four dimensions.
    ///
    /// # Errors
    /// Returns the errors of [`ListedKv::attend`].
    pub fn attend_with_lse(&self, q: &Tensor, attend: &Attend) -> Result<(Tensor, Tensor)> {
        both(self.run(q, attend, RowOutputs::LSE)?)
    }

    fn run(&self, q: &Tensor, attend: &Attend, wanted: RowOutputs<bool>) -> Result<Results> {
        let &[sequences, each, heads, columns] = q.dims() else {
            let (o, rows) = self.queries(&q.unsqueeze(1)?, self.indices, attend, wanted)?;
            return Ok((
                o.squeeze(1)?,
                rows.try_map(|_, rows| rows.map(|rows| rows.squeeze(2)).transpose())?,
            ));
        };
        let queries = sequences * each;
        let indices = match *self.indices.dims() {
            [b, i, topk] if [b, i] == [sequences, each] => self.indices.reshape((queries, 1, topk))?,
            _ => self.indices.clone(),
        };
        // The reshape copies only if the tensor's rows are not contiguous.
        let flat = q.reshape((queries, 1, heads, columns))?;
        let (o, rows) = self.queries(&flat, &indices, attend, wanted)?;
        let of_sequences = |rows: Tensor| rows.reshape((sequences, each, heads))?.transpose(1, 2);
        let rows = rows.try_map(|_, rows| rows.map(of_sequences).transpose())?;
        Ok((o.reshape((sequences, each, heads, self.value_columns))?, rows))
    }

    /// Computes attention of `q`, `(queries, 1, heads, columns)`.
    fn queries(
        &self,
        q: &Tensor,
        indices: &Tensor,
        attend: &Attend,
        wanted: RowOutputs<bool>,
    ) -> Result<Results> {
        run([q, self.rows, self.rows], attend, |[q, rows, _]| {
            let (device, queries) = (device(q), q.1.dims()[0]);
            let rows = input("rows", rows, false)?;
            let [.., latents, columns] = rows.shape;
            if self.value_columns == 0 || self.value_columns > columns {
                let expected = format_args!("1 to {columns}, a row's columns");
                return Err(invalid("value_columns", self.value_columns, expected));
            }
            let indices = Read::of("indices", indices);
            let topk = match *indices.layout.dims() {
                [of, heads, topk] if [of, heads] == [queries, latents] => topk,
                ref other => {
                    let expected = format_args!("[{queries}, {latents}, topk]");
                    return Err(invalid("indices", format_args!("{other:?}"), expected));
                }
            };
            indices.contiguous().map(drop)?;
            let pages = Pages::latent(rows, self.value_columns);
            let pages = self.scale.map_or(Ok(pages), |scale| scale.give(pages))?;
            let keys = ListedKeys::new(pages, indices.numbers(3)?, topk);
            compute(device, Inputs::of_sparse(input("q", q, false)?, keys), attend, topk, wanted)
        })
    }
}
