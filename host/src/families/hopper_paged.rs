//! The Hopper family over a cache: as [`super::hopper_packed`], with keys and values through maps that end
//! where a sequence ends in a page. Maps follow from tensors and the size of pages alone, so that a graph
//! replayed with other lengths and other pages has them.
use super::hopper::{takes_views, whole};
use super::hopper_packed::{dealt, takes_rows};
use super::on_cache::Launch as OnCache;
use super::{One, packed, paged, place};
use crate::prepared::bytes_of;
use crate::{Boxes, Capabilities, Decode, Error, KvCache, MapKind, Paged, Problem, TensorView};
use spec::{
    AttnInfo, FastDiv, FwdParams, HopperPagedParams, HopperParams, KERNELS, Lse, PageBoxes, PagedMap,
    PagedParams, RaggedMap, Sequences, TensorMap, TileRounds,
};

/// The launch of a Hopper kernel over a cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Launch {
    /// Its place in [`KERNELS`].
    pub kernel: usize,
    pub grid: [u32; 3],
    /// Q, K, V and O.
    boxes: [Boxes; 4],
    tile_n: u32,
    rounds: TileRounds,
    sequences: Sequences,
    /// What a portable kernel is told, which is nearly all.
    told: PagedParams,
    /// The portable kernel, for tensors that the copy engine does not take; none where this one was asked for
    /// by name.
    instead: Option<usize>,
}

/// Boxes have at least as many rows: what the swizzle repeats itself after.
const LEAST_ROWS: u32 = 8;

/// Rows of the boxes in which stages of `tile_n` keys are copied: each lies in one page.
fn box_rows(cache: &KvCache, tile_n: u32) -> Option<u32> {
    let one_page = match cache.paged {
        Paged::Dense { .. } => true,
        Paged::Table { columns, .. } => columns == 1,
    };
    let common = (cache.pages.keys.shape[1] as u32 | tile_n).trailing_zeros();
    let rows = if one_page { tile_n } else { 1 << common };
    (rows >= LEAST_ROWS).then_some(rows)
}

/// A view whose batches lie one behind the other as rows of one.
fn one_batch(view: &TensorView) -> Option<TensorView> {
    let [batches, rows, heads, columns] = view.shape;
    let row = match (batches, rows) {
        (1, _) => view.strides[1],
        (_, 1) => view.strides[0],
        _ if view.strides[0] == view.strides[1].wrapping_mul(rows as i64) => view.strides[1],
        _ => return None,
    };
    let shape = [1, batches * rows, heads, columns];
    Some(TensorView { shape, strides: [0, row, view.strides[2], view.strides[3]], ..*view })
}

/// The boxes of Q, K, V and O.
///
/// # Errors
/// What the copy engine does not take.
fn boxes(d: &Decode<'_>, tile_n: u32, panel: u32) -> Result<[Boxes; 4], &'static str> {
    let Some(rows) = box_rows(&d.cache, tile_n) else {
        return Err("pages hold no multiple of 8 keys, and Hopper's copy engine takes as many at a time");
    };
    let [Some(q), Some(o)] = [&d.q, &d.o].map(one_batch) else {
        return Err("batches do not follow each other as rows do, and maps of packed sequences have none");
    };
    [&q, &o].into_iter().try_for_each(takes_rows)?;
    let [k, v] = [d.cache.pages.keys, d.cache.pages.values].map(|pages| pages.tensor());
    takes_views(&[q, k, v, o])?;
    let queries = (MapKind::Ragged, AttnInfo::Q_BOX_ROWS);
    let keys = (MapKind::Paged, rows);
    let all = [(q, queries), (k, keys), (v, keys), (o, queries)];
    let all = all.map(|(view, (kind, rows))| Boxes { of: [panel, rows], kind, ..whole(&view) });
    if all[1..3].iter().any(|boxes| !boxes.is_of_rows()) {
        return Err(
            "pages do not lie a whole number of rows apart, or are more than 2^30 rows, or of 2^34 bytes",
        );
    }
    Ok(all)
}

/// Checks that the copy engine takes a request that has been checked, in stages of `tile_n` keys.
///
/// # Errors
/// What it does not take.
pub(crate) fn takes(d: &Decode<'_>, tile_n: u32) -> Result<(), &'static str> {
    boxes(d, tile_n, 0).map(|_| ())
}

/// A request's problem, as if its batches were packed.
fn packed_problem(d: &Decode<'_>) -> Problem {
    let p = d.problem();
    let rows = p.packed.unwrap_or([p.batch * p.seqlen_q, p.seqlen_k]);
    Problem { packed: Some(rows), ..p }
}

impl Launch {
    /// `entry` must be a Hopper one over a cache that solves the request. `instead` does for any tensors.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where there are too many tiles, or tensors that the copy engine does not take.
    pub fn new(
        entry: &AttnInfo,
        instead: Option<One<PagedParams>>,
        d: &Decode<'_>,
        on: &Capabilities,
    ) -> Result<Self, Error> {
        let refused = |reason| Error::unsupported(entry.contract.symbol, reason);
        let boxes = boxes(d, entry.tile_n, entry.panel()).map_err(refused)?;
        let p = packed_problem(d);
        let (sequences, order) = packed::order(&p, entry.tile_m, on)?;
        // How many keys sequences have the host knows of one alone, or where all have as many as they may.
        let all = |most: usize| p.batch.saturating_mul(most);
        let [[_, queries, ..], _] = p.shapes();
        let keys = p.batch == 1 || d.cache.total_k == Some(all(p.seqlen_k));
        let (equal, tiles) =
            (keys && queries == all(p.seqlen_q), (&entry.contract, entry.mask, entry.tile_m));
        let rounds = dealt(equal, &p, tiles, order, &sequences, on);
        let own = || paged::params(d, sequences, order, paged::shift(d, entry.mask));
        Ok(Launch {
            kernel: place(&entry.contract),
            grid: [rounds.blocks(), 1, 1],
            boxes,
            tile_n: entry.tile_n,
            rounds,
            sequences,
            told: instead.map_or_else(own, |one| one.params),
            instead: instead.map(|one| one.kernel),
        })
    }

    /// The same for other tensors of the same shape: by the portable kernel where the copy engine does not
    /// take them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where it does not, and no portable kernel takes its place.
    pub fn bind(&self, d: &Decode<'_>) -> Result<OnCache, Error> {
        let told = paged::params_again(&self.told, d);
        match (boxes(d, self.tile_n, self.boxes[0].of[0]), self.instead) {
            (Ok(boxes), _) => Ok(OnCache::Hopper(Launch { boxes, told, ..*self })),
            (Err(_), Some(kernel)) => {
                let grid = [told.forward.order.tiles, 1, 1];
                Ok(OnCache::Many(One { kernel, grid, params: told }))
            }
            (Err(reason), None) => Err(Error::unsupported(KERNELS[self.kernel].symbol, reason)),
        }
    }

    /// Hands over its place, its blocks and the bytes of its parameters, once `maps` has encoded its tensors.
    ///
    /// # Errors
    /// Those of either.
    pub fn each(
        &self,
        mut maps: impl FnMut(&Boxes) -> Result<TensorMap, Error>,
        mut launch: impl FnMut(usize, [u32; 3], &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut map = |at: usize| maps(&self.boxes[at]);
        let params = self.params([map(0)?, map(1)?, map(2)?, map(3)?]);
        // SAFETY: no family's parameters have padding (`spec` tests it of these).
        launch(self.kernel, self.grid, unsafe { bytes_of(&params) })
    }

    fn params(&self, [q, k, v, o]: [TensorMap; 4]) -> HopperPagedParams {
        let PagedParams { forward, cache, cu_seqlens_q, lengths, max_keys, .. } = self.told;
        let FwdParams { lse, window, scale_log2, softcap, .. } = forward;
        // As many queries for each sequence, where the device is not told; then the log-sum-exp has batches,
        // too, the next of which is so much further on than the next row.
        let (queries, batch_bytes) = match cu_seqlens_q.count {
            0 => (forward.q.rows, lse.batch_bytes.wrapping_sub(u64::from(forward.q.rows) * 4)),
            _ => (1, 0),
        };
        HopperPagedParams {
            forward: HopperParams {
                q: RaggedMap { map: q },
                k: PagedMap { map: k },
                v: PagedMap { map: v },
                o: RaggedMap { map: o },
                lse: Lse { batch_bytes, ..lse },
                rounds: self.rounds,
                window,
                scale_log2,
                softcap,
                q_len: self.boxes[0].extents[1],
                k_len: max_keys,
            },
            cache,
            cu_seqlens_q,
            lengths,
            sequences: self.sequences,
            // Checked: 1 or more, and less than 2^31.
            queries: FastDiv::new(queries).unwrap_or(FastDiv::ONE),
            boxes: PageBoxes::new(self.boxes[1].of[1], self.boxes[1].pitch()),
        }
    }

    /// The kernel that takes other tensors, if there is one.
    pub fn other(&self) -> Option<usize> {
        self.instead
    }
}
