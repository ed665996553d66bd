//! The addresses of requests, in the order in which validation lists their parts.
use super::resolve::Placed;
use super::{
    Append, AttentionBackward, AttentionRequest, Bias, Descales, Groups, Index, KeysValues, KvPages, KvScale,
    Level, LseView, Mask, Paged, Prefix, Queries, Scratch, Sinks, TableGradient, TensorView, VarlenQueries,
};

/// Maximum number of a request's parts: its tensors, arrays of integers, and scratch memory.
pub(crate) const PARTS: usize = 31;
/// The addresses of a request's parts. A part that the request lacks has none.
pub(crate) type Places<'a> = [Option<&'a mut u64>; PARTS];

/// The sizes of a request's parts, which validation has found, and the parts that the launch writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parts {
    /// The bytes of each part, from its address on; 0 if it may overlap the others.
    pub bytes: [u64; PARTS],
    /// The range of the parts that the launch writes.
    pub written: [usize; 2],
    /// Launches differ only in addresses if each address keeps its remainder by this power of two.
    pub alignment: u64,
}

impl KvScale {
    fn place(&mut self) -> Option<&mut u64> {
        match self {
            KvScale::Device { address, .. } => Some(address),
            KvScale::Tokens(scales) => Some(scales.place()),
            KvScale::One | KvScale::Value(_) => None,
        }
    }
}

impl KvPages {
    fn places(&mut self) -> [Option<&mut u64>; 4] {
        let [k_scale, v_scale] = self.scales.each_mut().map(KvScale::place);
        [Some(self.keys.place()), Some(self.values.place()), k_scale, v_scale]
    }
}

impl KeysValues {
    fn places(&mut self) -> [Option<&mut u64>; 6] {
        match self {
            KeysValues::Tensors { k, v } => [Some(k.place()), Some(v.place()), None, None, None, None],
            KeysValues::Varlen { k, v, keys } => {
                let used = keys.seqused_k.as_mut().map(Index::place);
                [Some(k.place()), Some(v.place()), Some(keys.cu_seqlens_k.place()), used, None, None]
            }
            KeysValues::Cache(cache) => {
                let [k, v, k_scale, v_scale] = cache.pages.places();
                let table = match &mut cache.paged {
                    Paged::Dense { rows } => rows.as_mut().map(Index::place),
                    Paged::Table { entries, .. } => Some(entries.place()),
                };
                [k, v, k_scale, v_scale, table, Some(cache.lengths.place())]
            }
            KeysValues::Listed(keys) => {
                let [k, v, k_scale, v_scale] = keys.pages.places();
                [k, v, k_scale, v_scale, Some(keys.indices.place()), None]
            }
        }
    }
}

impl Level {
    fn places(&mut self) -> [Option<&mut u64>; 2] {
        [Some(self.entries.place()), Some(self.lengths.place())]
    }
}

impl AttentionRequest<'_> {
    /// Returns the addresses of the parts.
    pub(crate) fn places(&mut self) -> Places<'_> {
        let [k, v, k_scale, v_scale, mut table, mut lengths] = self.kv.places();
        // Only requests without a KV cache have these scales, two of which have places of a cache.
        let Descales { q: of_q, k: of_k, v: of_v } = &mut self.descales;
        if let Some(scale) = of_q.place() {
            table = Some(scale);
        }
        if let Some(scale) = of_k.place() {
            lengths = Some(scale);
        }
        let of_v = of_v.place();
        let [starts, used] = match &mut self.queries {
            Queries::Batched => [None, None],
            Queries::Varlen(VarlenQueries { cu_seqlens_q, seqused_q, .. }) => {
                [Some(cu_seqlens_q.place()), seqused_q.as_mut().map(Index::place)]
            }
        };
        let mask = match &mut self.mask {
            Mask::Prefix(Prefix::Each(lengths)) => Some(lengths.place()),
            Mask::Bits(bits) => Some(&mut bits.address),
            _ => None,
        };
        let sinks = self.scores.sinks.as_mut().map(Sinks::place);
        let alibi = self.scores.alibi.as_mut().map(|alibi| alibi.place());
        let bias = self.scores.bias.as_mut().map(|bias| bias.place());
        let [lse, max_logits, entropy] = [&mut self.lse, &mut self.max_logits, &mut self.entropy]
            .map(|view| view.as_mut().map(|v| v.place()));
        let head_maxima = self.max_logits_head.as_mut().map(Sinks::place);
        let [workspace, counters] = match &mut self.scratch {
            Scratch::Memory { workspace, counters } => {
                [Some(&mut workspace.address), counters.as_mut().map(|counters| &mut counters.address)]
            }
            Scratch::None | Scratch::Fastest => [None, None],
        };
        let groups = self.shared_prefixes.as_mut().map(|prefixes| &mut prefixes.groups);
        let [groups, prefix_table, prefixes, rest_table, rest] = match groups {
            None => [const { None }; 5],
            Some(Groups::Equal { rest, .. }) => [None, None, None, None, Some(rest.place())],
            Some(Groups::Varlen { queries, prefix, rest }) => {
                let ([a, b], [c, d]) = (prefix.places(), rest.places());
                [Some(queries.cu_seqlens_q.place()), a, b, c, d]
            }
        };
        let (q, o) = (Some(self.q.place()), Some(self.o.place()));
        let own = [
            k,
            v,
            k_scale,
            v_scale,
            table,
            lengths,
            of_v,
            q,
            starts,
            used,
            sinks,
            alibi,
            bias,
            mask,
            o,
            lse,
            max_logits,
            entropy,
            head_maxima,
            workspace,
            counters,
            groups,
            prefix_table,
            prefixes,
            rest_table,
            rest,
        ];
        let mut all = [const { None }; PARTS];
        all.iter_mut().zip(own).for_each(|(place, own)| *place = own);
        all
    }
}

impl AttentionBackward<'_> {
    /// Returns the addresses of the parts, except of a variant's table: parts of the forward come first.
    pub(crate) fn places(&mut self) -> Places<'_> {
        let AttentionBackward { forward, d_o, d_lse, dq, dk, dv, dsinks, dtable, dbias, scratch } = self;
        let mut all = forward.places();
        let workspace = match scratch {
            Scratch::Memory { workspace, .. } => Some(&mut workspace.address),
            Scratch::None | Scratch::Fastest => None,
        };
        let own = [
            Some(d_o.place()),
            d_lse.as_mut().map(LseView::place),
            None,
            Some(dq.place()),
            Some(dk.place()),
            Some(dv.place()),
            dsinks.as_mut().map(Sinks::place),
            dtable.as_mut().map(TableGradient::place),
            dbias.as_mut().map(Bias::place),
            workspace,
        ];
        all[PARTS - own.len()..].iter_mut().zip(own).for_each(|(place, own)| *place = own);
        all
    }
}

impl Append {
    /// Returns the addresses of the parts.
    pub(crate) fn places(&mut self) -> Places<'_> {
        let Append { k, v, pages, slots, rotary } = self;
        let [keys, values, k_scale, v_scale] = pages.places();
        let mut all = [const { None }; PARTS];
        if let Some(rotary) = rotary {
            let [cos, sin] = [&mut rotary.cos, &mut rotary.sin].map(TensorView::place);
            let [q, rotated] = match &mut rotary.queries {
                None => [None, None],
                Some(queries) => [&mut queries.q, &mut queries.rotated].map(|view| Some(view.place())),
            };
            let positions = Some(rotary.positions.place());
            [all[3], all[4], all[5], all[6], all[11]] = [Some(cos), Some(sin), positions, q, rotated];
        }
        [all[0], all[1], all[2]] = [Some(k.place()), Some(v.place()), Some(slots.place())];
        [all[7], all[8], all[9], all[10]] = [k_scale, v_scale, keys, values];
        all
    }
}
