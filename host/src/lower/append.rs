//! Parameters of append kernels.
use super::rotary;
use super::tensors::{NO_TENSOR, pages, scales, tensor};
use crate::Error;
use crate::launch::Launch;
use crate::place::Place;
use crate::request::Append;
use spec::{APPEND_COLUMNS, AppendParams, DType, FastDiv, RowParts, SCALED_PAIRS, Slots, Tensor, row_parts};

/// Adds the step of the append kernel, for valid tensors.
///
/// # Errors
/// Returns [`Error::Unsupported`] if there are too many tokens or columns for one launch.
pub(crate) fn append(append: &Append, place: Place, launch: &mut Launch) -> Result<(), Error> {
    let latent = append.pages.latent_columns().is_some();
    let Some(rotation) = &append.rotary else {
        let is_scaled = append.pages.keys.dtype == DType::E4m3Scaled;
        if is_scaled {
            // A thread has two parts of a row, whose value is a part of the row.
            let params = params(append, append.k.shape[2], SCALED_PAIRS, NO_TENSOR, place)?;
            launch.step(place, [params.parts.blocks(), 1, 1], &params, []);
            return Ok(());
        }
        let halves = latent.then(|| append.halves());
        let append = halves.as_ref().unwrap_or(append);
        let parts = append.k.shape[3] / APPEND_COLUMNS;
        let params = params(append, append.k.shape[2], parts, tensor(&append.v), place)?;
        launch.step(place, [params.parts.blocks(), 1, 1], &params, []);
        return Ok(());
    };
    // A thread has two parts of a row. The value of a latent row is a part of the row.
    let heads = append.k.shape[2].saturating_add(rotary::query_heads(append));
    let parts = (append.k.shape[3] / APPEND_COLUMNS).div_ceil(2);
    let values = if latent { NO_TENSOR } else { tensor(&append.v) };
    let params = params(append, heads, parts, values, place)?;
    launch.step(place, [params.parts.blocks(), 1, 1], &rotary::rotary(append, rotation, params), []);
    Ok(())
}

/// Returns the parameters of an append that distributes `heads` rows of `parts` parts per token.
fn params(
    append: &Append,
    heads: usize,
    parts: usize,
    values: Tensor,
    place: Place,
) -> Result<AppendParams, Error> {
    let Append { k, pages: cache, slots, .. } = append;
    let rows = (slots.elements as usize).checked_mul(heads);
    // A warp has one row if rows have their own scales.
    let parts = row_parts(cache.keys.dtype, parts);
    let parts = rows.and_then(|rows| RowParts::new(rows, parts, place.contract().threads));
    let Some((parts, heads)) = parts.zip(FastDiv::new(heads as u32)) else {
        let columns = k.shape[3];
        let feature = format_args!("{} tokens of {heads} heads of {columns} columns", slots.elements);
        let reason = "a launch may have less than 2^31 chunks of 8 columns, and a head at most 2048 columns; \
                      split the tokens";
        return Err(Error::unsupported(feature, reason));
    };
    Ok(AppendParams {
        k: tensor(k),
        v: values,
        cache: pages(cache),
        slots: Slots { base: slots.address, count: slots.elements as u32, wide: u32::from(slots.wide) },
        scales: scales(cache),
        parts,
        heads,
        reserved: 0,
    })
}
