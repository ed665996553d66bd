//! The numbers of a KV cache, as a case stores them.
use super::Case;
use crate::arithmetic::{decode, encode};
use crate::inputs::INTEGERS;
use ferroflash::DType;
use ferroflash::spec::E4m3Scaled;

/// Number of e4m3 in a row of [`E4m3Scaled`].
const SCALED: usize = E4m3Scaled::SCALED;
/// Number of scales in such a row.
const BLOCKS: usize = SCALED / E4m3Scaled::PER_SCALE;

/// The key that a list names in the place of key `key`, which has an equal row.
pub(crate) fn twin(key: usize) -> usize {
    if key % 7 == 6 { key - 1 } else { key }
}

impl Case {
    /// Returns the scale of keys (0) or of values (1). In an int8 cache, it is the scale of row `row`,
    /// counted in `[key][head]`.
    pub(crate) fn scale(&self, which: usize, row: usize) -> f32 {
        match self.kv_dtype() {
            // The values of a latent cache are columns of its keys.
            DType::E4m3 => [2.0, if self.latent { 2.0 } else { 0.5 }][which],
            DType::Int8 => {
                let bits = ((row * 2 + which) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
                let factor = 1.0 + (bits & 0xffff) as f32 / 65536.0;
                // The scales of values have very different magnitudes.
                let exponent = [1 - (bits >> 16) as i32 % 3, -((bits >> 16) as i32 % 11)][which];
                factor * f32::from_bits(((127 + exponent) as u32) << 23) / INTEGERS as f32
            }
            _ => 1.0,
        }
    }

    /// Returns the scale of block `block` of row `row` in a cache of [`DType::E4m3Scaled`]. It has so few
    /// bits that its product with an e4m3 is a bf16.
    fn block_scale(&self, row: usize, block: usize) -> f32 {
        let [key, head] = [row / self.heads[1], row % self.heads[1]];
        let row = twin(key) * self.heads[1] + head;
        let bits = ((row * BLOCKS + block) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let power = f32::from_bits(((125 + (bits >> 4) % 5) as u32) << 23);
        (8 + bits % 8) as f32 / 8.0 * power
    }

    /// Returns the number of elements in a stored row.
    pub(crate) fn row_elements(&self) -> usize {
        match self.kv_dtype() {
            DType::E4m3Scaled => E4m3Scaled::ROW_BYTES,
            _ => self.head_dim,
        }
    }

    /// Converts a drawn number to a value of the queries' type: number `i` of keys (0) or of values (1),
    /// counted in `[key][head][column]`.
    pub(crate) fn drawn(&self, bits: u16, which: usize, i: usize) -> u16 {
        let (row, column) = (i / self.head_dim, i % self.head_dim);
        match self.kv_dtype() {
            DType::E4m3Scaled => {
                // The last columns are numbers of the queries' type, with all of its bits.
                let scale = match column < SCALED {
                    true => self.block_scale(row, column / E4m3Scaled::PER_SCALE),
                    false => 1.37,
                };
                encode(self.dtype, f64::from(decode(DType::E4m3, bits)) * f64::from(scale))
            }
            _ => self.read(bits, self.scale(which, row)),
        }
    }

    /// Converts row `index` of values that [`Case::drawn`] has returned to the bytes of the cache. A row that
    /// lacks columns is a row of a latent cache's values, whose bytes belong to the key.
    pub(crate) fn stored_row(&self, row: &[u16], which: usize, index: usize) -> Vec<u8> {
        if self.kv_dtype() != DType::E4m3Scaled {
            return row.iter().flat_map(|x| self.stored(*x, self.scale(which, index))).collect();
        }
        if row.len() < self.head_dim {
            return vec![];
        }
        let (scaled, plain) = row.split_at(SCALED);
        let scales: Vec<_> = (0..BLOCKS).map(|block| self.block_scale(index, block)).collect();
        let number = |(i, bits): (usize, &u16)| {
            encode(DType::E4m3, f64::from(decode(self.dtype, *bits) / scales[i / E4m3Scaled::PER_SCALE]))
                as u8
        };
        let numbers = scaled.iter().enumerate().map(number);
        let scales = scales.iter().flat_map(|scale| scale.to_ne_bytes());
        numbers.chain(scales).chain(plain.iter().flat_map(|bits| bits.to_ne_bytes())).collect()
    }

    /// Converts the first `columns` numbers of a stored row, which is row `index`, to values of the queries'
    /// type.
    pub(crate) fn read_row(&self, stored: &[u8], columns: usize, which: usize, index: usize) -> Vec<u16> {
        let bits = |x: &[u8]| u16::from_ne_bytes([x[0], x.get(1).copied().unwrap_or(0)]);
        if self.kv_dtype() != DType::E4m3Scaled {
            let row = stored.chunks(self.kv_dtype().bytes()).take(columns);
            return row.map(|x| self.read(bits(x), self.scale(which, index))).collect();
        }
        let (numbers, rest) = stored.split_at(SCALED);
        let (scales, plain) = rest.split_at(4 * BLOCKS);
        let scales: Vec<_> = scales.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect();
        let number = |(i, x): (usize, &u8)| {
            let scale = scales[i / E4m3Scaled::PER_SCALE];
            encode(self.dtype, f64::from(decode(DType::E4m3, u16::from(*x)) * scale))
        };
        numbers.iter().enumerate().map(number).chain(plain.chunks(2).map(bits)).take(columns).collect()
    }

    /// Converts a value that [`Case::read`] has returned to the bytes of the cache.
    fn stored(&self, bits: u16, scale: f32) -> impl Iterator<Item = u8> + use<> {
        let number = decode(self.dtype, bits);
        let bytes = match self.kv_dtype() {
            DType::E4m3 => encode(self.kv_dtype(), f64::from(number / scale)).to_le_bytes(),
            DType::Int8 => encode(self.kv_dtype(), f64::from(number)).to_le_bytes(),
            _ => bits.to_ne_bytes(),
        };
        bytes.into_iter().take(self.kv_dtype().bytes())
    }

    /// Converts a number of the cache to a value of the queries' type. The conversion is exact. An integer of
    /// an int8 cache is not multiplied by its scale.
    fn read(&self, bits: u16, scale: f32) -> u16 {
        match self.kv_dtype() {
            DType::E4m3 => encode(self.dtype, f64::from(decode(self.kv_dtype(), bits) * scale)),
            DType::Int8 => encode(self.dtype, f64::from(decode(self.kv_dtype(), bits))),
            _ => bits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_with_scales_are_read_as_they_were_drawn() {
        let case = Case {
            dtype: DType::Bf16,
            kv_dtype: Some(DType::E4m3Scaled),
            head_dim: 576,
            latent: true,
            ..Case::new(vec![3])
        };
        let numbers: Vec<u16> =
            (0..3 * 576).map(|i| encode(DType::E4m3, f64::from(i % 97) / 16.0 - 3.0)).collect();
        let drawn: Vec<_> = numbers.iter().enumerate().map(|(i, bits)| case.drawn(*bits, 0, i)).collect();
        for (index, row) in drawn.chunks(576).enumerate() {
            let stored = case.stored_row(row, 0, index);
            assert_eq!(stored.len(), E4m3Scaled::ROW_BYTES);
            assert!(case.read_row(&stored, 576, 0, index) == row, "row {index}");
            assert!(case.read_row(&stored, 512, 1, index) == row[..512], "values of row {index}");
        }
        assert!(case.stored_row(&drawn[..512], 1, 0).is_empty());
    }
}
