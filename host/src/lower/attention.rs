//! Parameters of attention kernels.
mod decode;

use super::tensors::{
    UNSCALED, cache, cache_of_values, cu_seqlens_q, dense_cache, integers, keys_values, lse, scales, slopes,
    tensor, varlen_cache, varlen_keys,
};
use super::{Refusal, merge, variant};
use crate::launch::{Launch, Params};
use crate::place::Place;
use crate::request::{Alignment, AttentionRequest, KeysValues, KvCache, LseView, State};
use crate::schedule::{Few, Schedule, Scheduled, Tiles};
use crate::{AttnInfo, Error, MapDescription, MaskKind, Problem, tma};
use decode::single_queries;
use spec::{
    CombineParams, DecodeOrder, FastDiv, FewParams, FwdParams, HopperPagedParams, HopperParams, Integers,
    Lse, ManyParams, ManySequences, PageBoxes, PagedMap, PagedParams, RaggedMap, Sequences, SplitParams,
    States, TensorMap, VarlenParams, Window,
};

/// Checks that a kernel accepts the tensors of a valid request. The kernel solves the request's problem.
///
/// # Errors
/// Returns the reason why the kernel does not accept the tensors.
pub(crate) fn takes(r: &AttentionRequest<'_>, kernel: &AttnInfo) -> Result<(), &'static str> {
    let nowhere = integers(None, 0);
    match &r.kv {
        KeysValues::Tensors { k, v } if kernel.decodes() => dense_cache(k, v).map(|_| ()),
        KeysValues::Varlen { k, v, keys } if kernel.decodes() => {
            varlen_cache(k, v, &nowhere, keys.max_seqlen_k).map(|_| ())
        }
        KeysValues::Cache(kv) if kernel.decodes() => tma::latent(kv, kernel).map(|_| ()),
        _ => tma::bias(r, kernel).and(tma::maps(r, kernel)).map(|_| ()),
    }
}

/// Returns the launch of a valid request by a kernel that solves the request's problem.
///
/// # Errors
/// Returns [`Refusal::Tensors`] if the kernel solves the problem but does not accept these tensors.
pub(super) fn attention(r: &AttentionRequest<'_>, s: &Scheduled) -> Result<Launch, Refusal> {
    let (Some(place), Some(sinks)) = (s.merge, r.scores.sinks) else { return kernel(r, s) };
    // The kernel leaves the LSE without sinks in the workspace, for the merge kernel.
    let [[batch, rows, heads, _], ..] = r.problem().shapes();
    let lse = LseView::contiguous(r.scratch.address(), s.lse_bytes() / 4, [batch, heads, rows]);
    let launch = kernel(&AttentionRequest { lse: Some(lse), ..*r }, s)?;
    Ok(merge::with_sinks(launch, place, State::new(r.o, lse), sinks, r.lse)?)
}

/// Returns the launch of the attention kernel, with its combine kernel.
///
/// # Errors
/// Returns [`Refusal::Tensors`], or the errors of a variant's kernel.
fn kernel(r: &AttentionRequest<'_>, s: &Scheduled) -> Result<Launch, Refusal> {
    Ok(variant::fits(of_kernel(r, s, States::NONE)?, r)?)
}

/// Returns the launch of a decode kernel on a KV cache, which merges states over other keys into its results.
///
/// # Errors
/// Returns [`Refusal::Tensors`], or [`Refusal::Request`] if the kernel takes no states: prefill kernels, and
/// decode kernels that read keys through a tensor map.
pub(super) fn decode_beside(
    r: &AttentionRequest<'_>,
    s: &Scheduled,
    states: States,
) -> Result<Launch, Refusal> {
    match (&s.schedule, &r.kv) {
        (Schedule::Decode(_), KeysValues::Cache(_)) if !s.kernel.has_maps() => of_kernel(r, s, states),
        _ => Err(elsewhere(s).into()),
    }
}

fn of_kernel(r: &AttentionRequest<'_>, s: &Scheduled, states: States) -> Result<Launch, Refusal> {
    let tma_bias = tma::bias(r, s.kernel).map_err(Refusal::Tensors)?;
    let lowering = Lowering { r, p: r.problem(), kernel: s.kernel, place: s.place, tma_bias, states };
    match (&s.schedule, &r.kv) {
        (Schedule::Decode(decode), KeysValues::Cache(kv)) => {
            let lengths = integers(Some(kv.lengths), lowering.p.batch);
            let order = DecodeOrder { lengths, ..decode.order };
            let map = tma::latent(kv, s.kernel).map_err(Refusal::Tensors)?;
            Ok(match map {
                None => lowering.decode(decode, order, cache(kv), scales(&kv.pages)),
                Some(map) => lowering.latent(decode, order, cache(kv), map),
            })
        }
        (Schedule::Decode(decode), KeysValues::Tensors { k, v }) => {
            // Lengths without an address mean that each sequence has the maximum number of keys.
            let cache = dense_cache(k, v).map_err(Refusal::Tensors)?;
            Ok(lowering.decode(decode, decode.order, cache, [UNSCALED; 2]))
        }
        (Schedule::Decode(decode), KeysValues::Varlen { k, v, keys }) => {
            let Lowering { p, .. } = lowering;
            let [starts, used] = varlen_keys(keys, p.batch);
            let lengths = if used.count == 0 { decode.order.lengths } else { used };
            let order = DecodeOrder { lengths, starts, ..decode.order };
            let cache = varlen_cache(k, v, &starts, p.seqlen_k).map_err(Refusal::Tensors)?;
            let r = &single_queries(r);
            Ok(Lowering { r, ..lowering }.decode(decode, order, cache, [UNSCALED; 2]))
        }
        (Schedule::Tiles(tiles), kv) => {
            let maps = tma::maps(r, s.kernel).map_err(Refusal::Tensors)?;
            match (kv, tiles.sequences) {
                (KeysValues::Cache(kv), Some(sequences)) if let Some(few) = &s.few => {
                    Ok(lowering.mixed(few, tiles, sequences, kv, maps))
                }
                (KeysValues::Cache(cache), Some(sequences)) => {
                    Ok(lowering.cache(tiles, sequences, cache, maps))
                }
                (KeysValues::Cache(_), None) => Err(elsewhere(s).into()),
                (KeysValues::Tensors { .. } | KeysValues::Varlen { .. }, _) => {
                    Ok(lowering.tensors(tiles, maps))
                }
            }
        }
    }
}

/// Returns the error for a kernel that was planned for another kind of keys. Plans bind only requests with
/// the planned kind of keys.
fn elsewhere(s: &Scheduled) -> Error {
    Error::unsupported(s.kernel.contract.symbol, "it reads keys and values from another kind of memory")
}

/// A request and its kernel.
struct Lowering<'a> {
    r: &'a AttentionRequest<'a>,
    p: Problem,
    kernel: &'a AttnInfo,
    place: Place,
    /// The description of the bias, if the kernel reads the bias through a tensor map.
    tma_bias: Option<MapDescription>,
    /// The states that a decode kernel merges into its results.
    states: States,
}

impl Lowering<'_> {
    /// Returns the launch of the kernel alone, with the parameters of its mask and scores.
    fn launch<P: Params>(&self, blocks: u32, params: &P) -> Launch {
        self.with_variant(Launch::new(self.place, [blocks, 1, 1], params))
    }

    /// Returns the launch of the kernel alone, with tensor maps.
    fn with_maps<P: Params, const N: usize>(
        &self,
        blocks: u32,
        params: &P,
        maps: [MapDescription; N],
    ) -> Launch {
        self.with_variant(Launch::with_maps(self.place, [blocks, 1, 1], params, maps))
    }

    /// Adds the parameters of the kernel's mask and scores.
    fn with_variant(&self, launch: Launch) -> Launch {
        variant::with(launch, self.r, &self.p, self.kernel, self.tma_bias)
    }

    /// Returns the launch of a kernel with work tiles, with keys and values in tensors: with or without
    /// splits, dense or varlen. Hopper's kernels have tensor maps.
    fn tensors(&self, tiles: &Tiles, maps: Option<[MapDescription; 4]>) -> Launch {
        let (p, blocks) = (&self.p, tiles.blocks);
        let window = p.window();
        let partials = tiles.split.map(|split| split.partials(self.r.scratch.address()));
        let Some(maps) = maps else {
            let forward = self.portable(tiles, window);
            return match (partials, self.varlen(tiles)) {
                (Some(partials), _) => {
                    self.combined(self.launch(blocks, &SplitParams { forward, partials }), tiles)
                }
                (None, Some(varlen)) => {
                    let Varlen { cu_seqlens_q, cu_seqlens_k, seqused_k, sequences, bottom_right } = varlen;
                    let params = VarlenParams {
                        forward,
                        cu_seqlens_q,
                        cu_seqlens_k,
                        seqused_k,
                        sequences,
                        bottom_right,
                    };
                    self.launch(blocks, &params)
                }
                (None, None) => self.launch(blocks, &forward),
            };
        };
        let lengths = p.varlen.unwrap_or([p.seqlen_q, p.seqlen_k]).map(|length| length as u32);
        let told = Scalars { window, lse: lse(self.r.lse.as_ref()), lengths };
        match (partials, self.varlen(tiles)) {
            (Some(partials), _) => {
                let forward = self.hopper(NO_MAP, NO_MAP, tiles, told);
                let params = SplitParams { forward, partials };
                self.combined(self.with_maps(blocks, &params, maps), tiles)
            }
            (None, Some(varlen)) => {
                let Varlen { cu_seqlens_q, cu_seqlens_k, seqused_k, sequences, bottom_right } = varlen;
                let forward = self.hopper(RAGGED, RAGGED, tiles, told);
                let params =
                    VarlenParams { forward, cu_seqlens_q, cu_seqlens_k, seqused_k, sequences, bottom_right };
                self.with_maps(blocks, &params, maps)
            }
            (None, None) => self.with_maps(blocks, &self.hopper(NO_MAP, NO_MAP, tiles, told), maps),
        }
    }

    /// Returns the launch of a kernel with work tiles on a KV cache. Hopper's kernels have tensor maps.
    fn cache(
        &self,
        tiles: &Tiles,
        sequences: Sequences,
        kv: &KvCache,
        maps: Option<[MapDescription; 4]>,
    ) -> Launch {
        let blocks = tiles.blocks;
        let Some(maps) = maps else {
            let params = self.paged(tiles, sequences, kv);
            return match self.kernel.has_scales() {
                true => self.launch(blocks, &params.scales(scales(&kv.pages))),
                false => self.launch(blocks, &params),
            };
        };
        self.with_variant(self.hopper_paged(tiles, sequences, kv, maps, ManySequences::ALL))
    }

    /// Returns the parameters of a portable kernel on a KV cache, without scales.
    fn paged(&self, tiles: &Tiles, sequences: Sequences, kv: &KvCache) -> PagedParams {
        let (forward, max_keys) = (self.portable(tiles, self.on_cache()), kv.max_k as u32);
        let (cache, values, scales) = (cache(kv), cache_of_values(kv), ());
        let cu_seqlens_q = cu_seqlens_q(&self.r.queries);
        let lengths = integers(Some(kv.lengths), self.p.batch);
        PagedParams { forward, cache, cu_seqlens_q, lengths, sequences, max_keys, scales, values }
    }

    /// Returns the launch of a Hopper kernel on a KV cache, which takes the sequences `many`. The parameters
    /// of mask and scores are missing.
    fn hopper_paged(
        &self,
        tiles: &Tiles,
        sequences: Sequences,
        kv: &KvCache,
        maps: [MapDescription; 4],
        many: ManySequences,
    ) -> Launch {
        let (p, cu_seqlens_q) = (&self.p, cu_seqlens_q(&self.r.queries));
        // If all sequences have equal query counts, the device has no offsets, and the LSE has batches.
        // `batch_bytes` is then the gap between the rows of one batch and the rows of the next.
        let lse = lse(self.r.lse.as_ref());
        let rows = tensor(&self.r.q).rows;
        let shared_queries = if tma::shares_queries(&self.r.q) { rows } else { 0 };
        let (queries, batch_bytes) = match cu_seqlens_q.count {
            0 => (rows, lse.batch_bytes.wrapping_sub(u64::from(rows) * 4)),
            _ => (1, 0),
        };
        let [_, k, _, o] = &maps;
        let lengths = [o.extents[1], kv.max_k as u32];
        let told = Scalars { window: self.on_cache(), lse: Lse { batch_bytes, ..lse }, lengths };
        let params = HopperPagedParams {
            forward: self.hopper(RAGGED, PAGED, tiles, told),
            cache: cache(kv),
            cu_seqlens_q,
            lengths: integers(Some(kv.lengths), p.batch),
            sequences,
            // Planning has checked the number: it is 1 or more, and less than 2^31.
            queries: FastDiv::new(queries).unwrap_or(FastDiv::ONE),
            boxes: PageBoxes::new(k.box_shape[1], k.pitch()),
            many,
            shared_queries,
            reserved: [0; 11],
            scales: (),
        };
        let blocks = [tiles.blocks, 1, 1];
        match self.kernel.has_scales() {
            true => Launch::with_maps(self.place, blocks, &params.scales(scales(&kv.pages)), maps),
            false => Launch::with_maps(self.place, blocks, &params, maps),
        }
    }

    /// Returns the window of a kernel on a KV cache. A causal kernel also computes a full mask: an unbounded
    /// shift puts the first query after all keys.
    fn on_cache(&self) -> Window {
        let unmasked = self.p.mask_kind() == MaskKind::Full && self.kernel.mask == MaskKind::Causal;
        Window { shift: if unmasked { Window::UNBOUNDED } else { 0 }, ..self.p.window() }
    }

    /// Returns the launch of a mixed batch on a KV cache: the decode kernel takes the sequences of few
    /// queries, the prefill kernel takes the others.
    fn mixed(
        &self,
        few: &Few,
        tiles: &Tiles,
        sequences: Sequences,
        kv: &KvCache,
        maps: Option<[MapDescription; 4]>,
    ) -> Launch {
        let cu_seqlens_q = cu_seqlens_q(&self.r.queries);
        let lengths = integers(Some(kv.lengths), self.p.batch);
        let order = DecodeOrder { lengths, ..few.decode.order };
        let decode = self.decode_params(&few.decode, order, cache(kv), scales(&kv.pages));
        let combines = few.decode.workspace > 0 && decode.counters.count == 0;
        let blocks = [few.decode.order.blocks, 1, 1];
        let params = FewParams { decode, cu_seqlens_q, most: few.most, reserved: 0 };
        let first = Launch::new(few.place, blocks, &params);
        let first = if combines { first.then_alike::<FewParams>(few.decode.combine) } else { first };
        let blocks = [tiles.blocks, 1, 1];
        if let Some(maps) = maps {
            return first.then_all(self.hopper_paged(tiles, sequences, kv, maps, few.many));
        }
        let (paged, many) = (self.paged(tiles, sequences, kv), few.many);
        match self.kernel.has_scales() {
            true => {
                let paged = paged.scales(scales(&kv.pages));
                first.then(self.place, blocks, &ManyParams { paged, many })
            }
            false => first.then(self.place, blocks, &ManyParams { paged, many }),
        }
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
            lse: lse(self.r.lse.as_ref()),
            window,
            scale_log2,
            softcap,
            order: *tiles.order(),
            alibi: slopes(self.r.scores.alibi.as_ref()),
        }
    }

    /// Returns the parameters of all of Hopper's kernels, whose tensor maps are still empty. `q` and `k` give
    /// the types of the maps.
    fn hopper<Q: Copy, K: Copy>(&self, q: Q, k: K, tiles: &Tiles, told: Scalars) -> HopperParams<Q, K> {
        let (scale_log2, softcap) = self.p.base_two();
        let Scalars { window, lse, lengths: [q_len, k_len] } = told;
        let rounds = tiles.rounds;
        HopperParams { q, k, v: k, o: q, lse, rounds, window, scale_log2, softcap, q_len, k_len }
    }

    /// Returns the parameters of varlen sequences in tensors, if there are any.
    fn varlen(&self, tiles: &Tiles) -> Option<Varlen> {
        let (KeysValues::Varlen { keys, .. }, Some(sequences)) = (&self.r.kv, tiles.sequences) else {
            return None;
        };
        let [cu_seqlens_k, seqused_k] = varlen_keys(keys, self.p.batch);
        let bottom_right = (self.p.alignment == Alignment::BottomRight).into();
        let cu_seqlens_q = cu_seqlens_q(&self.r.queries);
        Some(Varlen { cu_seqlens_q, cu_seqlens_k, seqused_k, sequences, bottom_right })
    }

    /// Returns the launch with the combine kernel, if the kernel splits.
    fn combined(&self, launch: Launch, tiles: &Tiles) -> Launch {
        let Some(split) = tiles.split else { return launch };
        let (combine, rows) = split.combine_info();
        let params = CombineParams {
            partials: split.partials(self.r.scratch.address()),
            o: tensor(&self.r.o),
            lse: lse(self.r.lse.as_ref()),
            heads: tiles.order().heads,
            rows,
        };
        launch.then(split.combine(), combine.grid(&params), &params)
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

/// Parameters of varlen sequences.
struct Varlen {
    cu_seqlens_q: Integers,
    cu_seqlens_k: Integers,
    seqused_k: Integers,
    sequences: Sequences,
    bottom_right: u32,
}
