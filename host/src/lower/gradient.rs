//! Parameters of backward kernels.
use super::tensors::{cu_seqlens_q, keys_values, lse, slopes, tensor, varlen_keys};
use super::{Refusal, variant};
use crate::Problem;
use crate::launch::Launch;
use crate::request::{Alignment, AttentionBackward, AttentionRequest, KeysValues, TensorView};
use crate::schedule::{GradientPass, GradientWork};
use crate::tma;
use spec::{
    BwdConvertDqParams, BwdDbiasParams, BwdDeltaParams, BwdDkDvParams, BwdDqParams, BwdDsinksParams,
    BwdHopperParams, BwdMap, BwdParams, BwdRagged, BwdSequences, BwdSumHeadsParams, BwdTableParams, Counters,
    CuSeqlens, FastDiv, Integers, PaddedVector, RaggedMap, Sequences, SinkParams, TensorMap, TileOrder,
    TilePartials, TileSums,
};

/// The parts of a launch's workspace.
pub struct GradientMemory {
    pub minus_lse: PaddedVector,
    pub delta: PaddedVector,
    /// The counters of `sums`, or those of `of_table`, which the first kernel clears; empty if no kernel
    /// counts anything.
    pub cleared: Integers,
    /// The sums of dQ, if a kernel leaves any.
    pub sums: TileSums,
    /// The memory of a table's gradient.
    pub of_table: TableMemory,
    /// The mapping from blocks of `minus_lse` and `delta` to varlen sequences.
    pub padded: Sequences,
    /// Where the kernels of dK and dV write: the gradients, or the shares of key heads.
    pub of_keys: [TensorView; 2],
}

/// The memory of a table's gradient, if a kernel computes one.
#[derive(Clone, Copy)]
pub struct TableMemory {
    /// The device address of the sums of each work tile.
    pub partials: u64,
    pub counters: Counters,
}

/// Adds the step of one pass to a launch, for valid tensors. `p` is the forward's problem.
///
/// # Errors
/// Returns [`Refusal::Tensors`] if the kernel does not accept the tensors.
pub(crate) fn gradient(
    r: &AttentionBackward<'_>,
    p: &Problem,
    pass: &GradientPass,
    memory: &GradientMemory,
    launch: &mut Launch,
) -> Result<(), Refusal> {
    let GradientMemory { minus_lse, delta, cleared, sums, of_table, padded, of_keys } = *memory;
    let [_, _, heads, _] = r.forward.q.shape;
    // A valid request has at least one head.
    let heads = FastDiv::new(heads as u32).unwrap_or(FastDiv::ONE);
    let sequences = sequences(&r.forward, p, padded);
    let problem = |order: TileOrder, tiles: Sequences| BwdParams {
        sequences: BwdSequences { tiles, ..sequences },
        ..problem(r, p, order, [minus_lse, delta])
    };
    // Each block takes its share of the query heads of a key head.
    let problem_of_keys = |order: TileOrder, tiles| BwdParams {
        heads_per_kv: heads.get() / order.heads.get(),
        ..problem(order, tiles)
    };
    let [dk, dv] = of_keys;
    match pass.work {
        GradientWork::Delta(blocks) => {
            let params = BwdDeltaParams {
                o: tensor(&r.forward.o),
                d_o: tensor(&r.d_o),
                lse: lse(r.forward.lse.as_ref()),
                d_lse: lse(r.d_lse.as_ref()),
                minus_lse,
                delta,
                sequences,
                cleared,
                heads,
                blocks,
            };
            launch.step(pass.place, [blocks.get() * delta.heads, 1, 1], &params, []);
        }
        GradientWork::DkDv(order, tiles) => {
            launch.main_follows();
            let params =
                BwdDkDvParams { problem: problem_of_keys(order, tiles), dk: tensor(&dk), dv: tensor(&dv) };
            launch.step(pass.place, [order.tiles, 1, 1], &params, []);
        }
        GradientWork::Dq(order, tiles) => {
            let params = BwdDqParams { problem: problem(order, tiles), dq: tensor(&r.dq) };
            launch.step(pass.place, [order.tiles, 1, 1], &params, []);
        }
        GradientWork::Dsinks => {
            // A plan with this pass binds only requests that have both.
            let [sinks, dsinks] =
                [r.forward.scores.sinks, r.dsinks].map(|view| view.map_or(0, |view| view.address));
            let dsinks = Integers { base: dsinks, count: heads.get(), reserved: 0 };
            let params = BwdDsinksParams { minus_lse, delta, sinks: SinkParams { base: sinks }, dsinks };
            launch.step(pass.place, [dsinks.count(), 1, 1], &params, []);
        }
        GradientWork::Table(order, tiles, groups, partials) => {
            // A plan with this pass binds only requests that have the gradient.
            let dtable = r.dtable.map_or(0, |view| view.address);
            let params = BwdTableParams {
                problem: problem(order, tiles),
                partials: TilePartials { base: of_table.partials, ..partials },
                dtable: Integers { base: dtable, count: heads.get() * partials.entries, reserved: 0 },
                counters: of_table.counters,
                groups,
                // A schedule has at least one work tile.
                m_blocks: FastDiv::new(order.m_blocks).unwrap_or(FastDiv::ONE),
                batches: if p.varlen.is_some() { 1 } else { p.batch as u32 },
                reserved: 0,
            };
            launch.step(pass.place, [order.tiles * groups.get(), 1, 1], &params, []);
        }
        GradientWork::Dbias(order, tiles) => {
            // A plan with this pass binds only requests that have the gradient.
            let Some(dbias) = &r.dbias else { return Ok(()) };
            let problem = problem(order, Sequences::NONE);
            let dbias = variant::bias(dbias);
            let params = BwdDbiasParams { problem, dbias, tiles };
            launch.step(pass.place, [tiles.count(), 1, 1], &params, []);
        }
        GradientWork::All(kernel, order, [tiles, of_sums]) => {
            let maps =
                tma::gradients(&AttentionBackward { dk, dv, ..*r }, kernel).map_err(Refusal::Tensors)?;
            launch.main_follows();
            let grid = [order.tiles.min(order.resident), 1, 1];
            let problem = problem_of_keys(order, tiles);
            if p.varlen.is_some() {
                let of = BwdRagged { of: problem.sequences, sums: of_sums, reserved: 0 };
                let params = hopper(p, problem, sums, RaggedMap { map: TensorMap::EMPTY }, of);
                launch.step(pass.place, grid, &params, maps);
            } else {
                launch.step(pass.place, grid, &hopper(p, problem, sums, TensorMap::EMPTY, ()), maps);
            }
        }
        GradientWork::SumHeads(parts, shares) => {
            let [_, rows, heads, _] = r.dk.shape;
            // A plan with this pass has at least one key and one head.
            let [rows, heads] = [rows, heads].map(|count| FastDiv::new(count as u32).unwrap_or(FastDiv::ONE));
            let (from, to) = ([dk, dv].map(|view| tensor(&view)), [r.dk, r.dv].map(|view| tensor(&view)));
            let shares = shares.get() as u32;
            let params = BwdSumHeadsParams { from, to, parts, heads, rows, shares, reserved: 0 };
            launch.step(pass.place, [parts.blocks(), 1, 1], &params, []);
        }
        GradientWork::Convert(tiles, of_sums) => {
            let params = BwdConvertDqParams {
                sums: TileSums { tiles: tiles.get(), ..sums },
                dq: tensor(&r.dq),
                heads,
                tiles,
                cu_seqlens_q: sequences.cu_seqlens_q,
                sequences: of_sums,
                scale: p.softmax_scale(),
            };
            launch.step(pass.place, [tiles.get() * sums.heads, 1, 1], &params, []);
        }
    }
    if let Some(kernel) = pass.kernel {
        variant::add(launch, &r.forward, p, kernel, None);
    }
    Ok(())
}

/// Returns the parameters of one of Hopper's kernels, with placeholders `no_map` for the tensor maps.
fn hopper<Map: BwdMap>(
    p: &Problem,
    problem: BwdParams,
    sums: TileSums,
    no_map: Map,
    sequences: Map::Sequences,
) -> BwdHopperParams<Map> {
    let BwdParams {
        minus_lse, delta, window, scale_log2, softcap, scale, heads_per_kv, order, alibi, ..
    } = problem;
    let [q_len, k_len] = [p.seqlen_q, p.seqlen_k].map(|n| n as u32);
    BwdHopperParams {
        q: no_map,
        d_o: no_map,
        k: no_map,
        v: no_map,
        dk: no_map,
        dv: no_map,
        minus_lse,
        delta,
        sums,
        window,
        scale_log2,
        softcap,
        scale,
        q_len,
        k_len,
        heads_per_kv,
        order,
        alibi,
        sequences,
    }
}

/// Returns the problem, as the kernels of gradients see it.
fn problem(
    r: &AttentionBackward<'_>,
    p: &Problem,
    order: TileOrder,
    [minus_lse, delta]: [PaddedVector; 2],
) -> BwdParams {
    let [k, v] = keys_values(&r.forward.kv);
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
        sequences: BwdSequences::NONE,
    }
}

/// Returns the sequences of varlen tensors. `padded` maps their -LSE and delta.
fn sequences(forward: &AttentionRequest<'_>, p: &Problem, padded: Sequences) -> BwdSequences {
    let KeysValues::Varlen { keys, .. } = &forward.kv else { return BwdSequences::NONE };
    let [of_keys, seqused_k] = varlen_keys(keys, p.batch);
    let of_rows = |offsets, rows: usize, longest: usize| CuSeqlens {
        offsets,
        rows: rows as u32,
        longest: longest as u32,
    };
    let [q_rows, k_rows] = p.varlen.unwrap_or_default();
    let cu_seqlens_q = of_rows(cu_seqlens_q(&forward.queries), q_rows, p.seqlen_q);
    let cu_seqlens_k = of_rows(of_keys, k_rows, p.seqlen_k);
    let bottom_right = (forward.alignment == Alignment::BottomRight).into();
    BwdSequences { cu_seqlens_q, cu_seqlens_k, seqused_k, padded, bottom_right, ..BwdSequences::NONE }
}
