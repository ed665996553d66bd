//! The reference of append: it computes the KV cache after an append. This module also lists the problems
//! that append kernels must solve.
use crate::arithmetic::{decode, encode};
use ferroflash::DType;
use ferroflash::request::TensorView;
use ferroflash::spec::E4m3Scaled;
use integers::quantise;
use scaled::scaled_row;

mod edges;
mod integers;
mod rotary;
mod scaled;
mod work;

pub use edges::{AppendCase, Lies, RotaryCase, Scales, append_edges};
pub use work::AppendMemory;

/// Returns the number of columns of a row that a view of a cache has.
fn columns_of(view: &TensorView) -> usize {
    if view.dtype == DType::E4m3Scaled { E4m3Scaled::COLUMNS } else { view.shape[3] }
}

/// Writes `rows` to their slots of a cache. `rows` is contiguous, `[tokens, heads, head_dim]` of `dtype`. The
/// bytes of the cache's keys or values begin at the view's address. For an e4m3 cache, this function divides
/// each element by its head's scale in f32 and rounds the quotient. For an int8 cache, it returns each row's
/// index in `[pages][page][heads]`, with the row's scale. Rows of [`DType::E4m3Scaled`] have their scales.
pub(super) fn append(
    cache: &mut [u8],
    view: &TensorView,
    rows: &[u16],
    dtype: DType,
    slots: &[i64],
    scale: impl Fn(usize) -> f32,
) -> Vec<(usize, f32)> {
    let mut scales = vec![];
    let [pages, page, heads, _] = view.shape;
    let head_dim = columns_of(view);
    let bytes = view.dtype.bytes();
    for (token, &slot) in slots.iter().enumerate() {
        let Some(slot) = usize::try_from(slot).ok().filter(|slot| *slot < pages * page) else { continue };
        for head in 0..heads {
            let row = &rows[(token * heads + head) * head_dim..][..head_dim];
            let stored: Vec<u16> = match view.dtype {
                own if own == dtype => row.to_vec(),
                DType::E4m3Scaled => scaled_row(row, dtype),
                DType::Int8 => {
                    let (scale, integers) = quantise(row, dtype);
                    scales.push((slot * heads + head, scale));
                    integers.into_iter().map(|integer| u16::from(integer as u8)).collect()
                }
                other => {
                    let quotient = |bits: &u16| f64::from(decode(dtype, *bits) / scale(head));
                    row.iter().map(|bits| encode(other, quotient(bits))).collect()
                }
            };
            for (column, stored) in stored.into_iter().enumerate() {
                let position = [slot / page, slot % page, head, column];
                let place: usize =
                    position.iter().zip(view.strides).map(|(i, stride)| i * stride as usize).sum();
                cache[place * bytes..][..bytes].copy_from_slice(&stored.to_le_bytes()[..bytes]);
            }
        }
    }
    scales
}
