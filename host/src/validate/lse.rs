//! Checks of per-row and per-head values: LSE, sinks, slopes.
use super::footprint::Footprint;
use super::{ALIBI, LSE, Names, Part, SINKS, Use, address, cache, fits, names};
use crate::request::{AlibiSlopes, AttentionRequest, Index, LseUnit, LseView, RowOutputs, Sinks};
use crate::{Error, Problem};

names!(MAX_LOGITS "max_logits" ENTROPY "entropy");

/// The names of outputs of rows, and why their unit is natural.
const ROWS: RowOutputs<(&Names, &str)> = RowOutputs {
    lse: (&LSE, "attention writes natural logarithms only; convert with a merge"),
    max_logits: (&MAX_LOGITS, "attention writes scores of base e only; divide them by ln 2"),
    entropy: (&ENTROPY, "attention writes nats only; divide them by ln 2"),
};

/// Checks the outputs of rows of attention. All of them lie alike, because kernels find their places
/// together.
pub(super) fn outputs(r: &AttentionRequest<'_>, p: &Problem) -> Result<[Part; RowOutputs::COUNT], Error> {
    let [[batches, rows, heads, _], ..] = p.shapes();
    let mut parts = [(&LSE, None); RowOutputs::COUNT];
    let first = r.rows().named().find_map(|(name, view)| Some((name, view?)));
    for (part, (_, (view, (name, unit)))) in parts.iter_mut().zip(r.rows().zip(ROWS).named()) {
        let output = |view| natural(name, view, [batches, heads, rows], Use::Written, unit);
        *part = (name, view.map(output).transpose()?);
        if let (Some(view), Some((first, as_first))) = (view, first) {
            lies_like(name, view, first, as_first)?;
        }
    }
    Ok(parts)
}

/// Checks that an output of rows has the strides of the first one.
fn lies_like(name: &Names, view: &LseView, first: &str, as_first: &LseView) -> Result<(), Error> {
    let differs = |dim: usize| view.shape[dim] > 1 && view.strides[dim] != as_first.strides[dim];
    if !differs(0) && !differs(1) {
        return Ok(());
    }
    let expected = format_args!("it must have the strides of {first}, {:?}", as_first.strides);
    Err(Error::invalid(name.strides, format!("{:?}", view.strides), expected))
}

/// Checks a view of row values of attention: contiguous rows in the natural unit. `unit` says why another
/// unit has no kernels.
pub(super) fn natural(
    name: &Names,
    view: &LseView,
    shape: [usize; 3],
    used: Use,
    unit: &str,
) -> Result<Footprint, Error> {
    if view.unit != LseUnit::Natural {
        return Err(Error::unsupported(format_args!("{}.unit base 2", name.name), unit));
    }
    if view.row_stride != 1 && shape[2] > 1 {
        let feature = format_args!("{}.row_stride {}", name.name, view.row_stride);
        let rows = match used {
            Use::Written => "attention writes contiguous rows; use a row_stride of 1",
            Use::Read => "backward kernels read contiguous rows; use a row_stride of 1",
        };
        return Err(Error::unsupported(feature, rows));
    }
    row_values(name, view, shape, used)
}

/// Checks a view of row values `[batch, heads, seqlen]`.
pub(super) fn row_values(
    name: &Names,
    view: &LseView,
    shape: [usize; 3],
    used: Use,
) -> Result<Footprint, Error> {
    address(name, view.address, 4)?;
    if view.shape != shape {
        let expected = format_args!("[batch, heads, seqlen] must be {shape:?} to go with o");
        return Err(Error::invalid(name.shape, format!("{:?}", view.shape), expected));
    }
    let [batch, head] = view.strides;
    let (mut dims, mut valid) = ([(1, 0); 4], true);
    for ((dim, extent), stride) in dims.iter_mut().zip(shape).zip([batch, head, view.row_stride]) {
        if extent > 1 {
            let bytes = u64::try_from(stride).ok().and_then(|stride| stride.checked_mul(4));
            valid &= bytes.is_some();
            *dim = (extent as u64, bytes.unwrap_or(0));
        }
    }
    let footprint = Footprint::new(view.address, 4, dims);
    if !valid || used == Use::Written && footprint.overlaps_itself() {
        let strides = [batch, head, view.row_stride];
        let value = format!("{strides:?} of batch, head and row for shape {:?}", view.shape);
        let expected = "no stride may be negative, and output rows must not overlap";
        return Err(Error::invalid(name.strides, value, expected));
    }
    fits(name.elements, &footprint, view.elements)?;
    Ok(footprint)
}

/// Checks the sinks of `heads` heads.
pub(super) fn sinks(view: &Sinks, heads: usize) -> Result<Footprint, Error> {
    per_query_head(&SINKS, view, heads)
}

/// Checks sinks or their gradient: f32 values, which have the size of 32-bit integers.
pub(super) fn per_query_head(name: &Names, view: &Sinks, heads: usize) -> Result<Footprint, Error> {
    let Sinks { address, elements } = *view;
    cache::index(name, &Index { address, elements }, heads as u64, "one per query head")
}

/// Checks the slopes of a problem's sequences and heads.
pub(super) fn slopes(view: &AlibiSlopes, p: &Problem) -> Result<Footprint, Error> {
    let AlibiSlopes { address, elements, strides } = *view;
    cache::per_head(&ALIBI, address, elements, strides, [p.batch, p.heads_q])
}
