//! Parameters of attention with products of e4m3 on a KV cache of e4m3, whose keys are operands as they lie
//! in their pages. Kernels round the queries, and lay the values, before it.
use super::{ALIGNMENT, too_many};
use crate::launch::Launch;
use crate::lower::Refusal;
use crate::lower::attention::on_paged_maps;
use crate::lower::tensors::{NO_LSE, NO_TENSOR, cache, cu_seqlens_q, integers, per_head, scales, tensor};
use crate::place::Place;
use crate::request::{AttentionRequest, KeysValues, RowOutputs};
use crate::schedule::{Schedule, Scheduled};
use crate::{AttnInfo, DType, MapDescription, MapKind, Problem, tma};
use spec::{
    CuSeqlens, FP8_SHARES, FastDiv, Fp8Params, Fp8Sequences, LayFp8PagesParams, Lse, RaggedMap,
    RoundFp8Params, Sequences, Tensor, fp8_box_columns,
};

/// How queries lie: in batches of equal counts, or in one batch of all sequences.
struct Rows {
    batches: u32,
    /// Queries of a batch, and their blocks.
    rows: u32,
    blocks: u32,
    sequences: Sequences,
    /// Blocks of keys of the longest sequence.
    most: u32,
}

impl Rows {
    /// The rows of a problem. Returns `None` if there are too many sequences or blocks.
    fn of(p: &Problem, kernel: &AttnInfo) -> Option<Self> {
        let (tile, batch) = (kernel.tile_n, u32::try_from(p.batch).ok()?);
        let most = u32::try_from(p.seqlen_k).ok()?.div_ceil(tile);
        // The rows of V as columns must be below the end of a varlen tensor map.
        let laid = u64::from(batch) * u64::from(most) * u64::from(kernel.head_dim);
        let queries = p.varlen.map_or(p.seqlen_q, |[rows, _]| rows);
        let rows = u32::try_from(queries).ok().filter(|_| laid <= RaggedMap::END.into())?;
        if p.varlen.is_none() {
            let blocks = rows.div_ceil(tile);
            return Some(Rows { batches: batch, rows, blocks, sequences: Sequences::NONE, most });
        }
        let (sequences, blocks) = Sequences::by_rows(batch, rows, tile)?;
        Some(Rows { batches: 1, rows, blocks, sequences, most })
    }
}

/// The workspace: Q of e4m3, its largest magnitudes and scales, and V of e4m3 as columns.
struct Workspace {
    q: Tensor,
    maxima: Lse,
    scales: Lse,
    v: Tensor,
    bytes: u64,
}

impl Workspace {
    /// The workspace of a problem at an address. Heads lie apart, and in them sequence after sequence.
    fn new(p: &Problem, of: &Rows, kernel: &AttnInfo, address: u64) -> Self {
        let [heads_q, heads] = [p.heads_q, p.heads_k].map(|heads| heads as u64);
        let mut end = 0_u64;
        let mut part = |bytes: u64| {
            let at = address.saturating_add(end);
            end = end.saturating_add(bytes.next_multiple_of(ALIGNMENT));
            at
        };
        let mut tensor = |heads: u64, batches: u64, rows: u32, row_bytes: u32| {
            let batch_bytes = u64::from(rows) * u64::from(row_bytes);
            let head_bytes = batch_bytes.saturating_mul(batches);
            let base = part(head_bytes.saturating_mul(heads));
            Tensor { base, batch_bytes, head_bytes, row_bytes, rows, chunks: row_bytes / 16, reserved: 0 }
        };
        let q = tensor(heads_q, of.batches.into(), of.rows, kernel.head_dim);
        let v = tensor(heads, p.batch as u64, of.most * kernel.head_dim, kernel.tile_n);
        let [maxima, scales] = [FP8_SHARES, 1].map(|count| {
            let head_bytes = u64::from(count) * 4;
            let batch_bytes = head_bytes * heads;
            Lse { base: part(batch_bytes.saturating_mul(p.batch as u64)), batch_bytes, head_bytes }
        });
        Workspace { q, maxima, scales, v, bytes: end }
    }
}

/// Returns the bytes of workspace. Too many blocks have no workspace: no launch has them.
pub(super) fn bytes(p: &Problem, kernel: &AttnInfo) -> u64 {
    Rows::of(p, kernel).map_or(0, |of| Workspace::new(p, &of, kernel, 0).bytes)
}

/// Returns the tensor map of all sequences of a tensor in the workspace, with boxes of these rows.
fn map(from: &Tensor, heads: usize, box_rows: u32) -> MapDescription {
    let Tensor { base: address, head_bytes, row_bytes, .. } = *from;
    MapDescription {
        address,
        strides: [row_bytes.into(), head_bytes, head_bytes.saturating_mul(heads as u64)],
        extents: [row_bytes, (head_bytes / u64::from(row_bytes.max(1))) as u32, heads as u32, 1],
        box_shape: [fp8_box_columns(row_bytes), box_rows],
        dtype: DType::E4m3,
        kind: MapKind::Ragged,
    }
}

/// Adds the steps that round Q, the step that lays V, and the step of the attention kernel, for valid tensors
/// on a KV cache. The kernel `round` rounds, and `lay` lays.
///
/// # Errors
/// Returns [`Refusal::Tensors`] if the kernel does not accept the tensors, or [`Refusal::Request`] if there
/// are too many blocks for one launch.
pub(crate) fn fp8_on_cache(
    (r, p): (&AttentionRequest<'_>, &Problem),
    s: &Scheduled,
    [round, lay]: [Place; 2],
    launch: &mut Launch,
) -> Result<(), Refusal> {
    RowOutputs::wanted(r).are_of(s.kernel).map_err(Refusal::Tensors)?;
    let Some(maps) = tma::maps(r, s.kernel).map_err(Refusal::Tensors)? else {
        return Err(Refusal::Tensors("the kernel reads its keys through a tensor map"));
    };
    let (Schedule::Tiles(work), Some(of), KeysValues::Cache(kv)) =
        (&s.schedule, Rows::of(p, s.kernel), &r.kv)
    else {
        return Err(too_many(p));
    };
    let (kernel, [heads_q, heads]) = (s.kernel, [p.heads_q, p.heads_k].map(|heads| heads as u32));
    let workspace = Workspace::new(p, &of, kernel, r.scratch.address());
    let tiles = [
        u64::from(of.blocks) * u64::from(of.batches) * p.heads_q as u64,
        u64::from(of.most) * p.batch as u64 * p.heads_k as u64,
        (p.batch * p.heads_k) as u64 * u64::from(FP8_SHARES),
    ];
    let divisors = [of.blocks, heads_q, heads, heads_q / heads, of.most];
    let ([Some(blocks), Some(by_heads_q), Some(by_heads), Some(group), Some(most)], 0..0x8000_0000) =
        (divisors.map(FastDiv::new), tiles.into_iter().max().unwrap_or(0))
    else {
        return Err(too_many(p));
    };

    let queries = CuSeqlens { offsets: cu_seqlens_q(&r.queries), rows: of.rows, longest: of.rows };
    let most_keys = kv.max_k as u32;
    let keys = CuSeqlens { offsets: integers(None, 0), rows: most_keys, longest: most_keys };
    let lengths = integers(Some(kv.lengths), p.batch);
    let measure = RoundFp8Params {
        from: [tensor(&r.q), NO_TENSOR, NO_TENSOR],
        to: [workspace.q, NO_TENSOR, NO_TENSOR],
        maxima: [workspace.maxima, NO_LSE, NO_LSE],
        scales: [workspace.scales, NO_LSE, NO_LSE],
        lse_lacks: NO_LSE,
        sequences: Fp8Sequences {
            rows: [queries, keys],
            seqused_k: lengths,
            blocks: of.sequences,
            reserved: 0,
        },
        blocks: [blocks, FastDiv::ONE],
        heads: [by_heads_q, by_heads],
        group,
        tiles: [tiles[0] as u32, 0],
        scale: p.softmax_scale(),
        measures: 1,
        keeps_means: 1,
    };
    let rounds = RoundFp8Params { measures: 0, ..measure };
    launch.step(round, [measure.grid(), 1, 1], &measure, []);
    launch.step(round, [rounds.grid(), 1, 1], &rounds, []);
    let lays = LayFp8PagesParams {
        cache: cache(kv),
        pages: tensor(&kv.pages.values),
        to: workspace.v,
        lengths,
        blocks: most,
        heads: by_heads,
        tiles: tiles[1] as u32,
        max_keys: most_keys,
    };
    launch.step(lay, [lays.tiles, 1, 1], &lays, []);

    let [_, k, _, of_output] = maps;
    let columns = fp8_box_columns(kernel.head_dim);
    let k = MapDescription { box_shape: [columns, k.box_shape[1]], ..k };
    let q = map(&workspace.q, p.heads_q, AttnInfo::Q_BOX_ROWS);
    let maps = [q, k, map(&workspace.v, p.heads_k, kernel.head_dim), of_output];
    let Some(forward) = on_paged_maps((r, p), s, work, &maps) else { return Err(too_many(p)) };
    let [of_keys, of_values] = scales(&kv.pages);
    let of_queries = per_head(workspace.scales.base, [p.heads_k as i64, 1]);
    let params =
        Fp8Params { forward, scales: [of_queries, of_keys, of_values], lse_lacks: NO_LSE, reserved: 0 };
    launch.main_follows();
    launch.step(s.place, [work.blocks, 1, 1], &params, maps);
    Ok(())
}
