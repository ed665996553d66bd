//! Checks of rotary embedding in an append.
use super::{Names, Part, Q, input, names, output, per_token};
use crate::request::{Append, Rotary, RotaryQueries};
use crate::{DType, Error};

names!(
    COS "rotary.cos" SIN "rotary.sin" POSITIONS "rotary.positions" ROTATED "rotary.rotated"
);

/// The memory that a launch reads for a rotation, and the memory that the launch writes.
pub(super) struct Parts {
    pub(super) read: [Part; 4],
    pub(super) written: Part,
}

/// Checks the rotation of an append whose other parts are valid.
pub(super) fn rotary(a: &Append) -> Result<Parts, Error> {
    let none = |name: &'static Names| (name, None);
    let mut parts =
        Parts { read: [none(&COS), none(&SIN), none(&POSITIONS), none(&Q)], written: none(&ROTATED) };
    let Some(rotary) = &a.rotary else { return Ok(parts) };
    columns(a, rotary)?;
    let tokens = a.slots.elements;
    let positions = &rotary.positions;
    if positions.elements < tokens {
        let expected = format_args!("it must be {tokens} or more, one per slot");
        return Err(Error::invalid(POSITIONS.elements, positions.elements, expected));
    }
    parts.read[0].1 = Some(input(&COS, &rotary.cos)?);
    parts.read[1].1 = Some(input(&SIN, &rotary.sin)?);
    parts.read[2] = per_token(&POSITIONS, positions.address, tokens, positions.wide)?;
    if let Some(RotaryQueries { q, rotated }) = &rotary.queries {
        let [heads, head_dim] = [q.shape[2], a.k.shape[3]];
        if q.shape[0] != 1 || (q.shape[1] as u64) < tokens || heads == 0 || q.shape[3] != head_dim {
            let expected = format_args!("it must be [1, {tokens} or more, heads, {head_dim}]");
            return Err(Error::invalid(Q.shape, format!("{:?}", q.shape), expected));
        }
        if rotated.shape != q.shape {
            let expected = format_args!("it must be the shape of q, {:?}", q.shape);
            return Err(Error::invalid(ROTATED.shape, format!("{:?}", rotated.shape), expected));
        }
        for (name, view) in [(&Q, q), (&ROTATED, rotated)] {
            if view.dtype != a.k.dtype {
                let expected = format_args!("it must be the dtype of k, {}", a.k.dtype.name());
                return Err(Error::invalid(name.dtype, view.dtype.name(), expected));
            }
        }
        let read = input(&Q, q)?;
        parts.written.1 = Some(output(&ROTATED, rotated)?);
        // In place, a thread writes the columns that it has read, and no other thread reads them.
        parts.read[3].1 = (!is_in_place(q, rotated)).then_some(read);
    }
    Ok(parts)
}

/// Whether two views have one address and equal strides.
fn is_in_place(q: &crate::request::TensorView, rotated: &crate::request::TensorView) -> bool {
    let differ = |dim: usize| q.shape[dim] > 1 && q.strides[dim] != rotated.strides[dim];
    q.address == rotated.address && !(0..4).any(differ)
}

/// Checks the table of angles, and the columns that rotate.
fn columns(a: &Append, rotary: &Rotary) -> Result<(), Error> {
    let (cos, sin) = (&rotary.cos, &rotary.sin);
    if cos.shape.contains(&0) || cos.shape[0] != 1 || cos.shape[2] != 1 {
        let expected = "it must be [1, positions, 1, dims / 2], each 1 or more";
        return Err(Error::invalid(COS.shape, format!("{:?}", cos.shape), expected));
    }
    if sin.shape != cos.shape {
        let expected = format_args!("it must be the shape of rotary.cos, {:?}", cos.shape);
        return Err(Error::invalid(SIN.shape, format!("{:?}", sin.shape), expected));
    }
    if cos.shape[1] > 1 && sin.strides[1] != cos.strides[1] {
        let expected = format_args!("row stride must be that of rotary.cos, {}", cos.strides[1]);
        return Err(Error::invalid(SIN.strides, format!("{:?}", sin.strides), expected));
    }
    if u32::try_from(cos.shape[1]).is_err() {
        let feature = format_args!("{} {:?}", COS.shape, cos.shape);
        return Err(Error::unsupported(feature, "a table may have less than 2^32 positions"));
    }
    if sin.dtype != cos.dtype {
        let expected = format_args!("it must be the dtype of rotary.cos, {}", cos.dtype.name());
        return Err(Error::invalid(SIN.dtype, sin.dtype.name(), expected));
    }
    if ![a.k.dtype, DType::F32].contains(&cos.dtype) {
        let feature = format_args!("{} angles and {} tokens", cos.dtype.name(), a.k.dtype.name());
        return Err(Error::unsupported(feature, "angles are f32, or have the tokens' dtype"));
    }
    let (dims, first, head_dim) = (rotary.dims(), rotary.first_column, a.k.shape[3]);
    if !dims.is_multiple_of(16) {
        let feature = format_args!("a rotation of {dims} columns");
        return Err(Error::unsupported(feature, "kernels rotate multiples of 16 columns"));
    }
    if !first.is_multiple_of(8) {
        let feature = format_args!("rotary.first_column {first}");
        return Err(Error::unsupported(feature, "kernels rotate from a multiple of 8 columns on"));
    }
    if first.checked_add(dims).is_none_or(|end| end > head_dim) {
        let value = format_args!("{dims} columns from column {first} on");
        let expected = format_args!("they must lie in a head of {head_dim} columns");
        return Err(Error::invalid("rotary", value, expected));
    }
    Ok(())
}
