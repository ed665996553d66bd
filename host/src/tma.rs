//! The tensors that TMA accepts, and their tensor maps. Tensor maps depend only on tensors and page size. A
//! CUDA graph therefore keeps its tensor maps when it is replayed with other lengths and pages.
use crate::request::{
    AttentionBackward, AttentionRequest, Bias, KeysValues, KvCache, KvPages, Paged, Queries, TensorView,
};
use crate::{AttnInfo, DType, MapDescription, MapKind};
use spec::RaggedMap;

/// The strides of a tensor map must be less than this number of bytes.
const MAX_STRIDE: u64 = 1 << 40;
/// Alignment of addresses and strides, in bytes.
const ALIGNMENT: u32 = 16;
/// Minimum number of rows per box: the period of the swizzle.
const LEAST_ROWS: u32 = 8;
const LISTED: &str = "each query has a list of keys, which no tensor map describes";
const SMALL_PAGES: &str = "a page is not a multiple of 8 keys, the smallest box of Hopper's TMA kernels";

/// Columns and rows of boxes. Whether TMA accepts tensors depends on no kernel: every kernel's stages are a
/// multiple of 16 keys.
const ANY_BOX: [u32; 2] = [64, 16];

/// Checks that TMA accepts Q, K, V and O of a valid request, or the pages of its latent cache.
///
/// # Errors
/// Returns the reason why TMA does not accept them.
pub(crate) fn accepts(r: &AttentionRequest<'_>) -> Result<(), &'static str> {
    match &r.kv {
        // In another batch, the block table may have more columns.
        KeysValues::Cache(KvCache { pages, paged: Paged::Table { .. }, .. })
            if r.invariance.is_promised() && !pages.keys.shape[1].is_multiple_of(LEAST_ROWS as usize) =>
        {
            Err(SMALL_PAGES)
        }
        KeysValues::Cache(cache) if cache.pages.latent_columns().is_some() => {
            latent_in(cache, ANY_BOX).map(|_| ())
        }
        _ => maps_in(r, [ANY_BOX; 3]).map(|_| ()),
    }
}

/// Checks that TMA accepts the bias of a valid request.
///
/// # Errors
/// Returns the reason why TMA does not accept the bias.
pub(crate) fn accepts_bias(r: &AttentionRequest<'_>) -> Result<(), &'static str> {
    r.scores.bias.map_or(Ok(()), |bias| bias_in(r, &bias, ANY_BOX).map(|_| ()))
}

/// Returns the tensor maps of Q, K, V and O of a valid request, or none if the kernel takes none.
///
/// # Errors
/// Returns the reason why TMA does not accept the tensors.
pub(crate) fn maps(
    r: &AttentionRequest<'_>,
    kernel: &AttnInfo,
) -> Result<Option<[MapDescription; 4]>, &'static str> {
    kernel.has_maps().then(|| maps_in(r, kernel.boxes())).transpose()
}

/// Returns the tensor maps of Q, K, V and O, with the boxes of Q, of K and V, and of O.
///
/// # Errors
/// Returns the reason why TMA does not accept the tensors.
fn maps_in(
    r: &AttentionRequest<'_>,
    [queries, keys, output]: [[u32; 2]; 3],
) -> Result<[MapDescription; 4], &'static str> {
    let (q, o) = (&r.q, &r.o);
    match &r.kv {
        KeysValues::Tensors { k, v } | KeysValues::Varlen { k, v, .. } => {
            // No kernel stores a state through its map, which must be one all the same.
            let o = if o.dtype == DType::F32 { q } else { o };
            let views = [q, k, v, o];
            views.into_iter().try_for_each(takes)?;
            let kind = match r.queries {
                Queries::Batched => MapKind::Whole,
                Queries::Varlen(_) => {
                    views.into_iter().try_for_each(takes_rows)?;
                    MapKind::Ragged
                }
            };
            let boxes = |view, box_shape| MapDescription { box_shape, kind, ..whole(view) };
            let [k, v] = [k, v].map(|view| boxes(view, keys));
            Ok([boxes(q, queries), k, v, boxes(o, output)])
        }
        KeysValues::Cache(cache) => {
            let Some(rows) = box_rows(cache, keys[1]) else {
                return Err(SMALL_PAGES);
            };
            // If all sequences share the rows of Q, the tensor map has these rows once.
            let [_, each, heads, columns] = q.shape;
            let once = TensorView { shape: [1, each, heads, columns], ..*q };
            let q = if shares_queries(q) { &once } else { q };
            let [Some(q), Some(o)] = [q, o].map(one_batch) else {
                return Err("batches are not contiguous; a varlen tensor map has one batch only");
            };
            [&q, &o].into_iter().try_for_each(takes_rows)?;
            let KvPages { keys: k, values: v, .. } = cache.pages;
            [&q, &k, &v, &o].into_iter().try_for_each(takes)?;
            let [k, v] = [&k, &v].map(|view| pages(view, [keys[0], rows]));
            let [k, v] = [k?, v?];
            if k.pitch() != v.pitch() {
                return Err("pages of keys and pages of values are different numbers of rows apart");
            }
            let rows = |view, box_shape| MapDescription { box_shape, kind: MapKind::Ragged, ..whole(view) };
            Ok([rows(&q, queries), k, v, rows(&o, output)])
        }
        KeysValues::Listed(_) => Err(LISTED),
    }
}

/// Returns the tensor map of the keys of a latent cache, or none if the kernel reads them without a map.
///
/// # Errors
/// Returns the reason why TMA does not accept the pages.
pub(crate) fn latent(cache: &KvCache, kernel: &AttnInfo) -> Result<Option<MapDescription>, &'static str> {
    kernel.has_maps().then(|| latent_in(cache, kernel.boxes()[1])).transpose()
}

fn latent_in(cache: &KvCache, [columns, keys]: [u32; 2]) -> Result<MapDescription, &'static str> {
    let Some(rows) = box_rows(cache, keys) else { return Err(SMALL_PAGES) };
    takes(&cache.pages.keys)?;
    pages(&cache.pages.keys, [columns, rows])
}

/// Returns the tensor map of the rows of pages.
///
/// # Errors
/// Returns the reason why TMA does not accept the pages.
fn pages(view: &TensorView, box_shape: [u32; 2]) -> Result<MapDescription, &'static str> {
    let map = MapDescription { box_shape, kind: MapKind::Paged, ..whole(view) };
    if !map.is_of_rows() {
        return Err(
            "pages are not a whole number of rows apart, have more than 2^30 rows in all, or have rows 2^34 \
             bytes apart",
        );
    }
    Ok(map)
}

/// Returns the tensor map of a valid request's bias, or none if the kernel reads the bias without a map.
///
/// # Errors
/// Returns the reason why TMA does not accept the bias.
pub(crate) fn bias(
    r: &AttentionRequest<'_>,
    kernel: &AttnInfo,
) -> Result<Option<MapDescription>, &'static str> {
    let takes_map = kernel.has_maps() && kernel.scores.bias.is_some() && r.variant.is_none();
    let bias = r.scores.bias.filter(|_| takes_map);
    bias.map(|bias| bias_in(r, &bias, kernel.bias_box())).transpose()
}

fn bias_in(
    r: &AttentionRequest<'_>,
    bias: &Bias,
    box_shape: [u32; 2],
) -> Result<MapDescription, &'static str> {
    let Bias { address, dtype, shape: [batches, heads, rows, keys], strides: [batch, head, row, _], .. } =
        *bias;
    let broadcasts = |extent: usize, stride: i64| extent == 1 || stride == 0;
    if broadcasts(rows, row) && r.problem().seqlen_q > 1 {
        return Err("all queries share one row of the bias, which TMA does not support");
    }
    // Dimensions that broadcast have an extent of 1. TMA never uses their strides.
    let row_bytes = (keys as u64 * dtype.bytes() as u64).next_multiple_of(u64::from(ALIGNMENT));
    let dim = |extent, stride: i64| match broadcasts(extent, stride) {
        true => (1, row_bytes),
        false => (extent as u32, (stride as u64).saturating_mul(dtype.bytes() as u64)),
    };
    let [(rows, row), (heads, head), (batches, batch)] =
        [dim(rows, row), dim(heads, head), dim(batches, batch)];
    let strides = [row, head, batch];
    if !address.is_multiple_of(u64::from(ALIGNMENT)) {
        return Err("the bias does not begin at a multiple of 16 bytes, which TMA needs");
    }
    if strides.iter().any(|stride| !stride.is_multiple_of(u64::from(ALIGNMENT)) || *stride >= MAX_STRIDE) {
        return Err(
            "rows, heads or batches of the bias are not a multiple of 16 bytes apart, which TMA needs",
        );
    }
    let (extents, kind) = ([keys as u32, rows, heads, batches], MapKind::Whole);
    Ok(MapDescription { address, strides, extents, box_shape, dtype, kind })
}

/// Returns the tensor maps of Q, dO, K, V, dK and dV of a valid backward request, for one of Hopper's
/// kernels.
///
/// # Errors
/// Returns the reason why TMA does not accept the tensors.
pub(crate) fn gradients(
    r: &AttentionBackward<'_>,
    kernel: &AttnInfo,
) -> Result<[MapDescription; 6], &'static str> {
    let [keys, queries, _] = kernel.boxes();
    // A valid backward request has keys and values in tensors.
    let Some([k, v]) = r.forward.kv.tensors() else { return Err("keys are in a KV cache") };
    let of_queries = [&r.forward.q, &r.d_o].map(|view| (view, queries));
    let of_keys = [k, v, &r.dk, &r.dv].map(|view| (view, keys));
    let ([q, d_o], [k, v, dk, dv]) = (of_queries, of_keys);
    let views = [q, d_o, k, v, dk, dv];
    views.iter().try_for_each(|(view, _)| takes(view))?;
    let kind = if kernel.is_varlen() { MapKind::Ragged } else { MapKind::Whole };
    if kernel.is_varlen() {
        views.iter().try_for_each(|(view, _)| takes_rows(view))?;
    }
    Ok(views.map(|(view, box_shape)| MapDescription { box_shape, kind, ..whole(view) }))
}

/// Checks that TMA accepts a valid tensor.
fn takes(view: &TensorView) -> Result<(), &'static str> {
    let row = view.shape[3] as u64 * view.element_bytes();
    let dims = view.shape.iter().zip(&view.strides).take(3).filter(|(extent, _)| **extent > 1);
    for stride in dims.map(|(_, stride)| (*stride as u64).saturating_mul(view.element_bytes())) {
        if stride == 0 {
            return Err("a stride is 0, which TMA does not support");
        }
        if stride < row {
            return Err("rows overlap, which TMA does not support");
        }
        if stride >= MAX_STRIDE {
            return Err("a stride is 2^40 bytes or more, which TMA does not support");
        }
    }
    Ok(())
}

/// Checks that varlen tensor maps accept the rows of a tensor.
fn takes_rows(view: &TensorView) -> Result<(), &'static str> {
    if view.shape[1] > RaggedMap::END as usize {
        return Err("there are more than 2^30 rows, the limit of varlen tensor maps");
    }
    let apart = (view.strides[1] as u64).saturating_mul(view.element_bytes());
    if view.shape[1] > 1 && apart >= MapDescription::APART {
        return Err("rows are 2^34 bytes apart or more, beyond the limit of varlen tensor maps");
    }
    Ok(())
}

/// Returns the number of rows per box for stages of `stage` keys. Each box lies in one page.
fn box_rows(cache: &KvCache, stage: u32) -> Option<u32> {
    let one_page = match cache.paged {
        Paged::Dense { .. } => true,
        Paged::Table { columns, .. } => columns == 1,
    };
    let common = (cache.pages.keys.shape[1] as u32 | stage).trailing_zeros();
    let rows = if one_page { stage } else { 1 << common };
    (rows >= LEAST_ROWS).then_some(rows)
}

/// Returns whether all sequences have the same queries.
pub(crate) const fn shares_queries(q: &TensorView) -> bool {
    q.shape[0] > 1 && q.strides[0] == 0
}

/// Returns a view as rows of one batch, if its batches are contiguous.
pub(crate) fn one_batch(view: &TensorView) -> Option<TensorView> {
    let [batches, rows, heads, columns] = view.shape;
    let row = match (batches, rows) {
        (1, _) => view.strides[1],
        (_, 1) => view.strides[0],
        _ if view.strides[0] == view.strides[1].wrapping_mul(rows as i64) => view.strides[1],
        _ => return None,
    };
    let shape = [1, batches * rows, heads, columns];
    Some(TensorView { shape, strides: [0, row, view.strides[2], view.strides[3]], ..*view })
}

/// Returns the tensor map of rows of e4m3, with boxes of these columns and rows.
pub(crate) fn of_bytes(view: &TensorView, kind: MapKind, box_shape: [u32; 2]) -> MapDescription {
    MapDescription { box_shape, kind, ..whole(view) }
}

/// Returns the description of a whole view, without a box.
fn whole(view: &TensorView) -> MapDescription {
    let [batches, rows, heads, columns] = view.shape.map(|extent| extent as u32);
    // TMA never uses the stride of a dimension of extent 1, but such a stride must not be 0.
    let bytes = |dim: usize| match view.shape[dim] {
        1 => u64::from(columns) * view.element_bytes(),
        _ => view.strides[dim] as u64 * view.element_bytes(),
    };
    MapDescription {
        address: view.address,
        strides: [bytes(1), bytes(2), bytes(0)],
        extents: [columns, rows, heads, batches],
        box_shape: [0; 2],
        dtype: view.dtype,
        kind: MapKind::Whole,
    }
}
