//! Keys and values of one layer, in pages.
use crate::append::{CacheScales, append};
use crate::attend::{Attend, both};
use crate::errors::invalid;
use crate::inputs::no_such_type;
use crate::paged::{PagedKv, Queries};
use crate::step::Step;
use candle::{DType, Device, Result, Tensor};

/// Keys and values of one layer: pages of any sequences. A model's layer holds one; which sequence has which
/// pages, the layers' [`Step`] says.
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
/// // A prompt of 100 tokens and one of 7, in one step.
/// let mut sequences = [Sequence::new(), Sequence::new()];
/// for (sequence, tokens) in sequences.iter_mut().zip([100, 7]) {
///     pool.grow(sequence, tokens)?;
/// }
/// step.set(&[(&sequences[0], 100), (&sequences[1], 7)])?;
/// // In each layer, with the step's rows: queries of 32 heads, keys and values of 8.
/// let q = Tensor::zeros((107, 32, head_dim), DType::F16, &device)?;
/// let kv = Tensor::zeros((107, heads, head_dim), DType::F16, &device)?;
/// cache.append(&kv, &kv, &step)?;
/// let o = cache.attend(&q, &step, &Attend::causal(0.125))?; // (107, 32, head_dim)
/// // Behind the last layer.
/// sequences[0].advance(100);
/// sequences[1].advance(7);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct KvCache {
    keys: Tensor,
    values: Tensor,
    scales: Option<CacheScales>,
}

impl KvCache {
    /// `(pages, page, key heads, head_dim)` of f16 or bf16.
    ///
    /// # Errors
    /// Another type, and what the driver refuses.
    pub fn new(shape: (usize, usize, usize, usize), dtype: DType, device: &Device) -> Result<Self> {
        if !matches!(dtype, DType::F16 | DType::BF16) {
            return Err(no_such_type("a cache", dtype));
        }
        let [keys, values] = [Tensor::zeros(shape, dtype, device)?, Tensor::zeros(shape, dtype, device)?];
        Ok(KvCache { keys, values, scales: None })
    }

    /// The same of e4m3, half as large: a number stands for itself times a scale.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn e4m3(shape: (usize, usize, usize, usize), scales: CacheScales, device: &Device) -> Result<Self> {
        let [keys, values] =
            [Tensor::zeros(shape, DType::U8, device)?, Tensor::zeros(shape, DType::U8, device)?];
        Ok(KvCache { keys, values, scales: Some(scales) })
    }

    /// Keys and values, `[pages, page, heads, head_dim]`.
    pub fn tensors(&self) -> [&Tensor; 2] {
        [&self.keys, &self.values]
    }

    /// Puts this step's keys and values, `(tokens, heads, head_dim)`, to their places.
    ///
    /// # Errors
    /// [`candle::Error::Cuda`], in which there is a [`ferroflash::Error`].
    pub fn append(&mut self, k: &Tensor, v: &Tensor, step: &Step) -> Result<()> {
        self.on_its_pages(step)?;
        append(k, v, &self.keys, &self.values, &step.slots()?, self.scales)
    }

    /// Attention of this step's queries, `(tokens, heads, head_dim)`, on the keys of their sequences, those
    /// that the step has [appended](KvCache::append) included; a sequence's last query stands at its last
    /// key.
    ///
    /// # Errors
    /// [`candle::Error::Cuda`], in which there is a [`ferroflash::Error`].
    pub fn attend(&self, q: &Tensor, step: &Step, attend: &Attend) -> Result<Tensor> {
        Ok(self.parts(q, step, attend, false)?.0)
    }

    /// The same, and the log-sum-exp of each row, f32 `(heads, tokens)`.
    ///
    /// # Errors
    /// Those of [`KvCache::attend`].
    pub fn attend_with_lse(&self, q: &Tensor, step: &Step, attend: &Attend) -> Result<(Tensor, Tensor)> {
        both(self.parts(q, step, attend, true)?)
    }

    fn on_its_pages(&self, step: &Step) -> Result<()> {
        let page = self.keys.dims()[1];
        if step.page() != page {
            return Err(invalid("step.page", step.page(), format_args!("the cache's, {page}")));
        }
        Ok(())
    }

    /// What is decoded and what is not are launches of their own.
    fn parts(&self, q: &Tensor, step: &Step, attend: &Attend, lse: bool) -> Result<(Tensor, Option<Tensor>)> {
        self.on_its_pages(step)?;
        let (rows, heads, head_dim) = q.dims3()?;
        if rows != step.tokens() {
            return Err(invalid("q", rows, format_args!("a row for each of the step's {}", step.tokens())));
        }
        let (mut outputs, mut sums) = (Vec::new(), Vec::new());
        for part in step.parts() {
            let q = q.narrow(0, part.first_row, part.rows)?;
            let mut kv = PagedKv::new(&self.keys, &self.values, &part.table, &part.lengths);
            kv.scales = self.scales;
            let (q, queries) = match part.even {
                // Of other strides than rows', reshaping copies.
                true if part.widest == 1 => (q.unsqueeze(1)?, Queries::Even),
                true if part.sequences == 1 => (q.unsqueeze(0)?, Queries::Even),
                true => (q.reshape((part.sequences, part.widest, heads, head_dim))?, Queries::Even),
                false => (q, Queries::Packed { seqlens: &part.starts, max: part.widest }),
            };
            let (o, lse) = kv.run(&q, queries, attend, lse)?;
            outputs.push(o.reshape((part.rows, heads, head_dim))?);
            // `[sequences, heads, queries]` of those that are not packed.
            let flat = |lse: Tensor| lse.transpose(0, 1)?.reshape((heads, part.rows));
            sums.extend(lse.map(|lse| if part.even { flat(lse) } else { Ok(lse) }).transpose()?);
        }
        let joined = |tensors: &[Tensor], dim| match tensors {
            [one] => Ok(one.clone()),
            several => Tensor::cat(several, dim),
        };
        let lse = (!sums.is_empty()).then(|| joined(&sums, 1)).transpose()?;
        Ok((joined(&outputs, 0)?, lse))
    }
}
