//! The reference of rotary embedding in an append.
use super::{AppendCase, RotaryCase};
use crate::arithmetic::decode;
use crate::inputs::Random;
use crate::work::Binder;
use ferroflash::DType;
use ferroflash::request::{Positions, Rotary, RotaryStyle, TensorView};
use ferroflash::rotary::{cos_sin, frequencies};
use half::{bf16, f16};

/// Rounds a number to `dtype`, of 16 bits. NaN becomes the device's. (`half` rounds f64 by its upper 32 bits
/// alone, so the conversion begins with f32.)
fn round(dtype: DType, x: f32) -> u16 {
    match dtype {
        _ if x.is_nan() => 0x7fff,
        DType::F16 => f16::from_f32(x).to_bits(),
        _ => bf16::from_f32(x).to_bits(),
    }
}

/// Returns the bytes of integers as i64 or i32.
pub(super) fn integers(all: &[i64], wide: bool) -> Vec<u8> {
    match wide {
        true => bytes!(all),
        false => all.iter().flat_map(|x| (*x as i32).to_ne_bytes()).collect(),
    }
}

/// Draws a position for each token. A third of them are no rows of the table.
pub(super) fn positions(case: &AppendCase, of: &RotaryCase, random: &mut Random) -> Vec<i64> {
    let rows = of.rows as i64;
    let none = match of.wide_positions {
        true => [-1, rows, i64::MIN, i64::MAX, (1 << 32) + 1],
        false => [-1, rows, i64::from(i32::MIN), i64::from(i32::MAX), rows + 1],
    };
    let mut position = |_| {
        let bits = random.bits() as usize;
        if bits.is_multiple_of(3) { none[bits / 3 % none.len()] } else { (bits / 3 % of.rows) as i64 }
    };
    (0..case.tokens[0]).map(&mut position).collect()
}

/// Angles of all rows: cosines and sines, as numbers of the table's dtype.
#[derive(Clone, Debug)]
pub(super) struct Table {
    of: RotaryCase,
    dtype: DType,
    /// Cosines and sines, `[rows][dims / 2]` each.
    numbers: [Vec<f32>; 2],
}

impl Table {
    pub(super) fn new(case: &AppendCase, of: &RotaryCase) -> Self {
        // With this base, the angles of all columns differ from each other at position 1.
        let exact = cos_sin(&frequencies(100.0, of.columns[1]), of.rows);
        let dtype = of.dtype(case.dtypes[0]);
        let numbers = exact.map(|numbers| match dtype {
            DType::F32 => numbers,
            small => numbers.iter().map(|x| decode(small, round(small, *x))).collect(),
        });
        Table { of: *of, dtype, numbers }
    }

    /// Returns the content of the buffer of cosines (0) or of sines (1). The first has both if a row of the
    /// table has both.
    fn bytes(&self, which: usize) -> Vec<u8> {
        let bytes = |x: &f32| match self.dtype {
            DType::F32 => x.to_ne_bytes().to_vec(),
            small => round(small, *x).to_ne_bytes().to_vec(),
        };
        let [cos, sin] = self.numbers.each_ref().map(|all| all.chunks(self.of.columns[1] / 2));
        match self.of.together {
            true => cos.zip(sin).flat_map(|(cos, sin)| cos.iter().chain(sin).flat_map(bytes)).collect(),
            false => self.numbers[which].iter().flat_map(bytes).collect(),
        }
    }

    /// Returns the request's rotation by these positions, without queries.
    pub(super) fn request(&self, positions: &[i64], binder: &mut Binder<'_>) -> Rotary {
        let RotaryCase { style, columns: [first, dims], rows, wide_positions, .. } = self.of;
        let make = if wide_positions { Positions::i64 } else { Positions::i32 };
        let address = binder.changing("positions", || integers(positions, wide_positions));
        let positions = make(address, positions.len() as u64);
        let mut table = |name, which, columns: usize| {
            let (address, elements) = (binder.input(name, || self.bytes(which)), rows * columns);
            TensorView::bshd(address, elements as u64, self.dtype, [1, rows, 1, columns])
        };
        let rotary = match self.of.together {
            true => Rotary::cos_sin(table("cos", 0, dims), positions),
            false => Rotary::new(table("cos", 0, dims / 2), table("sin", 1, dims / 2), positions),
        };
        rotary.style(style).first_column(first)
    }

    /// Rotates one head, in the order of operations that [`Rotary`] states.
    pub(super) fn rotate(&self, head: &mut [u16], dtype: DType, position: i64) {
        let [first, dims] = self.of.columns;
        let row = position.clamp(0, self.of.rows as i64 - 1) as usize;
        for i in 0..dims / 2 {
            let [cos, sin] = self.numbers.each_ref().map(|all| all[row * dims / 2 + i]);
            let at = match self.of.style {
                RotaryStyle::Halves => [first + i, first + i + dims / 2],
                RotaryStyle::Interleaved => [first + 2 * i, first + 2 * i + 1],
            };
            let [x, y] = at.map(|column| decode(dtype, head[column]));
            let turned = [x.mul_add(cos, -(y * sin)), y.mul_add(cos, x * sin)];
            for (column, x) in at.into_iter().zip(turned) {
                head[column] = round(dtype, x);
            }
        }
    }
}
