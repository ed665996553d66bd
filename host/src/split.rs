//! Split launches: how many blocks share a tile's keys, what they leave where, and the kernel that merges it.
use crate::{Capabilities, Error, Problem};
use spec::{COMBINES, CombineInfo, CombineParams, EntryInfo, FastDiv, FwdParams, Grid, Partials, SplitParams};

/// Most slices of a tile. With 32 the merge reads as many bytes as the keys and values of 64 queries have.
const MAX_SLICES: u64 = 32;
/// Fewest key blocks of a slice.
const MIN_BLOCKS: u64 = 2;

/// How the keys of each tile are dealt out to blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Split {
    slices: FastDiv,
    /// Queries of a head.
    rows: FastDiv,
    /// Heads of all batches.
    heads: u32,
    /// The kernel that merges.
    pub combine: &'static CombineInfo,
    /// Its place in [`COMBINES`].
    pub index: usize,
}

impl Split {
    /// What `entry` does with a problem; `None` where it splits nothing.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the merge would be too large a launch.
    pub fn of(p: &Problem, entry: &EntryInfo, capabilities: &Capabilities) -> Result<Option<Self>, Error> {
        let merges = |combine: &CombineInfo| (combine.dtype, combine.head_dim) == (entry.dtype, entry.head_dim);
        let Some(index) = COMBINES.iter().position(merges).filter(|_| entry.grid == Grid::Split) else {
            return Ok(None);
        };
        let heads = (p.batch * p.heads_q) as u64;
        let threads = (heads.saturating_mul(p.seqlen_q as u64)).saturating_mul(u64::from(COMBINES[index].row_chunks));
        let (rows, slices) = (FastDiv::new(p.seqlen_q as u32), FastDiv::new(slices(p, entry, capabilities)));
        match (rows, slices) {
            (Some(rows), Some(slices)) if threads < 1 << 31 => {
                Ok(Some(Split { slices, rows, heads: heads as u32, combine: &COMBINES[index], index }))
            }
            _ => {
                let feature = format_args!("{} for {} queries of {heads} heads", entry.symbol, p.seqlen_q);
                Err(Error::unsupported(
                    feature,
                    "the merge's threads are counted in 31 bits; an unsplit entry has no limit",
                ))
            }
        }
    }

    /// Bytes of the workspace that `entry` needs for a problem: 0 where it splits nothing.
    ///
    /// # Errors
    /// Those of [`Split::of`].
    pub fn workspace_of(p: &Problem, entry: &EntryInfo, capabilities: &Capabilities) -> Result<u64, Error> {
        Ok(Self::of(p, entry, capabilities)?.map_or(0, |split| split.workspace()))
    }

    /// Blocks for each tile.
    pub fn slices(&self) -> u32 {
        self.slices.get()
    }

    /// Rows of all slices.
    fn all_rows(&self) -> u64 {
        u64::from(self.slices.get()) * u64::from(self.heads) * u64::from(self.rows.get())
    }

    /// Bytes of O's rows, all slices together.
    fn rows_bytes(&self) -> u64 {
        self.all_rows() * u64::from(self.combine.head_dim) * 4
    }

    /// Bytes of the workspace that a launch uses.
    pub fn workspace(&self) -> u64 {
        self.rows_bytes() + self.all_rows() * 4
    }

    /// What both kernels are told, with a workspace at `address`.
    pub fn params(&self, forward: &FwdParams, address: u64) -> (SplitParams, CombineParams) {
        let partials = Partials {
            rows_base: address,
            values_base: address + self.rows_bytes(),
            rows: self.rows.get(),
            heads: self.heads,
            slices: self.slices,
            reserved: 0,
        };
        let combine =
            CombineParams { partials, o: forward.o, lse: forward.lse, heads: forward.order.heads, rows: self.rows };
        (SplitParams { forward: *forward, partials }, combine)
    }
}

/// As many slices as the device holds blocks at once for each tile, but none with less than [`MIN_BLOCKS`] key blocks.
fn slices(p: &Problem, entry: &EntryInfo, capabilities: &Capabilities) -> u32 {
    let tiles = p.seqlen_q.div_ceil(entry.tile_m as usize) as u64 * (p.batch * p.heads_q) as u64;
    let resident = u64::from(capabilities.sms) * u64::from(capabilities.blocks_per_sm(entry));
    let by_keys = p.seqlen_k.div_ceil(entry.tile_n as usize) as u64 / MIN_BLOCKS;
    (resident / tiles).min(by_keys).clamp(1, MAX_SLICES) as u32
}
