//! Parameters of the kernels of sums.
use super::tensors::tensor;
use crate::Error;
use crate::launch::Launch;
use crate::place::Place;
use crate::request::{Sum, TensorView};
use spec::{BwdSumHeadsParams, FastDiv, RowParts};

/// Adds the step of a valid sum. The kernel has two sums, so each of them takes half of the columns.
///
/// # Errors
/// Returns [`Error::Unsupported`] if there are too many rows or columns for one launch.
pub(crate) fn sum(s: &Sum, place: Place, launch: &mut Launch) -> Result<(), Error> {
    let [from, to] = s.flat();
    let [batch, rows, _, columns] = to.shape;
    // A half begins at a multiple of 16 bytes. If that leaves no two halves, both sums are the whole sum: the
    // thread that stores a part first also stores it again.
    let columns = if columns.is_multiple_of(16) { columns / 2 } else { columns };
    let is_halved = columns != to.shape[3];
    let all = batch.checked_mul(rows);
    let parts = all.and_then(|all| RowParts::new(all, columns / 8, place.contract().threads));
    let (Some(parts), Some(rows), Ok(shares)) = (parts, FastDiv::new(rows as u32), u32::try_from(s.count))
    else {
        let feature = format_args!("{} tensors of shape {:?}", s.count, s.sum.shape);
        let reason = "a launch may have less than 2^31 chunks of 8 columns, and a head at most 2048 columns; \
                      split the batch";
        return Err(Error::unsupported(feature, reason));
    };
    let halves = |mut view: TensorView| {
        view.shape[3] = columns;
        [view, if is_halved { view.behind(columns as u64) } else { view }].map(|half| tensor(&half))
    };
    let (from, to) = (halves(from), halves(to));
    let params = BwdSumHeadsParams { from, to, parts, heads: FastDiv::ONE, rows, shares, reserved: 0 };
    launch.step(place, [parts.blocks(), 1, 1], &params, []);
    Ok(())
}
