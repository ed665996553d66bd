//! An append to a KV cache that rotates queries and keys.
use crate::append::{AppendScales, CacheScales, Keys, apart, separate};
use crate::rotary::{RotaryTable, Turn};
use candle::{CpuStorage, CudaStorage, InplaceOp1, Layout, Result, Tensor};
use std::sync::Mutex;

/// Rotates `q` and `k` and writes `k` and `v` into KV caches, like [`append`](crate::append), in one launch.
/// Token `t` has the angles in row `positions[t]` of the table, u32 or i64; the kernel clamps positions to
/// the table. Returns the rotated queries. `q` is `(tokens, heads, head_dim)`. Rows of `q` beyond the slots
/// have zeros in the result.
///
/// # Errors
/// Returns [`candle::Error::Cuda`] with a [`ferroflash::Error`] inside.
pub fn append_rotary(
    q: &Tensor,
    (k, v): (&Tensor, &Tensor),
    (k_cache, v_cache): (&Tensor, &Tensor),
    slots: &Tensor,
    scales: Option<CacheScales>,
    table: &RotaryTable,
    positions: &Tensor,
) -> Result<Tensor> {
    let scales = scales.map(AppendScales::Numbers);
    write_rotated(q, (k, v), (k_cache, v_cache), slots, scales, table, positions)
}

/// Like [`append_rotary`], with scales of any kind.
pub(crate) fn write_rotated(
    q: &Tensor,
    (k, v): (&Tensor, &Tensor),
    (k_cache, v_cache): (&Tensor, &Tensor),
    slots: &Tensor,
    scales: Option<AppendScales<'_>>,
    table: &RotaryTable,
    positions: &Tensor,
) -> Result<Tensor> {
    table.check(positions)?;
    let RotaryTable { cos, sin, .. } = table;
    let inputs = [("k", k), ("v", v), ("slots", slots), ("q", q), ("cos", cos), ("sin", sin)];
    let inputs = [&inputs[..], &[("positions", positions)]].concat();
    separate([k_cache, v_cache], &inputs)?;
    apart(scales, [k_cache, v_cache], &inputs)?;
    let rotated = Tensor::zeros(q.shape(), q.dtype(), q.device())?;
    rotated.inplace_op1(&Rotated {
        q,
        key_value: [k, v],
        caches: [k_cache, v_cache],
        slots,
        scales,
        table,
        positions,
    })?;
    Ok(rotated)
}

/// The first step: candle passes the output to `cuda_fwd`, which begins the append.
struct Rotated<'a> {
    q: &'a Tensor,
    key_value: [&'a Tensor; 2],
    caches: [&'a Tensor; 2],
    slots: &'a Tensor,
    scales: Option<AppendScales<'a>>,
    table: &'a RotaryTable,
    positions: &'a Tensor,
}

impl InplaceOp1 for Rotated<'_> {
    fn name(&self) -> &'static str {
        "append-rotary"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        candle::bail!("no cpu support for flash-attn")
    }

    fn cuda_fwd(&self, rotated: &mut CudaStorage, _: &Layout) -> Result<()> {
        let Rotated { q, key_value: [k, v], caches: [k_cache, v_cache], slots, scales, .. } = *self;
        let (table, positions, rotated) = (self.table, self.positions, Mutex::new(rotated));
        let turn = Turn { q, table, positions, first_column: 0, rotated };
        k_cache.inplace_op3(k, v, &Keys { v_cache, slots, scales, turn: Some(&turn) })
    }
}
