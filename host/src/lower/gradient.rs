//! Parameters of backward kernels.
use super::tensors::{keys_values, lse, slopes, tensor};
use crate::launch::Launch;
use crate::request::AttentionBackward;
use crate::schedule::{GradientPass, GradientWork};
use spec::{
    BwdDeltaParams, BwdDkDvParams, BwdDqParams, BwdParams, FastDiv, Integers, PaddedVector, TileOrder,
};

/// Adds the step of one pass to a launch, for valid tensors. `minus_lse` and `delta` are in the workspace.
pub(crate) fn gradient(
    r: &AttentionBackward<'_>,
    pass: &GradientPass,
    [minus_lse, delta]: [PaddedVector; 2],
    launch: &mut Launch,
) {
    let problem = |order: TileOrder| problem(r, order, [minus_lse, delta]);
    match pass.work {
        GradientWork::Delta(blocks) => {
            let [_, _, heads, _] = r.forward.q.shape;
            let params = BwdDeltaParams {
                o: tensor(&r.forward.o),
                d_o: tensor(&r.d_o),
                lse: lse(r.forward.lse.as_ref()),
                d_lse: lse(r.d_lse.as_ref()),
                minus_lse,
                delta,
                // No portable kernel counts anything.
                cleared: Integers { base: 0, count: 0, reserved: 0 },
                // A valid request has at least one head.
                heads: FastDiv::new(heads as u32).unwrap_or(FastDiv::ONE),
                blocks,
            };
            launch.step(pass.place, [blocks.get() * delta.heads, 1, 1], &params, []);
        }
        GradientWork::DkDv(order) => {
            launch.main_follows();
            let params = BwdDkDvParams { problem: problem(order), dk: tensor(&r.dk), dv: tensor(&r.dv) };
            launch.step(pass.place, [order.tiles, 1, 1], &params, []);
        }
        GradientWork::Dq(order) => {
            let params = BwdDqParams { problem: problem(order), dq: tensor(&r.dq) };
            launch.step(pass.place, [order.tiles, 1, 1], &params, []);
        }
    }
}

/// Returns the problem, as the kernels of gradients see it.
fn problem(r: &AttentionBackward<'_>, order: TileOrder, [minus_lse, delta]: [PaddedVector; 2]) -> BwdParams {
    let (p, [k, v]) = (r.forward.problem(), keys_values(&r.forward.kv));
    let (scale_log2, softcap) = p.base_two();
    BwdParams {
        q: tensor(&r.forward.q),
        k,
        v,
        d_o: tensor(&r.d_o),
        minus_lse,
        delta,
        window: p.window(),
        scale_log2,
        softcap,
        scale: p.softmax_scale(),
        heads_per_kv: (p.heads_q / p.heads_k) as u32,
        order,
        alibi: slopes(r.forward.scores.alibi.as_ref()),
    }
}
