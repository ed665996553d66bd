//! Shapes of appends.
use super::fields::{self, Order, sizes};
use super::workload::{Workload, fits};
use crate::error::Error;
use ferroflash::DType;
use ferroflash::request::RotaryStyle;
use reference::{AppendCase, AppendMemory, Lies, RotaryCase, Scales};
use serde::Deserialize;

/// One shape. Tokens go to random rows of a cache that has twice their number of rows.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shape {
    /// New tokens.
    append: usize,
    heads_k: usize,
    /// Query heads, if the launch rotates keys and queries (rotary embedding).
    heads_q: Option<usize>,
    head_dim: usize,
    /// f16 or bf16 [default: f16].
    dtype: Option<String>,
    /// e4m3, int8, or the tokens' type [default].
    kv_dtype: Option<String>,
    /// Keys per page [default: 16].
    page: Option<usize>,
    #[serde(default)]
    layout: Order,
    /// A name for readers of the report.
    #[serde(rename = "name")]
    _name: Option<String>,
}

impl Shape {
    /// Returns the workload of the shape.
    pub(super) fn workload(&self) -> Result<Workload, Error> {
        let Self { append: tokens, heads_k: heads, head_dim, layout, .. } = *self;
        let page = self.page.unwrap_or(16);
        sizes(&[("append", tokens), ("heads_k", heads), ("head_dim", head_dim), ("page", page)])?;
        let dtype = fields::dtype(self.dtype.as_deref())?;
        let cache = fields::kv_dtype(self.kv_dtype.as_deref(), dtype)?;
        let row = 2.0 * heads as f64 * head_dim as f64;
        let read = tokens as f64 * row * dtype.bytes() as f64;
        let written = tokens as f64 * row * cache.bytes() as f64;
        let rotary = self.rotary()?;
        let queries =
            tokens as f64 * self.heads_q.unwrap_or(0) as f64 * head_dim as f64 * dtype.bytes() as f64;
        // Each token reads the angles of its position, in f32.
        let angles = rotary.map_or(0.0, |rotary| 4.0 * (tokens.min(rotary.rows) * head_dim) as f64);
        // Each row of an int8 cache has two scales in f32.
        let scales = if cache == DType::Int8 { 8.0 * (tokens * heads) as f64 } else { 0.0 };
        let (read, written) = (read + queries + angles, written + queries + scales);
        // A slot is a 64-bit integer, like a position.
        fits(read + 2.0 * written + page as f64 * row * cache.bytes() as f64 + 16.0 * tokens as f64)?;
        let case = AppendCase {
            dtypes: [dtype, cache],
            lies: if layout == Order::Hnd { Lies::Hnd } else { Lies::Nhd },
            heads,
            head_dim,
            pages: [(2 * tokens).div_ceil(page), page],
            tokens: [tokens, 0],
            wide: true,
            scales: Scales::One,
            rotary,
            seed: 1,
        };
        let types = fields::types(dtype, cache);
        let (turned, all) = match self.heads_q {
            Some(queries) => (" with rotary embedding", format!("{queries}/{heads}")),
            None => ("", heads.to_string()),
        };
        let label = format!(
            "{types}, append of {tokens} tokens{turned}, heads {all}, head_dim {head_dim}, pages of {page} \
             {layout}"
        );
        Ok(Workload::new(label, [0.0, read + written], true, move || AppendMemory::to_measure(&case)))
    }

    /// Returns the rotation of all columns of a head, by a table of up to 4096 positions.
    fn rotary(&self) -> Result<Option<RotaryCase>, Error> {
        let Some(heads) = self.heads_q else { return Ok(None) };
        sizes(&[("heads_q", heads)])?;
        Ok(Some(RotaryCase {
            style: RotaryStyle::Halves,
            columns: [0, self.head_dim],
            rows: 4096,
            wide: true,
            together: true,
            wide_positions: true,
            query_heads: Some(heads),
            in_place: false,
        }))
    }
}
