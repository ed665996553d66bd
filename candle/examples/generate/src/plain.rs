//! Attention as candle's models write it without flash-attn: products and a softmax in f32, sequence by
//! sequence, on any device.
use crate::model::Attention;
use crate::step::Part;
use anyhow::Result;
use candle::{DType, Tensor};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Stores keys and values contiguously, in order of arrival.
pub struct Plain {
    /// Number of visible keys before a query's position; `None` is all.
    window: Option<usize>,
    /// Keys and values of layers and sequences, `[key heads, keys, head dim]`.
    kept: HashMap<(usize, usize), [Tensor; 2]>,
    parts: Vec<Part>,
    /// The mask of the step's sequences, u8 `[1, rows, keys]`. All layers share it.
    hidden: HashMap<usize, Tensor>,
}

impl Plain {
    /// Returns an empty store.
    pub fn new(window: Option<usize>) -> Self {
        Plain { window, kept: HashMap::new(), parts: Vec::new(), hidden: HashMap::new() }
    }

    /// Computes attention of queries `[rows, heads, head dim]`. The last keys belong to the queries' own
    /// positions.
    fn sequence(&mut self, part: &Part, q: &Tensor, [k, v]: &[Tensor; 2]) -> Result<Tensor> {
        let ((_, heads, columns), (key_heads, keys, _)) = (q.dims3()?, k.dims3()?);
        let wide = |x: &Tensor| -> Result<Tensor> {
            let shape = (key_heads, heads / key_heads, keys, columns);
            let x = x.to_dtype(DType::F32)?.unsqueeze(1)?.broadcast_as(shape)?;
            Ok(x.reshape((heads, keys, columns))?)
        };
        let q = q.to_dtype(DType::F32)?.transpose(0, 1)?.contiguous()?;
        let scores = (q.matmul(&wide(k)?.t()?)? / (columns as f64).sqrt())?;
        let scores = self.mask(part, keys, scores)?;
        let o = candle_nn::ops::softmax_last_dim(&scores)?.matmul(&wide(v)?)?;
        Ok(o.transpose(0, 1)?)
    }

    fn mask(&mut self, part: &Part, keys: usize, scores: Tensor) -> Result<Tensor> {
        let &Part { sequence, start, rows, .. } = part;
        let window = self.window.unwrap_or(usize::MAX);
        if rows == 1 && keys - 1 <= window {
            return Ok(scores);
        }
        let hidden = match self.hidden.entry(sequence) {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(place) => {
                let hidden = |row: usize, key: usize| {
                    let position = start + row;
                    u8::from(key > position || position - key > window)
                };
                let hidden = (0..rows).flat_map(|row| (0..keys).map(move |key| hidden(row, key)));
                place.insert(Tensor::from_iter(hidden, scores.device())?.reshape((1, rows, keys))?)
            }
        };
        let hidden = hidden.broadcast_as(scores.shape())?;
        let nothing = Tensor::new(f32::NEG_INFINITY, scores.device())?.broadcast_as(scores.shape())?;
        Ok(hidden.where_cond(&nothing, &scores)?)
    }
}

impl Attention for Plain {
    fn begin(&mut self, parts: &[Part]) -> Result<()> {
        self.parts = parts.to_vec();
        self.hidden.clear();
        Ok(())
    }

    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let (mut row, mut outputs) = (0, Vec::new());
        for part in self.parts.clone() {
            let rows = |x: &Tensor| x.narrow(0, row, part.rows);
            let new = [rows(k)?.transpose(0, 1)?, rows(v)?.transpose(0, 1)?];
            let all = match self.kept.remove(&(layer, part.sequence)) {
                Some([k, v]) => [Tensor::cat(&[&k, &new[0]], 1)?, Tensor::cat(&[&v, &new[1]], 1)?],
                None => [new[0].contiguous()?, new[1].contiguous()?],
            };
            outputs.push(self.sequence(&part, &rows(q)?, &all)?);
            self.kept.insert((layer, part.sequence), all);
            row += part.rows;
        }
        Ok(Tensor::cat(&outputs, 0)?.to_dtype(q.dtype())?)
    }

    fn forget(&mut self, sequence: usize) {
        self.kept.retain(|(_, whose), _| *whose != sequence);
    }
}
