//! The three compared libraries behind one set of functions.
use candle::{DType, Result, Tensor, D};
use ferroflash_candle::{Attend, KvCache, Step};

include!(concat!(env!("OUT_DIR"), "/theirs.rs"));

/// The library that computes attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// FerroFlash.
    Ours,
    /// candle-flash-attn's kernels.
    Theirs,
    /// candle's operations, in f32.
    Plain,
}

impl Side {
    /// Returns the libraries that this program was built with.
    pub fn all() -> Vec<Side> {
        let mut all = vec![Side::Ours, Side::Plain];
        if cfg!(theirs) {
            all.insert(1, Side::Theirs);
        }
        all
    }

    /// Returns the side's name in results.
    pub fn name(self) -> &'static str {
        match self {
            Side::Ours => "ours",
            Side::Theirs => "theirs",
            Side::Plain => "plain",
        }
    }

    /// Computes dense attention with this side's library. The arguments are those of candle-flash-attn's
    /// `flash_attn`; shapes are `(batch, sequence, heads, head_dim)`.
    pub fn flash_attn(self, q: &Tensor, k: &Tensor, v: &Tensor, scale: f32, causal: bool) -> Result<Tensor> {
        match self {
            Side::Ours => ferroflash_candle::flash_attn(q, k, v, scale, causal),
            #[cfg(theirs)]
            Side::Theirs => theirs::flash_attn(q, k, v, scale, causal),
            #[cfg(not(theirs))]
            Side::Theirs => candle::bail!("built without candle-flash-attn"),
            Side::Plain => {
                let [q, k, v] = [q, k, v].map(|x| x.transpose(1, 2));
                plain(&q?, &k?, &v?, scale, causal)?.transpose(1, 2)
            }
        }
    }

    /// Computes varlen attention, causal or full.
    pub fn varlen(
        self,
        [q, k, v]: [&Tensor; 3],
        seqlens: &Tensor,
        max: usize,
        scale: f32,
        causal: bool,
    ) -> Result<Tensor> {
        match self {
            Side::Ours => {
                ferroflash_candle::flash_attn_varlen(q, k, v, seqlens, seqlens, max, max, scale, causal)
            }
            #[cfg(theirs)]
            Side::Theirs => theirs::flash_attn_varlen(q, k, v, seqlens, seqlens, max, max, scale, causal),
            #[cfg(not(theirs))]
            Side::Theirs => candle::bail!("built without candle-flash-attn"),
            Side::Plain => candle::bail!("candle has none"),
        }
    }

    /// Computes causal attention on pages with this side's library. `seqlens_q` and `seqlens_k` are offsets
    /// of queries and keys; `max_q` and `max_k` are the maximum numbers of queries and keys per sequence.
    pub fn paged(
        self,
        [q, k, v]: [&Tensor; 3],
        [seqlens_q, seqlens_k]: [&Tensor; 2],
        table: &Tensor,
        [max_q, max_k]: [usize; 2],
        scale: f32,
    ) -> Result<Tensor> {
        let page = k.dims()[1];
        match self {
            Side::Ours => ferroflash_candle::flash_attn_varlen_paged_windowed(
                q,
                k,
                v,
                seqlens_q,
                seqlens_k,
                table,
                None,
                max_q,
                max_k,
                scale,
                None,
                Some(0),
                page,
                None,
            ),
            #[cfg(theirs)]
            Side::Theirs => theirs::flash_attn_varlen_paged_windowed(
                q,
                k,
                v,
                seqlens_q,
                seqlens_k,
                table,
                None,
                max_q,
                max_k,
                scale,
                None,
                Some(0),
                page,
                None,
            ),
            #[cfg(not(theirs))]
            Side::Theirs => candle::bail!("built without candle-flash-attn"),
            Side::Plain => candle::bail!("candle has none"),
        }
    }

    /// Computes attention of a step's queries on a layer's KV cache.
    pub fn cached(
        self,
        q: &Tensor,
        cache: &KvCache,
        step: &Step,
        shared: Option<&Shared>,
        scale: f32,
    ) -> Result<Tensor> {
        let [keys, values] = cache.tensors();
        match self {
            Side::Ours => cache.attend(q, step, &Attend::causal(scale)),
            Side::Theirs => {
                let shared = shared.ok_or_else(|| candle::Error::msg("a step of theirs"))?;
                let seqlens = [&shared.seqlens_q, &shared.seqlens_k];
                self.paged([q, keys, values], seqlens, &shared.table, [shared.max_q, shared.max_k], scale)
            }
            Side::Plain => {
                let shared = shared.ok_or_else(|| candle::Error::msg("a step of theirs"))?;
                let mut row = 0;
                let mut outputs = Vec::new();
                for (b, &(queries, length)) in shared.rows.iter().enumerate() {
                    let page = keys.dims()[1];
                    let pages =
                        shared.table.narrow(0, b, 1)?.narrow(1, 0, length.div_ceil(page))?.flatten_all()?;
                    let of =
                        |pool: &Tensor| pool.index_select(&pages, 0)?.flatten(0, 1)?.narrow(0, 0, length);
                    let [k, v] = [of(keys)?, of(values)?].map(|x| x.unsqueeze(0)?.transpose(1, 2));
                    let q = q.narrow(0, row, queries)?.unsqueeze(0)?.transpose(1, 2)?;
                    outputs.push(plain(&q, &k?, &v?, scale, true)?.transpose(1, 2)?.squeeze(0)?);
                    row += queries;
                }
                Tensor::cat(&outputs, 0)
            }
        }
    }
}

/// The integers of a step, for the libraries that do not have the type [`Step`].
pub struct Shared {
    /// `cu_seqlens_q`.
    pub seqlens_q: Tensor,
    /// `cu_seqlens_k`.
    pub seqlens_k: Tensor,
    /// Block table, `(sequences, columns)`.
    pub table: Tensor,
    /// Maximum number of queries per sequence.
    pub max_q: usize,
    /// Maximum number of keys per sequence.
    pub max_k: usize,
    /// The numbers of queries and keys of each sequence.
    pub rows: Vec<(usize, usize)>,
}

impl Shared {
    /// Returns the integers of a step, after [`Step::set`]. `rows` contains the numbers of queries and keys
    /// of each sequence.
    pub fn new(step: &Step, rows: Vec<(usize, usize)>) -> Result<Self> {
        let table = step.block_table()?;
        let sums = |of: &dyn Fn(&(usize, usize)) -> usize| {
            let mut sum = 0;
            let ends = rows.iter().map(|row| {
                sum += of(row);
                sum as u32
            });
            let all: Vec<u32> = std::iter::once(0).chain(ends).collect();
            let count = all.len();
            Tensor::from_vec(all, count, table.device())
        };
        let (seqlens_q, seqlens_k) = (sums(&|row| row.0)?, sums(&|row| row.1)?);
        let most = |of: &dyn Fn(&(usize, usize)) -> usize| rows.iter().map(of).max().unwrap_or(1);
        let (max_q, max_k) = (most(&|row| row.0), most(&|row| row.1));
        Ok(Shared { seqlens_q, seqlens_k, table, max_q, max_k, rows })
    }
}

/// Computes attention as candle's models compute it: `(batch, heads, sequence, head_dim)`, in f32, with
/// repeated key heads.
pub fn plain(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32, causal: bool) -> Result<Tensor> {
    let dtype = q.dtype();
    let (batch, heads, rows, dim) = q.dims4()?;
    let (_, heads_k, keys, _) = k.dims4()?;
    let repeat = |x: &Tensor| -> Result<Tensor> {
        let x = x.to_dtype(DType::F32)?.contiguous()?.unsqueeze(2)?;
        x.broadcast_as((batch, heads_k, heads / heads_k, keys, dim))?.reshape((batch, heads, keys, dim))
    };
    let q = q.to_dtype(DType::F32)?.contiguous()?;
    let mut scores = (q.matmul(&repeat(k)?.t()?)? * scale as f64)?;
    if causal && rows > 1 {
        let at = Tensor::arange(0u32, rows as u32, q.device())?.reshape((rows, 1))?;
        let key = Tensor::arange(0u32, keys as u32, q.device())?.reshape((1, keys))?;
        let last = (at + (keys - rows) as f64)?;
        let hidden = key.broadcast_gt(&last)?.broadcast_as(scores.shape())?;
        let infinite = Tensor::new(f32::NEG_INFINITY, q.device())?.broadcast_as(scores.shape())?;
        scores = hidden.where_cond(&infinite, &scores)?;
    }
    let weights = candle_nn::ops::softmax(&scores, D::Minus1)?;
    weights.matmul(&repeat(v)?)?.to_dtype(dtype)
}
