//! ALiBi slopes: their values and their memory layout.
use super::inputs::Random;
use super::tensor::TensorError;
use ferroflash::plan::Problem;
use ferroflash::request::AlibiSlopes;

/// ALiBi slopes, one per query head or one per sequence and query head.
#[derive(Clone, Debug, PartialEq)]
pub struct Slopes {
    values: Vec<f32>,
    strides: [i64; 2],
}

impl Slopes {
    /// Returns random slopes: powers of two from 2^-8 to 2^`largest`. A quarter of them is negative, and some
    /// are 0. The memory layout is random: `[heads]`, `[sequences, heads]`, or `[sequences, heads]` with gaps
    /// of NaN.
    pub fn random(seed: u64, sequences: usize, heads: usize, largest: i32) -> Self {
        let mut random = Random::new(seed);
        let of_each = heads as i64;
        let strides = [[0, 1], [of_each, 1], [2 * of_each + 1, 2]][(random.bits() % 3) as usize];
        let span = |extent: usize, stride: i64| (extent as i64 - 1) * stride;
        let count = 1 + span(sequences, strides[0]) + span(heads, strides[1]);
        let mut slope = || match random.bits() % 8 {
            0 => 0.0,
            sign => {
                let size = 2f32.powi(largest - (random.bits() % (largest + 9) as u64) as i32);
                if sign < 3 { -size } else { size }
            }
        };
        let mut slopes = Slopes { values: vec![f32::NAN; count as usize], strides };
        for sequence in 0..sequences {
            for head in 0..heads {
                let at = slopes.at(sequence, head);
                slopes.values[at] = slope();
            }
        }
        slopes
    }

    /// Returns the slopes of a file or a caller: `[sequences, heads]` if `by_sequence` is set, otherwise
    /// `[heads]`.
    ///
    /// # Errors
    /// Returns [`TensorError::Slopes`] if `values` has another length than the problem needs.
    pub fn new(values: Vec<f32>, by_sequence: bool, problem: &Problem) -> Result<Self, TensorError> {
        let Problem { batch, heads_q, .. } = *problem;
        let (want, stride) = if by_sequence { (batch * heads_q, heads_q) } else { (heads_q, 0) };
        if values.len() != want {
            return Err(TensorError::Slopes { got: values.len(), want });
        }
        Ok(Slopes { values, strides: [stride as i64, 1] })
    }

    fn at(&self, sequence: usize, head: usize) -> usize {
        sequence * self.strides[0] as usize + head * self.strides[1] as usize
    }

    /// Returns the slope of a sequence's head.
    pub fn of(&self, sequence: usize, head: usize) -> f32 {
        self.values[self.at(sequence, head)]
    }

    /// Returns all slopes in memory order.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Returns the request's view of the slopes at `address`.
    pub fn view(&self, address: u64) -> AlibiSlopes {
        AlibiSlopes::new(address, self.values.len() as u64).strides(self.strides)
    }
}
