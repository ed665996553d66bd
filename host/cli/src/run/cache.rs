//! `ferroflash run` on a cache: few queries a sequence, keys and values in pages.
use super::FileLayout;
use crate::device::{Device, Results};
use crate::error::Error;
use crate::files::{CACHES, Elements, File, HALVES};
use crate::options::ScoreOptions;
use ferroflash::{Alignment, DType, PageView, Problem};

mod launch;
mod right;

/// Tensors of a file with a cache.
const TENSORS: [&str; 9] =
    ["q", "k_cache", "v_cache", "seqused_k", "block_table", "cu_seqlens_q", "k_scale", "v_scale", "sinks"];

/// What is not read yet.
const EVEN: &str = "in this program each sequence of a cache must have as many queries as the others so far; \
                    the library takes any (`Decode::packed`)";

/// A file's queries and cache.
pub(crate) struct Input {
    /// One sequence's with as many keys as one may have, `batch` of them.
    pub problem: Problem,
    /// Shape of `q` in the file: `[T, H, D]` or `[B, S, H, D]`.
    pub shape: Vec<usize>,
    q: Vec<u16>,
    /// Keys and values, whose type may be another than the queries'.
    pool: [Vec<u8>; 2],
    /// What the numbers of keys and of values are multiplied by: one for all key heads, or one each.
    scales: [Option<Vec<f32>>; 2],
    pages: PageView,
    /// Page numbers, and how many a sequence has.
    table: Option<(Vec<i32>, usize)>,
    lengths: Vec<i32>,
    sinks: Option<Vec<f32>>,
}

impl Input {
    /// Reads `q`, `k_cache`, `v_cache`, `seqused_k`, and where present `block_table`, `k_scale`, `v_scale`
    /// and `sinks`.
    pub(super) fn read(file: &File<'_>, layout: FileLayout, scores: &ScoreOptions) -> Result<Self, Error> {
        if file.has("alibi_slopes") {
            let what = "`alibi_slopes`: this program takes them beside q, k and v alone so far";
            return Err(file.invalid(format_args!("{what}; on a cache the library does (`Decode::alibi`)")));
        }
        file.only("q and a cache", &TENSORS)?;
        let lengths = file.list("seqused_k")?;
        let q = file.elements("q", HALVES)?;
        let (batch, shape) = (lengths.len(), q.shape.clone());
        let rows = shape.iter().rev().skip(2).product::<usize>();
        let (&[.., heads_q, head_dim], 3 | 4) = (&shape[..], shape.len()) else {
            return Err(
                file.invalid(format_args!("`q` has shape {shape:?}; [T, H, D] or [B, S, H, D] is needed"))
            );
        };
        if batch == 0 || !rows.is_multiple_of(batch) || shape.len() == 4 && shape[0] != batch {
            let what = format_args!("`q` has shape {shape:?}, `seqused_k` {batch} sequences");
            return Err(file.invalid(format_args!("{what}: {EVEN}")));
        }
        let (keys, values) = (file.elements("k_cache", CACHES)?, file.elements("v_cache", CACHES)?);
        let pages = pages(file, layout, &keys)?;
        if (values.dtype, &values.shape) != (keys.dtype, &keys.shape) {
            let [v, k] = [&values, &keys].map(|tensor| format!("{} {:?}", tensor.dtype.name(), tensor.shape));
            let what = format_args!("`v_cache` is {v}, `k_cache` {k}: both must be the same");
            return Err(file.invalid(what));
        }
        let [count, page, heads_k, _] = pages.shape;
        let table = table(file, batch)?;
        if table.is_none() && count < batch {
            let what = format_args!("`k_cache` has {count} pages, `seqused_k` {batch} sequences");
            return Err(file.invalid(format_args!("{what}: without `block_table` each must have its page")));
        }
        let capacity = table.as_ref().map_or(1, |(_, columns)| *columns).saturating_mul(page);
        let problem = Problem::new(q.dtype, batch, rows / batch, heads_q, head_dim);
        let problem = scores.of(problem.seqlen_k(capacity).heads_k(heads_k));
        if problem.alignment != Alignment::BottomRight {
            return Err(Error::Invalid(
                "--top-left: the last query stands at the last key of a cache".into(),
            ));
        }
        let scales = [scale(file, "k_scale", &pages)?, scale(file, "v_scale", &pages)?];
        let sinks = sinks(file, heads_q)?;
        let (q, pool) = (q.halves(), [keys.bytes, values.bytes]);
        let input = Input { problem, shape, q, pool, scales, pages, table, lengths, sinks };
        input.is_there(file)?;
        Ok(input)
    }

    /// Decodes on a device. `config` names a kernel.
    pub(super) fn run(&self, device: &Device, config: Option<&str>) -> Result<Results, Error> {
        match (device.runner(), config) {
            (Some(runner), config) => Ok(runner.decode(self, config)?),
            (None, Some(name)) => Err(Device::has_no_kernel(name)),
            (None, None) => self.compute(),
        }
    }

    /// Checks the numbers that kernels would clamp.
    fn is_there(&self, file: &File<'_>) -> Result<(), Error> {
        if file.has("cu_seqlens_q") {
            let (starts, _) = file.integers("cu_seqlens_q")?;
            let even = (0..=self.problem.batch).map(|b| (b * self.problem.seqlen_q) as i32);
            if !starts.iter().copied().eq(even) {
                return Err(file.invalid(format_args!("`cu_seqlens_q` is {starts:?}: {EVEN}")));
            }
        }
        let [pages, page, ..] = self.pages.shape;
        for (b, length) in self.lengths.iter().enumerate() {
            let capacity = self.problem.seqlen_k;
            let Some(keys) = usize::try_from(*length).ok().filter(|keys| *keys <= capacity) else {
                let what = format_args!("`seqused_k[{b}]` is {length}");
                return Err(file.invalid(format_args!("{what}; there is room for {capacity} keys")));
            };
            let is_there = |number: i32| usize::try_from(number).is_ok_and(|number| number < pages);
            let mut numbers = (0..keys.div_ceil(page)).map(|i| self.page(b, i));
            if let Some(number) = numbers.find(|number| !is_there(*number)) {
                let what = format_args!("`block_table` has page {number} for sequence {b}");
                return Err(file.invalid(format_args!("{what}; `k_cache` has {pages}")));
            }
        }
        Ok(())
    }

    /// The number of page `i` of sequence `b`.
    fn page(&self, b: usize, i: usize) -> i32 {
        self.table.as_ref().map_or(b as i32, |(table, columns)| table[b * columns + i])
    }

    /// Shape of LSE, and elements from one sequence and from one head to the next.
    pub(super) fn lse(&self) -> (Vec<usize>, [usize; 2]) {
        let Problem { batch, seqlen_q, heads_q, .. } = self.problem;
        match self.shape.len() {
            3 => (vec![heads_q, batch * seqlen_q], [seqlen_q, batch * seqlen_q]),
            _ => (vec![batch, heads_q, seqlen_q], [heads_q * seqlen_q, seqlen_q]),
        }
    }
}

/// How keys lie in their pages.
fn pages(file: &File<'_>, layout: FileLayout, keys: &Elements) -> Result<PageView, Error> {
    let [pages, b, c, d] = keys.shape[..] else {
        let what = format_args!("`k_cache` has shape {:?}; four sizes are needed", keys.shape);
        return Err(file.invalid(what));
    };
    let elements = keys.shape.iter().product::<usize>() as u64;
    Ok(match layout {
        FileLayout::Bshd => PageView::nhd(0, elements, keys.dtype, [pages, b, c, d]),
        FileLayout::Bhsd => PageView::hnd(0, elements, keys.dtype, [pages, c, b, d]),
    })
}

/// Page numbers, and how many each of so many sequences has.
fn table(file: &File<'_>, batch: usize) -> Result<Option<(Vec<i32>, usize)>, Error> {
    if !file.has("block_table") {
        return Ok(None);
    }
    let (table, shape) = file.integers("block_table")?;
    match shape[..] {
        [rows, columns] if rows == batch && columns > 0 => Ok(Some((table, columns))),
        _ => Err(file.invalid(format_args!("`block_table` has shape {shape:?}, not [{batch}, columns]"))),
    }
}

/// What the numbers of an e4m3 cache are multiplied by.
fn scale(file: &File<'_>, name: &str, pages: &PageView) -> Result<Option<Vec<f32>>, Error> {
    let scale = file.per_head(name, pages.shape[2], true)?;
    if scale.is_some() && pages.dtype != DType::E4m3 {
        let what = format_args!("`{name}`: `k_cache` is {}", pages.dtype.name());
        return Err(file.invalid(format_args!("{what}, and only a cache of e4m3 (F8_E4M3) has scales")));
    }
    if let Some(wrong) = scale.iter().flatten().find(|x| !(x.is_normal() && **x > 0.0)) {
        return Err(file.invalid(format_args!("`{name}` has {wrong:e}; it must be a normal f32 above 0")));
    }
    Ok(scale)
}

/// Logits that belong to no key, one for each query head.
fn sinks(file: &File<'_>, heads: usize) -> Result<Option<Vec<f32>>, Error> {
    let sinks = file.per_head("sinks", heads, false)?;
    // One of -inf belongs to a head that has none.
    if let Some(wrong) = sinks.iter().flatten().find(|x| x.is_nan() || **x == f32::INFINITY) {
        return Err(file.invalid(format_args!("`sinks` has {wrong}; a logit is a number below infinity")));
    }
    Ok(sinks)
}
