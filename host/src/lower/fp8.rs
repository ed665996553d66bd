//! Parameters of attention with products of e4m3, and of the kernel that rounds its tensors.
use super::Refusal;
use super::attention::on_maps;
use super::tensors::{NO_LSE, keys_values, per_head, scale, tensor, tensor_at};
use crate::launch::Launch;
use crate::place::Place;
use crate::request::{AttentionRequest, RowOutputs};
use crate::schedule::{Schedule, Scheduled};
use crate::{AttnInfo, DType, Error, MapDescription, MapKind, Problem, tma};
use spec::{FP8_SHARES, FastDiv, Fp8Params, LayFp8Params, Lse, PerHead, RoundFp8Params, Tensor};

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

/// Returns the blocks of queries, or of keys, per head: stages of the kernel.
const fn blocks(rows: usize, kernel: &AttnInfo) -> u32 {
    rows.div_ceil(kernel.tile_n as usize) as u32
}

impl Workspace {
    /// The workspace of a problem at an address.
    fn new(p: &Problem, kernel: &AttnInfo, address: u64) -> Self {
        let [heads_q, heads] = [p.heads_q as u32, p.heads_k as u32];
        let [of_head, batches] = [kernel.head_dim, p.batch as u32];
        let mut end = 0_u64;
        let mut part = |bytes: u64| {
            let at = address.saturating_add(end);
            end = end.saturating_add(bytes.next_multiple_of(ALIGNMENT));
            at
        };
        let bytes = |row: u32, rows: u32, heads: u32| {
            u64::from(row)
                .saturating_mul(u64::from(rows))
                .saturating_mul(u64::from(heads) * u64::from(batches))
        };
        let [rows_q, rows_k] = [p.seqlen_q as u32, p.seqlen_k as u32];
        // A block of keys has a row for each column of V.
        let rows_v = blocks(p.seqlen_k, kernel).saturating_mul(of_head);
        let mut rows = |heads: u32, row: u32, rows: u32| {
            tensor_at(part(bytes(row, rows, heads)), [heads, rows], row, rows)
        };
        let to = [
            rows(heads_q, of_head, rows_q),
            rows(heads, of_head, rows_k),
            rows(heads, kernel.tile_n, rows_v),
        ];
        let mut vector = |heads: u32, count: u32| {
            let head_bytes = u64::from(count) * 4;
            let batch_bytes = head_bytes * u64::from(heads);
            Lse { base: part(bytes(4, count, heads)), batch_bytes, head_bytes }
        };
        let maxima = [(); 3].map(|()| vector(heads, FP8_SHARES));
        let scales = [(); 3].map(|()| vector(heads, 1));
        let lse_lacks = vector(heads_q, rows_q);
        Workspace { to, maxima, scales, lse_lacks, bytes: end }
    }
}

/// Returns the bytes of workspace for rounded tensors, or for the values of tensors that are e4m3 already.
pub(super) fn rounded_bytes(p: &Problem, kernel: &AttnInfo) -> u64 {
    match p.is_eight_bit() {
        true => {
            let rows = blocks(p.seqlen_k, kernel).saturating_mul(kernel.head_dim);
            let row = kernel.tile_n as usize * p.heads_k * p.batch;
            u64::from(rows).saturating_mul(row as u64)
        }
        false => Workspace::new(p, kernel, 0).bytes,
    }
}

/// Returns the tensor map of e4m3 in the workspace, with boxes of these rows.
fn map(from: &Tensor, batches: usize, box_rows: u32) -> MapDescription {
    let Tensor { base: address, batch_bytes, head_bytes, row_bytes, rows, .. } = *from;
    let heads = (batch_bytes / head_bytes.max(1)) as u32;
    MapDescription {
        address,
        strides: [row_bytes.into(), head_bytes, batch_bytes],
        extents: [row_bytes, rows, heads, batches as u32],
        box_shape: [row_bytes, box_rows],
        dtype: DType::E4m3,
        kind: MapKind::Whole,
    }
}

/// Returns the error of too many blocks.
fn too_many(tiles: [u64; 2]) -> Refusal {
    let feature = format_args!("{} blocks of queries and {} of keys", tiles[0], tiles[1]);
    let reason = "a launch may have less than 2^31 thread blocks; split the batch";
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
    round: Place,
    launch: &mut Launch,
) -> Result<(), Refusal> {
    RowOutputs::wanted(r).are_of(s.kernel).map_err(Refusal::Tensors)?;
    let Some([.., of_output]) = tma::maps(r, s.kernel).map_err(Refusal::Tensors)? else {
        return Err(Refusal::Tensors("the kernel stores its output through a tensor map"));
    };
    let Schedule::Tiles(work) = &s.schedule else { return Err(too_many([0; 2])) };
    let (inputs, maps) = match p.is_eight_bit() {
        true => laid((r, p), s.kernel, round, launch)?,
        false => rounded((r, p), s.kernel, round, launch)?,
    };
    launch.main_follows();
    let Inputs { scales, lse_lacks } = inputs;
    let params = Fp8Params { forward: on_maps((r, p), s, work), scales, lse_lacks, reserved: 0 };
    let [q, k, v] = maps;
    launch.step(s.place, [work.blocks, 1, 1], &params, [q, k, v, of_output]);
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
    kernel: &AttnInfo,
    lay: Place,
    launch: &mut Launch,
) -> Result<(Inputs, [MapDescription; 3]), Refusal> {
    let [heads, per_head] = [p.heads_k as u32, blocks(p.seqlen_k, kernel)];
    let tiles = u64::from(per_head) * (p.batch * p.heads_k) as u64;
    let (Some(blocks), Some(divisor), Ok(count @ ..0x8000_0000), Some([k, _])) =
        (FastDiv::new(per_head), FastDiv::new(heads), u32::try_from(tiles), r.kv.tensors())
    else {
        return Err(too_many([0, tiles]));
    };
    let rows = per_head.saturating_mul(kernel.head_dim);
    let to = tensor_at(r.scratch.address(), [heads, rows], kernel.tile_n, rows);
    let [_, v] = keys_values(&r.kv);
    let params = LayFp8Params { v, to, blocks, heads: divisor, tiles: count, reserved: 0 };
    launch.step(lay, [count, 1, 1], &params, []);
    let [of_queries, of_keys] =
        [(&r.q, AttnInfo::Q_BOX_ROWS), (k, kernel.tile_n)].map(|(view, rows)| tma::of_bytes(view, rows));
    let inputs = Inputs { scales: r.descales.all().map(scale), lse_lacks: NO_LSE };
    Ok((inputs, [of_queries, of_keys, map(&to, p.batch, kernel.head_dim)]))
}

/// Adds the steps that round Q, K and V to the workspace.
fn rounded(
    (r, p): (&AttentionRequest<'_>, &Problem),
    kernel: &AttnInfo,
    round: Place,
    launch: &mut Launch,
) -> Result<(Inputs, [MapDescription; 3]), Refusal> {
    let heads = [p.heads_q, p.heads_k];
    let workspace = Workspace::new(p, kernel, r.scratch.address());
    let blocks = [p.seqlen_q, p.seqlen_k].map(|rows| blocks(rows, kernel));
    let tiles = [0, 1].map(|i| u64::from(blocks[i]) * (p.batch * heads[i]) as u64);
    let divisors = [blocks[0], blocks[1], heads[0] as u32, heads[1] as u32, (heads[0] / heads[1]) as u32];
    let ([Some(b0), Some(b1), Some(h0), Some(h1), Some(group)], 0..0x8000_0000) =
        (divisors.map(FastDiv::new), tiles[0] + 2 * tiles[1])
    else {
        return Err(too_many(tiles));
    };
    let [k, v] = keys_values(&r.kv);
    let measure = RoundFp8Params {
        from: [tensor(&r.q), k, v],
        to: workspace.to,
        maxima: workspace.maxima,
        scales: workspace.scales,
        lse_lacks: if r.lse.is_some() { workspace.lse_lacks } else { NO_LSE },
        blocks: [b0, b1],
        heads: [h0, h1],
        group,
        tiles: tiles.map(|tiles| tiles as u32),
        scale: p.softmax_scale(),
        measures: 1,
        reserved: 0,
    };
    let rounds = RoundFp8Params { measures: 0, ..measure };
    launch.step(round, [measure.grid(), 1, 1], &measure, []);
    launch.step(round, [rounds.grid(), 1, 1], &rounds, []);
    let scales = workspace.scales.map(|scale| per_head(scale.base, [p.heads_k as i64, 1]));
    let [q, k, v] = &workspace.to;
    let rows = [AttnInfo::Q_BOX_ROWS, kernel.tile_n, kernel.head_dim];
    let maps = [map(q, p.batch, rows[0]), map(k, p.batch, rows[1]), map(v, p.batch, rows[2])];
    Ok((Inputs { scales, lse_lacks: measure.lse_lacks }, maps))
}
