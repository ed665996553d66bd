//! Append: writes new keys and values to a KV cache of the caller, latent or not, with a rotation or not.
use crate::errors::{invalid, refused};
use crate::gpu::here::{Here, lock};
use crate::gpu::inputs::{Read, input, long, number, written};
use crate::gpu::latent_scale::LatentScale;
use crate::gpu::rotary::RotaryTable;
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

impl Default for CacheScales {
    fn default() -> Self {
        CacheScales { keys: 1.0, values: 1.0 }
    }
}

/// The scales of an append to a cache of eight bits.
#[derive(Clone, Copy)]
pub(crate) enum AppendScales<'a> {
    /// Of an e4m3 cache.
    Numbers(CacheScales),
    /// Of the rows of an int8 cache, of keys and of values: the append writes them.
    Tokens([&'a Tensor; 2]),
    /// Of a latent cache.
    Latent(LatentScale),
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
    Tokens::of([k, v], [k_cache, v_cache], scales.map(AppendScales::Numbers)).append(slots, None)
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
    let tokens = Tokens::of([k, v], [k_cache, v_cache], scales.map(AppendScales::Numbers));
    tokens.rotate(slots, &Turn { q, table, positions })
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
    Tokens::of_rows(&one_head(rows)?, cache, value_columns, None).append(slots, None)
}

/// Writes `rows` into a latent cache of u8 with a scale, like [`append_latent`]. The kernel stores `x /
/// scale` in e4m3.
///
/// # Errors
/// Returns [`candle::Error::Cuda`] with a [`ferroflash::Error`] inside.
pub fn append_latent_scaled(
    rows: &Tensor,
    cache: &Tensor,
    value_columns: usize,
    slots: &Tensor,
    scale: LatentScale,
) -> Result<()> {
    Tokens::of_rows(&one_head(rows)?, cache, value_columns, Some(scale)).append(slots, None)
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
    Tokens::of_rows(&one_head(rows)?, cache, value_columns, None).rotate(slots, &Turn { q, table, positions })
}

/// Returns rows `(tokens, columns)` as `(tokens, 1, columns)`.
pub(crate) fn one_head(rows: &Tensor) -> Result<Tensor> {
    rows.dims2()?;
    rows.unsqueeze(1)
}

/// A tensor with its name.
type Named<'a> = (&'static str, &'a Tensor);

/// New tokens, and the cache that gets them: keys and values, or the rows of a latent cache.
pub(crate) struct Tokens<'a> {
    new: Vec<Named<'a>>,
    caches: Vec<Named<'a>>,
    scales: Option<AppendScales<'a>>,
    /// The number of columns of a latent cache's values; otherwise 0.
    value_columns: usize,
}

/// The rotation of an append: queries, angles, and the position of each token.
pub(crate) struct Turn<'a> {
    pub q: &'a Tensor,
    pub table: &'a RotaryTable,
    pub positions: &'a Tensor,
}

impl<'a> Tokens<'a> {
    /// Names keys and values, and the caches that get them.
    pub fn of([k, v]: [&'a Tensor; 2], caches: [&'a Tensor; 2], scales: Option<AppendScales<'a>>) -> Self {
        let caches = vec![("k_cache", caches[0]), ("v_cache", caches[1])];
        Tokens { new: vec![("k", k), ("v", v)], caches, scales, value_columns: 0 }
    }

    /// Names rows `(tokens, 1, columns)`, and the latent cache that gets them.
    pub fn of_rows(
        rows: &'a Tensor,
        cache: &'a Tensor,
        value_columns: usize,
        scale: Option<LatentScale>,
    ) -> Self {
        let (new, caches) = (vec![("rows", rows)], vec![("cache", cache)]);
        Tokens { new, caches, scales: scale.map(AppendScales::Latent), value_columns }
    }

    /// Rotates the queries and the tokens' keys, writes the tokens into their slots, and returns the rotated
    /// queries.
    pub fn rotate(&self, slots: &Tensor, turn: &Turn<'_>) -> Result<Tensor> {
        turn.table.check(turn.positions)?;
        let rotated = Tensor::zeros(turn.q.shape(), turn.q.dtype(), turn.q.device())?;
        self.append(slots, Some((turn, &rotated)))?;
        Ok(rotated)
    }

    /// Writes the tokens into their slots, and rotated queries into their tensor.
    pub fn append(&self, slots: &Tensor, turn: Option<(&Turn<'_>, &Tensor)>) -> Result<()> {
        let mut written = self.caches.clone();
        if let Some(AppendScales::Tokens([k, v])) = self.scales {
            written.extend([("k_scale", k), ("v_scale", v)]);
        }
        let turned: Vec<Named<'_>> = turn.into_iter().flat_map(|(turn, _)| turn.tensors()).collect();
        are_alike(&self.caches)?;
        are_apart(&written, &[&self.new[..], &[("slots", slots)], &turned].concat())?;
        written.extend(turn.map(|(_, rotated)| ("rotated", rotated)));

        let (new, turned) = (Read::all(&self.new), Read::all(&turned));
        let slots = Read::of("slots", slots);
        let stream = new[0].stored()?.0.device().cuda_stream();
        let here = Here::of(&stream)?;
        let launch = |lent: Vec<SliceMut<'_>>| {
            let mut lent = lent.into_iter().map(SliceMut::shorter);
            let pages = self.pages(&mut lent)?;
            let keys = input(new[0].name, new[0].stored()?, true)?;
            let address = slots.data(1, &[DType::I64, DType::I32])?;
            let slots = Slots { address, elements: u64::MAX, wide: slots.dtype() == DType::I64 };
            let mut append = match new.get(1) {
                Some(v) => Append::new(keys, input("v", v.stored()?, true)?, pages, slots),
                None => Append::latent(keys, pages, slots),
            };
            if let (Some((Turn { table, .. }, _)), [q, angles @ .., positions]) = (turn, &turned[..]) {
                let rotary = rotary(table, angles, positions)?.first_column(self.value_columns);
                let q = input("q", q.stored()?, true)?;
                let to = TensorMut::bshd(one(&mut lent)?, u64::MAX, q.dtype, q.shape);
                append = append.rotary(rotary.queries(q, to));
            }
            here.attention.append(&stream, append).map_err(refused)
        };
        let written: Vec<&Tensor> = written.into_iter().map(|(_, tensor)| tensor).collect();
        written[0].inplace_op1(&Lend { rest: &written[1..], lent: Mutex::default(), launch: &launch })
    }

    /// Returns the pages of the caches, whose memory is lent.
    fn pages<'b>(&self, lent: &mut impl Iterator<Item = SliceMut<'b>>) -> Result<PagesMut<'b>> {
        let mut view = |(_, cache): &Named<'_>| {
            let dtype = match self.scales {
                Some(AppendScales::Tokens(_)) => ferroflash::DType::Int8,
                _ => number("a cache", cache.dtype())?,
            };
            let (shape, strides) = (cache.dims4()?.into(), cache.stride().try_into().unwrap_or_default());
            Ok::<_, candle::Error>(TensorView::new(one(lent)?, u64::MAX, dtype, shape, long(strides)))
        };
        let keys = view(&self.caches[0])?;
        let heads = keys.shape[2];
        let pages = match self.caches.get(1) {
            Some(values) => PagesMut::new(keys, view(values)?),
            None => PagesMut::of_latent(keys, self.value_columns),
        };
        let of_rows = |data| KvScale::Tokens(TokenScales::contiguous(data, u64::MAX, heads));
        Ok(match self.scales {
            None => pages,
            Some(AppendScales::Numbers(CacheScales { keys, values })) => {
                pages.scales(KvScale::Value(keys), KvScale::Value(values))
            }
            Some(AppendScales::Tokens(_)) => pages.scales(of_rows(one(lent)?), of_rows(one(lent)?)),
            Some(AppendScales::Latent(scale)) => scale.give(pages)?,
        })
    }
}

/// Refuses caches that differ in shape.
fn are_alike(caches: &[Named<'_>]) -> Result<()> {
    match *caches {
        [(_, k), (name, v)] if k.stride() != v.stride() || k.shape() != v.shape() => {
            let expected = format_args!("the keys', {:?} {:?}", k.dims(), k.stride());
            Err(invalid(name, format_args!("{:?} {:?}", v.dims(), v.stride()), expected))
        }
        _ => Ok(()),
    }
}

/// Returns the next lent memory.
fn one<'b>(lent: &mut impl Iterator<Item = SliceMut<'b>>) -> Result<SliceMut<'b>> {
    lent.next().ok_or_else(|| invalid("append", "no memory", "each tensor that it writes is lent"))
}

impl<'a> Turn<'a> {
    fn tensors(&self) -> [Named<'a>; 4] {
        let RotaryTable { cos, sin, .. } = self.table;
        [("q", self.q), ("cos", cos), ("sin", sin), ("positions", self.positions)]
    }
}

/// Returns a rotation by these cosines and sines.
fn rotary<'b>(table: &RotaryTable, angles: &'b [Read<'_>], positions: &'b Read<'_>) -> Result<Rotary<'b>> {
    let (rows, columns) = table.cos.dims2()?;
    let view = |read: &'b Read<'_>| {
        let dtype = number("angles", read.dtype())?;
        Ok::<_, candle::Error>(Input::bshd(read.slice()?, u64::MAX, dtype, [1, rows, 1, columns]))
    };
    let (address, wide) = (positions.data(1, &[DType::U32, DType::I64])?, positions.dtype() == DType::I64);
    let positions = Positions { address, elements: u64::MAX, wide };
    Ok(Rotary::new(view(&angles[0])?, view(&angles[1])?, positions).style(table.style))
}

/// Refuses tensors that share storage with another tensor that the append writes. A write locks its storage
/// exclusively, and a second lock of the same storage would wait forever.
fn are_apart(written: &[Named<'_>], read: &[Named<'_>]) -> Result<()> {
    // The address of a storage is valid while the tensor lives. Tensors that share the storage share it.
    let storage = |tensor: &Tensor| std::ptr::from_ref::<Storage>(&tensor.storage_and_layout().0).addr();
    for (at, (_, tensor)) in written.iter().enumerate() {
        let mut others = written[at + 1..].iter().chain(read);
        if let Some((name, _)) = others.find(|(_, other)| storage(other) == storage(tensor)) {
            return Err(invalid(name, "in a cache's storage", "it must be in another one"));
        }
    }
    Ok(())
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
