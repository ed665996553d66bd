//! Plans of requests that come again: a model asks the same of every layer and in every step, of other
//! tensors.
use super::FlashAttention;
use crate::{
    AlibiSlopes, Decode, Error, Forward, Index, KvCache, KvPages, KvScale, LseView, Packed, PackedQueries,
    PageView, Paged, Request, Sinks, TensorView,
};
use std::sync::{Mutex, PoisonError};

/// As many as the shapes that a model's step has, and some of the step before.
const MOST: usize = 16;

/// The last plans, the last one first, by their requests without places.
pub(super) struct Plans<R: Request>(Mutex<Vec<(R, R::Plan)>>);

impl<R: Request> Default for Plans<R> {
    fn default() -> Self {
        Plans(Mutex::default())
    }
}

/// A request whose plan serves each that differs from it in places alone: launches check other tensors.
pub(super) trait Anywhere: Request<Plan: Copy> + Copy + PartialEq {
    /// The same without addresses and sizes of memory.
    fn anywhere(&self) -> Self;
}

impl<R: Anywhere> Plans<R> {
    /// That of a request, with all the workspace that it wants.
    pub fn of(&self, attention: &FlashAttention, request: &R) -> Result<R::Plan, Error> {
        let key = request.anywhere();
        let kept = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut kept = kept();
            if let Some(at) = kept.iter().position(|(other, _)| *other == key) {
                kept[..=at].rotate_right(1);
                return Ok(kept[0].1);
            }
        }
        let plan = attention.attention.plan_with(request, u64::MAX)?;
        let mut kept = kept();
        kept.truncate(MOST - 1);
        kept.insert(0, (key, plan));
        Ok(plan)
    }
}

impl Anywhere for Forward<'static> {
    fn anywhere(&self) -> Self {
        Forward {
            q: tensor(self.q),
            k: tensor(self.k),
            v: tensor(self.v),
            o: tensor(self.o),
            alibi: self.alibi.map(slopes),
            lse: self.lse.map(|view| LseView { address: 0, elements: 0, ..view }),
            packed: self.packed.map(|packed| Packed {
                cu_seqlens_q: NOWHERE,
                cu_seqlens_k: NOWHERE,
                seqused_k: packed.seqused_k.map(|_| NOWHERE),
                ..packed
            }),
            workspace: None,
            ..*self
        }
    }
}

impl Anywhere for Decode<'static> {
    fn anywhere(&self) -> Self {
        let KvPages { keys, values, scales } = self.cache.pages;
        let paged = match self.cache.paged {
            Paged::Dense { rows } => Paged::Dense { rows: rows.map(|_| NOWHERE) },
            Paged::Table { columns, stride, .. } => Paged::Table { entries: NOWHERE, columns, stride },
        };
        let pages = KvPages { keys: pages(keys), values: pages(values), scales: scales.map(scale) };
        Decode {
            q: tensor(self.q),
            o: tensor(self.o),
            cache: KvCache { pages, paged, lengths: NOWHERE, ..self.cache },
            alibi: self.alibi.map(slopes),
            packed: self.packed.map(|packed| PackedQueries { cu_seqlens_q: NOWHERE, ..packed }),
            sinks: self.sinks.map(|_| Sinks { address: 0, elements: 0 }),
            lse: self.lse.map(|view| LseView { address: 0, elements: 0, ..view }),
            workspace: None,
            counters: None,
            ..*self
        }
    }
}

const NOWHERE: Index = Index::new(0, 0);

fn tensor(view: TensorView) -> TensorView {
    TensorView { address: 0, elements: 0, ..view }
}

fn pages(view: PageView) -> PageView {
    PageView { address: 0, elements: 0, ..view }
}

fn slopes(view: AlibiSlopes) -> AlibiSlopes {
    AlibiSlopes { address: 0, elements: 0, ..view }
}

fn scale(scale: KvScale) -> KvScale {
    match scale {
        KvScale::Device { strides, .. } => KvScale::Device { address: 0, elements: 0, strides },
        value => value,
    }
}
