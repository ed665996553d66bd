//! Parameters of attention kernels.
mod decode;
mod number_tiles;

use super::tensors::{
    UNSCALED, cache, cache_of_values, cu_seqlens_q, dense_cache, integers, keys_values, lse, scales, slopes,
    tensor, varlen_cache, varlen_keys,
};
use super::{Refusal, variant};
use crate::launch::{Launch, Part};
use crate::place::Place;
use crate::request::{Alignment, AttentionRequest, Invariance, KeysValues, KvCache, RowOutputs, VarlenKeys};
use crate::schedule::{Schedule, Scheduled, Tiles};
use crate::{AttnInfo, Error, MapDescription, MaskKind, Problem, tma};
use decode::single_queries;
use spec::{
    CombineParams, DecodeOrder, FastDiv, FwdParams, HopperPagedParams, HopperParams, Integers, Lse,
    ManyParams, PageBoxes, PagedMap, PagedParams, RaggedMap, Sequences, SplitParams, States, Tensor,
    TensorMap, VarlenParams, Window,
};

/// Adds the steps of one pass to a launch: the kernel, and its combine kernel. The kernel solves the valid
/// request's problem. A decode kernel merges `states` over other keys into its results.
///
/// # Errors
/// Returns [`Refusal::Tensors`] if the kernel does not accept the tensors, or [`Refusal::Request`] if it
/// takes no states, or the errors of a variant's kernel.
pub(crate) fn attention(
    (r, p): (&AttentionRequest<'_>, &Problem),
    s: &Scheduled,
    states: States,
    launch: &mut Launch,
) -> Result<(), Refusal> {
    RowOutputs::wanted(r).are_of(s.kernel).map_err(Refusal::Tensors)?;
    let tma_bias = tma::bias(r, s.kernel).map_err(Refusal::Tensors)?;
    let maps = || tma::maps(r, s.kernel).map_err(Refusal::Tensors);
    let takes_states = matches!(s.schedule, Schedule::Decode(_)) && !s.kernel.is_hoppers();
    if states.count > 0 && !takes_states {
        return Err(elsewhere(s).into());
    }
    let mut lowering = Lowering { r, p, kernel: s.kernel, place: s.place, tma_bias, states, launch };
    match (&s.schedule, &r.kv) {
        (Schedule::Decode(decode), KeysValues::Cache(kv)) => {
            let lengths = integers(Some(kv.lengths), p.batch);
            let order = DecodeOrder { lengths, ..decode.order };
            match tma::latent(kv, s.kernel).map_err(Refusal::Tensors)? {
                None => lowering.decode(decode, order, cache(kv), lowering.scales(&kv.pages)),
                Some(map) => lowering.latent(decode, order, cache(kv), map),
            }
        }
        (Schedule::Decode(decode), KeysValues::Tensors { k, v }) => {
            // Lengths without an address mean that each sequence has the maximum number of keys.
            let cache = dense_cache(k, v).map_err(Refusal::Tensors)?;
            lowering.decode(decode, decode.order, cache, [UNSCALED; 2]);
        }
        (Schedule::Decode(decode), KeysValues::Varlen { k, v, keys }) => {
            let [starts, used] = varlen_keys(keys, p.batch);
            let lengths = if used.count == 0 { decode.order.lengths } else { used };
            let order = DecodeOrder { lengths, starts, ..decode.order };
            let cache = varlen_cache(k, v, &starts, p.seqlen_k).map_err(Refusal::Tensors)?;
            let r = &single_queries(r);
            Lowering { r, ..lowering }.decode(decode, order, cache, [UNSCALED; 2]);
        }
        (Schedule::Decode(decode), KeysValues::Listed(keys)) => lowering.listed(decode, keys),
        (Schedule::Tiles(_), KeysValues::Listed(_)) => return Err(elsewhere(s).into()),
        (Schedule::Tiles(tiles), KeysValues::Cache(kv)) => match (tiles.sequences, maps()?) {
            (Some(sequences), maps) => lowering.cache(tiles, sequences, kv, maps),
            (None, _) => return Err(elsewhere(s).into()),
        },
        (Schedule::Tiles(tiles), KeysValues::Tensors { .. }) => lowering.dense(tiles, maps()?),
        (Schedule::Tiles(tiles), KeysValues::Varlen { keys, .. }) => match (tiles.sequences, maps()?) {
            (Some(sequences), maps) => lowering.varlen(tiles, sequences, keys, maps),
            (None, maps) => lowering.dense(tiles, maps),
        },
    }
    Ok(variant::fits(launch, r, p)?)
}

/// Returns the error for a kernel that was planned for another kind of keys. Plans bind only requests with
/// the planned kind of keys.
fn elsewhere(s: &Scheduled) -> Error {
    Error::unsupported(s.kernel.contract.symbol, "it reads keys and values from another kind of memory")
}

/// Adds a kernel on quantised keys: `k` describes their images, `v` what the kernel reads beside them.
pub(super) fn on_quantised(
    (r, p): (&AttentionRequest<'_>, &Problem),
    s: &Scheduled,
    tiles: &Tiles,
    [k, v]: [Tensor; 2],
    launch: &mut Launch,
) {
    let (tma_bias, states) = (None, States::NONE);
    let mut lowering = Lowering { r, p, kernel: s.kernel, place: s.place, tma_bias, states, launch };
    let forward = FwdParams { k, v, ..lowering.portable(tiles, p.window()) };
    match (&r.kv, tiles.sequences) {
        (KeysValues::Varlen { keys, .. }, Some(sequences)) => {
            lowering.step(tiles.blocks, &lowering.of_sequences(forward, sequences, keys), []);
        }
        _ => lowering.step(tiles.blocks, &forward, []),
    }
}

/// Adds a portable kernel on a KV cache, whose values `v` describes. Returns whether the keys lie in a cache.
pub(super) fn on_laid_values(
    (r, p): (&AttentionRequest<'_>, &Problem),
    s: &Scheduled,
    tiles: &Tiles,
    v: Tensor,
    launch: &mut Launch,
) -> bool {
    let (KeysValues::Cache(kv), Some(sequences)) = (&r.kv, tiles.sequences) else { return false };
    let (tma_bias, states) = (None, States::NONE);
    let mut lowering = Lowering { r, p, kernel: s.kernel, place: s.place, tma_bias, states, launch };
    let params = lowering.in_pages(tiles, sequences, kv, scales(&kv.pages));
    let forward = FwdParams { v, ..params.forward };
    lowering.step(tiles.blocks, &PagedParams { forward, ..params }, []);
    true
}

/// Returns the parameters of a Hopper kernel for dense tensors, whose tensor maps are still empty.
pub(super) fn on_maps(
    (r, p): (&AttentionRequest<'_>, &Problem),
    s: &Scheduled,
    tiles: &Tiles,
) -> HopperParams {
    let mut launch = Launch::new("");
    let (tma_bias, states, launch) = (None, States::NONE, &mut launch);
    let lowering = Lowering { r, p, kernel: s.kernel, place: s.place, tma_bias, states, launch };
    lowering.hopper_on_tensors(NO_MAP, tiles)
}

/// Returns [`on_maps`] for varlen tensors, or `None` for dense tensors.
pub(super) fn on_ragged_maps(
    (r, p): (&AttentionRequest<'_>, &Problem),
    s: &Scheduled,
    tiles: &Tiles,
) -> Option<VarlenParams<HopperParams<RaggedMap>>> {
    let (KeysValues::Varlen { keys, .. }, Some(sequences)) = (&r.kv, tiles.sequences) else { return None };
    let mut launch = Launch::new("");
    let (tma_bias, states, launch) = (None, States::NONE, &mut launch);
    let lowering = Lowering { r, p, kernel: s.kernel, place: s.place, tma_bias, states, launch };
    Some(lowering.of_sequences(lowering.hopper_on_tensors(RAGGED, tiles), sequences, keys))
}

/// Returns the parameters of a Hopper kernel for a KV cache with these tensor maps, whose queries lie
/// sequence by sequence, or `None` for other keys.
pub(super) fn on_paged_maps(
    (r, p): (&AttentionRequest<'_>, &Problem),
    s: &Scheduled,
    tiles: &Tiles,
    maps: &[MapDescription; 4],
) -> Option<HopperPagedParams> {
    let (KeysValues::Cache(kv), Some(sequences)) = (&r.kv, tiles.sequences) else { return None };
    let mut launch = Launch::new("");
    let (tma_bias, states, launch) = (None, States::NONE, &mut launch);
    let lowering = Lowering { r, p, kernel: s.kernel, place: s.place, tma_bias, states, launch };
    Some(HopperPagedParams { shared_queries: 0, ..lowering.on_pages(tiles, sequences, kv, maps, ()) })
}

/// A request, its kernel and its launch.
struct Lowering<'a> {
    r: &'a AttentionRequest<'a>,
    p: &'a Problem,
    kernel: &'a AttnInfo,
    place: Place,
    /// The description of the bias, if the kernel reads the bias through a tensor map.
    tma_bias: Option<MapDescription>,
    /// The states that a decode kernel merges into its results.
    states: States,
    launch: &'a mut Launch,
}

impl Lowering<'_> {
    /// Adds the kernel, with the parameters of its mask and scores.
    fn step<P: Part, const N: usize>(&mut self, blocks: u32, params: &P, maps: [MapDescription; N]) {
        self.launch.step(self.place, [blocks, 1, 1], params, maps);
        variant::add(self.launch, self.r, self.p, self.kernel, self.tma_bias);
    }

    /// Adds a kernel for sequences of equal lengths in tensors. Hopper's kernels have tensor maps.
    fn dense(&mut self, tiles: &Tiles, maps: Option<[MapDescription; 4]>) {
        match maps {
            None => self.split(tiles, self.portable(tiles, self.p.window()), []),
            Some(maps) => self.split(tiles, self.hopper_on_tensors(NO_MAP, tiles), maps),
        }
    }

    /// Adds a kernel with the parameters `forward`, and its combine kernel if the kernel splits.
    fn split<F: Part, const N: usize>(&mut self, tiles: &Tiles, forward: F, maps: [MapDescription; N])
    where
        SplitParams<F>: Part,
    {
        let Some(split) = tiles.split else { return self.step(tiles.blocks, &forward, maps) };
        let (scratch, values) = (self.r.scratch.address(), lse(self.r.lse.as_ref()));
        let Some(combining) = split.combine() else {
            let partials = split.state(self.r.o.address, values.base);
            return self.step(tiles.blocks, &SplitParams { forward, partials }, maps);
        };
        let partials = split.partials(scratch);
        self.step(tiles.blocks, &SplitParams { forward, partials }, maps);
        let (combine, rows) = split.combine_info();
        let (o, lse) = (tensor(&self.r.o), values);
        let params = CombineParams { partials, o, lse, heads: tiles.order().heads, rows };
        self.launch.step(combining, combine.grid(&params), &params, []);
    }

    /// Adds a kernel for varlen sequences in tensors.
    fn varlen(
        &mut self,
        tiles: &Tiles,
        sequences: Sequences,
        keys: &VarlenKeys,
        maps: Option<[MapDescription; 4]>,
    ) {
        let blocks = tiles.blocks;
        match maps {
            None => {
                let forward = self.portable(tiles, self.p.window());
                self.step(blocks, &self.of_sequences(forward, sequences, keys), []);
            }
            Some(maps) => {
                let forward = self.hopper_on_tensors(RAGGED, tiles);
                self.step(blocks, &self.of_sequences(forward, sequences, keys), maps);
            }
        }
    }

    /// Returns the parameters of a kernel for varlen sequences in tensors.
    fn of_sequences<F>(&self, forward: F, sequences: Sequences, keys: &VarlenKeys) -> VarlenParams<F> {
        let [cu_seqlens_k, seqused_k] = varlen_keys(keys, self.p.batch);
        let bottom_right = (self.p.alignment == Alignment::BottomRight).into();
        let cu_seqlens_q = cu_seqlens_q(&self.r.queries);
        VarlenParams { forward, cu_seqlens_q, cu_seqlens_k, seqused_k, sequences, bottom_right }
    }

    /// Adds a kernel with work tiles on a KV cache. Hopper's kernels have tensor maps.
    fn cache(
        &mut self,
        tiles: &Tiles,
        sequences: Sequences,
        kv: &KvCache,
        maps: Option<[MapDescription; 4]>,
    ) {
        let scales = scales(&kv.pages);
        match (maps, self.kernel.has_scales()) {
            (None, true) => self.paged(tiles, sequences, kv, scales),
            (None, false) => self.paged(tiles, sequences, kv, ()),
            (Some(maps), true) => self.hopper_paged(tiles, sequences, kv, maps, scales),
            (Some(maps), false) => self.hopper_paged(tiles, sequences, kv, maps, ()),
        }
    }

    /// Adds a portable kernel on a KV cache.
    fn paged<S>(&mut self, tiles: &Tiles, sequences: Sequences, kv: &KvCache, scales: S)
    where
        PagedParams<S>: Part,
        ManyParams<PagedParams<S>>: Part,
    {
        let paged = self.in_pages(tiles, sequences, kv, scales);
        match self.number_tiles(tiles) {
            Some(begins) => self.step(tiles.blocks, &ManyParams { paged, begins }, []),
            None => self.step(tiles.blocks, &paged, []),
        }
    }

    /// Returns the parameters of a portable kernel on a KV cache.
    fn in_pages<S>(&self, tiles: &Tiles, sequences: Sequences, kv: &KvCache, scales: S) -> PagedParams<S> {
        let (forward, max_keys) = (self.portable(tiles, self.on_cache()), kv.max_k as u32);
        let (cache, values) = (cache(kv), cache_of_values(kv));
        let cu_seqlens_q = cu_seqlens_q(&self.r.queries);
        let lengths = integers(Some(kv.lengths), self.p.batch);
        PagedParams { forward, cache, cu_seqlens_q, lengths, sequences, max_keys, scales, values }
    }

    /// Adds a Hopper kernel on a KV cache.
    fn hopper_paged<S>(
        &mut self,
        tiles: &Tiles,
        sequences: Sequences,
        kv: &KvCache,
        maps: [MapDescription; 4],
        scales: S,
    ) where
        HopperPagedParams<S>: Part,
    {
        let begins = self.number_tiles(tiles).unwrap_or(Integers::NONE);
        let params = HopperPagedParams { begins, ..self.on_pages(tiles, sequences, kv, &maps, scales) };
        self.step(tiles.blocks, &params, maps);
    }

    /// Returns the parameters of a Hopper kernel on a KV cache, whose tensor maps are still empty.
    fn on_pages<S>(
        &self,
        tiles: &Tiles,
        sequences: Sequences,
        kv: &KvCache,
        maps: &[MapDescription; 4],
        scales: S,
    ) -> HopperPagedParams<S> {
        let (p, cu_seqlens_q) = (self.p, cu_seqlens_q(&self.r.queries));
        // If all sequences have equal query counts, the device has no offsets, and the LSE has batches.
        // `batch_bytes` is then the gap between the rows of one batch and the rows of the next.
        let lse = lse(self.r.lse.as_ref());
        let rows = tensor(&self.r.q).rows;
        let shared_queries = if tma::shares_queries(&self.r.q) { rows } else { 0 };
        let (queries, batch_bytes) = match cu_seqlens_q.count {
            0 => (rows, lse.batch_bytes.wrapping_sub(u64::from(rows) * 4)),
            _ => (1, 0),
        };
        let [_, k, _, o] = maps;
        let lengths = [o.extents[1], kv.max_k as u32];
        let scalars = Scalars { window: self.on_cache(), lse: Lse { batch_bytes, ..lse }, lengths };
        HopperPagedParams {
            forward: self.hopper(RAGGED, PAGED, tiles, scalars),
            cache: cache(kv),
            cu_seqlens_q,
            lengths: integers(Some(kv.lengths), p.batch),
            sequences,
            // Planning has checked the number: it is 1 or more, and less than 2^31.
            queries: FastDiv::new(queries).unwrap_or(FastDiv::ONE),
            boxes: PageBoxes::new(k.box_shape[1], k.pitch()),
            begins: Integers::NONE,
            shared_queries,
            reserved: [0; 11],
            scales,
        }
    }

    /// Returns the window of a kernel on a KV cache. A causal kernel also computes a full mask: an unbounded
    /// shift puts the first query after all keys.
    fn on_cache(&self) -> Window {
        let unmasked = self.p.mask_kind() == MaskKind::Full && self.kernel.mask == MaskKind::Causal;
        Window { shift: if unmasked { Window::UNBOUNDED } else { 0 }, ..self.p.window() }
    }

    /// Returns the place of the LSE. Kernels store the largest scores behind it, so that these may lie there.
    fn lse(&self) -> Lse {
        lse(self.r.lse.as_ref().or(self.r.max_logits.as_ref()))
    }

    /// Returns the parameters of all portable kernels with work tiles.
    fn portable(&self, tiles: &Tiles, window: Window) -> FwdParams {
        let (scale_log2, softcap) = self.p.base_two();
        let [k, v] = keys_values(&self.r.kv);
        FwdParams {
            q: tensor(&self.r.q),
            k,
            v,
            o: tensor(&self.r.o),
            lse: self.lse(),
            max_logits: lse(self.r.max_logits.as_ref()),
            window,
            scale_log2,
            softcap,
            // Without slack, a row does not notice when other rows of its warp rescale.
            slack: if self.r.max_logits.is_some() || self.p.invariance == Invariance::BatchAndChunks {
                0.0
            } else {
                FwdParams::SLACK
            },
            reserved: 0,
            order: *tiles.order(),
            alibi: slopes(self.r.scores.alibi.as_ref()),
        }
    }

    /// Returns the parameters of all of Hopper's kernels, whose tensor maps are still empty. `q` and `k` give
    /// the types of the maps.
    fn hopper<Q: Copy, K: Copy>(&self, q: Q, k: K, tiles: &Tiles, scalars: Scalars) -> HopperParams<Q, K> {
        let (scale_log2, softcap) = self.p.base_two();
        let Scalars { window, lse, lengths: [q_len, k_len] } = scalars;
        let rounds = tiles.rounds;
        HopperParams { q, k, v: k, o: q, lse, rounds, window, scale_log2, softcap, q_len, k_len }
    }

    /// Returns the parameters of Hopper's kernels for tensors.
    fn hopper_on_tensors<M: Copy>(&self, map: M, tiles: &Tiles) -> HopperParams<M> {
        let p = self.p;
        let lengths = p.varlen.unwrap_or([p.seqlen_q, p.seqlen_k]).map(|length| length as u32);
        self.hopper(map, map, tiles, Scalars { window: p.window(), lse: self.lse(), lengths })
    }
}

const NO_MAP: TensorMap = TensorMap::EMPTY;
const RAGGED: RaggedMap = RaggedMap { map: NO_MAP };
const PAGED: PagedMap = PagedMap { map: NO_MAP };

/// Parameters that differ between Hopper's kernels for tensors and for KV caches.
struct Scalars {
    window: Window,
    lse: Lse,
    lengths: [u32; 2],
}
