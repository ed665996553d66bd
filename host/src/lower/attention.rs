//! What attention kernels are told.
use super::Refusal;
use super::tensors::{
    NO_LSE, UNSCALED, cache, cu_seqlens_q, dense_cache, integers, keys_values, lse, scales, slopes, tensor,
    varlen_keys,
};
use crate::launch::Launch;
use crate::request::{Alignment, AttentionRequest, KeysValues, KvCache};
use crate::schedule::{Decode, Schedule, Scheduled, Tiles};
use crate::{AttnInfo, Boxes, Error, MaskKind, Problem, tma};
use spec::{
    Cache, CombineParams, DecodeOrder, DecodeParams, FastDiv, FwdParams, HopperPagedParams, HopperParams,
    Integers, Lse, PageBoxes, PagedMap, PagedParams, PerHead, RaggedMap, Schedule as Order, Sequences,
    SplitParams, TensorMap, VarlenParams, Window,
};

/// Whether a kernel that solves the problem of a request that has been checked takes its tensors.
///
/// # Errors
/// What it does not take.
pub(crate) fn takes(r: &AttentionRequest<'_>, kernel: &AttnInfo) -> Result<(), &'static str> {
    match (&r.kv, kernel.schedule) {
        (KeysValues::Tensors { k, v }, Order::Transposed) => dense_cache(k, v).map(|_| ()),
        _ => tma::maps(r, kernel).map(|_| ()),
    }
}

/// The launch of a request that has been checked, by a kernel that solves its problem.
///
/// # Errors
/// [`Refusal::Tensors`] where the kernel solves the problem, but does not take these tensors.
pub(crate) fn attention(r: &AttentionRequest<'_>, s: &Scheduled) -> Result<Launch, Refusal> {
    let lowering = Lowering { r, p: r.problem(), place: s.place };
    match (&s.schedule, &r.kv) {
        (Schedule::Decode(decode), KeysValues::Cache(kv)) => {
            let lengths = integers(Some(kv.lengths), lowering.p.batch);
            Ok(lowering.decode(decode, cache(kv), lengths, scales(&kv.pages)))
        }
        (Schedule::Decode(decode), KeysValues::Tensors { k, v }) => {
            // Without an address each sequence has the most keys of one.
            let cache = dense_cache(k, v).map_err(Refusal::Tensors)?;
            Ok(lowering.decode(decode, cache, decode.order.lengths, [UNSCALED; 2]))
        }
        (Schedule::Tiles(tiles), kv) => {
            let maps = tma::maps(r, s.kernel).map_err(Refusal::Tensors)?;
            match (kv, tiles.sequences) {
                (KeysValues::Cache(cache), Some(sequences)) => {
                    Ok(lowering.cache(tiles, sequences, cache, s.kernel.mask, maps))
                }
                (KeysValues::Cache(_), None) => Err(elsewhere(s).into()),
                (KeysValues::Tensors { .. } | KeysValues::Varlen { .. }, _) => {
                    Ok(lowering.tensors(tiles, maps))
                }
            }
        }
        (Schedule::Decode(_), KeysValues::Varlen { .. }) => Err(elsewhere(s).into()),
    }
}

/// A kernel that was planned for another source of keys; plans are bound to the source of their own alone.
fn elsewhere(s: &Scheduled) -> Error {
    Error::unsupported(s.kernel.contract.symbol, "it reads keys and values from another place")
}

/// A request on its way to the kernel at a place in [`spec::KERNELS`].
struct Lowering<'a> {
    r: &'a AttentionRequest<'a>,
    p: Problem,
    place: usize,
}

impl Lowering<'_> {
    /// Work tiles, keys and values in tensors: whole or split, of equal lengths or varlen; with tensor maps
    /// one of Hopper's kernels.
    fn tensors(&self, tiles: &Tiles, maps: Option<[Boxes; 4]>) -> Launch {
        let (p, place, grid) = (&self.p, self.place, [tiles.blocks, 1, 1]);
        let window = p.window();
        let partials = tiles.split.map(|split| split.partials(self.r.scratch.address()));
        let Some(maps) = maps else {
            let forward = self.portable(tiles, window);
            return match (partials, self.varlen(tiles)) {
                (Some(partials), _) => {
                    self.combined(Launch::new(place, grid, &SplitParams { forward, partials }), tiles)
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
                    Launch::new(place, grid, &params)
                }
                (None, None) => Launch::new(place, grid, &forward),
            };
        };
        let lengths = p.varlen.unwrap_or([p.seqlen_q, p.seqlen_k]).map(|length| length as u32);
        let told = Scalars { window, lse: lse(self.r.lse.as_ref()), lengths };
        match (partials, self.varlen(tiles)) {
            (Some(partials), _) => {
                let forward = self.hopper(NO_MAP, NO_MAP, tiles, told);
                let params = SplitParams { forward, partials };
                self.combined(Launch::with_maps(place, grid, &params, maps), tiles)
            }
            (None, Some(varlen)) => {
                let Varlen { cu_seqlens_q, cu_seqlens_k, seqused_k, sequences, bottom_right } = varlen;
                let forward = self.hopper(RAGGED, RAGGED, tiles, told);
                let params =
                    VarlenParams { forward, cu_seqlens_q, cu_seqlens_k, seqused_k, sequences, bottom_right };
                Launch::with_maps(place, grid, &params, maps)
            }
            (None, None) => Launch::with_maps(place, grid, &self.hopper(NO_MAP, NO_MAP, tiles, told), maps),
        }
    }

    /// Work tiles on a cache; with tensor maps one of Hopper's kernels.
    fn cache(
        &self,
        tiles: &Tiles,
        sequences: Sequences,
        kv: &KvCache,
        mask: MaskKind,
        maps: Option<[Boxes; 4]>,
    ) -> Launch {
        let (p, place, grid) = (&self.p, self.place, [tiles.blocks, 1, 1]);
        // Without a bound, which kernels of windows take as one, the first query is behind all keys.
        let unmasked = p.mask_kind() == MaskKind::Full && mask != MaskKind::Local;
        let window = Window { shift: if unmasked { Window::UNBOUNDED } else { 0 }, ..p.window() };
        let cu_seqlens_q = cu_seqlens_q(&self.r.queries);
        let lengths = integers(Some(kv.lengths), p.batch);
        let (cache, max_keys) = (cache(kv), kv.max_k as u32);
        let Some(maps) = maps else {
            let forward = self.portable(tiles, window);
            let params = PagedParams { forward, cache, cu_seqlens_q, lengths, sequences, max_keys };
            return Launch::new(place, grid, &params);
        };
        // As many queries for each sequence, where the device is not told; then the log-sum-exp has batches,
        // too, the next of which is so much further on than the next row.
        let lse = lse(self.r.lse.as_ref());
        let rows = tensor(&self.r.q).rows;
        let (queries, batch_bytes) = match cu_seqlens_q.count {
            0 => (rows, lse.batch_bytes.wrapping_sub(u64::from(rows) * 4)),
            _ => (1, 0),
        };
        let [q, k, ..] = &maps;
        let told = Scalars { window, lse: Lse { batch_bytes, ..lse }, lengths: [q.extents[1], max_keys] };
        let params = HopperPagedParams {
            forward: self.hopper(RAGGED, PAGED, tiles, told),
            cache,
            cu_seqlens_q,
            lengths,
            sequences,
            // Checked: 1 or more, and less than 2^31.
            queries: FastDiv::new(queries).unwrap_or(FastDiv::ONE),
            boxes: PageBoxes::new(k.of[1], k.pitch()),
        };
        Launch::with_maps(place, grid, &params, maps)
    }

    /// Few queries on many keys.
    fn decode(&self, decode: &Decode, cache: Cache, lengths: Integers, scales: [PerHead; 2]) -> Launch {
        let (r, p) = (self.r, &self.p);
        let (scale_log2, softcap) = p.base_two();
        let counters = decode.counters(r.scratch.counters().map(|counters| counters.address));
        let params = DecodeParams {
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
            order: DecodeOrder { lengths, ..decode.order },
            partials: decode.partials(r.scratch.address()),
            counters,
            group: FastDiv::new((p.heads_q / p.heads_k) as u32).unwrap_or(FastDiv::ONE),
            // The last query stands at the last key, wherever that is.
            window: Window { shift: 0, ..p.window() },
            scale_log2,
            softcap,
        };
        let launch = Launch::new(self.place, [decode.order.blocks, 1, 1], &params);
        let combines = decode.workspace > 0 && counters.count == 0;
        if combines { launch.then_alike(decode.combine) } else { launch }
    }

    /// What all portable kernels of work tiles are told.
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

    /// What all of Hopper's kernels are told, with empty tensor maps of the kinds of `q` and `k`.
    fn hopper<Q: Copy, K: Copy>(&self, q: Q, k: K, tiles: &Tiles, told: Scalars) -> HopperParams<Q, K> {
        let (scale_log2, softcap) = self.p.base_two();
        let Scalars { window, lse, lengths: [q_len, k_len] } = told;
        let rounds = tiles.rounds;
        HopperParams { q, k, v: k, o: q, lse, rounds, window, scale_log2, softcap, q_len, k_len }
    }

    /// Varlen sequences, where these are tensors'.
    fn varlen(&self, tiles: &Tiles) -> Option<Varlen> {
        let (KeysValues::Varlen { keys, .. }, Some(sequences)) = (&self.r.kv, tiles.sequences) else {
            return None;
        };
        let [cu_seqlens_k, seqused_k] = varlen_keys(keys, self.p.batch);
        let bottom_right = (self.p.alignment == Alignment::BottomRight).into();
        let cu_seqlens_q = cu_seqlens_q(&self.r.queries);
        Some(Varlen { cu_seqlens_q, cu_seqlens_k, seqused_k, sequences, bottom_right })
    }

    /// The launch, and the kernel that combines its splits.
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

/// What differs between Hopper's kernels for tensors and for caches.
struct Scalars {
    window: Window,
    lse: Lse,
    lengths: [u32; 2],
}

/// Varlen sequences as kernels are told them.
struct Varlen {
    cu_seqlens_q: Integers,
    cu_seqlens_k: Integers,
    seqused_k: Integers,
    sequences: Sequences,
    bottom_right: u32,
}
