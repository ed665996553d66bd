//! Attention and its gradients on the CPU, in f32: the plain formulas, for programs and tests without a GPU.
use crate::attend::Attend;
use crate::errors::{invalid, unsupported};
use crate::starts::{Starts, shape_and_strides};
use candle::backend::BackendStorage;
use candle::{CpuStorage, DType, Layout, Result, Shape, Storage, Tensor};
use ferroflash::request::{Mask, Precision};
use std::ops::Range;

/// Q, K, V, O or a gradient in f32, contiguous `[rows of all sequences, heads, columns]`.
struct Rows {
    data: Vec<f32>,
    heads: usize,
    columns: usize,
}

impl Rows {
    fn zeros(&self, columns: usize) -> Self {
        Rows { data: vec![0.0; self.data.len() / self.columns.max(1) * columns], heads: self.heads, columns }
    }

    fn place(&self, row: usize, head: usize) -> Range<usize> {
        let first = (row * self.heads + head) * self.columns;
        first..first + self.columns
    }

    fn at(&self, row: usize, head: usize) -> &[f32] {
        &self.data[self.place(row, head)]
    }

    /// Adds `factor` times these numbers to a row.
    fn add(&mut self, row: usize, head: usize, factor: f32, numbers: &[f32]) {
        let place = self.place(row, head);
        self.data[place].iter_mut().zip(numbers).for_each(|(sum, x)| *sum += factor * x);
    }

    /// Returns the rows with a tensor's shape and dtype.
    fn like(self, tensor: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(Tensor::from_vec(self.data, tensor.shape(), tensor.device())?.to_dtype(tensor.dtype())?))
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// One attention on the CPU.
struct Problem {
    q: Rows,
    k: Rows,
    v: Rows,
    /// The rows of Q, and of K and V, of each sequence.
    sequences: Vec<[Range<usize>; 2]>,
    scale: f32,
    softcap: f32,
    /// ALiBi slopes of the heads, or nothing.
    alibi: Vec<f32>,
    mask: Mask<()>,
}

/// A query of one head, and the keys that it sees.
struct Query {
    row: usize,
    head: usize,
    key_head: usize,
    keys: Range<usize>,
    /// The probability of each key.
    p: Vec<f32>,
    /// The derivative of each score by the product of Q and K.
    slopes: Vec<f32>,
}

impl Problem {
    /// Calls a function for each query that sees a key.
    fn for_each(&self, mut each: impl FnMut(&Query)) {
        for [rows, keys] in &self.sequences {
            for (i, row) in rows.clone().enumerate() {
                let position = (i + keys.len()) as i64 - rows.len() as i64;
                let visible = self.visible(position, keys.len());
                for head in (0..self.q.heads).filter(|_| !visible.is_empty()) {
                    each(&self.query(row, head, position, keys.start, visible.clone()));
                }
            }
        }
    }

    /// Returns the keys that a query at this position of its sequence sees.
    fn visible(&self, position: i64, keys: usize) -> Range<usize> {
        let (left, right) = match self.mask {
            Mask::Causal => (None, Some(0)),
            Mask::Window { left, right } => (left, right),
            _ => (None, None),
        };
        let first = left.map_or(0, |left| position - i64::from(left));
        let end = right.map_or(i64::MAX, |right| position + i64::from(right) + 1);
        first.clamp(0, keys as i64) as usize..end.clamp(0, keys as i64) as usize
    }

    fn query(&self, row: usize, head: usize, position: i64, first: usize, visible: Range<usize>) -> Query {
        let key_head = head / (self.q.heads / self.k.heads);
        let (mut p, mut slopes) = (Vec::with_capacity(visible.len()), Vec::with_capacity(visible.len()));
        for j in visible.clone() {
            let score = self.scale * dot(self.q.at(row, head), self.k.at(first + j, key_head));
            let (score, slope) = match self.softcap {
                0.0 => (score, self.scale),
                cap => {
                    let tanh = (score / cap).tanh();
                    (cap * tanh, self.scale * (1.0 - tanh * tanh))
                }
            };
            let distance = position.abs_diff(j as i64) as f32;
            p.push(self.alibi.get(head).map_or(score, |alibi| score - alibi * distance));
            slopes.push(slope);
        }
        let max = p.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        p.iter_mut().for_each(|score| *score = (*score - max).exp());
        let sum: f32 = p.iter().sum();
        p.iter_mut().for_each(|p| *p /= sum);
        Query { row, head, key_head, keys: first + visible.start..first + visible.end, p, slopes }
    }
}

/// Computes O.
pub(crate) fn forward(
    attend: &Attend,
    starts: Option<&Starts>,
    inputs: [(&CpuStorage, &Layout); 3],
) -> Result<(CpuStorage, Shape)> {
    let p = problem(attend, starts, inputs)?;
    let mut o = p.q.zeros(p.v.columns);
    p.for_each(|q| {
        for (j, p_j) in q.keys.clone().zip(&q.p) {
            o.add(q.row, q.head, *p_j, p.v.at(j, q.key_head));
        }
    });
    let (q, layout) = inputs[0];
    let mut dims = layout.dims().to_vec();
    if let Some(columns) = dims.last_mut() {
        *columns = p.v.columns;
    }
    let shape = Shape::from(dims);
    let o = CpuStorage::F32(o.data).to_dtype(&Layout::contiguous(&shape), q.dtype())?;
    Ok((o, shape))
}

/// Computes the gradients of Q, K and V from the gradient of O.
pub(crate) fn backward(
    attend: &Attend,
    starts: Option<&Starts>,
    inputs: [&Tensor; 3],
    d_o: &Tensor,
) -> Result<[Option<Tensor>; 3]> {
    let stored = inputs.map(Tensor::storage_and_layout);
    let [q, k, v] = &stored;
    let p = problem(attend, starts, [on_cpu(q)?, on_cpu(k)?, on_cpu(v)?])?;
    let d_o = Rows { data: numbers(d_o)?, ..p.q.zeros(p.v.columns) };
    let [mut dq, mut dk, mut dv] = [&p.q, &p.k, &p.v].map(|rows| rows.zeros(rows.columns));
    p.for_each(|q| {
        let d_o = d_o.at(q.row, q.head);
        let dp: Vec<f32> = q.keys.clone().map(|j| dot(d_o, p.v.at(j, q.key_head))).collect();
        let delta = dot(&q.p, &dp);
        for (n, j) in q.keys.clone().enumerate() {
            let ds = q.p[n] * (dp[n] - delta) * q.slopes[n];
            dq.add(q.row, q.head, ds, p.k.at(j, q.key_head));
            dk.add(j, q.key_head, ds, p.q.at(q.row, q.head));
            dv.add(j, q.key_head, q.p[n], d_o);
        }
    });
    let [q, k, v] = inputs;
    Ok([dq.like(q)?, dk.like(k)?, dv.like(v)?])
}

fn on_cpu<'a>(
    (storage, layout): &'a (impl std::ops::Deref<Target = Storage>, &Layout),
) -> Result<(&'a CpuStorage, &'a Layout)> {
    match &**storage {
        Storage::Cpu(storage) => Ok((storage, layout)),
        other => Err(invalid("inputs", format_args!("{:?}", other.device()), "all inputs are on one device")),
    }
}

/// Returns the elements of a tensor on the CPU.
fn numbers(tensor: &Tensor) -> Result<Vec<f32>> {
    tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

/// Checks the inputs, and copies them.
fn problem(attend: &Attend, starts: Option<&Starts>, inputs: [(&CpuStorage, &Layout); 3]) -> Result<Problem> {
    let mut shapes = [[0; 4]; 3];
    let dtype = inputs[0].0.dtype();
    for ((shape, name), (storage, layout)) in shapes.iter_mut().zip(["q", "k", "v"]).zip(inputs) {
        *shape = shape_and_strides(name, layout, starts.is_some())?[0];
        if storage.dtype() != dtype || !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            let value = format_args!("{:?}", storage.dtype());
            return Err(invalid(name, value, "q, k and v have one dtype: f32, f16 or bf16; convert them"));
        }
    }
    let [[batch, rows, heads, columns], k, v] = shapes;
    let [_, keys, key_heads, _] = k;
    if k[0] != batch || k[3] != columns || key_heads == 0 || heads % key_heads != 0 {
        let expected = format_args!("batch {batch}, head_dim {columns}, and heads that divide q's {heads}");
        return Err(invalid("k", format_args!("{k:?}"), expected));
    }
    if v[..3] != k[..3] {
        let expected = format_args!("the shape of k but for head_dim, {k:?}");
        return Err(invalid("v", format_args!("{v:?}"), expected));
    }
    let sinks = attend.extras.sinks.as_ref().map(|_| "sinks");
    let eight_bits = (attend.precision != Precision::Inputs).then_some("precision");
    if let Some(name) = attend.counts().or(sinks).or(eight_bits) {
        let reason = "the CPU computes full and causal masks and windows, softcap and ALiBi; use a GPU";
        return Err(unsupported(format_args!("{name} on the CPU"), reason));
    }
    let alibi = attend.extras.alibi_slopes.as_ref().map(numbers).transpose()?.unwrap_or_default();
    if attend.extras.alibi_slopes.is_some() && alibi.len() != heads {
        let expected = format_args!("one for each of {heads} query heads");
        return Err(invalid("alibi_slopes", alibi.len(), expected));
    }
    if !(attend.softmax_scale > 0.0 && attend.softmax_scale.is_finite()) {
        return Err(invalid("softmax_scale", attend.softmax_scale, "a finite number above 0"));
    }
    let (sequences, max_k) = match starts {
        None => ((0..batch).map(|b| [b * rows..(b + 1) * rows, b * keys..(b + 1) * keys]).collect(), keys),
        Some(Starts { q, k, max_q, max_k }) => {
            let (q, k) = (ranges("seqlens_q", q, *max_q, rows)?, ranges("seqlens_k", k, *max_k, keys)?);
            if q.len() != k.len() {
                let expected = format_args!("{} sequences, as seqlens_q", q.len());
                return Err(invalid("seqlens_k", k.len(), expected));
            }
            (q.into_iter().zip(k).map(|(q, k)| [q, k]).collect(), *max_k)
        }
    };
    let of = |(storage, layout): (&CpuStorage, &Layout), [.., heads, columns]: [usize; 4]| match storage
        .to_dtype(layout, DType::F32)?
    {
        CpuStorage::F32(data) => Ok(Rows { data, heads, columns }),
        other => Err(unsupported(format_args!("{:?}", other.dtype()), "the CPU computes in f32")),
    };
    Ok(Problem {
        q: of(inputs[0], shapes[0])?,
        k: of(inputs[1], k)?,
        v: of(inputs[2], v)?,
        sequences,
        scale: attend.softmax_scale,
        softcap: attend.softcap,
        alibi,
        mask: attend.mask(max_k),
    })
}

/// Returns the rows of the sequences that begin at these offsets.
fn ranges(name: &'static str, starts: &Tensor, longest: usize, rows: usize) -> Result<Vec<Range<usize>>> {
    if !matches!(starts.dtype(), DType::U32 | DType::I32) {
        return Err(invalid(name, format_args!("{:?}", starts.dtype()), "its dtype must be u32 or i32"));
    }
    let starts = starts.to_dtype(DType::I64)?.flatten_all()?.to_vec1::<i64>()?;
    let range = |pair: &[i64]| {
        let [start, end] = [pair[0], pair[1]].map(|start| usize::try_from(start).ok());
        start.zip(end).map(|(start, end)| start..end)
    };
    let expected =
        format_args!("offsets in order, up to {rows} rows, with at most {longest} rows a sequence");
    let fits = |range: &Range<usize>| range.start <= range.end && range.end <= rows && range.len() <= longest;
    let ranges = starts.windows(2).map(|pair| range(pair).filter(fits)).collect::<Option<_>>();
    ranges.ok_or_else(|| invalid(name, format_args!("{starts:?}"), expected))
}
