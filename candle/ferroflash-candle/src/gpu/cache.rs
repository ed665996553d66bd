//! The paged KV cache of one layer.
use crate::attend::Attend;
use crate::gpu::append::{AppendScales, CacheScales, Tokens, Turn};
use crate::gpu::inputs::no_such_type;
use crate::gpu::parts::LayerPages;
use crate::gpu::rotary::RotaryTable;
use crate::gpu::run::both;
use crate::gpu::step::Step;
use candle::{DType, Device, Result, Tensor};
use ferroflash::request::RowOutputs;

/// The paged KV cache of one layer, for any sequences. Each layer of a model holds one. The layers share one
/// [`Step`], which holds each sequence's pages.
///
/// ```no_run
/// # fn main() -> candle::Result<()> {
/// use candle::{DType, Device, Tensor};
/// use ferroflash_candle::{Attend, KvCache, PagePool, Sequence, Step};
///
/// let device = Device::new_cuda(0)?;
/// let (pages, page, heads, head_dim) = (1000, 64, 8, 64);
/// let mut cache = KvCache::new((pages, page, heads, head_dim), DType::F16, &device)?; // one for each layer
/// let mut pool = PagePool::new(pages, page);
/// let mut step = Step::new(32, 2048, 512, page, &device)?;
///
/// // A prompt of 100 tokens and a prompt of 7 tokens, in one step.
/// let mut sequences = [Sequence::new(), Sequence::new()];
/// for (sequence, tokens) in sequences.iter_mut().zip([100, 7]) {
///     pool.grow(sequence, tokens)?;
/// }
/// step.set(&[(&sequences[0], 100), (&sequences[1], 7)])?;
/// // In each layer, with the step's rows: queries of 32 heads, keys and values of 8 heads.
/// let q = Tensor::zeros((107, 32, head_dim), DType::F16, &device)?;
/// let kv = Tensor::zeros((107, heads, head_dim), DType::F16, &device)?;
/// cache.append(&kv, &kv, &step)?;
/// let o = cache.attend(&q, &step, &Attend::causal(0.125))?; // (107, 32, head_dim)
/// // After the last layer.
/// sequences[0].advance(100);
/// sequences[1].advance(7);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct KvCache(LayerPages);

impl KvCache {
    fn zeros(shape: (usize, usize, usize, usize), dtype: DType, device: &Device) -> Result<LayerPages> {
        let [keys, values] = [Tensor::zeros(shape, dtype, device)?, Tensor::zeros(shape, dtype, device)?];
        Ok(LayerPages::new(keys, values))
    }

    /// Returns a KV cache `(pages, page, key heads, head_dim)` of f16 or bf16.
    ///
    /// # Errors
    /// Returns an error if the dtype is not f16 or bf16, or the driver fails.
    pub fn new(shape: (usize, usize, usize, usize), dtype: DType, device: &Device) -> Result<Self> {
        if !matches!(dtype, DType::F16 | DType::BF16) {
            return Err(no_such_type("a cache", dtype));
        }
        Ok(KvCache(KvCache::zeros(shape, dtype, device)?))
    }

    /// Returns an e4m3 KV cache, half as large as one of 16 bits. A key or value is the stored number times
    /// its scale.
    ///
    /// # Errors
    /// Returns an error if the driver fails.
    pub fn e4m3(shape: (usize, usize, usize, usize), scales: CacheScales, device: &Device) -> Result<Self> {
        let pages = KvCache::zeros(shape, DType::U8, device)?;
        Ok(KvCache(LayerPages { scales: Some(scales), ..pages }))
    }

    /// Returns an int8 KV cache. Each row of a head has a scale in f32, which [`KvCache::append`] computes:
    /// the row's largest magnitude / 127. [`KvCache::tensors`] are u8 tensors with the bytes of the
    /// integers.
    ///
    /// # Errors
    /// Returns an error if the driver fails.
    pub fn int8(shape: (usize, usize, usize, usize), device: &Device) -> Result<Self> {
        let (pages, page, heads, _) = shape;
        let scales = || Tensor::zeros((pages, page, heads), DType::F32, device);
        let token_scales = Some([scales()?, scales()?]);
        Ok(KvCache(LayerPages { token_scales, ..KvCache::zeros(shape, DType::U8, device)? }))
    }

    /// Returns the scales of an int8 cache's keys and values, `[pages, page, heads]`.
    pub fn token_scales(&self) -> Option<[&Tensor; 2]> {
        self.0.token_scales.as_ref().map(|[keys, values]| [keys, values])
    }

    fn tokens<'a>(&'a self, k: &'a Tensor, v: &'a Tensor) -> Tokens<'a> {
        let of_rows = self.token_scales().map(AppendScales::Tokens);
        let scales = of_rows.or(self.0.scales.map(AppendScales::Numbers));
        Tokens::of([k, v], self.tensors(), scales)
    }

    /// Returns the keys and values, `[pages, page, heads, head_dim]`.
    pub fn tensors(&self) -> [&Tensor; 2] {
        [&self.0.keys, &self.0.values]
    }

    /// Writes this step's keys and values, `(tokens, heads, head_dim)`, into their slots.
    ///
    /// # Errors
    /// Returns [`candle::Error::Cuda`] with a [`ferroflash::Error`] inside.
    pub fn append(&mut self, k: &Tensor, v: &Tensor, step: &Step) -> Result<()> {
        self.0.are_of(step)?;
        self.tokens(k, v).append(&step.slots()?, None)
    }

    /// Rotates this step's queries and keys by their [positions](Step::positions), writes keys and values
    /// into their slots, and returns the rotated queries. All are `(tokens, heads, head_dim)`. One launch
    /// does all of it.
    ///
    /// # Errors
    /// Returns [`candle::Error::Cuda`] with a [`ferroflash::Error`] inside.
    pub fn append_rotary(
        &mut self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        step: &Step,
        table: &RotaryTable,
    ) -> Result<Tensor> {
        self.0.are_of(step)?;
        let turn = Turn { q, table, positions: &step.positions()? };
        self.tokens(k, v).rotate(&step.slots()?, &turn)
    }

    /// Computes attention of this step's queries, `(tokens, heads, head_dim)`, on the keys of their
    /// sequences. The keys include the keys that this step has [appended](KvCache::append). A sequence's last
    /// query aligns with its last key.
    ///
    /// # Errors
    /// Returns [`candle::Error::Cuda`] with a [`ferroflash::Error`] inside.
    pub fn attend(&self, q: &Tensor, step: &Step, attend: &Attend) -> Result<Tensor> {
        Ok(self.0.attend(q, step, attend, RowOutputs::NONE)?.0)
    }

    /// Returns the result of [`KvCache::attend`] and the LSE of each row, f32 `(heads, tokens)`.
    ///
    /// # Errors
    /// Returns the errors of [`KvCache::attend`].
    pub fn attend_with_lse(&self, q: &Tensor, step: &Step, attend: &Attend) -> Result<(Tensor, Tensor)> {
        both(self.0.attend(q, step, attend, RowOutputs::LSE)?)
    }
}
