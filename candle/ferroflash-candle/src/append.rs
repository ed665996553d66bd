//! Append: writes new keys and values to a KV cache of the caller.
use crate::errors::{invalid, refused};
use crate::here::{Here, lock};
use crate::inputs::{CacheNumber, Read, data, input, no_such_type};
use crate::rotary::{Launched, Refusable, Turn};
use candle::backend::BackendStorage;
use candle::cuda_backend::CudaDType;
use candle::cuda_backend::cudarc::driver::{CudaStream, CudaView, CudaViewMut};
use candle::{CpuStorage, CudaStorage, DType, InplaceOp1, InplaceOp3, Layout, Result, Storage, Tensor};
use ferroflash::cudarc::{
    Element, FlashAttention, Number, PagesMut, Rotary, Scale, SlotNumber, Tensor as Input,
};
use half::{bf16, f16};
use std::sync::{Arc, Mutex};

/// Scales of an e4m3 KV cache. A key or value is the stored number times its scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheScales {
    /// Scale of keys, above 0.
    pub keys: f32,
    /// Scale of values, above 0.
    pub values: f32,
}

/// The scales of an append to a cache of eight bits.
#[derive(Clone, Copy)]
pub(crate) enum AppendScales<'a> {
    /// Of an e4m3 cache.
    Numbers(CacheScales),
    /// Of the rows of an int8 cache, of keys and of values: the append writes them.
    Tokens([&'a Tensor; 2]),
}

impl Default for CacheScales {
    fn default() -> Self {
        CacheScales { keys: 1.0, values: 1.0 }
    }
}

/// Writes `k` and `v`, `(tokens, heads, head_dim)`, into KV caches `(pages, page, heads, head_dim)` by slot
/// mapping `slots`, i64 or i32 `(tokens)`. Token `t` goes to row `slots[t] % page` of page `slots[t] / page`.
/// The kernel skips slots outside of the KV cache. KV caches of u8 are e4m3 and store `x / scale`. The
/// function changes the KV caches in place. The two KV caches must not share storage with each other or with
/// `k`, `v` or `slots`.
///
/// # Errors
/// Returns [`candle::Error::Cuda`] with a [`ferroflash::Error`] inside.
#[doc(alias = "reshape_and_cache")]
pub fn append(
    k: &Tensor,
    v: &Tensor,
    k_cache: &Tensor,
    v_cache: &Tensor,
    slots: &Tensor,
    scales: Option<CacheScales>,
) -> Result<()> {
    write(k, v, [k_cache, v_cache], slots, scales.map(AppendScales::Numbers))
}

/// Like [`append`], with scales of any kind.
pub(crate) fn write(
    k: &Tensor,
    v: &Tensor,
    [k_cache, v_cache]: [&Tensor; 2],
    slots: &Tensor,
    scales: Option<AppendScales<'_>>,
) -> Result<()> {
    let inputs = [("k", k), ("v", v), ("slots", slots)];
    separate([k_cache, v_cache], &inputs)?;
    apart(scales, [k_cache, v_cache], &inputs)?;
    k_cache.inplace_op3(k, v, &Keys { v_cache, slots, scales, turn: None })
}

/// Refuses caches that differ in shape, and tensors that share storage with a cache.
pub(crate) fn separate([k_cache, v_cache]: [&Tensor; 2], others: &[(&'static str, &Tensor)]) -> Result<()> {
    if k_cache.stride() != v_cache.stride() || k_cache.shape() != v_cache.shape() {
        let expected = format_args!("the keys', {:?} {:?}", k_cache.dims(), k_cache.stride());
        let value = format!("{:?} {:?}", v_cache.dims(), v_cache.stride());
        return Err(invalid("v_cache", value, expected));
    }
    if storage(k_cache) == storage(v_cache) {
        return Err(invalid("v_cache", "in k_cache's storage", "it must be in its own storage"));
    }
    outside(k_cache, others)?;
    outside(v_cache, others)
}

/// Refuses tensors that share storage with a cache. A write locks its storage exclusively, and a second lock
/// of the same storage would wait forever.
pub(crate) fn outside(cache: &Tensor, others: &[(&'static str, &Tensor)]) -> Result<()> {
    let cache = storage(cache);
    match others.iter().find(|(_, tensor)| storage(tensor) == cache) {
        Some((name, _)) => Err(invalid(name, "in a cache's storage", "it must be in another one")),
        None => Ok(()),
    }
}

/// Refuses scales that share storage with other tensors of an append.
pub(crate) fn apart(
    scales: Option<AppendScales<'_>>,
    [k_cache, v_cache]: [&Tensor; 2],
    inputs: &[(&'static str, &Tensor)],
) -> Result<()> {
    let Some(AppendScales::Tokens([k_scale, v_scale])) = scales else { return Ok(()) };
    let others = [&[("k_cache", k_cache), ("v_cache", v_cache)], inputs].concat();
    outside(k_scale, &[&others[..], &[("v_scale", v_scale)]].concat())?;
    outside(v_scale, &others)
}

/// Address of a tensor's storage, valid while the tensor lives. Tensors that share the storage share the
/// address.
fn storage(tensor: &Tensor) -> usize {
    std::ptr::from_ref::<Storage>(&tensor.storage_and_layout().0).addr()
}

/// An append, first step: candle passes the keys' cache to `cuda_fwd`, which runs [`Values`] on `v_cache`.
/// Candle lends an operation only one tensor mutably, so an append to two caches takes two steps.
pub(crate) struct Keys<'a, 't> {
    pub v_cache: &'a Tensor,
    pub slots: &'a Tensor,
    pub scales: Option<AppendScales<'a>>,
    pub turn: Option<&'a Turn<'t>>,
}

/// An append, second step. This step has all inputs. It launches the kernel, or begins [`KeyScales`] if rows
/// have scales.
struct Values<'a, 't> {
    tokens: [(&'a CudaStorage, &'a Layout); 2],
    keys: Mutex<(&'a mut CudaStorage, &'a Layout)>,
    slots: &'a Tensor,
    scales: Option<AppendScales<'a>>,
    turn: Option<&'a Turn<'t>>,
}

/// An append to an int8 cache, third step: it gets the scales of keys.
struct KeyScales<'a, 's, 'v, 't> {
    of: &'a Values<'v, 't>,
    values: Mutex<(&'s mut CudaStorage, &'s Layout)>,
    v_scale: &'a Tensor,
}

/// An append to an int8 cache, last step: it gets the scales of values, and launches the kernel.
struct ValueScales<'a, 's, 'k, 'v, 't> {
    before: &'a KeyScales<'a, 's, 'v, 't>,
    keys: Mutex<CudaViewMut<'k, f32>>,
}

impl InplaceOp1 for KeyScales<'_, '_, '_, '_> {
    fn name(&self) -> &'static str {
        "append"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        candle::bail!("no cpu support for flash-attn")
    }

    fn cuda_fwd(&self, scales: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let keys = Mutex::new(written::<f32>(scales, layout.start_offset())?);
        self.v_scale.inplace_op1(&ValueScales { before: self, keys })
    }
}

impl InplaceOp1 for ValueScales<'_, '_, '_, '_, '_> {
    fn name(&self) -> &'static str {
        "append"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        candle::bail!("no cpu support for flash-attn")
    }

    fn cuda_fwd(&self, scales: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let KeyScales { of, values, .. } = self.before;
        let (mut keys, mut values) = (lock(&self.keys), lock(values));
        let scales = Some([keys.slice_mut(..), written::<f32>(scales, layout.start_offset())?]);
        let (values, layout) = &mut *values;
        match of.tokens[0].0.dtype() {
            DType::F16 => of.on::<f16, i8>((values, layout), scales),
            DType::BF16 => of.on::<bf16, i8>((values, layout), scales),
            other => Err(no_such_type("keys", other)),
        }
    }
}

impl InplaceOp3 for Keys<'_, '_> {
    fn name(&self) -> &'static str {
        "append"
    }

    fn cpu_fwd(
        &self,
        _: &mut CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<()> {
        candle::bail!("no cpu support for flash-attn")
    }

    fn cuda_fwd(
        &self,
        keys: &mut CudaStorage,
        layout: &Layout,
        k: &CudaStorage,
        k_layout: &Layout,
        v: &CudaStorage,
        v_layout: &Layout,
    ) -> Result<()> {
        let Keys { slots, scales, turn, .. } = *self;
        let (tokens, keys) = ([(k, k_layout), (v, v_layout)], Mutex::new((keys, layout)));
        self.v_cache.inplace_op1(&Values { tokens, keys, slots, scales, turn })
    }
}

impl InplaceOp1 for Values<'_, '_> {
    fn name(&self) -> &'static str {
        "append"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        candle::bail!("no cpu support for flash-attn")
    }

    fn cuda_fwd(&self, values: &mut CudaStorage, layout: &Layout) -> Result<()> {
        if let Some(AppendScales::Tokens([k_scale, v_scale])) = self.scales {
            let values = Mutex::new((values, layout));
            return k_scale.inplace_op1(&KeyScales { of: self, values, v_scale });
        }
        let values = (values, layout);
        match (self.tokens[0].0.dtype(), values.0.dtype()) {
            (DType::F16, DType::U8) => self.on::<f16, u8>(values, None),
            (DType::BF16, DType::U8) => self.on::<bf16, u8>(values, None),
            (DType::F16, _) => self.on::<f16, f16>(values, None),
            (DType::BF16, _) => self.on::<bf16, bf16>(values, None),
            (other, _) => Err(no_such_type("keys", other)),
        }
    }
}

impl Values<'_, '_> {
    fn on<T: Element + CudaDType, C: CacheNumber>(
        &self,
        values: (&mut CudaStorage, &Layout),
        scales: Option<[CudaViewMut<'_, f32>; 2]>,
    ) -> Result<()> {
        let slots = Read::of("slots", self.slots);
        match self.slots.dtype() {
            DType::I64 => self.to::<T, C, i64>(values, &slots, scales),
            DType::I32 => self.to::<T, C, i32>(values, &slots, scales),
            other => Err(invalid("slots", format_args!("{other:?}"), "their dtype must be i64 or i32")),
        }
    }

    fn to<T: Element + CudaDType, C: CacheNumber, N: SlotNumber + CudaDType>(
        &self,
        values: (&mut CudaStorage, &Layout),
        slots: &Read<'_>,
        mut scales: Option<[CudaViewMut<'_, f32>; 2]>,
    ) -> Result<()> {
        let [k, v] = self.tokens;
        let stream = k.0.device().cuda_stream();
        let here = Here::of(&stream)?;
        let (k_data, v_data) = (data::<T>(k)?, data::<T>(v)?);
        let (k, v) = (input("k", &k_data, k.1, true)?, input("v", &v_data, v.1, true)?);
        let slots = slots.data::<N>(1)?;
        let mut keys = lock(&self.keys);
        let (pages, page, heads, head_dim) = keys.1.shape().dims4()?;
        let strides: [usize; 4] = keys.1.stride().try_into().unwrap_or_default();
        let keys_at = keys.1.start_offset();
        let (mut keys, mut values) = (written(keys.0, keys_at)?, written(values.0, values.1.start_offset())?);
        let (mut keys, mut values) = (C::view_mut(&mut keys), C::view_mut(&mut values));
        let mut pages = PagesMut::new(&mut keys, &mut values, [pages, page, heads, head_dim])
            .strides(strides.map(|stride| stride as i64));
        if let Some(AppendScales::Numbers(CacheScales { keys, values })) = self.scales {
            pages = pages.scales(Scale::Value(keys), Scale::Value(values));
        }
        if let Some([keys, values]) = &mut scales {
            pages = pages.token_scales(keys, values);
        }
        match self.turn {
            None => here.attention.append(&stream, k, v, pages, &slots).map_err(refused),
            Some(turn) => turn.launch(Rotating {
                attention: &here.attention,
                stream: &stream,
                k,
                v,
                pages,
                slots: &slots,
            }),
        }
    }
}

/// An append that waits for its rotation.
struct Rotating<'a, T, C, S> {
    attention: &'a FlashAttention,
    stream: &'a Arc<CudaStream>,
    k: Input<'a, T>,
    v: Input<'a, T>,
    pages: PagesMut<'a, C>,
    slots: &'a CudaView<'a, S>,
}

impl<T: Element, C: Number, S: SlotNumber> Launched<T> for Rotating<'_, T, C, S> {
    fn with<A: Number, P: SlotNumber>(self, rotary: Rotary<'_, T, A, P>) -> Refusable {
        let Rotating { attention, stream, k, v, pages, slots } = self;
        attention.append_rotary(stream, k, v, pages, slots, rotary)
    }
}

/// Returns a KV cache's elements from its first element on.
pub(crate) fn written<T: CudaDType>(storage: &mut CudaStorage, at: usize) -> Result<CudaViewMut<'_, T>> {
    let all = storage.as_cuda_slice_mut::<T>()?;
    all.try_slice_mut(at..).ok_or_else(|| invalid("cache", at, "it must begin within its storage"))
}
