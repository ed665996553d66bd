//! Parameters of attention with products of e4m3, and of the kernel that rounds its tensors.
pub(super) mod cache;

use super::Refusal;
use super::attention::{on_maps, on_ragged_maps};
use super::tensors::{
    NO_LSE, cu_seqlens_q, integers, keys_values, per_head, scale, tensor, tensor_at, varlen_keys,
};
use crate::launch::Launch;
use crate::place::Place;
use crate::request::{AttentionRequest, KeysValues, RowOutputs};
use crate::schedule::{Schedule, Scheduled};
use crate::{AttnInfo, DType, Error, MapDescription, MapKind, Problem, tma};
use spec::{
    CuSeqlens, FP8_SHARES, FastDiv, Fp8Params, Fp8Sequences, LayFp8Params, Lse, PerHead, RaggedMap,
    RoundFp8Params, Sequences, Tensor, fp8_box_columns,
};

/// Alignment of the workspace's parts, in bytes.
const ALIGNMENT: u64 = 16;

/// The workspace: tensors of e4m3, their largest magnitudes and scales, and what the LSE lacks.
struct Workspace {
    to: [Tensor; 3],
    maxima: [Lse; 3],
    scales: [Lse; 3],
    lse_lacks: Lse,
    bytes: u64,
}

/// How rows lie in tensors: batches of equal lengths, or one batch of all sequences.
pub(super) struct Rows {
    pub(super) batches: u32,
    /// Rows of Q, and of K and V, per head.
    pub(super) rows: [u32; 2],
    /// Blocks of these rows, which are as long as a stage.
    pub(super) blocks: [u32; 2],
    /// The mapping from blocks to sequences.
    sequences: Sequences,
}

impl Rows {
    /// The rows of a problem. Returns `None` if there are too many sequences or blocks.
    pub(super) fn of(p: &Problem, kernel: &AttnInfo) -> Option<Self> {
        let tile = kernel.tile_n;
        let Some(rows) = p.varlen else {
            let rows = [p.seqlen_q, p.seqlen_k].map(|rows| rows as u32);
            let blocks = rows.map(|rows| rows.div_ceil(tile));
            return Some(Rows { batches: p.batch as u32, rows, blocks, sequences: Sequences::NONE });
        };
        let (rows, count) = (rows.map(|rows| rows as u32), u32::try_from(p.batch).ok()?);
        let [of_queries, of_keys] = rows.map(|rows| Sequences::by_rows(count, rows, tile));
        let ((sequences, q), (_, k)) = (of_queries?, of_keys?);
        Some(Rows { batches: 1, rows, blocks: [q, k], sequences })
    }

    /// The kind of the tensors' maps.
    const fn kind(&self) -> MapKind {
        if self.sequences.count == 0 { MapKind::Whole } else { MapKind::Ragged }
    }

    /// The sequences of a request, for kernels that prepare its tensors.
    pub(super) fn sequences(&self, r: &AttentionRequest<'_>, p: &Problem) -> Fp8Sequences {
        let none = integers(None, 0);
        let [of_keys, seqused_k] = match &r.kv {
            KeysValues::Varlen { keys, .. } => varlen_keys(keys, p.batch),
            _ => [none; 2],
        };
        let offsets = [cu_seqlens_q(&r.queries), of_keys];
        let of = |i: usize| CuSeqlens { offsets: offsets[i], rows: self.rows[i], longest: self.rows[i] };
        Fp8Sequences { rows: [of(0), of(1)], seqused_k, blocks: self.sequences, reserved: 0 }
    }
}

impl Workspace {
    /// The workspace of a problem at an address.
    fn new(p: &Problem, of: &Rows, kernel: &AttnInfo, address: u64) -> Self {
        let [heads_q, heads, sequences] = [p.heads_q, p.heads_k, p.batch].map(|count| count as u32);
        let Rows { batches, rows: [rows_q, rows_k], .. } = *of;
        let of_head = kernel.head_dim;
        let mut end = 0_u64;
        let mut part = |bytes: u64| {
            let at = address.saturating_add(end);
            end = end.saturating_add(bytes.next_multiple_of(ALIGNMENT));
            at
        };
        let bytes = |row: u32, rows: u32, heads: [u32; 2]| {
            let [heads, batches] = heads.map(u64::from);
            u64::from(row).saturating_mul(u64::from(rows)).saturating_mul(heads * batches)
        };
        // A block of keys has a row for each column of V.
        let rows_v = of.blocks[1].saturating_mul(of_head);
        let mut rows = |heads: u32, row: u32, rows: u32| {
            tensor_at(part(bytes(row, rows, [heads, batches])), [heads, rows], row, rows)
        };
        let to = [
            rows(heads_q, of_head, rows_q),
            rows(heads, of_head, rows_k),
            rows(heads, kernel.tile_n, rows_v),
        ];
        let mut vector = |heads: [u32; 2], count: u32| {
            let head_bytes = u64::from(count) * 4;
            let batch_bytes = head_bytes * u64::from(heads[0]);
            Lse { base: part(bytes(4, count, heads)), batch_bytes, head_bytes }
        };
        let maxima = [(); 3].map(|()| vector([heads, sequences], FP8_SHARES));
        let scales = [(); 3].map(|()| vector([heads, sequences], 1));
        let lse_lacks = vector([heads_q, batches], rows_q);
        Workspace { to, maxima, scales, lse_lacks, bytes: end }
    }
}

/// Returns the bytes of workspace for rounded tensors, or for the values of tensors that are e4m3 already.
/// Too many blocks have no workspace: no launch has them.
pub(super) fn rounded_bytes(p: &Problem, kernel: &AttnInfo) -> u64 {
    if p.cache.is_some() {
        return cache::bytes(p, kernel);
    }
    let Some(of) = Rows::of(p, kernel) else { return 0 };
    match p.is_eight_bit() {
        true => {
            let rows = of.blocks[1].saturating_mul(kernel.head_dim);
            let row = kernel.tile_n * of.batches;
            u64::from(rows).saturating_mul(u64::from(row)).saturating_mul(p.heads_k as u64)
        }
        false => Workspace::new(p, &of, kernel, 0).bytes,
    }
}

/// Returns the tensor map of e4m3 in the workspace, with boxes of these rows.
fn map(from: &Tensor, of: &Rows, box_rows: u32) -> MapDescription {
    let Tensor { base: address, batch_bytes, head_bytes, row_bytes, rows, .. } = *from;
    let heads = (batch_bytes / head_bytes.max(1)) as u32;
    MapDescription {
        address,
        strides: [row_bytes.into(), head_bytes, batch_bytes],
        extents: [row_bytes, rows, heads, of.batches],
        box_shape: [fp8_box_columns(row_bytes), box_rows],
        dtype: DType::E4m3,
        kind: of.kind(),
    }
}

/// Returns the error of too many blocks.
pub(super) fn too_many(p: &Problem) -> Refusal {
    let [q, k] = p.totals();
    let feature = format_args!("{} sequences with {q} rows of queries and {k} of keys in all", p.batch);
    let reason = "a launch may have less than 2^31 thread blocks, and tensors less than 2^30 rows; split the \
                  batch";
    Error::unsupported(feature, reason).into()
}

/// Adds the steps of [`rounded`] for tensors of 16 bits, or of [`laid`] for tensors of e4m3, and the step of
/// the attention kernel, for valid tensors.
///
/// # Errors
/// Returns [`Refusal::Tensors`] if the kernel does not accept the output, or [`Refusal::Request`] if there
/// are too many blocks for one launch.
pub(super) fn fp8(
    (r, p): (&AttentionRequest<'_>, &Problem),
    s: &Scheduled,
    prepare: Place,
    launch: &mut Launch,
) -> Result<(), Refusal> {
    RowOutputs::wanted(r).are_of(s.kernel).map_err(Refusal::Tensors)?;
    let Some([.., of_output]) = tma::maps(r, s.kernel).map_err(Refusal::Tensors)? else {
        return Err(Refusal::Tensors("the kernel stores its output through a tensor map"));
    };
    let (Schedule::Tiles(work), Some(of)) = (&s.schedule, Rows::of(p, s.kernel)) else {
        return Err(too_many(p));
    };
    // The rows of V, as columns, must be below the end of a varlen tensor map.
    if of.blocks[1].saturating_mul(s.kernel.head_dim) > RaggedMap::END {
        return Err(too_many(p));
    }
    let (inputs, [q, k, v]) = match p.is_eight_bit() {
        true => laid((r, p), &of, s.kernel, prepare, launch)?,
        false => rounded((r, p), &of, s.kernel, prepare, launch)?,
    };
    launch.main_follows();
    let Inputs { scales, lse_lacks } = inputs;
    let (grid, maps) = ([work.blocks, 1, 1], [q, k, v, of_output]);
    match on_ragged_maps((r, p), s, work) {
        None => {
            let forward = on_maps((r, p), s, work);
            launch.step(s.place, grid, &Fp8Params { forward, scales, lse_lacks, reserved: 0 }, maps);
        }
        Some(forward) => {
            launch.step(s.place, grid, &Fp8Params { forward, scales, lse_lacks, reserved: 0 }, maps);
        }
    }
    Ok(())
}

/// The attention kernel's parameters beside its tensors.
struct Inputs {
    scales: [PerHead; 3],
    lse_lacks: Lse,
}

/// Adds the step that lays values of e4m3 as columns. Q and K stay as they are: the order of the columns of a
/// product does not matter, if both tensors have it.
fn laid(
    (r, p): (&AttentionRequest<'_>, &Problem),
    of: &Rows,
    kernel: &AttnInfo,
    lay: Place,
    launch: &mut Launch,
) -> Result<(Inputs, [MapDescription; 3]), Refusal> {
    let [heads, per_head] = [p.heads_k as u32, of.blocks[1]];
    let tiles = u64::from(per_head) * u64::from(of.batches) * p.heads_k as u64;
    let (Some(blocks), Some(divisor), Ok(count @ ..0x8000_0000), Some([k, _])) =
        (FastDiv::new(per_head), FastDiv::new(heads), u32::try_from(tiles), r.kv.tensors())
    else {
        return Err(too_many(p));
    };
    let rows = per_head.saturating_mul(kernel.head_dim);
    let to = tensor_at(r.scratch.address(), [heads, rows], kernel.tile_n, rows);
    let [_, v] = keys_values(&r.kv);
    let sequences = of.sequences(r, p);
    let params = LayFp8Params { v, to, sequences, blocks, heads: divisor, tiles: count, reserved: 0 };
    launch.step(lay, [count, 1, 1], &params, []);
    let [of_queries, of_keys] = [(&r.q, AttnInfo::Q_BOX_ROWS), (k, kernel.tile_n)]
        .map(|(view, rows)| tma::of_bytes(view, of.kind(), [fp8_box_columns(kernel.head_dim), rows]));
    let inputs = Inputs { scales: r.descales.all().map(scale), lse_lacks: NO_LSE };
    Ok((inputs, [of_queries, of_keys, map(&to, of, kernel.head_dim)]))
}

/// Adds the steps that round Q, K and V to the workspace.
fn rounded(
    (r, p): (&AttentionRequest<'_>, &Problem),
    of: &Rows,
    kernel: &AttnInfo,
    round: Place,
    launch: &mut Launch,
) -> Result<(Inputs, [MapDescription; 3]), Refusal> {
    let heads = [p.heads_q, p.heads_k];
    let workspace = Workspace::new(p, of, kernel, r.scratch.address());
    let [q, k] = of.blocks;
    let tiles = [0, 1].map(|i| u64::from(of.blocks[i]) * u64::from(of.batches) * heads[i] as u64);
    let shares = 3 * (p.batch * p.heads_k) as u64 * u64::from(FP8_SHARES);
    let divisors = [q, k, heads[0] as u32, heads[1] as u32, (heads[0] / heads[1]) as u32];
    let ([Some(b0), Some(b1), Some(h0), Some(h1), Some(group)], 0..0x8000_0000) =
        (divisors.map(FastDiv::new), shares.max(tiles[0] + 2 * tiles[1]))
    else {
        return Err(too_many(p));
    };
    let [k, v] = keys_values(&r.kv);
    let measure = RoundFp8Params {
        from: [tensor(&r.q), k, v],
        to: workspace.to,
        maxima: workspace.maxima,
        scales: workspace.scales,
        lse_lacks: if r.lse.is_some() && p.softcap.is_none() { workspace.lse_lacks } else { NO_LSE },
        sequences: of.sequences(r, p),
        blocks: [b0, b1],
        heads: [h0, h1],
        group,
        tiles: tiles.map(|tiles| tiles as u32),
        scale: p.softmax_scale(),
        measures: 3,
        keeps_means: p.softcap.is_some().into(),
    };
    let rounds = RoundFp8Params { measures: 0, ..measure };
    launch.step(round, [measure.grid(), 1, 1], &measure, []);
    launch.step(round, [rounds.grid(), 1, 1], &rounds, []);
    let scales = workspace.scales.map(|scale| per_head(scale.base, [p.heads_k as i64, 1]));
    let [q, k, v] = &workspace.to;
    let rows = [AttnInfo::Q_BOX_ROWS, kernel.tile_n, kernel.head_dim];
    let maps = [map(q, of, rows[0]), map(k, of, rows[1]), map(v, of, rows[2])];
    Ok((Inputs { scales, lse_lacks: measure.lse_lacks }, maps))
}
