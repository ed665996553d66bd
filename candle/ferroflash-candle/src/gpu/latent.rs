//! The latent cache (MLA) of one layer.
use crate::attend::Attend;
use crate::errors::invalid;
use crate::gpu::append::{Tokens, Turn, one_head};
use crate::gpu::inputs::no_such_type;
use crate::gpu::latent_scale::LatentScale;
use crate::gpu::listed::ListedKv;
use crate::gpu::parts::LayerPages;
use crate::gpu::rotary::RotaryTable;
use crate::gpu::run::both;
use crate::gpu::step::Step;
use candle::{DType, Device, Result, Tensor};
use ferroflash::request::RowOutputs;
use ferroflash::spec::E4m3Scaled;

/// The latent cache of one layer of a model with MLA (DeepSeek-V2 and later): one row per key for all query
/// heads. The whole row is the key, and its first columns are the value. A kernel reads a row from memory
/// once. The layers share one [`Step`], like [`KvCache`](crate::KvCache)s.
///
/// The projections stay the model's:
///
/// | tensor | shape | content |
/// |---|---|---|
/// | `rows` | `(tokens, 576)` | the normalised latent (512 columns), then the key's 64 rotary columns |
/// | `q` | `(tokens, heads, 576)` | `q_nope W_UK` (512 columns), then the query's 64 rotary columns |
/// | the result | `(tokens, heads, 512)` | multiply each head by its `W_UV` |
///
/// ```no_run
/// # fn main() -> candle::Result<()> {
/// use candle::{DType, Device, Tensor};
/// use ferroflash_candle::{Attend, LatentCache, PagePool, RotaryStyle, RotaryTable, Sequence, Step};
///
/// let device = Device::new_cuda(0)?;
/// let (pages, page, heads) = (1000, 64, 128);
/// let mut cache = LatentCache::new((pages, page, 576), 512, DType::BF16, &device)?; // one for each layer
/// let mut pool = PagePool::new(pages, page);
/// let mut step = Step::new(32, 2048, 512, page, &device)?;
/// let angles = Tensor::zeros((4096, 32), DType::F32, &device)?;
/// let table = RotaryTable { cos: angles.clone(), sin: angles, style: RotaryStyle::Interleaved };
///
/// let mut sequence = Sequence::new();
/// pool.grow(&mut sequence, 1)?;
/// step.set(&[(&sequence, 1)])?;
/// // In each layer.
/// let q = Tensor::zeros((1, heads, 576), DType::BF16, &device)?;
/// let rows = Tensor::zeros((1, 576), DType::BF16, &device)?;
/// let q = cache.append_rotary(&q, &rows, &step, &table)?;
/// let o = cache.attend(&q, &step, &Attend::causal(192f32.sqrt().recip()))?; // (1, heads, 512)
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct LatentCache(LayerPages);

impl LatentCache {
    /// Returns a latent cache `(pages, page, columns)` of f16 or bf16. The first `value_columns` columns are
    /// the value.
    ///
    /// # Errors
    /// Returns an error if the dtype is not f16 or bf16, the value has no column or all columns, or the
    /// driver fails.
    pub fn new(
        (pages, page, columns): (usize, usize, usize),
        value_columns: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        if !matches!(dtype, DType::F16 | DType::BF16) {
            return Err(no_such_type("a latent cache", dtype));
        }
        LatentCache::zeros((pages, page, columns), value_columns, dtype, device)
    }

    /// Returns a latent cache `(pages, page, columns)` of e4m3, half as large as one of 16 bits. A number of
    /// a row is the stored number times `scale`.
    ///
    /// # Errors
    /// Returns an error if the value has no column or all columns, or the driver fails.
    pub fn e4m3(
        shape: (usize, usize, usize),
        value_columns: usize,
        scale: f32,
        device: &Device,
    ) -> Result<Self> {
        let LatentCache(pages) = LatentCache::zeros(shape, value_columns, DType::U8, device)?;
        Ok(LatentCache(LayerPages { latent_scale: Some(LatentScale::Number(scale)), ..pages }))
    }

    /// Returns a latent cache `(pages, page)` of rows of 656 bytes ([`LatentScale::InRows`]), for bf16 rows
    /// of 576 columns, of which the first 512 are the value.
    ///
    /// # Errors
    /// Returns an error if the driver fails.
    pub fn scaled((pages, page): (usize, usize), device: &Device) -> Result<Self> {
        let shape = (pages, page, E4m3Scaled::ROW_BYTES);
        let LatentCache(pages) = LatentCache::zeros(shape, E4m3Scaled::SCALED, DType::U8, device)?;
        Ok(LatentCache(LayerPages { latent_scale: Some(LatentScale::InRows), ..pages }))
    }

    fn zeros(
        (pages, page, columns): (usize, usize, usize),
        value_columns: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        if value_columns == 0 || value_columns >= columns {
            let expected = format_args!("1 or more, and less than a row's {columns}");
            return Err(invalid("value_columns", value_columns, expected));
        }
        let rows = Tensor::zeros((pages, page, 1, columns), dtype, device)?;
        let values = rows.narrow(3, 0, value_columns)?;
        Ok(LatentCache(LayerPages::new(rows, values)))
    }

    /// Returns the rows, `[pages, page, 1, columns]`, or u8 `[pages, page, 1, bytes]`, and the values in
    /// them.
    pub fn tensors(&self) -> [&Tensor; 2] {
        [&self.0.keys, &self.0.values]
    }

    /// Writes this step's rows, `(tokens, columns)`, into their slots.
    ///
    /// # Errors
    /// Returns [`candle::Error::Cuda`] with a [`ferroflash::Error`] inside.
    pub fn append(&mut self, rows: &Tensor, step: &Step) -> Result<()> {
        self.0.are_of(step)?;
        self.tokens(&one_head(rows)?).append(&step.slots()?, None)
    }

    /// Rotates the columns behind the value of this step's queries and rows by their
    /// [positions](Step::positions), writes the rows into their slots, and returns the rotated queries,
    /// `(tokens, heads, columns)`. One launch does all of it.
    ///
    /// # Errors
    /// Returns [`candle::Error::Cuda`] with a [`ferroflash::Error`] inside.
    pub fn append_rotary(
        &mut self,
        q: &Tensor,
        rows: &Tensor,
        step: &Step,
        table: &RotaryTable,
    ) -> Result<Tensor> {
        self.0.are_of(step)?;
        let turn = Turn { q, table, positions: &step.positions()? };
        self.tokens(&one_head(rows)?).rotate(&step.slots()?, &turn)
    }

    /// Computes attention of this step's queries, `(tokens, heads, columns)`, on the rows of their sequences,
    /// including the rows that this step has [appended](LatentCache::append). A sequence's last query aligns
    /// with its last row. The result is `(tokens, heads, value columns)`. Sequences with several queries must
    /// have equal numbers of queries. For prompts, project the latents up, and call
    /// [`flash_attn_varlen`](crate::flash_attn_varlen).
    ///
    /// # Errors
    /// Returns [`candle::Error::Cuda`] with a [`ferroflash::Error`] inside.
    pub fn attend(&self, q: &Tensor, step: &Step, attend: &Attend) -> Result<Tensor> {
        Ok(self.0.attend(q, step, attend, RowOutputs::NONE)?.0)
    }

    /// Returns the result of [`LatentCache::attend`] and the LSE of each row, f32 `(heads, tokens)`.
    ///
    /// # Errors
    /// Returns the errors of [`LatentCache::attend`].
    pub fn attend_with_lse(&self, q: &Tensor, step: &Step, attend: &Attend) -> Result<(Tensor, Tensor)> {
        both(self.0.attend(q, step, attend, RowOutputs::LSE)?)
    }

    /// Returns this cache with lists of its keys, one list for each query: i32 or u32 `(queries, 1, topk)`.
    pub fn listed<'a>(&'a self, indices: &'a Tensor) -> ListedKv<'a> {
        ListedKv { scale: self.0.latent_scale, ..ListedKv::new(&self.0.keys, self.value_columns(), indices) }
    }

    /// Returns new rows `(tokens, 1, columns)`, and this cache, which gets them.
    fn tokens<'a>(&'a self, rows: &'a Tensor) -> Tokens<'a> {
        Tokens::of_rows(rows, &self.0.keys, self.value_columns(), self.0.latent_scale)
    }

    fn value_columns(&self) -> usize {
        self.0.values.dims()[3]
    }
}
