//! Append: writes new keys and values to a KV cache of the caller, latent or not, with a rotation or not.
use crate::errors::{invalid, refused};
use crate::here::{Here, lock};
use crate::inputs::{Read, input, long, number, written};
use crate::rotary::RotaryTable;
use candle::backend::BackendStorage;
use candle::{CpuStorage, CudaStorage, DType, InplaceOp1, Layout, Result, Storage, Tensor};
use ferroflash::cudarc::{Append, PagesMut, SliceMut, Tensor as Input, TensorMut, Turn as Rotary};
use ferroflash::request::{KvScale, Positions, Slots, TensorView, TokenScales};
use std::sync::Mutex;

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
    write(k, v, [k_cache, v_cache], slots, scales.map(AppendScales::Numbers), None).map(drop)
}

/// The rotation of an append: queries, angles, and the position of each token.
pub(crate) struct Turn<'a> {
    pub q: &'a Tensor,
    pub table: &'a RotaryTable,
    pub positions: &'a Tensor,
}

/// New tokens.
enum Tokens<'a> {
    /// Keys and values.
    KeysValues([&'a Tensor; 2]),
    /// Rows of a latent cache, and the number of columns of a value.
    Rows(&'a Tensor, usize),
}

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
    let turn = Turn { q, table, positions };
    rotated(write(k, v, [k_cache, v_cache], slots, scales, Some(&turn))?)
}

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
    append_all(&Tokens::Rows(rows, value_columns), &[cache], slots, None, None).map(drop)
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
    let turn = Turn { q, table, positions };
    rotated(append_all(&Tokens::Rows(rows, value_columns), &[cache], slots, None, Some(&turn))?)
}

/// Like [`append`], with scales of any kind, and with a rotation. Returns the rotated queries.
pub(crate) fn write(
    k: &Tensor,
    v: &Tensor,
    caches: [&Tensor; 2],
    slots: &Tensor,
    scales: Option<AppendScales<'_>>,
    turn: Option<&Turn<'_>>,
) -> Result<Option<Tensor>> {
    let mut inputs = vec![("k", k), ("v", v), ("slots", slots)];
    if let Some(Turn { q, table: table @ RotaryTable { cos, sin, .. }, positions }) = turn {
        table.check(positions)?;
        inputs.extend([("q", *q), ("cos", cos), ("sin", sin), ("positions", *positions)]);
    }
    separate(caches, &inputs)?;
    apart(scales, caches, &inputs)?;
    append_all(&Tokens::KeysValues([k, v]), &caches, slots, scales, turn)
}

/// Returns the queries of an append that rotates queries.
pub(crate) fn rotated(q: Option<Tensor>) -> Result<Tensor> {
    q.ok_or_else(|| invalid("q", "none", "the rotated queries, because the caller gave a table"))
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

/// Lends the storages of tensors for writing. Candle lends an operation only one tensor mutably, so each
/// tensor is an operation within the operation of the tensor before it.
struct Lend<'a> {
    rest: &'a [&'a Tensor],
    lent: Mutex<Vec<SliceMut<'a>>>,
    launch: &'a (dyn Fn(Vec<SliceMut<'_>>) -> Result<()> + 'a),
}

impl InplaceOp1 for Lend<'_> {
    fn name(&self) -> &'static str {
        "append"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        candle::bail!("no cpu support for flash-attn")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let before = std::mem::take(&mut *lock(&self.lent));
        let mut lent: Vec<SliceMut<'_>> = before.into_iter().map(SliceMut::shorter).collect();
        lent.push(written(storage, layout)?);
        match self.rest {
            [] => (self.launch)(lent),
            [next, rest @ ..] => {
                next.inplace_op1(&Lend { rest, lent: Mutex::new(lent), launch: self.launch })
            }
        }
    }
}

/// Appends tokens, and returns the rotated queries.
fn append_all(
    tokens: &Tokens<'_>,
    caches: &[&Tensor],
    slots: &Tensor,
    scales: Option<AppendScales<'_>>,
    turn: Option<&Turn<'_>>,
) -> Result<Option<Tensor>> {
    let rows;
    let (k, v, latent) = match *tokens {
        Tokens::KeysValues([k, v]) => (Read::of("k", k), Some(Read::of("v", v)), None),
        Tokens::Rows(of, columns) => {
            of.dims2()?;
            rows = of.unsqueeze(1)?;
            (Read::of("rows", &rows), None, Some(columns))
        }
    };
    let slots = Read::of("slots", slots);
    let rotary = turn.map(|turn| Reads::of(turn, latent.unwrap_or(0)));
    let to = turn.map(|Turn { q, .. }| Tensor::zeros(q.shape(), q.dtype(), q.device())).transpose()?;
    let stream = k.stored()?.0.device().cuda_stream();
    let here = Here::of(&stream)?;
    let launch = |lent: Vec<SliceMut<'_>>| {
        let mut lent = lent.into_iter().map(SliceMut::shorter);
        let (is_int8, mut views) = (matches!(scales, Some(AppendScales::Tokens(_))), Vec::new());
        for (cache, data) in caches.iter().zip(&mut lent) {
            let strides: [usize; 4] = cache.stride().try_into().unwrap_or_default();
            let dtype = if is_int8 { ferroflash::DType::Int8 } else { number("a cache", cache.dtype())? };
            let (pages, page, heads, columns) = cache.dims4()?;
            let shape = [pages, page, heads, columns];
            views.push(TensorView::new(data, u64::MAX, dtype, shape, long(strides)));
        }
        let heads = caches[0].dims()[2];
        let mut views = views.into_iter();
        let pages = match (views.next(), views.next(), latent) {
            (Some(rows), None, Some(columns)) => PagesMut::of_latent(rows, columns),
            (Some(keys), Some(values), None) => PagesMut::new(keys, values),
            _ => return Err(invalid("cache", caches.len(), "one latent cache, or keys and values")),
        };
        let mut of_rows = || {
            let scales = lent.next();
            scales
                .map_or(KvScale::One, |data| KvScale::Tokens(TokenScales::contiguous(data, u64::MAX, heads)))
        };
        let pages = match scales {
            None => pages,
            Some(AppendScales::Numbers(CacheScales { keys, values })) => {
                pages.scales(KvScale::Value(keys), KvScale::Value(values))
            }
            Some(AppendScales::Tokens(_)) => pages.scales(of_rows(), of_rows()),
        };
        let keys = input(if latent.is_some() { "rows" } else { "k" }, k.stored()?, true)?;
        let (address, elements) = (slots.data(1, &[DType::I64, DType::I32])?, keys.shape[1] as u64);
        let slots = Slots { address, elements, wide: slots.dtype() == DType::I64 };
        let mut append = match &v {
            Some(v) => Append::new(keys, input("v", v.stored()?, true)?, pages, slots),
            None => Append::latent(keys, pages, slots),
        };
        if let (Some(rotary), Some(to), Some(rotated)) = (&rotary, lent.next(), &to) {
            append = append.rotary(rotary.on(to, rotated)?);
        }
        here.attention.append(&stream, append).map_err(refused)
    };
    let scale_tensors: &[&Tensor] = match &scales {
        Some(AppendScales::Tokens(tensors)) => tensors,
        _ => &[],
    };
    let writes: Vec<&Tensor> = caches.iter().chain(scale_tensors).copied().chain(to.as_ref()).collect();
    writes[0].inplace_op1(&Lend { rest: &writes[1..], lent: Mutex::default(), launch: &launch })?;
    Ok(to)
}

/// The tensors of a rotation, locked against writes.
struct Reads<'a> {
    q: Read<'a>,
    cos: Read<'a>,
    sin: Read<'a>,
    positions: Read<'a>,
    table: &'a RotaryTable,
    first_column: usize,
}

impl<'a> Reads<'a> {
    fn of(Turn { q, table, positions }: &Turn<'a>, first_column: usize) -> Self {
        let [cos, sin] = [Read::of("cos", &table.cos), Read::of("sin", &table.sin)];
        let (q, positions) = (Read::of("q", q), Read::of("positions", positions));
        Reads { q, cos, sin, positions, table, first_column }
    }

    /// Returns the rotation of queries into `to`, contiguous memory of `rotated`.
    fn on<'b>(&'b self, to: SliceMut<'b>, rotated: &Tensor) -> Result<Rotary<'b>> {
        let q = input("q", self.q.stored()?, true)?;
        let (rows, columns) = self.table.cos.dims2()?;
        let angles = |read: &'b Read<'_>| {
            let dtype = number("angles", read.dtype())?;
            Ok::<_, candle::Error>(Input::bshd(read.slice()?, u64::MAX, dtype, [1, rows, 1, columns]))
        };
        let address = self.positions.data(1, &[DType::U32, DType::I64])?;
        let (elements, wide) = (rotated.dims()[0] as u64, self.positions.dtype() == DType::I64);
        let positions = Positions { address, elements, wide };
        let to = TensorMut::bshd(to, u64::MAX, q.dtype, q.shape);
        let rotary = Rotary::new(angles(&self.cos)?, angles(&self.sin)?, positions);
        Ok(rotary.style(self.table.style).first_column(self.first_column).queries(q, to))
    }
}
