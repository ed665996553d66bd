//! `ferroflash run` on a KV cache.
use super::extras;
use crate::error::Error;
use crate::files::{CACHES, Elements, File, HALVES, LATENTS};
use crate::options::{FileLayout, ScoreOptions};
use ferroflash::DType;
use ferroflash::plan::Problem;
use ferroflash::request::{Alignment, MAX_LATENT_DIMS, TensorView};
use ferroflash::spec::E4m3Scaled;
use reference::Extras;
use std::ops::Range;

mod checks;
mod launch;
mod listed;
mod right;

/// Tensors of a file with a cache.
const TENSORS: [&str; 9] = [
    "q",
    "k_cache",
    "v_cache",
    "seqused_k",
    "block_table",
    "cu_seqlens_q",
    "alibi_slopes",
    "k_scale",
    "v_scale",
];

/// A file's queries and cache.
pub(crate) struct Input {
    /// The problem of `batch` sequences with the maximum number of keys. The problem is varlen if the
    /// sequences' query counts differ.
    pub problem: Problem,
    /// Shape of `q` in the file: `[T, H, D]` or `[B, S, H, D]`.
    pub shape: Vec<usize>,
    q: Vec<u16>,
    /// The first row of each sequence in `q`, and the end of the last sequence.
    starts: Vec<usize>,
    /// Keys and values. Their dtype may differ from the queries' dtype. A latent cache has keys only.
    pool: [Vec<u8>; 2],
    /// The number of columns of a latent cache's values, which are the first columns of keys, or `None` if
    /// the file has values.
    v_width: Option<usize>,
    /// Scales of keys and of values: one for all key heads, or one per key head. An int8 cache has one per
    /// row and key head, `[pages, page, heads]`.
    scales: [Option<Vec<f32>>; 2],
    pages: TensorView,
    /// The layout of values in their pages.
    values: TensorView,
    /// Page indices, and their number per sequence.
    table: Option<(Vec<i32>, usize)>,
    lengths: Vec<i32>,
    /// The lists of keys of a latent cache. Each query is then a sequence.
    lists: Option<listed::Lists>,
    /// The number of groups whose sequences share their first pages, and the number of these pages.
    shared: Option<[usize; 2]>,
    sinks: Option<Vec<f32>>,
    /// Slopes, bias and masks.
    extras: Extras,
}

impl Input {
    /// Reads `q`, `k_cache`, `v_cache`, `seqused_k`, and if present `cu_seqlens_q`, `block_table`,
    /// `alibi_slopes`, `k_scale`, `v_scale` and `sinks`. With `v_width`, the file has a latent cache and no
    /// `v_cache`. With `shared`, sequences share their first pages. A file with `indices` has lists of keys.
    pub(super) fn read(
        file: &File<'_>,
        layout: FileLayout,
        scores: &ScoreOptions,
        v_width: Option<usize>,
        shared: Option<[usize; 2]>,
    ) -> Result<Self, Error> {
        if file.has("indices") {
            return Self::read_listed(file, layout, scores, v_width, shared);
        }
        file.only("q and a cache", &[&TENSORS[..], &extras::NAMES].concat())?;
        let lengths = file.list("seqused_k")?;
        let q = file.elements("q", HALVES)?;
        let (batch, shape) = (lengths.len(), q.shape.clone());
        let rows = shape.iter().rev().skip(2).product::<usize>();
        let (&[.., heads_q, head_dim], 3 | 4) = (&shape[..], shape.len()) else {
            return Err(file.invalid(format_args!(
                "`q` has shape {shape:?}; it must be [total_q, H, D] or [B, S, H, D]"
            )));
        };
        let starts = starts(file, &shape, batch, rows)?;
        let is_varlen = !starts.iter().copied().eq(even(batch, rows));
        if v_width.is_none() && !file.has("v_cache") {
            return Err(file.invalid(NO_VALUES));
        }
        let keys = file.elements("k_cache", if v_width.is_some() { LATENTS } else { CACHES })?;
        let pages = pages(file, layout, &keys)?;
        let (values, value_bytes) = values(file, layout, &keys, &pages, v_width)?;
        let [count, page, heads_k, _] = pages.shape;
        if columns_of(&pages) != head_dim {
            let what = format_args!("`q` has shape {shape:?} and `k_cache` {:?}", keys.shape);
            return Err(file.invalid(format_args!("{what}; {EQUAL}")));
        }
        let table = table(file, batch)?;
        if table.is_none() && count < batch {
            let what = format_args!("`k_cache` has {count} pages and `seqused_k` {batch} sequences");
            return Err(file.invalid(format_args!("{what}; add a `block_table`, or one page per sequence")));
        }
        let capacity = table.as_ref().map_or(1, |(_, columns)| *columns).saturating_mul(page);
        let longest_k = lengths.iter().copied().max().unwrap_or(0).max(1) as usize;
        let capacity = of_bias(file, capacity, longest_k);
        let longest = starts.windows(2).map(|rows| rows[1] - rows[0]).max().unwrap_or(0).max(1);
        let problem = Problem::new(q.dtype, batch, longest, heads_q, head_dim);
        let problem = problem.seqlen_k(capacity).heads_k(heads_k);
        let problem = problem.head_dim_v(if v_width.is_some() { head_dim } else { values.shape[3] });
        let problem = scores.of(problem.varlen(is_varlen.then_some([rows, capacity])));
        if problem.alignment != Alignment::BottomRight {
            return Err(Error::Invalid(
                "--top-left: on a cache, the last query has the last key's position; leave it out".into(),
            ));
        }
        let scales = [scale(file, "k_scale", &pages)?, scale(file, "v_scale", &pages)?];
        // A later check refuses longer sequences by their own name.
        let mut extras = extras::read(file, &problem, longest_k.min(capacity), scores)?;
        let problem = extras.of(problem);
        let sinks = extras.sinks.take();
        let (q, pool) = (q.halves(), [keys.bytes, value_bytes]);
        let input = Input {
            problem,
            shape,
            q,
            starts,
            pool,
            v_width,
            scales,
            pages,
            values,
            table,
            lengths,
            lists: None,
            shared,
            sinks,
            extras,
        };
        input.is_there(file)?;
        input.has_scales(file)?;
        input.has_shared_pages(file)?;
        Ok(input)
    }

    /// Returns the number of columns of values and of O.
    fn columns(&self) -> usize {
        self.values.shape[3]
    }

    /// Returns the number of rows of O: the rows of `q`, over all heads.
    fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// Returns the shape of O in the file.
    pub(super) fn o_shape(&self) -> Vec<usize> {
        let [sizes @ .., _] = &self.shape[..] else { return vec![] };
        [sizes, &[self.columns()]].concat()
    }

    /// Returns the keys of each sequence behind its shared pages.
    fn rest(&self) -> Vec<i32> {
        let shared = self.shared.map_or(0, |[_, pages]| pages.saturating_mul(self.pages.shape[1]));
        let shared = i32::try_from(shared).unwrap_or(i32::MAX);
        self.lengths.iter().map(|length| length.saturating_sub(shared)).collect()
    }

    /// Returns the index of page `i` of sequence `b`.
    fn page(&self, b: usize, i: usize) -> i32 {
        self.table.as_ref().map_or(b as i32, |(table, columns)| table[b * columns + i])
    }

    /// Returns the rows of sequence `b` in `q`.
    fn rows_of(&self, b: usize) -> Range<usize> {
        self.starts[b]..self.starts[b + 1]
    }

    /// Returns the shape of LSE in the file, and the strides between sequences and between heads in a
    /// launch's LSE. Varlen sequences are one batch entry.
    pub(super) fn lse(&self) -> (Vec<usize>, [usize; 2]) {
        let Problem { batch, seqlen_q, heads_q, .. } = self.problem;
        match self.shape[..] {
            [rows, ..] if self.shape.len() == 3 => (vec![heads_q, rows], [seqlen_q, rows]),
            [sequences, rows, ..] if self.lists.is_some() => (vec![sequences, heads_q, rows], [1, batch]),
            _ => (vec![batch, heads_q, seqlen_q], [heads_q * seqlen_q, seqlen_q]),
        }
    }

    /// Returns the positions of sequence `b`'s rows in the file's LSE, head by head.
    fn lse_of(&self, b: usize) -> impl Iterator<Item = usize> + use<> {
        let (rows, (of, [sequence, head])) = (self.rows_of(b), self.lse());
        let (first, head) = match of[..] {
            [_, heads, queries] if self.lists.is_some() => {
                (b / queries * heads * queries + b % queries, queries)
            }
            [_, _, _] => (b * sequence, head),
            _ => (rows.start, head),
        };
        let count = rows.len();
        (0..self.problem.heads_q).flat_map(move |m| (0..count).map(move |row| first + m * head + row))
    }
}

/// Returns the maximum number of keys per sequence that a launch states. A bias has at least this number of
/// columns, and the number is at least the longest sequence's number of keys.
fn of_bias(file: &File<'_>, capacity: usize, longest: usize) -> usize {
    let columns = file.tensor("bias").ok().and_then(|bias| bias.shape().last().copied());
    columns.filter(|columns| (longest..=capacity).contains(columns)).unwrap_or(capacity)
}

/// Returns offsets with an equal number of rows per sequence, if this number of sequences divides the rows.
fn even(batch: usize, rows: usize) -> impl Iterator<Item = usize> {
    (0..=batch).map(move |b| b * (rows / batch))
}

/// Returns offsets of sequences in this number of rows of `q`.
fn starts(file: &File<'_>, shape: &[usize], batch: usize, rows: usize) -> Result<Vec<usize>, Error> {
    let are_even = batch > 0 && rows.is_multiple_of(batch) && (shape.len() == 3 || shape[0] == batch);
    if !file.has("cu_seqlens_q") {
        let what = format_args!("`q` has shape {shape:?} and `seqused_k` {batch} sequences");
        let wanted = "add `cu_seqlens_q`, or make `q` [sequences, queries, heads, head_dim] or [total_q, \
                      heads, head_dim] with the same number of rows for each sequence";
        let wrong = || file.invalid(format_args!("{what}; {wanted}"));
        return are_even.then(|| even(batch, rows).collect()).ok_or_else(wrong);
    }
    let all = file.list("cu_seqlens_q")?;
    let starts: Vec<_> = all.iter().map_while(|start| usize::try_from(*start).ok()).collect();
    let rises = starts.is_sorted() && starts.first() == Some(&0) && starts.last() <= Some(&rows);
    if batch == 0 || starts.len() != batch + 1 || all.len() != starts.len() || !rises {
        let wanted = format_args!("{} integers, 0 first, never decreasing", batch + 1);
        let what =
            format_args!("`cu_seqlens_q` is {all:?}; it must have {wanted}, none above the {rows} rows");
        return Err(file.invalid(what));
    }
    if shape.len() == 4 && !(are_even && starts.iter().copied().eq(even(batch, rows))) {
        let what = format_args!("`q` has shape {shape:?}; with this `cu_seqlens_q` it must be [T, H, D]");
        return Err(file.invalid(what));
    }
    Ok(starts)
}

/// Returns the layout and the bytes of values. A latent cache has no separate values: `v_width` columns of
/// its keys are the values.
fn values(
    file: &File<'_>,
    layout: FileLayout,
    keys: &Elements,
    pages: &TensorView,
    v_width: Option<usize>,
) -> Result<(TensorView, Vec<u8>), Error> {
    let head_dim = keys.shape.last().copied().unwrap_or(0);
    match v_width {
        None if !file.has("v_cache") => Err(file.invalid(NO_VALUES)),
        Some(_) if file.has("v_scale") => Err(file.invalid(
            "has `v_scale`; the values of a latent cache are columns of `k_cache`, and have its `k_scale`: \
             remove `v_scale`",
        )),
        Some(width) if file.has("v_cache") => Err(Error::Invalid(format!(
            "--v-width {width}: the values of a latent cache are columns of `k_cache`, and the file has a \
             `v_cache`; remove one of the two"
        ))),
        Some(width) if width == 0 || !width.is_multiple_of(8) || width > head_dim.min(MAX_LATENT_DIMS[1]) => {
            Err(Error::Invalid(format!(
                "--v-width {width}: it must be a multiple of 8, from 8 to {}: the values are the first \
                 columns of `k_cache`, which has {head_dim} columns",
                head_dim.min(MAX_LATENT_DIMS[1])
            )))
        }
        Some(width) => {
            let [count, page, heads, _] = pages.shape;
            Ok((TensorView { shape: [count, page, heads, width], ..*pages }, vec![]))
        }
        None => {
            let values = file.elements("v_cache", CACHES)?;
            if values.dtype != keys.dtype {
                let [v, k] = [values.dtype, keys.dtype].map(DType::name);
                let what = format_args!("`v_cache` is {v} and `k_cache` is {k}; convert both to one type");
                return Err(file.invalid(what));
            }
            if values.shape.len() != 4 || values.shape[..3] != keys.shape[..3] {
                let what = format_args!(
                    "`v_cache` has shape {:?} and `k_cache` {:?}; all sizes but the last must be equal",
                    values.shape, keys.shape
                );
                return Err(file.invalid(what));
            }
            Ok((self::pages(file, layout, &values)?, values.bytes))
        }
    }
}

/// Returns the layout of keys in their pages.
fn pages(file: &File<'_>, layout: FileLayout, keys: &Elements) -> Result<TensorView, Error> {
    let [pages, b, c, d] = keys.shape[..] else {
        let wanted =
            "it must be [pages, page, heads, head_dim], or with --layout bhsd [pages, heads, page, ..]";
        return Err(file.invalid(format_args!("`k_cache` has shape {:?}; {wanted}", keys.shape)));
    };
    if keys.dtype == DType::E4m3Scaled && d != E4m3Scaled::ROW_BYTES {
        let wanted = "a U8 cache has rows of 656 bytes; write rows of e4m3 as F8_E4M3";
        return Err(file.invalid(format_args!("`k_cache` has shape {:?}; {wanted}", keys.shape)));
    }
    let elements = keys.shape.iter().product::<usize>() as u64;
    Ok(match layout {
        FileLayout::Bshd => TensorView::bshd(0, elements, keys.dtype, [pages, b, c, d]),
        FileLayout::Bhsd => TensorView::bhsd(0, elements, keys.dtype, [pages, c, b, d]),
    })
}

/// The remedy that the error of a file without values names.
const NO_VALUES: &str =
    "there is no `v_cache`; add it, or use --v-width if values are the first columns of `k_cache`";

/// The requirements on a file's queries and cache.
const EQUAL: &str = "the last size, head_dim, must be equal, or 656 bytes (U8) for 576 columns";

/// Returns the number of columns for which a row of keys stands.
fn columns_of(pages: &TensorView) -> usize {
    match (pages.dtype, pages.shape[3]) {
        (DType::E4m3Scaled, E4m3Scaled::ROW_BYTES) => E4m3Scaled::COLUMNS,
        (_, columns) => columns,
    }
}

/// Returns page indices, and their number per sequence.
fn table(file: &File<'_>, batch: usize) -> Result<Option<(Vec<i32>, usize)>, Error> {
    if !file.has("block_table") {
        return Ok(None);
    }
    let (table, shape) = file.integers("block_table")?;
    match shape[..] {
        [rows, columns] if rows == batch && columns > 0 => Ok(Some((table, columns))),
        _ => {
            let wanted = format_args!("it must be [{batch}, columns], one row per entry of `seqused_k`");
            Err(file.invalid(format_args!("`block_table` has shape {shape:?}; {wanted}")))
        }
    }
}

/// Returns the scale of an e4m3 KV cache, or the scales of an int8 KV cache.
fn scale(file: &File<'_>, name: &str, pages: &TensorView) -> Result<Option<Vec<f32>>, Error> {
    if pages.dtype == DType::Int8 {
        let [count, page, heads, _] = pages.shape;
        return file.per_token(name, [count, page, heads]).map(Some);
    }
    let scale = file.per_head(name, pages.shape[2], true)?;
    if scale.is_some() && pages.dtype != DType::E4m3 {
        let what = format_args!("has `{name}`, and `k_cache` is {}", pages.dtype.name());
        return Err(
            file.invalid(format_args!("{what}; only an F8_E4M3 or I8 cache has scales, remove `{name}`"))
        );
    }
    if let Some(wrong) = scale.iter().flatten().find(|x| !(x.is_normal() && **x > 0.0)) {
        return Err(file.invalid(format_args!("`{name}` has {wrong:e}; it must be a normal f32 above 0")));
    }
    Ok(scale)
}
