//! Checks of masks that have numbers or memory of their own.
use super::bias::Broadcast;
use super::footprint::Footprint;
use super::{MASK_BITS, PREFIX, Part, cache};
use crate::request::{Mask, MaskBits, Prefix};
use crate::{Error, Problem};

/// Checks a mask of a problem; the part is the memory that it has, if any.
pub(super) fn mask(mask: &Mask, p: &Problem) -> Result<Part, Error> {
    match mask {
        Mask::Full | Mask::Causal | Mask::Window { .. } | Mask::Prefix(Prefix::All(_)) => Ok((&PREFIX, None)),
        Mask::Prefix(Prefix::Each(lengths)) => {
            let footprint = cache::index(&PREFIX, lengths, p.batch as u64, "one per sequence")?;
            Ok((&PREFIX, Some(footprint)))
        }
        Mask::Chunked { chunk: 0 } => Err(Error::invalid("mask.chunk", 0, "it must be 1 or more")),
        Mask::Chunked { .. } => Ok((&PREFIX, None)),
        Mask::Bits(bits) => Ok((&MASK_BITS, Some(self::bits(bits, p)?))),
    }
}

/// Checks bits.
fn bits(bits: &MaskBits, p: &Problem) -> Result<Footprint, Error> {
    let MaskBits { address, bytes: elements, shape, strides } = *bits;
    let [_, _, rows, columns] = shape;
    if columns == 0 || columns > p.seqlen_k {
        let expected = format_args!("its columns, the last extent, must be 1 to {}, the keys", p.seqlen_k);
        return Err(Error::invalid(MASK_BITS.shape, format!("{shape:?}"), expected));
    }
    let row = columns.div_ceil(8);
    if rows > 1 && strides[2] < row as i64 {
        let value = format!("{strides:?} for shape {shape:?}");
        let expected = format_args!("rows must be {row} bytes apart or more, a bit per column");
        return Err(Error::invalid(MASK_BITS.strides, value, expected));
    }
    let (name, [batch, heads, ..]) = (&MASK_BITS, shape);
    let view = Broadcast {
        name,
        address,
        elements,
        unit: 1,
        shape: [batch, heads, rows, row],
        strides,
        alignment: 1,
    };
    view.check(p, [p.seqlen_q; 2], row)
}
