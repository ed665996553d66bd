//! Tensors beside queries, keys and values: slopes, sinks, a bias, bits of a mask, prefixes, used queries,
//! and tables of a variant.
use crate::attend::{Attend, Extras};
use crate::errors::{invalid, unsupported};
use crate::gpu::inputs::{Read, long, number};
use candle::{DType, Result};
use ferroflash::cudarc::{Inputs, OwnVariant, Slice};
use ferroflash::request::{AlibiSlopes, Bias, Mask, MaskBits, Prefix, Queries, Sinks};

/// The parameters of an operation, whose tensors are locked against writes.
pub(crate) struct Reads<'a> {
    attend: &'a Attend,
    extras: Extras<Read<'a>>,
    variant: Option<(&'a OwnVariant, Vec<Read<'a>>)>,
}

impl<'a> Reads<'a> {
    pub fn of(attend: &'a Attend) -> Self {
        let extras = attend.extras.map(Read::of);
        let variant = attend.variant.as_ref().map(|(variant, tables)| {
            (variant, tables.iter().map(|table| Read::of("variant.table", table)).collect())
        });
        Reads { attend, extras, variant }
    }

    /// Returns the variant's tables, for [`Reads::give`]. A table is contiguous.
    pub fn tables(&self) -> Result<Vec<Slice<'_>>> {
        let tables = self.variant.iter().flat_map(|(_, tables)| tables);
        tables
            .map(|table| match table.dtype() {
                DType::F32 | DType::U32 | DType::I32 => table.contiguous(),
                other => {
                    let expected = "its dtype must be f32, u32 or i32";
                    Err(invalid(table.name, format_args!("{other:?}"), expected))
                }
            })
            .collect()
    }

    /// Returns the sinks of `heads` heads.
    pub fn sinks(&self, heads: usize) -> Result<Option<Sinks<Slice<'_>>>> {
        let sinks = self.extras.sinks.as_ref().map(|read| read.per_head(heads)).transpose()?;
        Ok(sinks.map(|address| Sinks { address, elements: heads as u64 }))
    }

    /// Adds these parameters to inputs of at most `max_k` keys per sequence, except for sinks. Bits and
    /// prefixes replace the mask.
    pub fn give<'v>(
        &'v self,
        inputs: Inputs<'v>,
        max_k: usize,
        tables: &'v [Slice<'v>],
    ) -> Result<Inputs<'v>> {
        let Attend { softmax_scale, softcap, mask_keys, invariance, precision, .. } = *self.attend;
        let mut inputs = inputs.mask(self.attend.mask(max_k)).scale(softmax_scale).softcap(softcap);
        inputs = inputs.invariance(invariance).precision(precision);
        let Extras { alibi_slopes, bias, mask_bits, prefix_lengths, seqused_q, .. } = &self.extras;
        if let Some(used) = seqused_q {
            let Queries::Varlen(queries) = inputs.queries else {
                let expected = "varlen queries; queries of equal lengths have no padding";
                return Err(invalid("seqused_q", "queries of equal lengths", expected));
            };
            inputs.queries = Queries::Varlen(queries.seqused_q(used.numbers(1)?));
        }
        if let Some(slopes) = alibi_slopes {
            let heads = inputs.q.shape[2];
            inputs = inputs.alibi(AlibiSlopes::new(slopes.per_head(heads)?, heads as u64));
        }
        if let Some(bias) = bias {
            if !matches!(bias.dtype(), DType::F16 | DType::BF16 | DType::F32) {
                let reason = "a bias is f16, bf16 or f32; convert it";
                return Err(unsupported(format_args!("a bias of {:?}", bias.dtype()), reason));
            }
            let ([shape, strides], dtype) = (four(bias)?, number("a bias", bias.dtype())?);
            inputs = inputs.bias(Bias::new(bias.slice()?, u64::MAX, dtype, shape, long(strides)));
        }
        if let Some(bits) = mask_bits {
            let ([[batch, heads, rows, bytes], strides], row) = (four(bits)?, mask_keys.div_ceil(8));
            if bytes != row || bytes > 1 && strides[3] != 1 {
                let expected = format_args!("{row} contiguous bytes, a bit for each of {mask_keys} keys");
                return Err(invalid("mask_bits", format_args!("rows of {bytes} bytes"), expected));
            }
            let strides = long([strides[0], strides[1], strides[2]]);
            let bits = MaskBits::new(bits.slice()?, u64::MAX, [batch, heads, rows, mask_keys], strides);
            inputs = inputs.mask(Mask::Bits(bits));
        }
        if let Some((variant, _)) = &self.variant {
            inputs = inputs.own(variant, tables);
        }
        match prefix_lengths {
            Some(lengths) => Ok(inputs.mask(Mask::Prefix(Prefix::Each(lengths.numbers(1)?)))),
            None => Ok(inputs),
        }
    }
}

/// Returns the shape and the strides of a tensor of four dimensions. A tensor of three dimensions is one
/// batch.
fn four(read: &Read<'_>) -> Result<[[usize; 4]; 2]> {
    match (read.layout.dims(), read.layout.stride()) {
        (&[a, b, c, d], &[e, f, g, h]) => Ok([[a, b, c, d], [e, f, g, h]]),
        (&[b, c, d], &[f, g, h]) => Ok([[1, b, c, d], [0, f, g, h]]),
        (dims, _) => {
            let expected = "it must have 3 or 4 dimensions: [batch or 1, heads or 1, queries, keys]";
            Err(invalid(read.name, format_args!("{dims:?}"), expected))
        }
    }
}
