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
    /// e4m3, int8, or the tokens' type [default]; in a latent cache e4m3_scaled, too.
    kv_dtype: Option<String>,
    /// The columns of a latent cache's values (MLA). The tokens have rows only, whose other columns rotate.
    latent: Option<usize>,
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
        let stored = fields::row_bytes(cache, dtype, head_dim, self.latent)?;
        if self.latent.is_some_and(|columns| columns == 0 || columns >= head_dim) {
            let why = format!("it must be 1 or more, and less than head_dim {head_dim}");
            return Err(Error::Invalid(format!("latent {}: {why}", self.latent.unwrap_or(0))));
        }
        // A latent cache has no values beside its keys.
        let tensors = if self.latent.is_some() { 1.0 } else { 2.0 } * (tokens * heads) as f64;
        let read = tensors * (head_dim * dtype.bytes()) as f64;
        let written = tensors * stored as f64;
        let rotary = self.rotary()?;
        let queries =
            tokens as f64 * self.heads_q.unwrap_or(0) as f64 * head_dim as f64 * dtype.bytes() as f64;
        // Each token reads the angles of its position, in f32.
        let angles = rotary.map_or(0.0, |rotary| 4.0 * (tokens.min(rotary.rows) * head_dim) as f64);
        // Each row of an int8 cache has two scales in f32.
        let scales = if cache == DType::Int8 { 8.0 * (tokens * heads) as f64 } else { 0.0 };
        let (read, written) = (read + queries + angles, written + queries + scales);
        // A slot is a 64-bit integer, like a position.
        fits(read + 2.0 * written + (2 * page * heads * stored) as f64 + 16.0 * tokens as f64)?;
        let case = AppendCase {
            dtypes: [dtype, cache],
            lies: match (self.latent, layout) {
                (Some(columns), Order::Nhd) => Lies::Latent(columns),
                (Some(_), Order::Hnd) => {
                    return Err(Error::Invalid("layout HND of a latent cache: it must be NHD".into()));
                }
                (None, Order::Hnd) => Lies::Hnd,
                (None, Order::Nhd) => Lies::Nhd,
            },
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
        let latent = self.latent.map_or(String::new(), |columns| format!(", latent {columns}"));
        let label = format!(
            "{types}, append of {tokens} tokens{turned}, heads {all}, head_dim {head_dim}, pages of {page} \
             {layout}{latent}"
        );
        Ok(Workload::new(label, [0.0, read + written], true, move || AppendMemory::to_measure(&case)))
    }

    /// Returns the rotation of all columns of a head, or of those behind a latent, by a table of up to 4096
    /// positions.
    fn rotary(&self) -> Result<Option<RotaryCase>, Error> {
        let Some(heads) = self.heads_q else { return Ok(None) };
        sizes(&[("heads_q", heads)])?;
        Ok(Some(RotaryCase {
            style: RotaryStyle::Halves,
            columns: self.latent.map_or([0, self.head_dim], |columns| [columns, self.head_dim - columns]),
            rows: 4096,
            wide: true,
            together: true,
            wide_positions: true,
            query_heads: Some(heads),
            in_place: false,
        }))
    }
}
