//! Parameters of decode kernels.
use super::{Lowering, PAGED};
use crate::MapDescription;
use crate::launch::Part;
use crate::lower::tensors::{NO_LSE, UNSCALED, cu_seqlens_q, integers, lse, pages, scales, tensor};
use crate::request::{AttentionRequest, KvPages, ListedKeys, LseView, TensorView};
use crate::schedule::Decode;
use spec::{
    Cache, DecodeOrder, DecodeParams, FastDiv, FewParams, Lse, MlaHopperParams, PageBoxes, PerHead, Queries,
    SparseParams, Window,
};

/// Returns a request with varlen queries, one per sequence, as a batch of one query each.
pub(super) fn single_queries<'a>(r: &AttentionRequest<'a>) -> AttentionRequest<'a> {
    let batched = |view: TensorView| {
        let ([_, batch, heads, head_dim], [_, row, head, column]) = (view.shape, view.strides);
        TensorView { shape: [batch, 1, heads, head_dim], strides: [row, 0, head, column], ..view }
    };
    let lse = r.lse.map(|view| LseView { strides: [view.row_stride, view.strides[1]], ..view });
    AttentionRequest { q: batched(r.q), o: batched(r.o), lse, ..*r }
}

/// Returns whether a combine kernel merges the splits of a decode kernel with these parameters.
const fn combines(decode: &Decode, params: &DecodeParams) -> bool {
    decode.workspace > 0 && params.counters.count == 0
}

impl Lowering<'_> {
    /// Adds a decode kernel: few queries on a KV cache, or on keys and values in tensors. In a mixed batch,
    /// the kernel takes the sequences of few queries.
    pub(super) fn decode(&mut self, decode: &Decode, order: DecodeOrder, cache: Cache, scales: [PerHead; 2]) {
        let params = self.decode_params(decode, order, cache, scales);
        match self.kernel.queries {
            Queries::Mixed => {
                let cu_seqlens_q = cu_seqlens_q(&self.r.queries);
                let few = FewParams { decode: params, cu_seqlens_q, most: decode.most, reserved: 0 };
                self.step(decode.order.blocks, &few, []);
                self.combine::<FewParams>(decode, &params);
            }
            _ => {
                self.step(decode.order.blocks, &params, []);
                self.combine::<DecodeParams>(decode, &params);
            }
        }
    }

    /// Returns the scales of keys and of values. The values of latents are columns of keys, with their scale.
    pub(super) fn scales(&self, pages: &KvPages) -> [PerHead; 2] {
        let [keys, values] = scales(pages);
        if self.kernel.is_latent() { [keys; 2] } else { [keys, values] }
    }

    /// Adds a decode kernel that reads latent keys through a tensor map.
    pub(super) fn latent(&mut self, decode: &Decode, order: DecodeOrder, cache: Cache, map: MapDescription) {
        let params = self.decode_params(decode, order, cache, [UNSCALED; 2]);
        let boxes = PageBoxes::new(map.box_shape[1], map.pitch());
        self.step(decode.order.blocks, &MlaHopperParams { k: PAGED, decode: params, boxes }, [map]);
        if combines(decode, &params) {
            self.launch.step(decode.combine, [decode.order.blocks, 1, 1], &params, []);
        }
    }

    /// Adds a decode kernel that reads the keys of each query's list.
    pub(super) fn listed(&mut self, decode: &Decode, keys: &ListedKeys) {
        // Lengths without an address mean that each list has the maximum number of keys.
        let params = self.decode_params(decode, decode.order, pages(&keys.pages), self.scales(&keys.pages));
        let slots = integers(Some(keys.indices), self.p.batch * self.p.heads_k * keys.topk);
        self.step(decode.order.blocks, &SparseParams { decode: params, slots }, []);
        self.combine::<DecodeParams>(decode, &params);
    }

    /// Adds the combine kernel of a decode kernel with the parameters `P`, if no decode kernel merges its
    /// splits.
    fn combine<P: Part>(&mut self, decode: &Decode, params: &DecodeParams) {
        if combines(decode, params) {
            self.launch.repeat::<P>(decode.combine, [decode.order.blocks, 1, 1]);
        }
    }

    /// Returns the parameters of decode kernels.
    fn decode_params(
        &self,
        decode: &Decode,
        order: DecodeOrder,
        cache: Cache,
        scales: [PerHead; 2],
    ) -> DecodeParams {
        let (r, p) = (self.r, self.p);
        let (scale_log2, softcap) = p.base_two();
        let counters = decode.counters(r.scratch.counters().map(|counters| counters.address));
        DecodeParams {
            q: tensor(&r.q),
            o: tensor(&r.o),
            lse: lse(r.lse.as_ref()),
            sinks: r.scores.sinks.map_or(NO_LSE, |sinks| Lse {
                base: sinks.address,
                head_bytes: 4,
                ..NO_LSE
            }),
            cache,
            scales,
            order,
            partials: decode.partials(r.scratch.address()),
            counters,
            group: FastDiv::new((p.heads_q / p.heads_k) as u32).unwrap_or(FastDiv::ONE),
            // The last query aligns with the last key.
            window: Window { shift: 0, ..p.window() },
            scale_log2,
            softcap,
            states: self.states,
        }
    }
}
