//! What a model computes at a time: next tokens of some sequences, pieces of prompts of others.
use anyhow::Result;
use candle::{Device, Tensor};

/// Tokens of a sequence that follow what is kept of it.
pub struct Chunk<'a> {
    /// Whose.
    pub sequence: usize,
    /// Position of the first one: as many are kept.
    pub start: usize,
    /// At least one.
    pub tokens: &'a [u32],
    /// Of which of them logits are wanted.
    pub asked: Asked,
}

/// Of which tokens of a chunk logits are wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// A piece of a prompt that goes on.
    None,
    /// What comes next.
    Last,
    /// What came next, too.
    All,
}

/// Rows of a step.
pub enum Rows {
    /// None of them.
    None,
    /// All of them.
    All,
    /// These, u32.
    Some(Tensor),
}

/// A chunk's place in a step.
#[derive(Clone, Copy)]
pub struct Part {
    /// Whose.
    pub sequence: usize,
    /// Position of its first row.
    pub start: usize,
    /// Rows, behind those of the parts before it.
    pub rows: usize,
    /// Of which of them there are logits.
    pub asked: Asked,
}

/// Rows of tokens, on the device, and whose they are.
pub struct Step {
    /// u32 `[rows]`.
    pub tokens: Tensor,
    /// u32 `[rows]`.
    pub positions: Tensor,
    /// Rows whose logits are wanted.
    pub asked: Rows,
    /// Those of one row come first.
    pub parts: Vec<Part>,
}

impl Step {
    /// Puts chunks together.
    ///
    /// # Errors
    /// What the device refuses.
    pub fn new(mut chunks: Vec<Chunk>, device: &Device) -> Result<Self> {
        // One query on many keys and a piece of a prompt want different kernels.
        chunks.sort_by_key(|chunk| chunk.tokens.len() > 1);
        let (mut tokens, mut positions, mut asked, mut parts) = (vec![], vec![], vec![], vec![]);
        for Chunk { sequence, start, tokens: new, asked: of } in chunks {
            let (first, rows) = (tokens.len() as u32, new.len());
            let end = first + rows as u32;
            match of {
                Asked::None => {}
                Asked::Last => asked.push(end - 1),
                Asked::All => asked.extend(first..end),
            }
            tokens.extend_from_slice(new);
            positions.extend(start as u32..(start + rows) as u32);
            parts.push(Part { sequence, start, rows, asked: of });
        }
        let asked = match asked.len() {
            0 => Rows::None,
            count if count == tokens.len() => Rows::All,
            _ => Rows::Some(Tensor::new(asked, device)?),
        };
        let (tokens, positions) = (Tensor::new(tokens, device)?, Tensor::new(positions, device)?);
        Ok(Step { tokens, positions, asked, parts })
    }
}
