//! Keys and values of one layer, in pages.
use crate::append::{CacheScales, append};
use crate::attend::{Attend, Outputs, device, run, stored};
use crate::errors::{invalid, refused};
use crate::here::{Here, lock};
use crate::inputs::{Read, Stored, data, input, no_such_type};
use crate::merge::with_sinks;
use crate::step::Step;
use candle::cuda_backend::CudaDType;
use candle::cuda_backend::cudarc::driver::CudaSlice;
use candle::{DType, Device, Result, Shape, Tensor};
use ferroflash::cudarc::{Cache, Decode, Element, Number, Pages, PerHead, Scale};
use half::{bf16, f16};

/// Keys and values of one layer: pages of any sequences. A model's layer holds one; which sequence has which
/// pages, the layers' [`Step`] says.
///
/// ```no_run
/// # fn main() -> candle::Result<()> {
/// use candle::{DType, Device, Tensor};
/// use ferroflash_candle::{Attend, KvCache, PagePool, Sequence, Step};
///
/// let device = Device::new_cuda(0)?;
/// let (pages, page, heads, head_dim) = (1000, 16, 8, 64);
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
        let (o, lse) = self.parts(q, step, attend, true)?;
        lse.map(|lse| (o, lse)).ok_or_else(|| invalid("lse", "none", "every part of a step makes one"))
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
        let (table, lengths) = (step.block_table()?, step.lengths()?);
        let (mut outputs, mut sums) = (Vec::new(), Vec::new());
        for part in step.parts() {
            let q = q.narrow(0, part.first_row, part.rows)?;
            let starts = step.starts(&part)?;
            let lookup = Lookup {
                table: &table.narrow(0, part.first_sequence, part.sequences)?,
                lengths: &lengths.narrow(0, part.first_sequence, part.sequences)?,
                packed: (!part.even).then_some((&starts, part.widest)),
                max_k: None,
                scales: self.scales,
            };
            let q = match part.even {
                true => q.reshape((part.sequences, part.widest, heads, head_dim))?,
                false => q,
            };
            let (o, lse) = lookup.run([&q, &self.keys, &self.values], attend, lse)?;
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

/// How the keys of some sequences are found in a cache.
pub(crate) struct Lookup<'a> {
    /// `[sequences, columns]`.
    pub table: &'a Tensor,
    /// `[sequences]`.
    pub lengths: &'a Tensor,
    /// Where packed sequences begin among the rows of `q`, and the most queries of one.
    pub packed: Option<(&'a Tensor, usize)>,
    pub max_k: Option<usize>,
    pub scales: Option<CacheScales>,
}

impl Lookup<'_> {
    /// Attention of `q` on the keys and values of a cache, `[pages, page, heads, head_dim]`.
    pub fn run(&self, tensors: [&Tensor; 3], attend: &Attend, lse: bool) -> Result<(Tensor, Option<Tensor>)> {
        run(tensors, |inputs| self.outputs(inputs, attend, lse))
    }

    pub fn outputs(&self, inputs: [Stored<'_>; 3], attend: &Attend, lse: bool) -> Result<Outputs> {
        use candle::backend::BackendStorage;
        match (inputs[0].0.dtype(), inputs[1].0.dtype()) {
            (DType::F16, DType::U8) => self.on::<f16, u8>(inputs, attend, lse),
            (DType::BF16, DType::U8) => self.on::<bf16, u8>(inputs, attend, lse),
            (DType::F16, _) => self.on::<f16, f16>(inputs, attend, lse),
            (DType::BF16, _) => self.on::<bf16, bf16>(inputs, attend, lse),
            (other, _) => Err(no_such_type("queries", other)),
        }
    }

    fn on<T: Element + CudaDType, C: Number + CudaDType>(
        &self,
        [q, k, v]: [Stored<'_>; 3],
        attend: &Attend,
        with_lse: bool,
    ) -> Result<Outputs> {
        let device = device(q);
        let stream = device.cuda_stream();
        let here = Here::of(&stream)?;
        let (q_data, k_data, v_data) = (data::<T>(q)?, data::<C>(k)?, data::<C>(v)?);
        let queries = input("q", &q_data, q.1, self.packed.is_some())?;
        let (heads, shape) = (q.1.dims()[q.1.dims().len() - 2], k.1.shape().dims4()?);
        let shape = [shape.0, shape.1, shape.2, shape.3];
        let strides: [usize; 4] = k.1.stride().try_into().unwrap_or_default();
        if v.1.stride() != strides {
            let (k, v) = (k.1.stride(), v.1.stride());
            return Err(invalid("v.strides", format_args!("{v:?}"), format_args!("k's, {k:?}")));
        }
        let mut pages = Pages::new(&k_data, &v_data, shape).strides(strides.map(|stride| stride as i64));
        if let Some(CacheScales { keys, values }) = self.scales {
            pages = pages.scales(Scale::Value(keys), Scale::Value(values));
        }
        let (table, lengths) = (Read::of("block_table", self.table), Read::of("lengths", self.lengths));
        let columns = table.shape().dims2()?.1;
        let (entries, lengths) = (table.numbers(2)?, lengths.numbers(1)?);
        let max_k = self.max_k.unwrap_or(columns * shape[1]).min(columns * shape[1]);
        let cache = Cache::paged(pages, entries.integers(), columns, lengths.integers());
        let cache = cache.table_stride(table.row_stride()).max_k(max_k);
        let mut request = Decode::new(queries, cache)
            .mask(attend.mask(max_k))
            .scale(attend.softmax_scale)
            .softcap(attend.cap());

        let starts = self.packed.map(|(starts, _)| Read::of("seqlens_q", starts));
        let starts = starts.as_ref().map(|read| read.numbers(1)).transpose()?;
        if let (Some(starts), Some((_, widest))) = (&starts, self.packed) {
            request = request.packed(starts.integers(), widest);
        }
        let slopes = attend.alibi_slopes.as_ref().map(|slopes| Read::of("alibi_slopes", slopes));
        let slopes = slopes.as_ref().map(|read| read.per_head(heads)).transpose()?;
        if let Some(slopes) = &slopes {
            request = request.alibi(PerHead::new(slopes));
        }
        let sinks = attend.sinks.as_ref().map(|sinks| Read::of("sinks", sinks));
        let sinks = sinks.as_ref().map(|read| read.per_head(heads)).transpose()?;
        // Kernels for few queries add sinks themselves.
        let few = self.packed.is_none() && slopes.is_none() && q.1.dims()[1] * heads / shape[2] <= 64;
        if let (Some(sinks), true) = (&sinks, few) {
            request = request.sinks(sinks);
        }
        let later = sinks.as_ref().filter(|_| !few);

        let (room, attention) = (here.room(&stream), &here.attention);
        let mut room = lock(&room);
        let (o, lse): (CudaSlice<T>, Option<CudaSlice<f32>>) = if with_lse || later.is_some() {
            let (o, lse) = attention.decode_with_lse(&stream, &request, &mut room).map_err(refused)?;
            (o, Some(lse))
        } else {
            (attention.decode(&stream, &request, &mut room).map_err(refused)?, None)
        };
        let dims = q.1.dims();
        let [batch, rows] = if self.packed.is_some() { [1, dims[0]] } else { [dims[0], dims[1]] };
        let whole = [batch, rows, heads, shape[3]];
        let (o, lse) = match (later, lse) {
            (Some(sinks), Some(lse)) => with_sinks(attention, &stream, (o, lse), sinks, whole)?,
            (_, lse) => (o, lse),
        };
        let lse_shape: Shape =
            if self.packed.is_some() { (heads, rows).into() } else { (batch, heads, rows).into() };
        let lse = lse.filter(|_| with_lse).map(|lse| (stored(lse, device), lse_shape));
        Ok(Outputs { o: stored(o, device), shape: q.1.shape().clone(), lse })
    }
}
