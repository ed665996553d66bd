//! Parameters of merge kernels. A launch depends on only a part of the list of states.
use super::tensors::tensor;
use crate::launch::Launch;
use crate::place::Place;
use crate::request::{LseUnit, LseView, Merge, PARTS, Parts, Places, Sinks, State, TensorView};
use crate::{DType, Error, validate};
use spec::{FastDiv, MERGE_COLUMNS, MergeParams, MergeState, PerHead, RowParts, RowValues, States};
use std::f32::consts::{LN_2, LOG2_E};

/// The part of a merge on which a launch depends. This part does not contain the list of states.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Merged {
    first: State,
    /// The second state; if the merge has only one state, the first again.
    second: State,
    /// The distance from the second to the third state in bytes, of O and of the LSE, in two's complement.
    apart: [u64; 2],
    /// Minimum number of elements of the third and all later states, of O and of the LSE.
    elements: [u64; 2],
    count: usize,
    o: TensorView,
    lse: Option<LseView>,
    sinks: Option<Sinks>,
}

impl Merged {
    /// # Errors
    /// Returns [`Error::Invalid`] if there is no state, or [`Error::Unsupported`] if the states do not lie at
    /// equal distances.
    pub fn new(merge: &Merge<'_>) -> Result<Self, Error> {
        let Merge { states, o, lse, sinks } = *merge;
        let [first, others @ ..] = states else {
            return Err(Error::invalid("states", 0, "there must be 1 or more"));
        };
        let second = others.first().unwrap_or(first);
        let addresses = |state: &State| [state.o.address, state.lse.address];
        let between = |a: &State, b: &State| {
            let (a, b) = (addresses(a), addresses(b));
            [b[0].wrapping_sub(a[0]), b[1].wrapping_sub(a[1])]
        };
        let apart = others.get(1).map_or([0; 2], |third| between(second, third));
        let like = |State { o, lse }: &State| {
            (o.dtype, o.shape, o.strides, lse.unit, lse.shape, lse.strides, lse.row_stride)
        };
        let mut elements = [u64::MAX; 2];
        for (i, pair) in others.windows(2).enumerate() {
            if between(&pair[0], &pair[1]) != apart || like(&pair[1]) != like(second) {
                let [o, lse] = addresses(&pair[1]);
                let feature = format_args!("states[{}] at {o:#x}, {lse:#x}", i + 2);
                let reason = "states from the second on must have equal strides, shapes, types and units, \
                              and lie equally far apart; merge in several launches";
                return Err(Error::unsupported(feature, reason));
            }
            let own = [pair[1].o.elements, pair[1].lse.elements];
            elements = [0, 1].map(|part| elements[part].min(own[part]));
        }
        Ok(Merged { first: *first, second: *second, apart, elements, count: states.len(), o, lse, sinks })
    }

    /// Returns the parts of a valid merge, if its states follow one another.
    pub fn parts(&self) -> Option<Parts> {
        let Merged { first, second, apart, count, o, lse, sinks, .. } = self;
        let [behind_o, behind_lse] = apart.map(|apart| apart.checked_mul(count.saturating_sub(2) as u64));
        let outputs = (sinks.as_ref(), o, lse.as_ref());
        validate::merged([first, second], [behind_o?, behind_lse?], outputs).ok()
    }

    /// Returns the addresses of the parts.
    pub fn places(&mut self) -> Places<'_> {
        let Merged { first, second, o, lse, sinks, .. } = self;
        let mut all = [const { None }; PARTS];
        (all[0], all[1]) = (Some(&mut first.o.address), Some(&mut first.lse.address));
        (all[2], all[3]) = (Some(&mut second.o.address), Some(&mut second.lse.address));
        (all[4], all[5]) = (sinks.as_mut().map(|sinks| &mut sinks.address), Some(&mut o.address));
        all[6] = lse.as_mut().map(|lse| &mut lse.address);
        all
    }

    /// Returns the dtypes of the states and of the output.
    pub fn types(&self) -> [DType; 2] {
        [self.first.o.dtype, self.o.dtype]
    }
}

/// Adds the step of the merge kernel, for valid tensors.
///
/// # Errors
/// Returns [`Error::Unsupported`] if there are too many rows or columns for one launch.
pub(crate) fn merge(merged: &Merged, place: Place, launch: &mut Launch) -> Result<(), Error> {
    let params = params(merged, place)?;
    launch.step(place, [params.parts.blocks(), 1, 1], &params, []);
    Ok(())
}

/// Returns the parameters of the merge kernel at this place.
fn params(merged: &Merged, place: Place) -> Result<MergeParams, Error> {
    let Merged { first, second, apart: [o_bytes, lse_bytes], count, o, lse, sinks, .. } = merged;
    let [batch, rows, heads, head_dim] = o.shape;
    let all = batch.checked_mul(rows).and_then(|rows| rows.checked_mul(heads));
    let parts = all.and_then(|all| RowParts::new(all, head_dim / MERGE_COLUMNS, place.contract().threads));
    let (Some(parts), Some(by_heads), Some(by_rows), Ok(count)) =
        (parts, FastDiv::new(heads as u32), FastDiv::new(rows as u32), u32::try_from(*count))
    else {
        let feature = format_args!("{count} states of shape {:?}", o.shape);
        let reason = "a launch may have less than 2^31 chunks of 8 columns, and a head at most 2048 columns; \
                      split the batch";
        return Err(Error::unsupported(feature, reason));
    };
    const UNWANTED: RowValues = RowValues { base: 0, batch_bytes: 0, head_bytes: 0, row_bytes: 0 };
    let none = PerHead { base: 0, sequence_bytes: 0, head_bytes: 4, value: f32::NEG_INFINITY, reserved: 0 };
    Ok(MergeParams {
        first: state(first),
        others: States {
            first: state(second),
            o_bytes: *o_bytes,
            lse_bytes: *lse_bytes,
            count: count - 1,
            reserved: 0,
        },
        result: MergeState { o: tensor(o), lse: lse.as_ref().map_or(UNWANTED, values) },
        sinks: PerHead { base: sinks.map_or(0, |sinks| sinks.address), ..none },
        parts,
        heads: by_heads,
        rows: by_rows,
        to_two: if first.lse.unit == LseUnit::Natural { LOG2_E } else { 1.0 },
        from_two: if lse.is_none_or(|lse| lse.unit == LseUnit::Natural) { LN_2 } else { 1.0 },
    })
}

/// Converts a state.
pub(crate) fn state(state: &State) -> MergeState {
    MergeState { o: tensor(&state.o), lse: values(&state.lse) }
}

/// Converts a valid view to bytes. Kernels never use the stride of a dimension of extent 1.
fn values(view: &LseView) -> RowValues {
    let [batch_bytes, head_bytes, row_bytes] =
        [view.strides[0], view.strides[1], view.row_stride].map(|stride| (stride as u64).wrapping_mul(4));
    RowValues { base: view.address, batch_bytes, head_bytes, row_bytes }
}
