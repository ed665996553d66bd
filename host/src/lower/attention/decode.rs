//! Parameters of decode kernels.
use super::{Lowering, PAGED};
use crate::MapDescription;
use crate::launch::Launch;
use crate::lower::tensors::{NO_LSE, UNSCALED, lse, tensor};
use crate::request::{AttentionRequest, LseView, TensorView};
use crate::schedule::Decode;
use spec::{Cache, DecodeOrder, DecodeParams, FastDiv, Lse, MlaHopperParams, PageBoxes, PerHead, Window};

/// Returns a request with varlen queries, one per sequence, as a batch of one query each.
pub(super) fn single_queries<'a>(r: &AttentionRequest<'a>) -> AttentionRequest<'a> {
    let batched = |view: TensorView| {
        let ([_, batch, heads, head_dim], [_, row, head, column]) = (view.shape, view.strides);
        TensorView { shape: [batch, 1, heads, head_dim], strides: [row, 0, head, column], ..view }
    };
    let lse = r.lse.map(|view| LseView { strides: [view.row_stride, view.strides[1]], ..view });
    AttentionRequest { q: batched(r.q), o: batched(r.o), lse, ..*r }
}

impl Lowering<'_> {
    /// Returns the launch of a decode kernel: few queries on a KV cache, or on keys and values in tensors.
    pub(super) fn decode(
        &self,
        decode: &Decode,
        order: DecodeOrder,
        cache: Cache,
        scales: [PerHead; 2],
    ) -> Launch {
        let params = self.decode_params(decode, order, cache, scales);
        combined(self.launch(decode.order.blocks, &params), decode, &params)
    }

    /// Returns the launch of a decode kernel that reads latent keys through a tensor map.
    pub(super) fn latent(
        &self,
        decode: &Decode,
        order: DecodeOrder,
        cache: Cache,
        map: MapDescription,
    ) -> Launch {
        let params = self.decode_params(decode, order, cache, [UNSCALED; 2]);
        let boxes = PageBoxes::new(map.box_shape[1], map.pitch());
        let all = MlaHopperParams { k: PAGED, decode: params, boxes };
        combined(self.with_maps(decode.order.blocks, &all, [map]), decode, &params)
    }

    /// Returns the parameters of decode kernels.
    pub(super) fn decode_params(
        &self,
        decode: &Decode,
        order: DecodeOrder,
        cache: Cache,
        scales: [PerHead; 2],
    ) -> DecodeParams {
        let (r, p) = (self.r, &self.p);
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

/// Adds the combine kernel to the launch of a decode kernel, if no decode kernel merges its splits.
/// `params` are the first parameters of the decode kernel.
fn combined(launch: Launch, decode: &Decode, params: &DecodeParams) -> Launch {
    let combines = decode.workspace > 0 && params.counters.count == 0;
    if combines { launch.then_alike::<DecodeParams>(decode.combine) } else { launch }
}
