//! Files whose queries have lists of keys of a latent cache.
use super::{EQUAL, Input, columns_of, pages, scale, values};
use crate::error::Error;
use crate::files::{File, HALVES, LATENTS};
use crate::options::{FileLayout, ScoreOptions};
use crate::run::extras;
use ferroflash::plan::Problem;

/// Tensors of a file with lists.
const TENSORS: [&str; 4] = ["q", "k_cache", "indices", "k_scale"];

/// The lists of a file's queries, `[queries, latent heads, topk]`.
pub(super) struct Lists {
    pub indices: Vec<i32>,
    pub topk: usize,
}

impl Input {
    /// Reads `q`, `k_cache`, `indices`, and if present `k_scale` and `sinks`. Each query is a sequence of the
    /// problem.
    pub(super) fn read_listed(
        file: &File<'_>,
        layout: FileLayout,
        scores: &ScoreOptions,
        v_width: Option<usize>,
        shared: Option<[usize; 2]>,
    ) -> Result<Self, Error> {
        file.only("lists of keys (`indices`)", &[&TENSORS[..], &extras::NAMES].concat())?;
        if let Some([_, pages]) = shared {
            let what = "a query with a list of keys has no pages to share; leave --shared-pages out";
            return Err(Error::Invalid(format!("--shared-pages {pages}: {what}")));
        }
        let (q, mut keys) = (file.elements("q", HALVES)?, file.elements("k_cache", LATENTS)?);
        if keys.shape.len() == 3 {
            keys.shape.insert(0, 1);
        }
        let pages = pages(file, layout, &keys)?;
        let (values, _) = values(file, layout, &keys, &pages, v_width)?;
        let heads_k = pages.shape[2];
        let shape = q.shape.clone();
        let (&[.., heads_q, head_dim], 3 | 4) = (&shape[..], shape.len()) else {
            let wanted = "it must be [queries, H, D] or [B, S, H, D]";
            return Err(file.invalid(format_args!("`q` has shape {shape:?}; {wanted}")));
        };
        if columns_of(&pages) != head_dim {
            let what = format_args!("`q` has shape {shape:?} and `k_cache` {:?}", keys.shape);
            return Err(file.invalid(format_args!("{what}; {EQUAL}")));
        }
        let batch = shape[..shape.len() - 2].iter().product();
        let (indices, of) = file.integers("indices")?;
        let is_query = |sizes: &[usize]| match shape.len() {
            4 => sizes == &shape[..2],
            _ => sizes[0] * sizes[1] == batch,
        };
        let topk = match of[..] {
            [queries, heads, topk] if [queries, heads] == [batch, heads_k] => topk,
            [.., topk] if of.len() == 3 && heads_k == 1 && is_query(&of[..2]) => topk,
            _ => {
                let wanted = format_args!(
                    "[{batch}, {heads_k}, topk]: queries, heads of `k_cache` and slots; or, with one head, \
                     [sequences, queries, topk]"
                );
                return Err(file.invalid(format_args!("`indices` has shape {of:?}; it must be {wanted}")));
            }
        };
        let problem = Problem::new(q.dtype, batch, 1, heads_q, head_dim).seqlen_k(topk).heads_k(heads_k);
        let problem = scores.of(problem);
        let mut extras = extras::read(file, &problem, topk, scores)?;
        let problem = extras.of(problem);
        let (sinks, lists) = (extras.sinks.take(), Some(Lists { indices, topk }));
        let input = Input {
            problem,
            q: q.halves(),
            starts: (0..=batch).collect(),
            pool: [keys.bytes, vec![]],
            v_width,
            scales: [scale(file, "k_scale", &pages)?, None],
            pages,
            values,
            table: None,
            lengths: vec![topk as i32; batch],
            lists,
            shape,
            shared: None,
            sinks,
            extras,
        };
        input.has_scales(file)?;
        Ok(input)
    }

    /// Returns the page, and the row in it, of each key of a head of sequence `b`. With lists, sequence `b`
    /// is query `b`, and its keys are the slots of its list that the cache has.
    pub(super) fn keys_of(&self, b: usize, head: usize) -> Vec<[usize; 2]> {
        let [pages, page, heads, _] = self.pages.shape;
        let Some(Lists { indices, topk }) = &self.lists else {
            let keys = 0..self.lengths[b] as usize;
            return keys.map(|key| [self.page(b, key / page) as usize, key % page]).collect();
        };
        let slots = indices[(b * heads + head) * topk..][..*topk].iter();
        let there = slots.filter_map(|slot| usize::try_from(*slot).ok().filter(|slot| *slot < pages * page));
        there.map(|slot| [slot / page, slot % page]).collect()
    }

    /// Returns the LSE of a launch, `[heads, queries]`, as the file has it: `[sequences, heads, queries]` if
    /// `q` has four dimensions.
    pub(super) fn lse_in_file(&self, lse: Vec<f32>) -> Vec<f32> {
        let ([_, queries, heads, _], Some(_)) = (&self.shape[..], &self.lists) else { return lse };
        let all = self.problem.batch;
        let place = |at: usize| {
            let [b, head, i] = [at / queries / heads, at / queries % heads, at % queries];
            lse[head * all + b * queries + i]
        };
        (0..lse.len()).map(place).collect()
    }
}
