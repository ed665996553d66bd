//! A cache of plans. A model repeats a request for each layer and each step, with other tensors.
use crate::request::{
    AlibiSlopes, AttentionRequest, Bias, Index, KeysValues, KvCache, KvPages, KvScale, LseView, Paged,
    Queries, Scratch, SharedPrefixes, Sinks, TensorView, TokenScales, VarlenKeys, VarlenQueries,
};
use crate::{Attention, Driver, Error, Plan};
use std::sync::{Mutex, PoisonError};

/// Number of cached plans: enough for the shapes of one step of a model, and for some of the previous step.
const MOST: usize = 16;

/// The most recently used plans with their [keys](key). The plan that was used last comes first.
#[derive(Default)]
pub(super) struct Plans(Mutex<Vec<(AttentionRequest<'static>, Plan)>>);

impl Plans {
    /// Returns the fastest plan of a request, regardless of the size of its scratch memory.
    ///
    /// # Errors
    /// Returns the errors of planning.
    pub fn of<D: Driver>(
        &self,
        attention: &Attention<D>,
        request: &AttentionRequest<'static>,
    ) -> Result<Plan, Error> {
        let key = key(request);
        let kept = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut kept = kept();
            if let Some(at) = kept.iter().position(|(other, _)| *other == key) {
                kept[..=at].rotate_right(1);
                return Ok(kept[0].1);
            }
        }
        let plan = attention.plan(&request.scratch(Scratch::Fastest))?;
        let mut kept = kept();
        kept.truncate(MOST - 1);
        kept.insert(0, (key, plan));
        Ok(plan)
    }
}

/// Returns the request without addresses and sizes of memory. One plan serves all requests that differ only
/// in addresses and sizes, because each launch validates its tensors.
fn key(request: &AttentionRequest<'static>) -> AttentionRequest<'static> {
    let mut key = request.scratch(Scratch::Fastest);
    (key.q, key.o) = (tensor(key.q), tensor(key.o));
    key.kv = match key.kv {
        KeysValues::Tensors { k, v } => KeysValues::Tensors { k: tensor(k), v: tensor(v) },
        KeysValues::Varlen { k, v, keys } => {
            let seqused_k = keys.seqused_k.map(|_| NOWHERE);
            let keys = VarlenKeys { cu_seqlens_k: NOWHERE, seqused_k, ..keys };
            KeysValues::Varlen { k: tensor(k), v: tensor(v), keys }
        }
        KeysValues::Cache(cache) => KeysValues::Cache(self::cache(cache)),
    };
    if let Queries::Varlen(queries) = key.queries {
        key.queries = Queries::Varlen(VarlenQueries { cu_seqlens_q: NOWHERE, ..queries });
    }
    key.variant = key.variant.map(|variant| variant.without_params());
    key.lse = key.lse.map(|view| LseView { address: 0, elements: 0, ..view });
    key.scores.alibi = key.scores.alibi.map(|view| AlibiSlopes { address: 0, elements: 0, ..view });
    key.scores.sinks = key.scores.sinks.map(|_| Sinks { address: 0, elements: 0 });
    // TMA needs an aligned bias, so the kernel depends on these bits of the address.
    key.scores.bias = key.scores.bias.map(|view| Bias { address: view.address % 16, elements: 0, ..view });
    key.mask = key.mask.anywhere();
    key.shared_prefixes = key.shared_prefixes.map(SharedPrefixes::anywhere);
    key
}

const NOWHERE: Index = Index::new(0, 0);

fn tensor(view: TensorView) -> TensorView {
    TensorView { address: 0, elements: 0, ..view }
}

fn cache(cache: KvCache) -> KvCache {
    let KvPages { keys, values, scales } = cache.pages;
    let pages = |view: TensorView| TensorView { address: 0, elements: 0, ..view };
    let scale = |scale| match scale {
        KvScale::Device { strides, .. } => KvScale::Device { address: 0, elements: 0, strides },
        KvScale::Tokens(scales) => KvScale::Tokens(TokenScales { address: 0, elements: 0, ..scales }),
        value => value,
    };
    let pages = KvPages { keys: pages(keys), values: pages(values), scales: scales.map(scale) };
    let paged = match cache.paged {
        Paged::Dense { rows } => Paged::Dense { rows: rows.map(|_| NOWHERE) },
        Paged::Table { columns, stride, .. } => Paged::Table { entries: NOWHERE, columns, stride },
    };
    KvCache { pages, paged, lengths: NOWHERE, ..cache }
}
