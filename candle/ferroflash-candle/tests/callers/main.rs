//! The calls of mistral.rs and text-embeddings-inference, in the form that these programs would use with
//! ferroflash-candle. docs/migrating.md lists the changes. CI compiles the calls. On a machine with a GPU,
//! the calls also run.
#![cfg(feature = "cuda")]
mod mla;
mod shared;

use candle::{D, DType, Device, Result, Tensor};
use ferroflash_candle::CacheScales;

/// The calls of mistral.rs 0.9.2 to `mistralrs-flash-attn`, `candle-flash-attn-v3` and
/// `mistralrs-paged-attn`.
mod mistralrs {
    use candle::{Result, Tensor};
    use ferroflash_candle::{
        Attend, CacheScales, PagedKv, append, flash_attn_alibi_windowed_softcap,
        flash_attn_varlen_alibi_windowed_softcap, flash_attn_varlen_paged_windowed,
        flash_attn_varlen_windowed, flash_attn_varlen_with_lse, flash_attn_windowed, flash_attn_with_lse,
    };

    /// The fields of `SdpaParams` that attention reads.
    #[derive(Clone, Copy)]
    pub struct Params<'a> {
        pub scale: f32,
        /// `sliding_window_left` is one less than the window's size, which counts the query's own key.
        pub left: Option<usize>,
        pub causal: bool,
        pub softcap: Option<f32>,
        pub sinks: Option<&'a Tensor>,
    }

    impl Params<'_> {
        fn attend(&self) -> Attend {
            let attend = Attend::full(self.scale).window(self.left, self.causal.then_some(0));
            let attend = self.softcap.into_iter().fold(attend, Attend::softcap);
            self.sinks.into_iter().fold(attend, Attend::sinks)
        }
    }

    /// Computes the calls `flash_attn_v2` and `flash_attn_v3` of attention/backends/flash.rs, for a batch
    /// with equal lengths.
    pub fn dense(q: &Tensor, k: &Tensor, v: &Tensor, params: Params) -> Result<Tensor> {
        let Params { scale, left, causal, softcap, .. } = params;
        let right = causal.then_some(0);
        match softcap {
            Some(cap) => flash_attn_alibi_windowed_softcap(q, k, v, None, scale, left, right, cap),
            None => flash_attn_windowed(q, k, v, scale, left, right),
        }
    }

    /// Computes [`dense`] for varlen sequences.
    pub fn varlen(
        [q, k, v]: [&Tensor; 3],
        [cu_q, cu_k]: [&Tensor; 2],
        [max_q, max_k]: [usize; 2],
        params: Params,
    ) -> Result<Tensor> {
        let Params { scale, left, causal, softcap, .. } = params;
        let right = causal.then_some(0);
        match softcap {
            Some(cap) => flash_attn_varlen_alibi_windowed_softcap(
                q, k, v, None, cu_q, cu_k, max_q, max_k, scale, left, right, cap,
            ),
            None => flash_attn_varlen_windowed(q, k, v, cu_q, cu_k, max_q, max_k, scale, left, right),
        }
    }

    /// Pages in the layout of mistral.rs' FlashInfer backend: `[blocks, key heads, block, head dim]`.
    #[derive(Clone, Copy)]
    pub struct Blocks<'a> {
        pub keys: &'a Tensor,
        pub values: &'a Tensor,
        pub tables: &'a Tensor,
        pub scales: Option<CacheScales>,
    }

    impl Blocks<'_> {
        fn views(&self) -> Result<[Tensor; 2]> {
            Ok([self.keys.transpose(1, 2)?, self.values.transpose(1, 2)?])
        }

        /// Stands for `reshape_and_cache_flashinfer`.
        pub fn write(&self, k: &Tensor, v: &Tensor, slots: &Tensor) -> Result<()> {
            let [keys, values] = self.views()?;
            append(k, v, &keys, &values, slots, self.scales)
        }

        /// Stands for `run_flash_attention_paged_prefill`. candle-flash-attn's function takes no scales.
        pub fn prefill(
            &self,
            q: &Tensor,
            context_lens: &Tensor,
            [cu_q, cu_k]: [&Tensor; 2],
            [max_q, max_k]: [usize; 2],
            params: Params,
        ) -> Result<Tensor> {
            let [keys, values] = self.views()?;
            if self.scales.is_some() {
                let mut cache = PagedKv::new(&keys, &values, self.tables, context_lens);
                cache.scales = self.scales;
                return cache.attend_varlen(q, cu_q, max_q, &params.attend());
            }
            let (block, right) = (keys.dim(1)?, params.causal.then_some(0));
            flash_attn_varlen_paged_windowed(
                q,
                &keys,
                &values,
                cu_q,
                cu_k,
                self.tables,
                None,
                max_q,
                max_k,
                params.scale,
                params.left,
                right,
                block,
                params.softcap,
            )
        }

        /// Replaces the calls of `flashinfer_decode` and `paged_attention`. Each sequence has one query:
        /// `[sequences, heads, head dim]`. Tables and lengths suffice, so the seven tensors of FlashInfer's
        /// plan and its scratch memory are not needed.
        pub fn decode(&self, q: &Tensor, context_lens: &Tensor, params: Params) -> Result<Tensor> {
            let [keys, values] = self.views()?;
            let mut cache = PagedKv::new(&keys, &values, self.tables, context_lens);
            cache.scales = self.scales;
            cache.attend(&q.unsqueeze(1)?, &params.attend())?.squeeze(1)
        }
    }

    /// Replaces the call of `flash_attn_sinks`, with tensors `[batch, heads, sequence, head dim]`.
    pub fn sinks(q: &Tensor, k: &Tensor, v: &Tensor, params: Params) -> Result<Tensor> {
        let [q, k, v] = [q.transpose(1, 2)?, k.transpose(1, 2)?, v.transpose(1, 2)?];
        flash_attn_with_lse(&q, &k, &v, &params.attend())?.0.transpose(1, 2)
    }

    /// Replaces the call of `flash_attn_sinks_varlen`, with varlen queries and keys.
    pub fn sinks_varlen(
        [q, k, v]: [&Tensor; 3],
        [cu_q, cu_k]: [&Tensor; 2],
        [max_q, max_k]: [usize; 2],
        params: Params,
    ) -> Result<Tensor> {
        Ok(flash_attn_varlen_with_lse(q, k, v, cu_q, cu_k, max_q, max_k, &params.attend())?.0)
    }
}

/// The call of text-embeddings-inference to `candle-flash-attn`. All of its models use this one function.
mod embeddings {
    use candle::{Result, Tensor};
    use ferroflash_candle::{flash_attn_varlen_alibi_windowed, flash_attn_varlen_windowed};

    /// Computes attention of varlen texts, with a full or a causal mask.
    pub fn varlen(
        [q, k, v]: [&Tensor; 3],
        alibi_slopes: Option<&Tensor>,
        cu_seqlens: &Tensor,
        max_s: usize,
        scale: f32,
        causal: bool,
        [left, right]: [Option<usize>; 2],
    ) -> Result<Tensor> {
        let right = if causal { Some(0) } else { right };
        let (cu, max) = (cu_seqlens, max_s);
        match alibi_slopes {
            Some(slopes) => {
                flash_attn_varlen_alibi_windowed(q, k, v, slopes, cu, cu, max, max, scale, left, right)
            }
            None => flash_attn_varlen_windowed(q, k, v, cu, cu, max, max, scale, left, right),
        }
    }
}

const HEADS: usize = 8;
const KEY_HEADS: usize = 2;
const COLUMNS: usize = 64;
const SCALE: f32 = 0.125;
const PLAIN: mistralrs::Params<'static> =
    mistralrs::Params { scale: SCALE, left: None, causal: true, softcap: None, sinks: None };

/// Sequences with these numbers of queries and keys.
struct Batch {
    lengths: Vec<[usize; 2]>,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: [Tensor; 2],
    max: [usize; 2],
}

impl Batch {
    fn new(lengths: &[[usize; 2]], device: &Device) -> Result<Batch> {
        let total = |side: usize| lengths.iter().map(|length| length[side]).sum::<usize>();
        let random =
            |rows, heads| Tensor::randn(0f32, 1.0, (rows, heads, COLUMNS), device)?.to_dtype(DType::BF16);
        let starts = |side: usize| {
            let ends = lengths.iter().scan(0, |end, length| {
                *end += length[side] as u32;
                Some(*end)
            });
            Tensor::from_iter(std::iter::once(0).chain(ends), device)
        };
        let max = [0, 1].map(|side| lengths.iter().map(|length| length[side]).max().unwrap_or(0));
        let [k, v] = [random(total(1), KEY_HEADS)?, random(total(1), KEY_HEADS)?];
        let (lengths, q) = (lengths.to_vec(), random(total(0), HEADS)?);
        Ok(Batch { lengths, q, k, v, starts: [starts(0)?, starts(1)?], max })
    }

    /// Returns the batch with the keys and values that an e4m3 cache with these scales holds.
    fn through_e4m3(self, scales: CacheScales) -> Result<Batch> {
        let round = |x: &Tensor, scale: f32| {
            let values = x.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
            let rounded = values.into_iter().map(|x| e4m3(x / scale) * scale);
            Tensor::from_iter(rounded, x.device())?.reshape(x.shape())
        };
        let [k, v] = [round(&self.k, scales.keys)?, round(&self.v, scales.values)?];
        Ok(Batch { k, v, ..self })
    }

    fn tensors(&self) -> [&Tensor; 3] {
        [&self.q, &self.k, &self.v]
    }

    fn starts(&self) -> [&Tensor; 2] {
        self.starts.each_ref()
    }

    /// Returns the expected result in f32, computed sequence by sequence from the definition.
    fn expected(
        &self,
        params: mistralrs::Params,
        right: Option<usize>,
        alibi: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (mut rows, mut keys, mut all) = (0, 0, Vec::new());
        for &[queries, count] in &self.lengths {
            let q = self.q.narrow(0, rows, queries)?.to_dtype(DType::F32)?.transpose(0, 1)?.contiguous()?;
            let of = |x: &Tensor| {
                let x = x.narrow(0, keys, count)?.to_dtype(DType::F32)?.transpose(0, 1)?.unsqueeze(1)?;
                x.broadcast_as((KEY_HEADS, HEADS / KEY_HEADS, count, COLUMNS))?
                    .reshape((HEADS, count, COLUMNS))
            };
            let mut scores = (q.matmul(&of(&self.k)?.t()?)? * f64::from(params.scale))?;
            if let Some(cap) = params.softcap {
                scores = ((scores / f64::from(cap))?.tanh()? * f64::from(cap))?;
            }
            let far = |row: usize, key: usize| key as f32 - (row + count - queries) as f32;
            let pairs = || (0..queries).flat_map(|row| (0..count).map(move |key| (row, key)));
            let seen = pairs().map(|(row, key)| {
                let far = far(row, key);
                let hidden = params.left.is_some_and(|left| far < -(left as f32))
                    || right.is_some_and(|right| far > right as f32);
                if hidden { f32::NEG_INFINITY } else { 0.0 }
            });
            scores = scores
                .broadcast_add(&Tensor::from_iter(seen, self.q.device())?.reshape((1, queries, count))?)?;
            if let Some(slopes) = alibi {
                let far = Tensor::from_iter(pairs().map(|(row, key)| -far(row, key).abs()), self.q.device())?;
                let far = far.reshape((1, queries, count))?;
                scores = (scores + slopes.reshape((HEADS, 1, 1))?.broadcast_mul(&far)?)?;
            }
            if let Some(sinks) = params.sinks {
                let sinks = sinks.reshape((HEADS, 1, 1))?.broadcast_as((HEADS, queries, 1))?;
                scores = Tensor::cat(&[&scores, &sinks.contiguous()?], 2)?;
            }
            let shifted = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
            let shares = shifted.broadcast_div(&shifted.sum_keepdim(D::Minus1)?)?.narrow(2, 0, count)?;
            all.push(shares.contiguous()?.matmul(&of(&self.v)?)?.transpose(0, 1)?);
            (rows, keys) = (rows + queries, keys + count);
        }
        Tensor::cat(&all, 0)
    }

    fn check(&self, what: &str, found: &Tensor, expected: &Tensor) -> Result<()> {
        assert_eq!(found.dims(), expected.dims(), "{what}");
        let apart = far(found, expected)?;
        // Values are normally distributed. Rounding to bf16 changes the largest values by up to 2^-7.
        assert!(apart <= 3e-2, "{what}: {apart}");
        Ok(())
    }
}

/// The e4m3 number that is nearest to `x`.
fn e4m3(x: f32) -> f32 {
    let step = 2f32.powi((x.abs().log2().floor() as i32).max(-6) - 3);
    ((x / step).round_ties_even() * step).clamp(-448.0, 448.0)
}

#[test]
fn mistralrs_varlen_and_dense() -> Result<()> {
    let device = Device::new_cuda(0)?;
    let batch = Batch::new(&[[5, 5], [1, 70], [33, 100]], &device)?;
    let sinks = Tensor::randn(0f32, 1.0, HEADS, &device)?;
    for params in [
        PLAIN,
        mistralrs::Params { causal: false, ..PLAIN },
        mistralrs::Params { left: Some(15), ..PLAIN },
        mistralrs::Params { left: Some(15), softcap: Some(20.0), ..PLAIN },
    ] {
        let right = params.causal.then_some(0);
        let found = mistralrs::varlen(batch.tensors(), batch.starts(), batch.max, params)?;
        batch.check("varlen", &found, &batch.expected(params, right, None)?)?;

        let params = mistralrs::Params { sinks: Some(&sinks), ..params };
        let found = mistralrs::sinks_varlen(batch.tensors(), batch.starts(), batch.max, params)?;
        batch.check("varlen with sinks", &found, &batch.expected(params, right, None)?)?;
    }
    let one = Batch::new(&[[60, 60]], &device)?;
    let [q, k, v] = one.tensors().map(|x| x.unsqueeze(0));
    let [q, k, v] = [q?, k?, v?];
    let params = mistralrs::Params { softcap: Some(30.0), ..PLAIN };
    for params in [PLAIN, params] {
        let found = mistralrs::dense(&q, &k, &v, params)?.squeeze(0)?;
        one.check("dense", &found, &one.expected(params, Some(0), None)?)?;
    }
    let params = mistralrs::Params { left: Some(20), sinks: Some(&sinks), ..PLAIN };
    let [q, k, v] = [q.transpose(1, 2)?, k.transpose(1, 2)?, v.transpose(1, 2)?];
    let found = mistralrs::sinks(&q, &k, &v, params)?.transpose(1, 2)?.squeeze(0)?;
    one.check("sinks", &found, &one.expected(params, Some(0), None)?)
}

#[test]
fn mistralrs_pages() -> Result<()> {
    let device = Device::new_cuda(0)?;
    let (blocks, block) = (40, 32);
    let sinks = Tensor::randn(0f32, 1.0, HEADS, &device)?;
    for (lengths, scales) in [
        ([[1, 5], [1, 70], [1, 100]], None),
        ([[5, 5], [9, 70], [33, 100]], None),
        ([[1, 5], [1, 70], [1, 100]], Some(CacheScales { keys: 0.02, values: 0.02 })),
        ([[5, 5], [9, 70], [33, 100]], Some(CacheScales { keys: 0.02, values: 0.02 })),
    ] {
        let batch = Batch::new(&lengths, &device)?;
        let dtype = if scales.is_some() { DType::U8 } else { DType::BF16 };
        let cache = || Tensor::zeros((blocks, KEY_HEADS, block, COLUMNS), dtype, &device);
        let (keys, values) = (cache()?, cache()?);
        // Sequence `b` has pages 37 - b, 33 - b, and so on, which are neither in order nor adjacent.
        let table: Vec<u32> = (0..3).flat_map(|b| (0..4).map(move |column| 37 - b - 4 * column)).collect();
        let slots: Vec<i64> = (0..3)
            .flat_map(|b| (0..lengths[b][1]).map(move |key| (b, key)))
            .map(|(b, key)| i64::from(table[b * 4 + key / block]) * block as i64 + (key % block) as i64)
            .collect();
        let tables = Tensor::from_vec(table, (3, 4), &device)?;
        let cache = mistralrs::Blocks { keys: &keys, values: &values, tables: &tables, scales };
        cache.write(&batch.k, &batch.v, &Tensor::new(slots, &device)?)?;
        let batch = match scales {
            Some(scales) => batch.through_e4m3(scales)?,
            None => batch,
        };
        let context = Tensor::new(lengths.map(|[_, keys]| keys as u32).to_vec(), &device)?;
        let windowed = mistralrs::Params { left: Some(40), softcap: Some(25.0), ..PLAIN };
        for params in [PLAIN, windowed] {
            if lengths[0][0] == 1 {
                let params = mistralrs::Params { sinks: Some(&sinks), ..params };
                let found = cache.decode(&batch.q, &context, params)?;
                batch.check("decode", &found, &batch.expected(params, Some(0), None)?)?;
            }
            let found = cache.prefill(&batch.q, &context, batch.starts(), batch.max, params)?;
            batch.check("paged", &found, &batch.expected(params, Some(0), None)?)?;
        }
    }
    Ok(())
}

fn far(a: &Tensor, b: &Tensor) -> Result<f32> {
    (a.to_dtype(DType::F32)? - b)?.abs()?.flatten_all()?.max(0)?.to_scalar()
}

#[test]
fn text_embeddings_inference_varlen() -> Result<()> {
    let device = Device::new_cuda(0)?;
    let batch = Batch::new(&[[5, 5], [1, 1], [77, 77], [128, 128]], &device)?;
    let slopes = Tensor::from_iter((1..=HEADS).map(|head| 2f32.powi(-(head as i32))), &device)?;
    for (causal, window, alibi) in [
        (false, [None, None], None),
        (true, [None, None], None),
        (false, [Some(16), Some(16)], None),
        (false, [None, None], Some(&slopes)),
    ] {
        let (starts, max) = (batch.starts()[0], batch.max[0]);
        let found = embeddings::varlen(batch.tensors(), alibi, starts, max, SCALE, causal, window)?;
        let right = if causal { Some(0) } else { window[1] };
        let params = mistralrs::Params { left: window[0], causal, ..PLAIN };
        batch.check("embeddings", &found, &batch.expected(params, right, alibi)?)?;
    }
    Ok(())
}
