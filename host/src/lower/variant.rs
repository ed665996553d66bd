//! Parameters of masks and scores, which follow the kernel's own parameters.
use super::block_mask;
use super::tensors::{integers, lse, slopes};
use crate::launch::Launch;
use crate::place::Place;
use crate::request::{AttentionRequest, Bias, Mask, MaskBits, Prefix, Sinks};
use crate::{AttnInfo, Error, MapDescription, MaskKind, Problem};
use spec::{
    BiasParams, BitsParams, ChunkedParams, FastDiv, MaximaParams, PrefixParams, SinkParams, TensorMap,
    TmaBiasParams,
};

/// Adds the parameters of the kernel's mask, and then of its scores, to the last step of a launch. A bias
/// that the kernel reads through a tensor map comes first.
pub(super) fn add(
    launch: &mut Launch,
    r: &AttentionRequest<'_>,
    p: &Problem,
    kernel: &AttnInfo,
    tma_bias: Option<MapDescription>,
) {
    if let Some(variant) = &r.variant {
        return launch.add_bytes(variant.bytes());
    }
    if let Some(map) = tma_bias {
        launch.add(&tensor_map_of_bias(&map), [map]);
    }
    match (kernel.mask, &r.mask) {
        (MaskKind::Prefix, Mask::Prefix(prefix)) => launch.add(&self::prefix(prefix, p.batch), []),
        (MaskKind::Chunked, Mask::Chunked { chunk }) => launch.add(&chunked(*chunk), []),
        (MaskKind::Bits, Mask::Bits(bits)) => launch.add(&self::bits(bits), []),
        // Selection never gives other masks to kernels without parameters.
        _ => {}
    }
    if let (true, Some(Sinks { address: base, .. })) = (kernel.scores.sink, r.scores.sinks) {
        launch.add(&SinkParams { base }, []);
    }
    if let (true, Some(view)) = (kernel.scores.alibi, &r.scores.alibi) {
        launch.add(&slopes(Some(view)), []);
    }
    if let (Some(_), Some(bias), None) = (kernel.scores.bias, &r.scores.bias, tma_bias) {
        launch.add(&self::bias(bias), []);
    }
    if kernel.scores.maxima {
        launch.add(&MaximaParams { rows: lse(r.max_logits.as_ref()) }, []);
    }
}

/// Checks that each step of a launch with a variant's kernel has the number of bytes of parameters that the
/// kernel takes, and the block mask of the kernel's tiles.
///
/// # Errors
/// Returns [`Error::Unsupported`], which names both numbers of bytes. The check refuses a type that gives a
/// kernel no parameters for its mask (a type without `With`). Returns [`Error::Invalid`] if the block mask is
/// of another kernel or of another request.
pub(crate) fn fits(launch: &Launch, r: &AttentionRequest<'_>, p: &Problem) -> Result<(), Error> {
    for (place, params) in launch.steps() {
        let Place::Variant(kernel) = place else { continue };
        if let Some(mask) = r.variant.as_ref().and_then(|variant| variant.block_mask()) {
            block_mask::check(mask, kernel.info(), p)?;
        }
        let (takes, has) = (kernel.params(), params.len());
        if takes != has {
            let reason = format_args!(
                "its type takes {takes} bytes of parameters, and this request's launch has {has}: wrap the \
                 type in `With`, once, on the outside"
            );
            return Err(Error::unsupported(kernel.info().contract.symbol, reason));
        }
    }
    Ok(())
}

fn tensor_map_of_bias(map: &MapDescription) -> TmaBiasParams {
    let [.., heads, batches] = map.extents;
    let [of_heads, of_batches] = [heads, batches].map(|extent| u32::from(extent > 1));
    TmaBiasParams { map: TensorMap::EMPTY, of_batches, of_heads, reserved: [0; 14] }
}

fn prefix(prefix: &Prefix, sequences: usize) -> PrefixParams {
    match *prefix {
        Prefix::All(all) => PrefixParams { lengths: integers(None, 0), all, reserved: 0 },
        Prefix::Each(each) => PrefixParams { lengths: integers(Some(each), sequences), all: 0, reserved: 0 },
    }
}

fn chunked(chunk: u32) -> ChunkedParams {
    // A divisor is at most i32::MAX. No position is larger, so a longer chunk gives the same mask.
    let chunk = FastDiv::new(chunk.clamp(1, i32::MAX as u32)).unwrap_or(FastDiv::ONE);
    ChunkedParams { chunk, reserved: 0 }
}

fn bits(bits: &MaskBits) -> BitsParams {
    let MaskBits { address: base, shape: [batch, heads, rows, columns], strides, .. } = *bits;
    let [batch_bytes, head_bytes, row_bytes] = bytes(&[batch, heads, rows], strides, 1);
    BitsParams {
        base,
        batch_bytes,
        head_bytes,
        row_bytes: row_bytes as u32,
        rows: rows as u32,
        keys: columns as u32,
        reserved: 0,
    }
}

/// Returns the parameters of a bias, or of its gradient.
pub(super) fn bias(bias: &Bias) -> BiasParams {
    let Bias { address: base, shape: [batch, heads, rows, keys], strides: [b, h, r, _], .. } = *bias;
    let [batch_bytes, head_bytes, row_bytes] = bytes(&[batch, heads, rows], [b, h, r], bias.dtype.bytes());
    BiasParams {
        base,
        batch_bytes,
        head_bytes,
        row_bytes: row_bytes as u32,
        rows: rows as u32,
        keys: keys as u32,
        reserved: 0,
    }
}

/// Converts strides to bytes. An extent of 1 broadcasts, so its stride becomes 0.
fn bytes(shape: &[usize; 3], strides: [i64; 3], each: usize) -> [u64; 3] {
    std::array::from_fn(
        |dim| if shape[dim] == 1 { 0 } else { (strides[dim] as u64).wrapping_mul(each as u64) },
    )
}
