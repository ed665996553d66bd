//! Checks of a merge.
use super::lse::{row_values, sinks};
use super::{LSE, O, Part, SINKS, Use, disjoint, input, names, output, sizes};
use crate::Error;
use crate::request::{LseView, Merge, Parts, Sinks, State, TensorView};

names!(STATE_O "states.o" STATE_LSE "states.lse");

/// Checks everything except whether a kernel supports the merge in one launch.
pub(crate) fn merge(m: &Merge<'_>) -> Result<(), Error> {
    let [batch, rows, heads, head_dim] = m.o.shape;
    if m.o.shape.contains(&0) {
        let expected = "[batch, seqlen, heads, head_dim] must each be 1 or more";
        return Err(Error::invalid(O.shape, format!("{:?}", m.o.shape), expected));
    }
    if !head_dim.is_multiple_of(8) {
        return Err(Error::unsupported(format_args!("head_dim {head_dim}"), "kernels take multiples of 8"));
    }
    let values = [batch, heads, rows];
    let o = (&O, Some(output(&O, &m.o)?));
    let lse = m.lse.as_ref().map(|view| row_values(&LSE, view, values, Use::Written)).transpose()?;
    let sinks = m.sinks.as_ref().map(|view| sinks(view, heads)).transpose()?;
    disjoint(&[(&SINKS, sinks), o, (&LSE, lse)], 1)?;
    for (i, state) in m.states.iter().enumerate() {
        let differs = |name: &'static str, value: String, expected: String| {
            Err(Error::invalid(name, format_args!("{value} of states[{i}]"), expected))
        };
        if state.o.shape != m.o.shape {
            let expected = format!("it must be the shape of o, {:?}", m.o.shape);
            return differs(STATE_O.shape, format!("{:?}", state.o.shape), expected);
        }
        let first = &m.states[0];
        if state.o.dtype != first.o.dtype {
            let expected = format!("it must be the dtype of states[0], {}", first.o.dtype.name());
            return differs(STATE_O.dtype, state.o.dtype.name().into(), expected);
        }
        if state.lse.unit != first.lse.unit {
            let expected = format!("it must be the unit of states[0], {:?}", first.lse.unit);
            return differs("states.lse.unit", format!("{:?}", state.lse.unit), expected);
        }
        let own_o: Part = (&STATE_O, Some(input(&STATE_O, &state.o)?));
        let own_lse: Part = (&STATE_LSE, Some(row_values(&STATE_LSE, &state.lse, values, Use::Read)?));
        // A thread writes its part of a row after all readers of the row's values have read. Therefore `o`
        // may be the same memory as the O of a state, and `lse` the same memory as its LSE. A partial overlap
        // is refused.
        let not_its_own = if is_place_of(&m.o, &state.o) { (&O, None) } else { o };
        let in_place = m.lse.is_some_and(|view| is_values_of(&view, &state.lse));
        disjoint(&[own_o, not_its_own], 1)?;
        disjoint(&[own_lse, o], 1)?;
        disjoint(&[own_o, (&LSE, lse)], 1)?;
        disjoint(&[own_lse, (&LSE, lse.filter(|_| !in_place))], 1)?;
    }
    Ok(())
}

/// Returns the sizes of a valid merge's parts: of the first two states, sinks, O and LSE. The last state lies
/// this number of bytes `behind` the second.
pub(crate) fn merged(
    [first, second]: [&State; 2],
    behind: [u64; 2],
    (sinks_of, o, lse): (Option<&Sinks>, &TensorView, Option<&LseView>),
) -> Result<Parts, Error> {
    let [batch, rows, heads, _] = o.shape;
    let part = |view| Ok::<Part, Error>((&O, Some(input(&O, view)?)));
    let values = |view| row_values(&LSE, view, [batch, heads, rows], Use::Read);
    let of_states = [part(&first.o)?, (&LSE, Some(values(&first.lse)?)), part(&second.o)?];
    let sinks = sinks_of.map(|view| sinks(view, heads)).transpose()?;
    let [a, b, c] = of_states;
    let lse = lse.map(values).transpose()?;
    let all = [a, b, c, (&LSE, Some(values(&second.lse)?)), (&SINKS, sinks), part(o)?, (&LSE, lse)];
    let mut parts = sizes(&all, 5..all.len());
    parts.bytes[2..4]
        .iter_mut()
        .zip(behind)
        .for_each(|(bytes, behind)| *bytes = bytes.saturating_add(behind));
    Ok(parts)
}

/// Returns whether both views of one shape have equal element addresses.
fn is_place_of(a: &TensorView, b: &TensorView) -> bool {
    let same = |dim: usize| a.shape[dim] == 1 || a.strides[dim] == b.strides[dim];
    (a.address, a.dtype) == (b.address, b.dtype) && (0..4).all(same)
}

/// Returns whether both views of row values have equal addresses and strides.
fn is_values_of(a: &LseView, b: &LseView) -> bool {
    let strides = |view: &LseView| [view.strides[0], view.strides[1], view.row_stride];
    let same = |dim: usize| a.shape[dim] == 1 || strides(a)[dim] == strides(b)[dim];
    a.address == b.address && (0..3).all(same)
}
