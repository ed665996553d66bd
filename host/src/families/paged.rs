//! The paged family: forward kernels over a cache. Which of them, and how many blocks there may be work for.
use super::{One, cache, forward, place};
use crate::{Capabilities, DType, Decode, Error, Problem, validate};
use spec::{
    AttnInfo, FwdParams, HOPPERS_PAGED, Integers, MaskKind, PAGED, PagedParams, Sequences, Tensor, TileOrder,
    Window,
};

/// The launch of a checked request by a portable entry that solves it.
///
/// # Errors
/// [`Error::Unsupported`] where there are too many blocks.
pub(crate) fn plan(d: &Decode<'_>, entry: &AttnInfo, on: &Capabilities) -> Result<One<PagedParams>, Error> {
    let (sequences, order) = order(&d.problem(), entry, on)?;
    let (kernel, grid) = (place(&entry.contract), [order.tiles, 1, 1]);
    Ok(One { kernel, grid, params: params(d, sequences, order, shift(d, entry.mask)) })
}

/// How much further on than its last key a sequence's last query stands, for a kernel of this mask. Without a
/// bound, which kernels of windows take as one, the first query is behind all keys.
pub(super) fn shift(d: &Decode<'_>, mask: MaskKind) -> i32 {
    let unmasked = d.problem().mask_kind() == MaskKind::Full && mask != MaskKind::Local;
    if unmasked { Window::UNBOUNDED } else { 0 }
}

/// The same for other tensors of the same shape.
pub(crate) fn bind(launch: &One<PagedParams>, d: &Decode<'_>) -> One<PagedParams> {
    One { params: params_again(&launch.params, d), ..*launch }
}

/// Every kernel for many queries on a cache.
pub(crate) fn entries() -> impl Iterator<Item = &'static AttnInfo> {
    PAGED.iter().chain(HOPPERS_PAGED)
}

/// The entry for a request: the one that was asked for, or a portable one, of which there is one for each
/// head dim and mask.
///
/// # Errors
/// [`Error::Unsupported`] where no entry solves it on this device, [`Error::Invalid`] where the one that was
/// asked for does not.
pub(crate) fn choose(d: &Decode<'_>, on: &Capabilities) -> Result<&'static AttnInfo, Error> {
    let p = d.problem();
    let (local, cache_dtype) = (p.mask_kind() == MaskKind::Local, d.cache.pages.keys.dtype);
    let solves = |e: &&AttnInfo| {
        // Above head dim 256 lookups leave no register for slopes.
        [e.dtype; 2] == [p.dtype, cache_dtype]
            && (e.head_dim <= 256 && !e.has_maps() || !p.alibi)
            && e.head_dim as usize >= p.head_dim
            && (e.mask == MaskKind::Local) >= local
    };
    let portable = || PAGED.iter().filter(solves).min_by_key(|e| (e.head_dim, e.mask == MaskKind::Local));
    let entry = match d.config {
        None => portable().ok_or_else(|| {
            let feature = format_args!("{p} on a cache of {}", cache_dtype.name());
            let reason = if cache_dtype == DType::E4m3 {
                "e4m3 caches are for at most 64 rows (queries times query heads of a key head), as many for \
                 each sequence, without ALiBi slopes"
            } else {
                "ALiBi slopes on a cache go up to head_dim 256"
            };
            Error::unsupported(feature, reason)
        }),
        Some(name) => entries().filter(solves).find(|e| e.contract.symbol == name).ok_or_else(|| {
            let expected = format_args!(
                "it must be a kernel for {}, head_dim {} and this mask: `ferroflash kernels --family paged`",
                p.dtype.name(),
                p.head_dim
            );
            Error::invalid("config", name, expected)
        }),
    }?;
    on.runs(&entry.contract).and(Ok(entry))
}

/// Which query block of a head is whose, and the order of the tiles of all heads.
fn order(p: &Problem, entry: &AttnInfo, on: &Capabilities) -> Result<(Sequences, TileOrder), Error> {
    let [[batches, rows, ..], _] = p.shapes();
    let counts = [p.batch, p.seqlen_q, rows].map(|n| n as u32);
    let order = Sequences::new(counts[0], counts[1], counts[2], entry.tile_m).and_then(|(sequences, all)| {
        let m_blocks = if p.packed.is_some() { all } else { counts[1].div_ceil(entry.tile_m) };
        let (batches, heads) = (batches as u32, [p.heads_q, p.heads_k].map(|n| n as u32));
        let group = forward::group(&Problem { batch: batches as usize, ..*p }, on);
        Some((sequences, TileOrder::new(m_blocks, batches, heads[0], heads[1], group)?))
    });
    order.ok_or_else(|| {
        let feature =
            format_args!("{} sequences of up to {} queries of {} heads", p.batch, p.seqlen_q, p.heads_q);
        Error::unsupported(feature, "a launch has less than 2^31 blocks, and 2^30 sequences; split the batch")
    })
}

/// What a kernel is told of other tensors of the same shape.
pub(super) fn params_again(told: &PagedParams, d: &Decode<'_>) -> PagedParams {
    params(d, told.sequences, told.forward.order, told.forward.window.shift)
}

/// What a kernel is told.
pub(super) fn params(d: &Decode<'_>, sequences: Sequences, order: TileOrder, shift: i32) -> PagedParams {
    let p = d.problem();
    let (scale_log2, softcap) = validate::base_two(&p);
    let (_, Window { left, right, .. }) = validate::mask(&p);
    let nothing =
        Tensor { base: 0, batch_bytes: 0, head_bytes: 0, row_bytes: 0, rows: 0, chunks: 0, reserved: 0 };
    let integers = |base, count: usize| Integers { base, count: count as u32, reserved: 0 };
    PagedParams {
        forward: FwdParams {
            q: forward::tensor(&d.q),
            k: nothing,
            v: nothing,
            o: forward::tensor(&d.o),
            lse: forward::lse(d.lse.as_ref()),
            window: Window { shift, left, right },
            scale_log2,
            softcap,
            order,
            alibi: forward::slopes(d.alibi.as_ref()),
        },
        cache: cache::cache(&d.cache),
        cu_seqlens_q: d
            .packed
            .map_or(integers(0, 0), |packed| integers(packed.cu_seqlens_q.address, p.batch + 1)),
        lengths: integers(d.cache.lengths.address, p.batch),
        sequences,
        max_keys: d.cache.max_k as u32,
    }
}
