//! Schedules split-KV of work tiles: computes the number of splits per tile and the places of the partial
//! results, and selects the combine kernel. A state in f32 is the partial result of one split, which no
//! kernel combines.
use crate::place::Place;
use crate::{Capabilities, Error, Problem};
use spec::{AttnInfo, COMBINES, CombineInfo, FastDiv, Partials, SplitKernels, TileScheduler};

/// Maximum number of splits per work tile. With 32 splits, the combine kernel reads the number of bytes that
/// the keys and values of 64 queries have.
const MAX_SPLITS: u64 = 32;
/// Minimum number of key blocks per split.
const MIN_BLOCKS: u64 = 2;

/// The splits of each tile's keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    splits: FastDiv,
    /// Queries of a head.
    rows: FastDiv,
    /// Heads of all batches.
    heads: u32,
    combine: &'static CombineInfo,
    /// The place of the combine kernel; `None` for a state.
    place: Option<Place>,
}

impl Split {
    /// Returns the splits of `entry` for a problem, or `None` if the entry does not split.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the combine kernel's grid would be too large.
    pub fn new(p: &Problem, entry: &AttnInfo, on: &Capabilities) -> Result<Option<Self>, Error> {
        let combines = |c: &&CombineInfo| c.of == SplitKernels::Prefill && c.finishes(entry);
        let Some(combine) = COMBINES.iter().find(combines) else {
            return Ok(None);
        };
        let heads = (p.batch * p.heads_q) as u64;
        let threads =
            (heads.saturating_mul(p.seqlen_q as u64)).saturating_mul(u64::from(combine.row_chunks()));
        let is_state = p.leaves_state();
        let splits = if is_state { 1 } else { splits_of(p, entry, on) };
        match (FastDiv::new(p.seqlen_q as u32), FastDiv::new(splits)) {
            (Some(rows), Some(splits)) if is_state || threads < 1 << 31 => {
                let place = (!is_state).then(|| Place::of(&combine.contract));
                Ok(Some(Split { splits, rows, heads: heads as u32, combine, place }))
            }
            _ => {
                let feature =
                    format_args!("{} for {} queries of {heads} heads", entry.contract.symbol, p.seqlen_q);
                let reason = "the combine kernel's threads are counted in 31 bits; a kernel that splits \
                              nothing has no limit";
                Err(Error::unsupported(feature, reason))
            }
        }
    }

    /// Returns the number of splits per tile.
    pub const fn splits(&self) -> u32 {
        self.splits.get()
    }

    /// Returns the number of rows of all splits.
    const fn all_rows(&self) -> u64 {
        self.splits.get() as u64 * self.heads as u64 * self.rows.get() as u64
    }

    /// Returns the number of bytes of O's rows in all splits.
    const fn rows_bytes(&self) -> u64 {
        self.all_rows() * self.combine.head_dim as u64 * 4
    }

    /// Returns the number of bytes of the workspace that a launch uses.
    pub const fn workspace(&self) -> u64 {
        if self.place.is_none() { 0 } else { self.rows_bytes() + self.all_rows() * 4 }
    }

    /// Returns the combine kernel, or `None` for a state.
    pub const fn combine(&self) -> Option<Place> {
        self.place
    }

    /// Returns the combine kernel, and its parameter of queries per head.
    pub const fn combine_info(&self) -> (&'static CombineInfo, FastDiv) {
        (self.combine, self.rows)
    }

    /// Returns the places of partial results in a workspace at `address`.
    pub const fn partials(&self, address: u64) -> Partials {
        self.state(address, address.wrapping_add(self.rows_bytes()))
    }

    /// Returns partial results with O and the LSE at these addresses.
    pub const fn state(&self, o: u64, lse: u64) -> Partials {
        Partials {
            rows_base: o,
            values_base: lse,
            rows: self.rows.get(),
            heads: self.heads,
            slices: self.splits,
            reserved: 0,
        }
    }
}

/// Returns the number of splits per tile. Each split has at least [`MIN_BLOCKS`] key blocks.
fn splits_of(p: &Problem, entry: &AttnInfo, on: &Capabilities) -> u32 {
    let tiles = p.tiles(entry.tile_m);
    let resident = u64::from(on.sms) * u64::from(on.blocks_per_sm(&entry.contract));
    let blocks = p.seqlen_k.div_ceil(entry.tile_n as usize) as u64;
    let most = (blocks / MIN_BLOCKS).clamp(1, MAX_SPLITS);
    match entry.scheduler {
        TileScheduler::Persistent => {
            (1..=most).min_by_key(|splits| longest(tiles, resident, blocks, *splits)).unwrap_or(1) as u32
        }
        // One split per resident thread block of the tile.
        _ => (resident / tiles).clamp(1, most) as u32,
    }
}

/// Returns the work of the busiest thread block in key blocks, if `resident` blocks take split after split.
/// The cost of a split is the number of its key blocks, plus the part of its first loads and of its last
/// product that does not overlap with the next split. If a tile has several splits, the stores of each split
/// and the combine kernel add to the cost. (Costs are estimates for an H200.)
fn longest(tiles: u64, resident: u64, blocks: u64, splits: u64) -> u64 {
    let [split, combine] = if splits == 1 { [2, 0] } else { [3, 3] };
    let rounds = tiles.saturating_mul(splits).div_ceil(resident.max(1));
    rounds.saturating_mul(blocks.div_ceil(splits) + split) + combine
}
