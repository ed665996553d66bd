//! Batches of a text. A step's number determines its batch, so that a resumed run continues the same series.
use anyhow::{Result, ensure};
use candle::{Device, Tensor};

/// A random number generator: PCG's multiplier, and the upper bits.
pub struct Dice(u64);

impl Dice {
    /// Creates a generator.
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        dice.next();
        dice
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// Draws a number between -1 and 1.
    pub fn between_ones(&mut self) -> f32 {
        self.next() as f32 / (1u64 << 30) as f32 - 1.0
    }
}

/// A text, and the shape of its batches.
pub struct Text {
    bytes: Vec<u8>,
    batch: usize,
    context: usize,
}

impl Text {
    /// Creates batches of `batch` windows of `context + 1` bytes.
    ///
    /// # Errors
    /// Returns an error if the text is too short.
    pub fn new(bytes: Vec<u8>, batch: usize, context: usize) -> Result<Self> {
        let length = bytes.len();
        ensure!(batch > 0 && context > 0, "batch {batch} and context {context}: both must be at least 1");
        ensure!(length > context, "a text of {length} bytes: a context of {context} needs one byte more");
        Ok(Text { bytes, batch, context })
    }

    /// Returns the number of predicted tokens of a batch.
    pub fn tokens(&self) -> usize {
        self.batch * self.context
    }

    /// Returns a step's batch, u32 `[batch, context + 1]`.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn at(&self, step: usize, device: &Device) -> Result<Tensor> {
        let Text { bytes, batch, context } = self;
        let mut dice = Dice::new(step as u64);
        let mut tokens = Vec::with_capacity(batch * (context + 1));
        for _ in 0..*batch {
            let start = dice.next() as usize % (bytes.len() - context);
            tokens.extend(bytes[start..=start + context].iter().map(|byte| u32::from(*byte)));
        }
        Ok(Tensor::from_vec(tokens, (*batch, context + 1), device)?)
    }
}
