//! Parameters of append kernels.
use super::tensors::{pages, scales, tensor};
use crate::Error;
use crate::launch::Launch;
use crate::place::Place;
use crate::request::Append;
use spec::{APPEND_COLUMNS, AppendParams, FastDiv, RowParts, Slots};

/// Returns the launch of the append kernel, for valid tensors.
///
/// # Errors
/// Returns [`Error::Unsupported`] if there are too many tokens or columns for one launch.
pub(crate) fn append(append: &Append, place: Place) -> Result<Launch, Error> {
    let latent = append.pages.latent_columns().map(|_| append.halves());
    let Append { k, v, pages: cache, slots } = latent.as_ref().unwrap_or(append);
    let [_, _, heads, head_dim] = k.shape;
    let rows = (slots.elements as usize).checked_mul(heads);
    let parts = rows
        .and_then(|rows| RowParts::new(rows, head_dim / APPEND_COLUMNS, place.contract().threads))
        .zip(FastDiv::new(heads as u32));
    let Some((parts, heads)) = parts else {
        let feature = format_args!("{} tokens of {heads} heads of {head_dim} columns", slots.elements);
        let reason = "a launch may have less than 2^31 chunks of 8 columns, and a head at most 2048 columns; \
                      split the tokens";
        return Err(Error::unsupported(feature, reason));
    };
    let params = AppendParams {
        k: tensor(k),
        v: tensor(v),
        cache: pages(cache),
        slots: Slots { base: slots.address, count: slots.elements as u32, wide: u32::from(slots.wide) },
        scales: scales(cache),
        parts,
        heads,
        reserved: 0,
    };
    Ok(Launch::new(place, [parts.blocks(), 1, 1], &params))
}
