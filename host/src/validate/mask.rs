//! Checks of masks with prefixes, chunks or bits.
use super::bias::Broadcast;
use super::footprint::Footprint;
use super::{MASK_BITS, PREFIX, Part, cache};
use crate::request::{Mask, MaskBits, Prefix};
use crate::{Error, Problem};

/// Checks a mask of a problem. Returns the device memory that the mask reads, as a part; a mask without
/// memory gives a part without a footprint.
pub(super) fn mask(mask: &Mask, p: &Problem) -> Result<Part, Error> {
    match mask {
        Mask::Full | Mask::Causal | Mask::Window { .. } | Mask::Prefix(Prefix::All(_)) => Ok((&PREFIX, None)),
        Mask::Prefix(Prefix::Each(lengths)) => {
            let footprint = cache::index(&PREFIX, lengths, p.batch as u64, "one per sequence")?;
            Ok((&PREFIX, Some(footprint)))
        }
        Mask::Chunked { .. } => Ok((&PREFIX, None)),
        Mask::Bits(bits) => Ok((&MASK_BITS, Some(self::bits(bits, p)?))),
    }
}

/// Checks the bits of a mask.
fn bits(bits: &MaskBits, p: &Problem) -> Result<Footprint, Error> {
    let MaskBits { address, bytes: elements, shape, strides } = *bits;
    let [_, _, rows, columns] = shape;
    if columns == 0 || columns > p.seqlen_k {
        let expected = format_args!(
            "the last extent (columns: keys that have bits) must be 1 to {}, the number of keys; leave the \
             other bits out",
            p.seqlen_k
        );
        return Err(Error::invalid(MASK_BITS.shape, format!("{shape:?}"), expected));
    }
    let row = columns.div_ceil(8);
    if rows > 1 && strides[2] < row as i64 {
        let value = format!("{strides:?} for shape {shape:?}");
        let expected = format_args!("rows must be {row} bytes apart or more: one bit per column");
        return Err(Error::invalid(MASK_BITS.strides, value, expected));
    }
    let (name, size, unit, alignment) = (&MASK_BITS, MASK_BITS.bytes, 1, 1);
    let view = Broadcast { name, size, address, elements, unit, shape, row, strides, alignment };
    view.check(p, [p.seqlen_q; 2], columns)
}
