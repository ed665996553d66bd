//! Parameters of attention with products of eight bits, and of the kernel that quantises its keys and values.
use super::attention::on_quantised;
use super::tensors::{keys_values, tensor_at};
use super::{Refusal, fp8};
use crate::launch::Launch;
use crate::place::Place;
use crate::request::{AttentionRequest, RowOutputs};
use crate::schedule::{Schedule, Scheduled};
use crate::{AttnInfo, Error, Problem};
use spec::{Entry, FastDiv, LayFp8, Precision, QuantiseParams, Tensor, image_bytes, keys_image_bytes};

/// Returns the kernel that quantises tensors for an attention kernel, or lays them, or `None` if the
/// attention kernel reads them as they are.
pub(crate) fn quantise_of(p: &Problem, kernel: &AttnInfo) -> Option<Place> {
    let quantise = spec::quantise_of(kernel)?;
    Some(Place::of(match (p.is_eight_bit(), kernel.head_dim) {
        (false, _) => &quantise,
        (true, ..=64) => &<LayFp8<8, 4> as Entry>::CONTRACT,
        (true, _) => &<LayFp8<8, 8> as Entry>::CONTRACT,
    }))
}

/// Returns the bytes of an image: of a stage of keys and values, or of keys alone.
fn image(kernel: &AttnInfo) -> u32 {
    match kernel.precision() {
        Precision::Int8F16 => keys_image_bytes(kernel.tile_n, kernel.head_dim),
        _ => image_bytes(kernel.tile_n, kernel.head_dim),
    }
}

/// Returns the number of images, one per stage of keys of each head, and the bytes of all images.
fn images(p: &Problem, kernel: &AttnInfo) -> [u64; 2] {
    let blocks = p.seqlen_k.div_ceil(kernel.tile_n as usize) as u64;
    let count = blocks.saturating_mul((p.batch * p.heads_k) as u64);
    [count, count.saturating_mul(image(kernel).into())]
}

/// Returns the bytes of workspace for quantised tensors. For `Precision::Int8Fp8`: the images, then the means
/// of keys. For `Precision::Int8F16`: for each head the means, in the place of an image, then the images.
pub(crate) fn quantised_bytes(p: &Problem, kernel: &AttnInfo) -> u64 {
    let heads = (p.batch * p.heads_k) as u64;
    let means = match kernel.precision() {
        Precision::Fp8 => return fp8::rounded_bytes(p, kernel),
        Precision::Int8F16 => u64::from(image(kernel)),
        _ => u64::from(kernel.head_dim) * 4,
    };
    images(p, kernel)[1].saturating_add(heads * means)
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
    let (kernel, [count, bytes], heads) = (s.kernel, images(p, s.kernel), p.heads_k as u32);
    let blocks = p.seqlen_k.div_ceil(kernel.tile_n as usize) as u32;
    let (Ok(tiles @ ..0x8000_0000), Some(per_head), Some(per_batch), Schedule::Tiles(work)) =
        (u32::try_from(count), FastDiv::new(blocks), FastDiv::new(heads), &s.schedule)
    else {
        let feature = format_args!("{count} blocks of {} keys", kernel.tile_n);
        let reason = "a launch may have less than 2^31 thread blocks; split the batch";
        return Err(Error::unsupported(feature, reason).into());
    };
    let image = image(kernel);
    let (address, [k, v], rows) = (r.scratch.address(), keys_values(&r.kv), p.seqlen_k as u32);
    let (images, means, keys, values) = match kernel.precision() {
        Precision::Int8F16 => {
            let keys = tensor_at(address, [heads, blocks + 1], image, rows);
            let base = address.saturating_add(image.into());
            let means = Tensor { rows: 1, chunks: kernel.head_dim / 4, ..keys };
            (Tensor { base, ..keys }, means, keys, v)
        }
        _ => {
            let images = tensor_at(address, [heads, blocks], image, rows);
            let means = tensor_at(address.saturating_add(bytes), [heads, 1], kernel.head_dim * 4, 1);
            (images, means, images, means)
        }
    };
    let params =
        QuantiseParams { k, v, images, means, blocks: per_head, heads: per_batch, tiles, reserved: 0 };
    launch.step(quantise, [tiles, 1, 1], &params, []);
    launch.main_follows();
    launch.step(s.place, [work.blocks, 1, 1], &on_quantised((r, p), s, work, [keys, values]), []);
    Ok(())
}
