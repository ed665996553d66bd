//! Parameters of attention with products of eight bits, and of the kernel that quantises its keys and values.
use super::Refusal;
use super::attention::on_quantised;
use super::fp8::{self, Rows, too_many};
use super::int8_cache;
use super::tensors::keys_values;
use crate::launch::Launch;
use crate::place::Place;
use crate::request::{AttentionRequest, RowOutputs};
use crate::schedule::{Schedule, Scheduled};
use crate::{AttnInfo, Problem};
use spec::{Entry, FastDiv, LayFp8, Precision, QuantiseParams, Tensor, image_bytes, keys_image_bytes};

/// Returns the kernel that quantises tensors for an attention kernel, or lays them, or `None` if the
/// attention kernel reads them as they are.
pub(crate) fn quantise_of(p: &Problem, kernel: &AttnInfo) -> Option<Place> {
    let quantise = spec::quantise_of(kernel)?;
    Some(Place::of(match (p.is_eight_bit(), kernel.head_dim) {
        (false, _) => &quantise,
        (true, ..=64) => &<LayFp8<8, 4> as Entry>::CONTRACT,
        (true, ..=128) => &<LayFp8<8, 8> as Entry>::CONTRACT,
        (true, _) => &<LayFp8<4, 16> as Entry>::CONTRACT,
    }))
}

/// The workspace of one key head: the means of keys, one row of f32 per sequence, then the images of stages.
struct Head {
    means: u64,
    image: u32,
    bytes: u64,
}

impl Head {
    fn of(p: &Problem, rows: &Rows, kernel: &AttnInfo) -> Self {
        let image = match kernel.precision() {
            Precision::Int8F16 => keys_image_bytes(kernel.tile_n, kernel.head_dim),
            _ => image_bytes(kernel.tile_n, kernel.head_dim),
        };
        let sequences = if p.varlen.is_some() { p.batch as u64 } else { 1 };
        let means = sequences * u64::from(kernel.head_dim) * 4;
        Head { means, image, bytes: u64::from(rows.blocks[1]) * u64::from(image) + means }
    }
}

/// Returns the bytes of workspace for quantised tensors. Too many blocks have no workspace: no launch has
/// them.
pub(crate) fn quantised_bytes(p: &Problem, kernel: &AttnInfo) -> u64 {
    if kernel.precision() == Precision::Fp8 {
        return fp8::rounded_bytes(p, kernel);
    }
    if p.cache.is_some() {
        return int8_cache::bytes(p, kernel);
    }
    let Some(rows) = Rows::of(p, kernel) else { return 0 };
    let heads = p.heads_k as u64 * u64::from(rows.batches);
    Head::of(p, &rows, kernel).bytes.saturating_mul(heads)
}

/// Adds the steps that quantise tensors to the workspace, and the step of the attention kernel, for valid
/// tensors.
///
/// # Errors
/// Returns [`Refusal::Tensors`] if the kernel does not write the outputs, or [`Refusal::Request`] if there
/// are too many images for one launch.
pub(crate) fn quantised(
    (r, p): (&AttentionRequest<'_>, &Problem),
    s: &Scheduled,
    quantise: Place,
    launch: &mut Launch,
) -> Result<(), Refusal> {
    if s.kernel.precision() == Precision::Fp8 {
        return fp8::fp8((r, p), s, quantise, launch);
    }
    RowOutputs::wanted(r).are_of(s.kernel).map_err(Refusal::Tensors)?;
    let (Schedule::Tiles(work), Some(rows)) = (&s.schedule, Rows::of(p, s.kernel)) else {
        return Err(too_many(p));
    };
    let count = u64::from(rows.blocks[1]) * u64::from(rows.batches) * p.heads_k as u64;
    let (Ok(tiles @ ..0x8000_0000), Some(blocks), Some(heads)) =
        (u32::try_from(count), FastDiv::new(rows.blocks[1]), FastDiv::new(p.heads_k as u32))
    else {
        return Err(too_many(p));
    };
    let head = Head::of(p, &rows, s.kernel);
    let images = Tensor {
        base: r.scratch.address().saturating_add(head.means),
        batch_bytes: head.bytes * p.heads_k as u64,
        head_bytes: head.bytes,
        row_bytes: head.image,
        rows: rows.rows[1],
        chunks: head.image / 16,
        reserved: 0,
    };
    // The means of dense tensors.
    let row_bytes = s.kernel.head_dim * 4;
    let base = images.base.saturating_sub(row_bytes.into());
    let means = Tensor { base, row_bytes, rows: 1, chunks: row_bytes / 16, ..images };
    let ([k, v], sequences) = (keys_values(&r.kv), rows.sequences(r, p));
    let params = QuantiseParams { k, v, images, sequences, blocks, heads, tiles, reserved: 0 };
    launch.step(quantise, [tiles, 1, 1], &params, []);
    launch.main_follows();
    let beside = match s.kernel.precision() {
        Precision::Int8F16 => v,
        _ => means,
    };
    on_quantised((r, p), s, work, [images, beside], launch);
    Ok(())
}
