//! Checks of biases, and of all views that broadcast sequences and heads.
use super::footprint::Footprint;
use super::{BIAS, Names, address, fits};
use crate::request::Bias;
use crate::{DType, Error, Problem};

/// The size in bytes of the words in which kernels read a bias.
const WORD: u64 = 4;

/// A view `[batch or 1, heads or 1, rows, columns]` with contiguous rows, in elements of `unit` bytes.
pub(super) struct Broadcast<'a> {
    pub name: &'a Names,
    pub address: u64,
    pub elements: u64,
    /// The name of the field with the number of elements.
    pub size: &'static str,
    pub unit: u64,
    pub shape: [usize; 4],
    /// Elements of a row.
    pub row: usize,
    pub strides: [i64; 3],
    /// The address and the strides in bytes must be multiples of this number.
    pub alignment: u64,
}

impl Broadcast<'_> {
    /// Checks the view against sequences and heads of a problem. `rows` are the permitted extents of the
    /// third dimension, and `columns` is the extent of the last dimension.
    pub fn check(&self, p: &Problem, rows: [usize; 2], columns: usize) -> Result<Footprint, Error> {
        let Broadcast { name, shape, strides, unit, .. } = *self;
        address(name, self.address, self.alignment)?;
        let [batch, heads, own_rows, own_columns] = shape;
        let is_one_of = |extent: usize, of: usize| extent == 1 || extent == of;
        let fits_problem = is_one_of(batch, p.batch) && is_one_of(heads, p.heads_q);
        if !fits_problem || !rows.contains(&own_rows) || own_columns != columns {
            let [most, other] = rows;
            let or_other = if most == other { String::new() } else { format!(" or {other}") };
            let expected = format_args!(
                "it must be [{} or 1, {} or 1, {most}{or_other}, {columns}], as the request has sequences, \
                 query heads, queries and keys",
                p.batch, p.heads_q
            );
            return Err(Error::invalid(name.shape, format!("{shape:?}"), expected));
        }
        let wrong = |expected: &dyn std::fmt::Display| {
            Err(Error::invalid(name.strides, format!("{strides:?} for shape {shape:?}"), expected))
        };
        // Kernels read whole words, also at the end of a row.
        let words = (self.row as u64 * unit).next_multiple_of(self.alignment) / unit;
        let mut dims = [(1, 0), (1, 0), (1, 0), (words, unit)];
        for ((dim, extent), stride) in dims.iter_mut().zip(shape).zip(strides).filter(|((_, n), _)| *n > 1) {
            let bytes = u64::try_from(stride).ok().and_then(|stride| stride.checked_mul(unit));
            let Some(bytes) = bytes else {
                return wrong(&"no stride may be negative, and in bytes they must be below 2^64");
            };
            if !bytes.is_multiple_of(self.alignment) {
                return wrong(&format_args!(
                    "they must be multiples of {} elements ({} bytes); copy into rows of such a stride",
                    self.alignment / unit,
                    self.alignment
                ));
            }
            *dim = (extent as u64, bytes);
        }
        if dims[2].1 > u64::from(u32::MAX) {
            let feature = format_args!("{} with rows {} bytes apart", name.strides, dims[2].1);
            return Err(Error::unsupported(feature, "rows must be less than 2^32 bytes apart"));
        }
        let footprint = Footprint::new(self.address, unit, dims);
        fits(self.size, &footprint, self.elements)?;
        Ok(footprint)
    }
}

/// Checks the bias of a problem.
pub(super) fn bias(bias: &Bias, p: &Problem) -> Result<Footprint, Error> {
    view(&BIAS, bias, p)
}

/// Checks a bias of a problem, or its gradient.
pub(super) fn view(name: &Names, bias: &Bias, p: &Problem) -> Result<Footprint, Error> {
    let Bias { address, elements, dtype, shape, strides: [batch, head, row, column] } = *bias;
    if !matches!(dtype, DType::F16 | DType::Bf16 | DType::F32) {
        let feature = format_args!("a bias of {}", dtype.name());
        return Err(Error::unsupported(feature, "a bias is f16, bf16 or f32; convert it"));
    }
    if shape[3] > 1 && column != 1 {
        let value = format!("{:?} for shape {shape:?}", bias.strides);
        return Err(Error::invalid(name.strides, value, "the last stride (keys) must be 1"));
    }
    let unit = dtype.bytes() as u64;
    let (strides, alignment) = ([batch, head, row], WORD);
    let size = name.elements;
    let view = Broadcast { name, size, address, elements, unit, shape, row: shape[3], strides, alignment };
    view.check(p, [p.seqlen_q, 1], p.seqlen_k)
}
