//! Tensors beside queries, keys and values: a bias, bits of a mask, prefixes, and tables of a variant.
use crate::attend::Attend;
use crate::errors::{invalid, unsupported};
use crate::inputs::{Numbers, Read};
use candle::cuda_backend::CudaDType;
use candle::cuda_backend::cudarc::driver::CudaView;
use candle::{DType, Result};
use ferroflash::cudarc::{Bias, Element, Inputs, MaskBits, Number, OwnVariant, Table};
use half::{bf16, f16};

/// The extras of an operation, locked against writes.
pub(crate) struct Reads<'a> {
    bias: Option<Read<'a>>,
    bits: Option<(Read<'a>, usize)>,
    prefixes: Option<Read<'a>>,
    variant: Option<(&'a OwnVariant, Vec<Read<'a>>)>,
}

impl<'a> Reads<'a> {
    pub fn of(attend: &'a Attend) -> Self {
        Reads {
            bias: attend.bias.as_ref().map(|bias| Read::of("bias", bias)),
            bits: attend.mask_bits.as_ref().map(|(bits, keys)| (Read::of("mask_bits", bits), *keys)),
            prefixes: attend.prefix_lengths.as_ref().map(|lengths| Read::of("prefix_lengths", lengths)),
            variant: attend.variant.as_ref().map(|(variant, tables)| {
                (variant, tables.iter().map(|table| Read::of("variant.table", table)).collect())
            }),
        }
    }

    /// Returns the elements of the extras.
    pub fn views(&self) -> Result<Views<'_>> {
        let bias = self.bias.as_ref().map(|bias| {
            let [shape, strides] = four(bias)?;
            let elements = match bias.dtype() {
                DType::F16 => Elements::F16(bias.all()?),
                DType::BF16 => Elements::Bf16(bias.all()?),
                DType::F32 => Elements::F32(bias.all()?),
                other => {
                    return Err(unsupported(
                        format_args!("a bias of {other:?}"),
                        "a bias is f16, bf16 or f32; convert it",
                    ));
                }
            };
            Ok((elements, shape, strides))
        });
        let bits = self.bits.as_ref().map(|(bits, keys)| {
            let [[batch, heads, rows, bytes], strides] = four(bits)?;
            if bytes != keys.div_ceil(8) || bytes > 1 && strides[3] != 1 {
                let expected =
                    format_args!("{} contiguous bytes, a bit for each of {keys} keys", keys.div_ceil(8));
                return Err(invalid("mask_bits", format_args!("rows of {bytes} bytes"), expected));
            }
            Ok((bits.all()?, [batch, heads, rows, *keys], [strides[0], strides[1], strides[2]]))
        });
        Ok(Views {
            bias: bias.transpose()?,
            bits: bits.transpose()?,
            prefixes: self.prefixes.as_ref().map(|lengths| lengths.numbers(1)).transpose()?,
            variant: match &self.variant {
                None => None,
                Some((variant, tables)) => Some((variant, tables.iter().map(words).collect::<Result<_>>()?)),
            },
        })
    }
}

/// The words of a variant's table, which is contiguous.
fn words<'a>(table: &'a Read<'_>) -> Result<Words<'a>> {
    if !table.is_contiguous() {
        let found = format_args!("strides {:?}", table.strides());
        return Err(invalid(table.name(), found, "it must be contiguous: `table.contiguous()?`"));
    }
    let elements = table.shape().elem_count();
    match table.dtype() {
        DType::F32 => Ok(Words::Floats(table.first(elements)?)),
        DType::U32 => Ok(Words::Integers(Numbers::Unsigned(table.first(elements)?))),
        DType::I32 => Ok(Words::Integers(Numbers::Signed(table.first(elements)?))),
        other => Err(invalid(table.name(), format_args!("{other:?}"), "its dtype must be f32, u32 or i32")),
    }
}

/// A table of 32-bit words.
enum Words<'a> {
    Floats(CudaView<'a, f32>),
    Integers(Numbers<'a>),
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

/// The elements of a bias.
enum Elements<'a> {
    F16(CudaView<'a, f16>),
    Bf16(CudaView<'a, bf16>),
    F32(CudaView<'a, f32>),
}

/// The extras as views of their memory.
pub(crate) struct Views<'a> {
    bias: Option<(Elements<'a>, [usize; 4], [usize; 4])>,
    bits: Option<(CudaView<'a, u8>, [usize; 4], [usize; 3])>,
    prefixes: Option<Numbers<'a>>,
    variant: Option<(&'a OwnVariant, Vec<Words<'a>>)>,
}

impl Views<'_> {
    /// The variant's tables, for [`Views::give`].
    pub fn tables(&self) -> Vec<Table<'_>> {
        let words = self.variant.iter().flat_map(|(_, tables)| tables);
        words
            .map(|table| match table {
                Words::Floats(data) => data.into(),
                Words::Integers(Numbers::Unsigned(data)) => data.into(),
                Words::Integers(Numbers::Signed(data)) => data.into(),
            })
            .collect()
    }

    /// Adds these extras to inputs. Bits and prefixes replace the mask.
    pub fn give<'v, T: Element + CudaDType, C: Number>(
        &'v self,
        inputs: Inputs<'v, T, C>,
        tables: &'v [Table<'v>],
    ) -> Inputs<'v, T, C> {
        let bias = self.bias.iter().map(|(elements, shape, strides)| {
            let bias = match elements {
                Elements::F16(data) => Bias::new(data, *shape),
                Elements::Bf16(data) => Bias::new(data, *shape),
                Elements::F32(data) => Bias::new(data, *shape),
            };
            bias.strides(strides.map(|stride| stride as i64))
        });
        let bits = self.bits.iter().map(|(data, shape, strides)| {
            MaskBits::new(data, *shape).strides(strides.map(|stride| stride as i64))
        });
        let inputs = bias.fold(inputs, Inputs::bias);
        let inputs = bits.fold(inputs, Inputs::mask_bits);
        let inputs = self.variant.iter().fold(inputs, |inputs, (variant, _)| inputs.variant(variant, tables));
        self.prefixes.iter().fold(inputs, |inputs, lengths| inputs.prefix_lengths(lengths.integers()))
    }
}
