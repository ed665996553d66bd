//! Requests without places of memory. Selection sees only these: no choice can depend on an address, or on
//! the size of a buffer. A plan therefore serves every request that is equal without places.
use super::{
    AlibiSlopes, AttentionRequest, Bias, Counters, Index, KeysValues, KvCache, KvPages, KvScale, LseView,
    Paged, Queries, Scratch, SharedPrefixes, Sinks, TensorView, TokenScales, VarlenKeys, VarlenQueries,
    Workspace,
};
use crate::variant::WithVariant;

const NOWHERE: Index = Index::new(0, 0);
/// The place of values that are not the first columns of keys.
const APART: u64 = 1 << 60;

impl AttentionRequest<'_> {
    /// Returns the request without the addresses and sizes of its memory, and without `config`. The result
    /// keeps three facts that selection reads: whether values are in the place of keys (a latent cache), how
    /// a bias is aligned, and the sizes of scratch memory.
    pub(crate) fn anywhere(&self) -> AttentionRequest<'static> {
        let mut r = self.unconfigured();
        (r.q, r.o) = (tensor(r.q), tensor(r.o));
        r.kv = match r.kv {
            KeysValues::Tensors { k, v } => KeysValues::Tensors { k: tensor(k), v: tensor(v) },
            KeysValues::Varlen { k, v, keys } => {
                let seqused_k = keys.seqused_k.map(|_| NOWHERE);
                let keys = VarlenKeys { cu_seqlens_k: NOWHERE, seqused_k, ..keys };
                KeysValues::Varlen { k: tensor(k), v: tensor(v), keys }
            }
            KeysValues::Cache(cache) => KeysValues::Cache(self::cache(cache)),
        };
        if let Queries::Varlen(queries) = r.queries {
            r.queries = Queries::Varlen(VarlenQueries { cu_seqlens_q: NOWHERE, ..queries });
        }
        r.mask = r.mask.anywhere();
        r.scores.alibi = r.scores.alibi.map(|view| AlibiSlopes { address: 0, elements: 0, ..view });
        r.scores.sinks = r.scores.sinks.map(|_| Sinks { address: 0, elements: 0 });
        // TMA needs an aligned bias, so the kernel depends on these bits of the address.
        r.scores.bias = r.scores.bias.map(|view| Bias { address: view.address % 16, elements: 0, ..view });
        r.lse = r.lse.map(|view| LseView { address: 0, elements: 0, ..view });
        if let Scratch::Memory { workspace, counters } = r.scratch {
            let counters = counters.map(|counters| Counters { address: 0, ..counters });
            r.scratch = Scratch::Memory { workspace: Workspace { address: 0, ..workspace }, counters };
        }
        r.shared_prefixes = r.shared_prefixes.map(SharedPrefixes::anywhere);
        r.variant = r.variant.map(WithVariant::without_params);
        r
    }
}

fn tensor(view: TensorView) -> TensorView {
    TensorView { address: 0, elements: 0, ..view }
}

fn cache(cache: KvCache) -> KvCache {
    let KvPages { keys, values, scales } = cache.pages;
    let address = if keys.address == values.address { 0 } else { APART };
    let scale = |scale| match scale {
        KvScale::Device { strides, .. } => KvScale::Device { address: 0, elements: 0, strides },
        KvScale::Tokens(scales) => KvScale::Tokens(TokenScales { address: 0, elements: 0, ..scales }),
        value => value,
    };
    let values = TensorView { address, ..tensor(values) };
    let pages = KvPages { keys: tensor(keys), values, scales: scales.map(scale) };
    let paged = match cache.paged {
        Paged::Dense { rows } => Paged::Dense { rows: rows.map(|_| NOWHERE) },
        Paged::Table { columns, stride, .. } => Paged::Table { entries: NOWHERE, columns, stride },
    };
    KvCache { pages, paged, lengths: NOWHERE, ..cache }
}
