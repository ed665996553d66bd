//! Tensors beside queries, keys and values: slopes, sinks, a bias, bits of a mask, prefixes, and tables of a
//! variant.
use crate::attend::Attend;
use crate::errors::{invalid, unsupported};
use crate::inputs::{Read, long, number};
use candle::{DType, Result};
use ferroflash::cudarc::{Inputs, OwnVariant, Slice};
use ferroflash::request::{AlibiSlopes, Bias, Mask, MaskBits, Prefix, Sinks};

/// The extras of an operation, locked against writes.
pub(crate) struct Reads<'a> {
    alibi_slopes: Option<Read<'a>>,
    sinks: Option<Read<'a>>,
    bias: Option<Read<'a>>,
    bits: Option<(Read<'a>, usize)>,
    prefixes: Option<Read<'a>>,
    variant: Option<(&'a OwnVariant, Vec<Read<'a>>)>,
}

impl<'a> Reads<'a> {
    pub fn of(attend: &'a Attend) -> Self {
        Reads {
            alibi_slopes: attend.alibi_slopes.as_ref().map(|slopes| Read::of("alibi_slopes", slopes)),
            sinks: attend.sinks.as_ref().map(|sinks| Read::of("sinks", sinks)),
            bias: attend.bias.as_ref().map(|bias| Read::of("bias", bias)),
            bits: attend.mask_bits.as_ref().map(|(bits, keys)| (Read::of("mask_bits", bits), *keys)),
            prefixes: attend.prefix_lengths.as_ref().map(|lengths| Read::of("prefix_lengths", lengths)),
            variant: attend.variant.as_ref().map(|(variant, tables)| {
                (variant, tables.iter().map(|table| Read::of("variant.table", table)).collect())
            }),
        }
    }

    /// Returns the variant's tables, for [`Reads::give`]. A table is contiguous.
    pub fn tables(&self) -> Result<Vec<Slice<'_>>> {
        let tables = self.variant.iter().flat_map(|(_, tables)| tables);
        tables
            .map(|table| match table.dtype() {
                DType::F32 | DType::U32 | DType::I32 => table.contiguous(),
                other => {
                    let expected = "its dtype must be f32, u32 or i32";
                    Err(invalid(table.name(), format_args!("{other:?}"), expected))
                }
            })
            .collect()
    }

    /// Returns the sinks of `heads` heads.
    pub fn sinks(&self, heads: usize) -> Result<Option<Sinks<Slice<'_>>>> {
        let sinks = self.sinks.as_ref().map(|read| read.per_head(heads)).transpose()?;
        Ok(sinks.map(|address| Sinks { address, elements: heads as u64 }))
    }

    /// Adds these extras to inputs, except for sinks. Bits and prefixes replace the mask.
    pub fn give<'v>(&'v self, mut inputs: Inputs<'v>, tables: &'v [Slice<'v>]) -> Result<Inputs<'v>> {
        if let Some(slopes) = &self.alibi_slopes {
            let heads = inputs.q.shape[2];
            inputs = inputs.alibi(AlibiSlopes::new(slopes.per_head(heads)?, heads as u64));
        }
        if let Some(bias) = &self.bias {
            if !matches!(bias.dtype(), DType::F16 | DType::BF16 | DType::F32) {
                let reason = "a bias is f16, bf16 or f32; convert it";
                return Err(unsupported(format_args!("a bias of {:?}", bias.dtype()), reason));
            }
            let ([shape, strides], dtype) = (four(bias)?, number("a bias", bias.dtype())?);
            inputs = inputs.bias(Bias::new(bias.slice()?, u64::MAX, dtype, shape, long(strides)));
        }
        if let Some((bits, keys)) = &self.bits {
            let [[batch, heads, rows, bytes], strides] = four(bits)?;
            if bytes != keys.div_ceil(8) || bytes > 1 && strides[3] != 1 {
                let expected =
                    format_args!("{} contiguous bytes, a bit for each of {keys} keys", keys.div_ceil(8));
                return Err(invalid("mask_bits", format_args!("rows of {bytes} bytes"), expected));
            }
            let strides = long([strides[0], strides[1], strides[2]]);
            let bits = MaskBits::new(bits.slice()?, u64::MAX, [batch, heads, rows, *keys], strides);
            inputs = inputs.mask(Mask::Bits(bits));
        }
        if let Some((variant, _)) = &self.variant {
            inputs = inputs.own(variant, tables);
        }
        match &self.prefixes {
            Some(lengths) => Ok(inputs.mask(Mask::Prefix(Prefix::Each(lengths.numbers(1)?)))),
            None => Ok(inputs),
        }
    }
}

/// Returns the shape and the strides of a tensor of four dimensions. A tensor of three dimensions is one
/// batch.
fn four(read: &Read<'_>) -> Result<[[usize; 4]; 2]> {
    match (read.shape().dims(), read.strides()) {
        (&[a, b, c, d], &[e, f, g, h]) => Ok([[a, b, c, d], [e, f, g, h]]),
        (&[b, c, d], &[f, g, h]) => Ok([[1, b, c, d], [0, f, g, h]]),
        (dims, _) => {
            let expected = "it must have 3 or 4 dimensions: [batch or 1, heads or 1, queries, keys]";
            Err(invalid(read.name(), format_args!("{dims:?}"), expected))
        }
    }
}
