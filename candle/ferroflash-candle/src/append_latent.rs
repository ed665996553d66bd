//! Append to a latent cache (MLA) of the caller, plain or with a rotation.
use crate::append::{outside, written};
use crate::errors::{invalid, refused};
use crate::here::Here;
use crate::inputs::{Read, data, no_such_type};
use crate::rotary::{Launched, Refusable, RotaryTable, Turn};
use candle::backend::BackendStorage;
use candle::cuda_backend::CudaDType;
use candle::cuda_backend::cudarc::driver::{CudaStream, CudaView};
use candle::{CpuStorage, CudaStorage, DType, InplaceOp1, InplaceOp2, Layout, Result, Tensor};
use ferroflash::cudarc::{Element, FlashAttention, Number, PagesMut, Rotary, SlotNumber, Tensor as Input};
use half::{bf16, f16};
use std::sync::{Arc, Mutex};

/// Writes `rows`, `(tokens, columns)`, into a latent cache `(pages, page, 1, columns)` by slot mapping
/// `slots`, i64 or i32 `(tokens)`. A row holds the latent, then the rotated key. The first `value_columns`
/// columns are the value; `columns` is a multiple of 16. Slots are like [`append`](crate::append)'s. The
/// function changes the cache in place. The cache must not share storage with `rows` or `slots`.
///
/// # Errors
/// Returns [`candle::Error::Cuda`] with a [`ferroflash::Error`] inside.
#[doc(alias = "concat_and_cache_mla")]
pub fn append_latent(rows: &Tensor, cache: &Tensor, value_columns: usize, slots: &Tensor) -> Result<()> {
    outside(cache, &[("rows", rows), ("slots", slots)])?;
    cache.inplace_op2(rows, &Rows { value_columns, slots, turn: None })
}

/// Rotates `q` and `rows` and writes `rows` into a latent cache, like [`append_latent`], in one launch. The
/// columns behind `value_columns` rotate, by the angles in row `positions[t]` of the table, u32 or i64; the
/// kernel clamps positions to the table. Returns the rotated queries. `q` is `(tokens, heads, columns)`. Rows
/// of `q` beyond the slots have zeros in the result.
///
/// # Errors
/// Returns [`candle::Error::Cuda`] with a [`ferroflash::Error`] inside.
pub fn append_latent_rotary(
    q: &Tensor,
    rows: &Tensor,
    (cache, value_columns): (&Tensor, usize),
    slots: &Tensor,
    table: &RotaryTable,
    positions: &Tensor,
) -> Result<Tensor> {
    table.check(positions)?;
    let inputs = [("q", q), ("rows", rows), ("slots", slots), ("positions", positions)];
    outside(cache, &[&inputs[..], &[("cos", &table.cos), ("sin", &table.sin)]].concat())?;
    let rotated = Tensor::zeros(q.shape(), q.dtype(), q.device())?;
    rotated.inplace_op1(&Rotated { q, rows, cache, value_columns, slots, table, positions })?;
    Ok(rotated)
}

/// The first step of a rotation: candle passes the output to `cuda_fwd`, which begins the append.
struct Rotated<'a> {
    q: &'a Tensor,
    rows: &'a Tensor,
    cache: &'a Tensor,
    value_columns: usize,
    slots: &'a Tensor,
    table: &'a RotaryTable,
    positions: &'a Tensor,
}

impl InplaceOp1 for Rotated<'_> {
    fn name(&self) -> &'static str {
        "append-latent-rotary"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        candle::bail!("no cpu support for flash-attn")
    }

    fn cuda_fwd(&self, rotated: &mut CudaStorage, _: &Layout) -> Result<()> {
        let Rotated { q, rows, cache, value_columns, slots, table, positions } = *self;
        let turn = Turn { q, table, positions, first_column: value_columns, rotated: Mutex::new(rotated) };
        cache.inplace_op2(rows, &Rows { value_columns, slots, turn: Some(&turn) })
    }
}

/// The append of rows to a latent cache.
struct Rows<'a, 't> {
    value_columns: usize,
    slots: &'a Tensor,
    turn: Option<&'a Turn<'t>>,
}

impl InplaceOp2 for Rows<'_, '_> {
    fn name(&self) -> &'static str {
        "append-latent"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<()> {
        candle::bail!("no cpu support for flash-attn")
    }

    fn cuda_fwd(
        &self,
        cache: &mut CudaStorage,
        layout: &Layout,
        rows: &CudaStorage,
        rows_layout: &Layout,
    ) -> Result<()> {
        if cache.dtype() != rows.dtype() {
            let expected = format_args!("the rows', {:?}", rows.dtype());
            return Err(invalid("cache.dtype", format_args!("{:?}", cache.dtype()), expected));
        }
        match rows.dtype() {
            DType::F16 => self.on::<f16>((cache, layout), (rows, rows_layout)),
            DType::BF16 => self.on::<bf16>((cache, layout), (rows, rows_layout)),
            other => Err(no_such_type("rows", other)),
        }
    }
}

impl Rows<'_, '_> {
    fn on<T: Element + CudaDType>(
        &self,
        cache: (&mut CudaStorage, &Layout),
        rows: (&CudaStorage, &Layout),
    ) -> Result<()> {
        let slots = Read::of("slots", self.slots);
        match slots.dtype() {
            DType::I64 => self.to::<T, i64>(cache, rows, &slots.data(1)?),
            DType::I32 => self.to::<T, i32>(cache, rows, &slots.data(1)?),
            other => Err(invalid("slots", format_args!("{other:?}"), "their dtype must be i64 or i32")),
        }
    }

    fn to<T: Element + CudaDType, N: SlotNumber + CudaDType>(
        &self,
        (cache, layout): (&mut CudaStorage, &Layout),
        rows: (&CudaStorage, &Layout),
        slots: &CudaView<'_, N>,
    ) -> Result<()> {
        let stream = rows.0.device().cuda_stream();
        let here = Here::of(&stream)?;
        let rows_data = data::<T>(rows)?;
        let ((tokens, columns), strides) = (rows.1.shape().dims2()?, rows.1.stride());
        let strides = [0, strides[0], columns, strides[1]].map(|stride| stride as i64);
        let rows = Input::new(&rows_data, [1, tokens, 1, columns]).strides(strides);
        let (pages, page, heads, columns) = layout.shape().dims4()?;
        let strides: [usize; 4] = layout.stride().try_into().unwrap_or_default();
        let mut cache = written::<T>(cache, layout.start_offset())?;
        let pages = PagesMut::latent(&mut cache, [pages, page, heads, columns], self.value_columns)
            .strides(strides.map(|stride| stride as i64));
        let attention = &here.attention;
        match self.turn {
            None => attention.append_latent(&stream, rows, pages, slots).map_err(refused),
            Some(turn) => turn.launch(Rotating { attention, stream: &stream, rows, pages, slots }),
        }
    }
}

/// An append that waits for its rotation.
struct Rotating<'a, T, S> {
    attention: &'a FlashAttention,
    stream: &'a Arc<CudaStream>,
    rows: Input<'a, T>,
    pages: PagesMut<'a, T>,
    slots: &'a CudaView<'a, S>,
}

impl<T: Element, S: SlotNumber> Launched<T> for Rotating<'_, T, S> {
    fn with<A: Number, P: SlotNumber>(self, rotary: Rotary<'_, T, A, P>) -> Refusable {
        let Rotating { attention, stream, rows, pages, slots } = self;
        attention.append_latent_rotary(stream, rows, pages, slots, rotary)
    }
}
