//! Serving shapes: sequences of any lengths, on a KV cache or as a varlen batch.
use super::count;
use super::fields::{self, Order, sizes};
use super::sequences::Sequences;
use super::workload::{Workload, fits};
use crate::error::Error;
use ferroflash::DType;
use ferroflash::plan::Problem;
use ferroflash::request::Precision;
use reference::{Case, Layout, Pages, Shared};
use serde::Deserialize;

/// One shape.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shape {
    sequences: Sequences,
    heads_q: usize,
    heads_k: usize,
    head_dim: usize,
    /// f16 or bf16 [default: f16].
    dtype: Option<String>,
    #[serde(default)]
    causal: bool,
    /// Numbers of keys before and after a query's position; -1 is unbounded.
    window: Option<[i64; 2]>,
    softcap: Option<f32>,
    /// The precision of the products [default: inputs].
    precision: Option<String>,
    /// Keys per page. 0 makes a dense cache, in which each sequence has room for the longest sequence.
    /// Without this field, there is no cache, and the sequences are varlen tensors.
    page: Option<usize>,
    /// Layout of a cache [default: NHD].
    layout: Option<Order>,
    /// e4m3, int8, or the queries' type [default].
    kv_dtype: Option<String>,
    /// Whether there are sink logits.
    #[serde(default)]
    sinks: bool,
    /// The number of groups of equal numbers of consecutive sequences, and the number of first pages that the
    /// sequences of a group share.
    shared: Option<[usize; 2]>,
    /// The columns of a latent cache's values, which are the first columns of its keys (MLA).
    latent: Option<usize>,
    /// Whether each query has a list of keys of a latent cache (sparse MLA). A query is then a sequence, and
    /// its number of keys is the length of its list.
    #[serde(default)]
    listed: bool,
    /// A name for readers of the report.
    #[serde(rename = "name")]
    _name: Option<String>,
}

impl Shape {
    /// Returns the workload of the shape.
    pub(super) fn workload(&self) -> Result<Workload, Error> {
        let Self { heads_q, heads_k, head_dim, .. } = *self;
        sizes(&[("heads_q", heads_q), ("heads_k", heads_k), ("head_dim", head_dim)])?;
        let dtype = fields::dtype(self.dtype.as_deref())?;
        let lengths = self.sequences.lengths()?;
        let one = Problem::new(dtype, 1, 0, heads_q, head_dim).heads_k(heads_k);
        let one = one.mask(fields::mask(self.causal, self.window)?);
        let one = one.softcap(self.softcap.unwrap_or_default());
        let one = one.precision(fields::precision(self.precision.as_deref())?);
        let rows: f64 = lengths.iter().map(|[q, _]| *q as f64).sum();
        fits(2.0 * rows * heads_q as f64 * head_dim as f64 * dtype.bytes() as f64)?;
        match self.page {
            Some(page) => self.cached(one, lengths, page),
            None => self.varlen(one, &lengths),
        }
    }

    /// Returns the floating-point operations, and the fewest bytes.
    fn counted(one: Problem, lengths: &[[usize; 2]], cache: DType) -> [f64; 2] {
        let each = lengths.iter().map(|[q, k]| one.seqlen_q(*q).seqlen_k(*k));
        let each = each.map(|p| [count::flops(&p), count::least_bytes(&p, cache)]);
        each.fold([0.0; 2], |[flops, bytes], [f, b]| [flops + f, bytes + b])
    }

    fn cached(&self, one: Problem, lengths: Vec<[usize; 2]>, page: usize) -> Result<Workload, Error> {
        let (order, cache) =
            (self.layout.unwrap_or_default(), fields::kv_dtype(self.kv_dtype.as_deref(), one.dtype)?);
        let row = one.head_dim as f64 * one.dtype.bytes() as f64;
        let stored = fields::row_bytes(cache, one.dtype, one.head_dim, self.latent)? as f64;
        let filled: Vec<_> = lengths.iter().map(|[_, k]| *k).collect();
        let longest = filled.iter().copied().max().unwrap_or(0);
        let room = |keys: usize| if page == 0 { longest } else { keys.div_ceil(page).saturating_mul(page) };
        let rows: f64 = filled.iter().map(|keys| room(*keys) as f64).sum();
        let table = 4.0 * filled.len() as f64 * longest as f64 / page.max(1) as f64;
        fits(table + 2.0 * rows * one.heads_k as f64 * stored)?;
        if self.listed && (self.latent.is_none() || lengths.iter().any(|[q, _]| *q != 1)) {
            let why = "lists are of a latent cache, and each query is a sequence; set latent, and 1 query \
                       for each sequence";
            return Err(Error::Invalid(format!("listed: {why}")));
        }
        // A graph's batch is padded with sequences without keys. Such a sequence may have any number of
        // queries.
        let mut queries: Vec<_> = lengths.iter().filter(|[_, k]| *k > 0).map(|[q, _]| *q).collect();
        queries.dedup();
        let case = Case {
            dtype: one.dtype,
            kv_dtype: Some(cache),
            heads: [one.heads_q, one.heads_k],
            head_dim: one.head_dim,
            pages: match (page, order) {
                (0, Order::Nhd) => Pages::Dense,
                (0, Order::Hnd) => Pages::DenseHnd,
                (page, Order::Nhd) => Pages::Nhd(page),
                (page, Order::Hnd) => Pages::Hnd(page),
            },
            mask: one.mask,
            softcap: one.softcap,
            precision: one.precision,
            sinks: self.sinks,
            shared: self.shared(&filled, page)?,
            head_dim_v: self.latent,
            latent: self.latent.is_some(),
            listed: self.listed,
            // A latent cache has no default scale. This one is DeepSeek's, without YaRN.
            scale: self.latent.map(|_| 192f32.sqrt().recip()),
            ..Case::new(filled)
        };
        let case = match queries[..] {
            [queries] => {
                // Sequences without keys have this number of queries too.
                fits(2.0 * lengths.len() as f64 * queries as f64 * one.heads_q as f64 * row)?;
                Case { queries, ..case }
            }
            _ => case.varlen_queries(lengths.iter().map(|[q, _]| *q).collect::<Vec<_>>()),
        };
        let place = if page == 0 { "dense cache".into() } else { format!("pages of {page}") };
        let sinks = if self.sinks { ", sinks" } else { "" };
        let lists = if self.listed { ", lists" } else { "" };
        let latent = self.latent.map_or(String::new(), |columns| format!(", latent {columns}{lists}"));
        let shared = self
            .shared
            .map_or(String::new(), |[groups, pages]| format!(", {groups} groups share {pages} pages"));
        let label = self.label(&one, cache, format_args!("{place} {order}{sinks}{latent}{shared}"));
        let alive: Vec<_> = lengths.into_iter().filter(|[_, keys]| *keys > 0).collect();
        let columns = self.latent.unwrap_or(one.head_dim);
        let [flops, bytes] = Self::counted(one.head_dim_v(columns), &alive, cache);
        // A launch reads the rows of a latent cache, and the pages of a group, once.
        let key = (one.heads_k * cache.bytes()) as f64;
        let again = self.shared.map_or(0, |[groups, pages]| (alive.len() - groups) * pages * page) as f64;
        let keys = alive.iter().map(|[_, keys]| *keys as f64).sum::<f64>();
        let both = if self.latent.is_some() { one.head_dim } else { 2 * one.head_dim } as f64;
        let values = self.latent.map_or(0.0, |columns| keys * key * columns as f64);
        let scales = keys * one.heads_k as f64 * (stored - (one.head_dim * cache.bytes()) as f64);
        let work = [flops, bytes + scales - values - again * key * both];
        Ok(Workload::new(label, work, true, move || case.to_measure()))
    }

    /// Returns the shared prefixes of sequences with these numbers of keys.
    fn shared(&self, filled: &[usize], page: usize) -> Result<Option<Shared>, Error> {
        let Some([groups, pages]) = self.shared else { return Ok(None) };
        let is_even = groups > 0 && filled.len().is_multiple_of(groups);
        if page == 0 || !is_even || pages == 0 || filled.iter().any(|keys| keys / page < pages) {
            let why = "there must be 1 group or more of equal numbers of sequences, and each sequence must \
                       have these pages of a paged cache";
            return Err(Error::Invalid(format!("shared [{groups}, {pages}]: {why}")));
        }
        let groups = vec![[filled.len() / groups, pages]; groups];
        Ok(Some(Shared { always: false, ..Shared::new(groups) }))
    }

    fn varlen(&self, one: Problem, lengths: &[[usize; 2]]) -> Result<Workload, Error> {
        let of_a_cache = match (self.layout, &self.kv_dtype, self.sinks) {
            (Some(layout), ..) => Some(format!("layout {layout}")),
            (_, Some(name), _) => Some(format!("kv_dtype {name}")),
            (.., true) => Some("sinks".to_owned()),
            _ if self.shared.is_some() => Some("shared".to_owned()),
            _ if self.latent.is_some() => Some("latent".to_owned()),
            _ if self.listed => Some("listed".to_owned()),
            (None, None, false) => None,
        };
        if let Some(field) = of_a_cache {
            let why =
                "varlen tensors have no cache; leave it out, or give the cache's page (0 for a dense cache)";
            return Err(Error::Invalid(format!("{field} without page: {why}")));
        }
        let rows: f64 = lengths.iter().map(|[_, k]| *k as f64).sum();
        fits(2.0 * rows * one.heads_k as f64 * one.head_dim as f64 * one.dtype.bytes() as f64)?;
        let most = i32::MAX as usize;
        let rows = [0, 1].map(|side| lengths.iter().map(|lengths| lengths[side]).sum::<usize>());
        if let Some(rows) = rows.into_iter().find(|rows| *rows > most) {
            let what = format!("sequences of {rows} rows: varlen tensors have at most {most}");
            return Err(Error::Invalid(what));
        }
        let label = self.label(&one, one.dtype, format_args!("packed"));
        let work = Self::counted(one, lengths, one.dtype);
        let sequences = lengths.iter().map(|[queries, keys]| [*queries, *keys, 0]);
        let case = Case { spare: [0; 2], ..Case::tensors(one, Layout::Bshd, 1).varlen(sequences) };
        Ok(Workload::new(label, work, false, move || case.to_measure()))
    }

    /// Prints, for example, `f16 on e4m3, sequences 64 x 1/8192, heads 32/8, head_dim 128, full, pages of 16
    /// NHD`.
    fn label(&self, one: &Problem, cache: DType, place: std::fmt::Arguments<'_>) -> String {
        let Problem { dtype, heads_q, heads_k, head_dim, mask, softcap, precision, .. } = one;
        let types = fields::types(*dtype, cache);
        let softcap = softcap.map_or(String::new(), |softcap| format!("softcap {softcap}, "));
        let precision = match precision {
            Precision::Inputs => String::new(),
            precision => format!("precision {}, ", precision.name()),
        };
        let sequences = &self.sequences;
        format!("{types}, sequences {sequences}, heads {heads_q}/{heads_k}, head_dim {head_dim}, ")
            + &format!("{mask}, {softcap}{precision}{place}")
    }
}
