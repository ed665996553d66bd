//! One step of the model: the next token of some sequences, and prompt chunks of other sequences.
use anyhow::Result;
use candle::{Device, Tensor};

/// New tokens of a sequence, which follow the tokens in its KV cache.
pub struct Chunk<'a> {
    /// The sequence.
    pub sequence: usize,
    /// Position of the first token: the number of tokens in the KV cache.
    pub start: usize,
    /// The new tokens, at least one.
    pub tokens: &'a [u32],
    /// Tokens whose logits the caller needs.
    pub asked: Asked,
}

/// Tokens of a chunk whose logits the caller needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// No token: the prompt continues after this chunk.
    None,
    /// The last token, to sample the next token.
    Last,
    /// All tokens, to compare the logits of each with the next token.
    All,
}

/// Rows of a step.
pub enum Rows {
    /// No row.
    None,
    /// All rows.
    All,
    /// The rows with these indices, u32.
    Some(Tensor),
}

/// A chunk's place in a step.
#[derive(Clone, Copy)]
pub struct Part {
    /// The sequence.
    pub sequence: usize,
    /// Position of its first row.
    pub start: usize,
    /// Number of the chunk's rows. The rows follow the previous part's rows.
    pub rows: usize,
    /// Rows whose logits the caller needs.
    pub asked: Asked,
}

/// Rows of tokens on the device, with their sequences.
pub struct Step {
    /// The tokens, u32 `[rows]`.
    pub tokens: Tensor,
    /// The position of each token, u32 `[rows]`.
    pub positions: Tensor,
    /// Rows whose logits the caller needs.
    pub asked: Rows,
    /// The chunks' places. Sequences with one row come first.
    pub parts: Vec<Part>,
}

impl Step {
    /// Combines chunks into one step.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn new(mut chunks: Vec<Chunk>, device: &Device) -> Result<Self> {
        // Single queries on many keys and chunks of prompts run on different kernels.
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
