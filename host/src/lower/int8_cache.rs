//! Parameters of attention with products of int8 and e4m3 on a KV cache of int8, whose keys are operands as
//! they lie in their pages. A kernel rounds the values before it.
use super::Refusal;
use super::attention::on_laid_values;
use super::fp8::too_many;
use super::tensors::{cache, integers, scales, tensor};
use crate::launch::Launch;
use crate::place::Place;
use crate::request::{AttentionRequest, KeysValues, RowOutputs};
use crate::schedule::{Schedule, Scheduled};
use crate::{AttnInfo, Problem};
use spec::{FastDiv, LayFp8PagesParams, LayInt8PagesParams, Tensor, values_image_bytes};

/// Returns the images of all values at an address: a sequence has as many as the longest one may have.
fn images(p: &Problem, kernel: &AttnInfo, base: u64) -> Tensor {
    let row_bytes = values_image_bytes(kernel.tile_n, kernel.head_dim);
    let most = (p.seqlen_k as u64).div_ceil(kernel.tile_n.into());
    let head_bytes = most.saturating_mul(row_bytes.into());
    let batch_bytes = head_bytes.saturating_mul(p.heads_k as u64);
    let (rows, chunks) = (p.seqlen_k as u32, row_bytes / 16);
    Tensor { base, batch_bytes, head_bytes, row_bytes, rows, chunks, reserved: 0 }
}

/// Returns the bytes of workspace.
pub(super) fn bytes(p: &Problem, kernel: &AttnInfo) -> u64 {
    images(p, kernel, 0).batch_bytes.saturating_mul(p.batch as u64)
}

/// Adds the step that rounds V, and the step of the attention kernel, for valid tensors on a KV cache.
///
/// # Errors
/// Returns [`Refusal::Tensors`] if the kernel does not write the outputs, or [`Refusal::Request`] if there
/// are too many blocks for one launch.
pub(crate) fn int8_on_cache(
    (r, p): (&AttentionRequest<'_>, &Problem),
    s: &Scheduled,
    lay: Place,
    launch: &mut Launch,
) -> Result<(), Refusal> {
    RowOutputs::wanted(r).are_of(s.kernel).map_err(Refusal::Tensors)?;
    let (Schedule::Tiles(work), KeysValues::Cache(kv)) = (&s.schedule, &r.kv) else {
        return Err(too_many(p));
    };
    let most = (p.seqlen_k as u64).div_ceil(s.kernel.tile_n.into());
    let tiles = most.saturating_mul(p.batch as u64).saturating_mul(p.heads_k as u64);
    let (Ok(tiles @ ..0x8000_0000), Some(blocks), Some(heads)) =
        (u32::try_from(tiles), FastDiv::new(most as u32), FastDiv::new(p.heads_k as u32))
    else {
        return Err(too_many(p));
    };
    let to = images(p, s.kernel, r.scratch.address());
    let lays = LayFp8PagesParams {
        cache: cache(kv),
        pages: tensor(&kv.pages.values),
        to,
        lengths: integers(Some(kv.lengths), p.batch),
        blocks,
        heads,
        tiles,
        max_keys: kv.max_k as u32,
    };
    let [_, scales] = scales(&kv.pages);
    launch.step(lay, [tiles, 1, 1], &LayInt8PagesParams { lay: lays, scales }, []);
    launch.main_follows();
    match on_laid_values((r, p), s, work, to, launch) {
        true => Ok(()),
        false => Err(too_many(p)),
    }
}
