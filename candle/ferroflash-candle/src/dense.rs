//! Dense attention: candle-flash-attn's operation and functions.
use crate::attend::{Attend, Outputs, both, device, run, stored};
use crate::errors::invalid;
use crate::extras::Reads;
use crate::here::Here;
use crate::inputs::{Read, Stored, data, input, no_such_type};
use crate::merge::compute;
use candle::backend::BackendStorage;
use candle::cuda_backend::CudaDType;
use candle::{CpuStorage, CudaStorage, CustomOp3, DType, Layout, Result, Shape, Tensor};
use ferroflash::cudarc::{Element, Inputs, PerHead};
use half::{bf16, f16};

/// candle-flash-attn's operation for `Tensor::apply_op3`.
pub struct FlashAttn {
    /// Factor of the scores, above 0.
    pub softmax_scale: f32,
    /// ALiBi slopes, f32 `[heads]`.
    pub alibi_slopes: Option<Tensor>,
    /// Number of visible keys before a query's position; `None` is all.
    pub window_size_left: Option<usize>,
    /// Number of visible keys after a query's position; `None` is all.
    pub window_size_right: Option<usize>,
    /// The softcap: scores become `softcap * tanh(score / softcap)`. 0, negative values and `None` turn it
    /// off.
    pub softcap: Option<f32>,
}

impl CustomOp3 for FlashAttn {
    fn name(&self) -> &'static str {
        "flash-attn"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        candle::bail!("no cpu support for flash-attn")
    }

    fn cuda_fwd(
        &self,
        q: &CudaStorage,
        q_l: &Layout,
        k: &CudaStorage,
        k_l: &Layout,
        v: &CudaStorage,
        v_l: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let FlashAttn { softmax_scale, window_size_left, window_size_right, softcap, .. } = *self;
        let mut attend = Attend::full(softmax_scale).window(window_size_left, window_size_right);
        (attend.alibi_slopes, attend.softcap) = (self.alibi_slopes.clone(), softcap);
        let outputs = forward([(q, q_l), (k, k_l), (v, v_l)], &attend, None, false)?;
        Ok((outputs.o, outputs.shape))
    }
}

/// The offsets of `n` varlen sequences, which are `n + 1` integers (u32 or i32), and the maximum number of
/// rows per sequence.
#[derive(Clone, Copy)]
pub(crate) struct Starts<'a> {
    pub q: &'a Tensor,
    pub k: &'a Tensor,
    pub max_q: usize,
    pub max_k: usize,
}

/// Computes attention on tensors, dense or varlen.
pub(crate) fn forward(
    inputs: [Stored<'_>; 3],
    attend: &Attend,
    packed: Option<Starts<'_>>,
    lse: bool,
) -> Result<Outputs> {
    match inputs[0].0.dtype() {
        DType::F16 => on::<f16>(inputs, attend, packed, lse),
        DType::BF16 => on::<bf16>(inputs, attend, packed, lse),
        other => Err(no_such_type("queries", other)),
    }
}

fn on<T: Element + CudaDType>(
    [q, k, v]: [Stored<'_>; 3],
    attend: &Attend,
    packed: Option<Starts<'_>>,
    with_lse: bool,
) -> Result<Outputs> {
    let device = device(q);
    let stream = device.cuda_stream();
    let here = Here::of(&stream)?;
    let is_packed = packed.is_some();
    let (q_data, k_data, v_data) = (data::<T>(q)?, data::<T>(k)?, data::<T>(v)?);
    let tensors = [
        input("q", &q_data, q.1, is_packed)?,
        input("k", &k_data, k.1, is_packed)?,
        input("v", &v_data, v.1, is_packed)?,
    ];
    let (q_dims, k_dims) = (q.1.dims(), k.1.dims());
    let heads = q_dims[q_dims.len() - 2];
    let max_k = packed.map_or(k_dims[k_dims.len() - 3], |packed| packed.max_k);
    let [qs, ks, vs] = tensors;
    let starts = packed.map(|Starts { q, k, max_q, max_k }| {
        (Read::of("seqlens_q", q), Read::of("seqlens_k", k), max_q, max_k)
    });
    let starts = starts.as_ref().map(|(q, k, max_q, max_k)| {
        if q.shape() != k.shape() {
            let expected = format_args!("the shape of seqlens_q, {:?}", q.shape());
            return Err(invalid("seqlens_k", format_args!("{:?}", k.shape()), expected));
        }
        Ok((q.numbers(1)?, k.numbers(1)?, *max_q, *max_k))
    });
    let starts = starts.transpose()?;
    let mut request = match &starts {
        Some((q, k, max_q, max_k)) => Inputs::varlen(qs, ks, vs, q.integers(), k.integers(), *max_q, *max_k),
        None => Inputs::dense(qs, ks, vs),
    };
    request = request.mask(attend.mask(max_k)).scale(attend.softmax_scale).softcap(attend.cap());
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

    let [batch, rows] = if is_packed { [1, q_dims[0]] } else { [q_dims[0], q_dims[1]] };
    let columns = v.1.dims()[q_dims.len() - 1];
    let whole = [batch, rows, heads, columns];
    let (o, lse) = compute(&here, &stream, &request, sinks.as_ref(), with_lse, whole)?;
    let shape: Shape = if is_packed { (heads, rows).into() } else { (batch, heads, rows).into() };
    let lse = lse.filter(|_| with_lse).map(|lse| (stored(lse, device), shape));
    let o_shape: Shape = if is_packed { (rows, heads, columns).into() } else { (&whole).into() };
    Ok(Outputs { o: stored(o, device), shape: o_shape, lse })
}

/// Computes `softmax(softmax_scale * q kᵀ) v`. Shapes are `(batch, sequence, heads, head_dim)`. The number of
/// query heads is a multiple of the number of key heads. `causal` aligns bottom-right. `v` may have another
/// head dim than `q` and `k` (MLA: 192 and 128); the output then has the head dim of `v`.
///
/// # Errors
/// Returns [`candle::Error::Cuda`] with a [`ferroflash::Error`] inside.
pub fn flash_attn(q: &Tensor, k: &Tensor, v: &Tensor, softmax_scale: f32, causal: bool) -> Result<Tensor> {
    flash_attn_windowed(q, k, v, softmax_scale, None, causal.then_some(0))
}

/// Computes [`flash_attn`] with a sliding window. A query sees the keys from `window_size_left` before its
/// own position to `window_size_right` after it. `None` is unbounded.
///
/// # Errors
/// Returns the errors of [`flash_attn`].
pub fn flash_attn_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let (alibi_slopes, softcap) = (None, None);
    let op = FlashAttn { softmax_scale, alibi_slopes, window_size_left, window_size_right, softcap };
    q.apply_op3(k, v, op)
}

/// Computes [`flash_attn`] with ALiBi: one f32 slope per query head.
///
/// # Errors
/// Returns the errors of [`flash_attn`].
pub fn flash_attn_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    flash_attn_alibi_windowed(q, k, v, alibi_slopes, softmax_scale, None, causal.then_some(0))
}

/// Computes [`flash_attn_windowed`] with ALiBi.
///
/// # Errors
/// Returns the errors of [`flash_attn`].
pub fn flash_attn_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let (alibi_slopes, softcap) = (Some(alibi_slopes.clone()), None);
    let op = FlashAttn { softmax_scale, alibi_slopes, window_size_left, window_size_right, softcap };
    q.apply_op3(k, v, op)
}

/// Computes [`flash_attn_windowed`] with optional ALiBi and softcap: scores become `softcap * tanh(score /
/// softcap)`; 0 is off.
///
/// # Errors
/// Returns the errors of [`flash_attn`].
#[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
pub fn flash_attn_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    let (alibi_slopes, softcap) = (alibi_slopes.cloned(), Some(softcap));
    let op = FlashAttn { softmax_scale, alibi_slopes, window_size_left, window_size_right, softcap };
    q.apply_op3(k, v, op)
}

/// Computes attention, and the natural LSE of each row, f32 `(batch, heads, sequence)`. This function has no
/// gradient.
///
/// # Errors
/// Returns the errors of [`flash_attn`].
pub fn flash_attn_with_lse(q: &Tensor, k: &Tensor, v: &Tensor, attend: &Attend) -> Result<(Tensor, Tensor)> {
    both(run([q, k, v], |inputs| forward(inputs, attend, None, true))?)
}
