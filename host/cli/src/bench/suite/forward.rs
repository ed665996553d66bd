//! Shapes of forward attention: sequences of equal lengths in contiguous tensors.
use super::fields;
use super::workload::{Workload, fits};
use super::{count, fields::sizes};
use crate::error::Error;
use ferroflash::plan::Problem;
use reference::{Case, Layout, Memory};
use serde::Deserialize;

/// One shape.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shape {
    batch: usize,
    heads_q: usize,
    heads_k: usize,
    seqlen_q: usize,
    seqlen_k: usize,
    head_dim: usize,
    /// Columns of V and O [default: head_dim].
    head_dim_v: Option<usize>,
    #[serde(default)]
    causal: bool,
    /// Numbers of keys before and after a query's position; -1 is unbounded.
    window: Option<[i64; 2]>,
    /// f16 or bf16 [default: f16].
    dtype: Option<String>,
    /// The precision of the products: inputs, int8-f16, int8-fp8 or fp8 [default: inputs].
    precision: Option<String>,
    /// Whether Q, K and V lie side by side in one buffer.
    #[serde(default)]
    packed: bool,
    /// A name for readers of the report.
    #[serde(rename = "name")]
    _name: Option<String>,
}

impl Shape {
    /// Returns the problem of the shape.
    pub(crate) fn problem(&self) -> Result<Problem, Error> {
        let Self { batch, heads_q, heads_k, seqlen_q, seqlen_k, head_dim, .. } = *self;
        let all = [("batch", batch), ("heads_q", heads_q), ("heads_k", heads_k)];
        sizes(&all)?;
        let head_dim_v = self.head_dim_v.unwrap_or(head_dim);
        sizes(&[("seqlen_q", seqlen_q), ("seqlen_k", seqlen_k)])?;
        sizes(&[("head_dim", head_dim), ("head_dim_v", head_dim_v)])?;
        let dtype = fields::dtype(self.dtype.as_deref())?;
        let rows = heads_q as f64 * seqlen_q as f64 + heads_k as f64 * seqlen_k as f64;
        fits(dtype.bytes() as f64 * batch as f64 * (head_dim + head_dim_v) as f64 * rows)?;
        Ok(Problem::new(dtype, batch, seqlen_q, heads_q, head_dim)
            .head_dim_v(head_dim_v)
            .seqlen_k(seqlen_k)
            .heads_k(heads_k)
            .mask(fields::mask(self.causal, self.window)?)
            .precision(fields::precision(self.precision.as_deref())?))
    }

    /// Returns the inputs of the shape.
    pub(crate) fn memory(&self, problem: Problem) -> Memory {
        Case::tensors(problem, self.layout(), 1).to_measure()
    }

    /// Returns the layout of Q, K, V and O.
    pub(super) fn layout(&self) -> Layout {
        if self.packed { Layout::Packed } else { Layout::Bhsd }
    }

    /// Returns the label of the shape, whose problem is `problem`.
    pub(super) fn label(&self, problem: &Problem) -> String {
        format!("{problem}{}", if self.packed { ", packed QKV" } else { "" })
    }

    /// Returns the workload of the shape.
    pub(super) fn workload(&self) -> Result<Workload, Error> {
        let (problem, shape) = (self.problem()?, self.clone());
        let work = [count::flops(&problem), count::least_bytes(&problem, problem.dtype)];
        Ok(Workload::new(self.label(&problem), work, false, move || shape.memory(problem)))
    }
}
