//! The split family: how many blocks share a tile's keys, what they leave where, and the kernel that merges
//! it.
use super::{forward, place};
use crate::plan::Tensors;
use crate::{Capabilities, Error, Problem};
use spec::{
    AttnInfo, COMBINES, CombineInfo, CombineParams, FastDiv, FwdParams, Lse, Partials, SplitParams, Tensor,
    TileScheduler,
};

/// Most slices of a tile. With 32 the merge reads as many bytes as the keys and values of 64 queries have.
const MAX_SLICES: u64 = 32;
/// Fewest key blocks of a slice.
const MIN_BLOCKS: u64 = 2;

/// The launches of a split kernel and of the one that merges.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Launch {
    /// Its place in [`spec::KERNELS`].
    pub kernel: usize,
    pub grid: [u32; 3],
    pub params: SplitParams,
    /// The place of the kernel that merges.
    pub combine: usize,
    split: Split,
}

impl Launch {
    /// `entry` must be one that splits; `forward` is what it would be told for whole tiles.
    ///
    /// # Errors
    /// Those of [`Split::of`]; [`Error::Unsupported`] where no kernel merges what `entry` leaves.
    pub fn new(
        entry: &AttnInfo,
        p: &Problem,
        capabilities: &Capabilities,
        forward: &forward::Launch,
        tensors: &Tensors,
    ) -> Result<Self, Error> {
        let split = Split::of(p, entry, capabilities)?
            .ok_or_else(|| Error::unsupported(entry.contract.symbol, "no kernel merges its slices"))?;
        Ok(Launch {
            kernel: forward.kernel,
            grid: [forward.grid[0] * split.slices(), 1, 1],
            params: split.params(&forward.params, tensors),
            combine: split.combine(),
            split,
        })
    }

    /// The same for other tensors of the same problem.
    pub fn bind(&self, p: &Problem, tensors: &Tensors) -> Self {
        let forward = forward::params(p, tensors, self.params.forward.order);
        Launch { params: self.split.params(&forward, tensors), ..*self }
    }

    /// What the kernel that merges is told, and its blocks.
    pub fn merge(&self) -> (CombineParams, [u32; 3]) {
        let SplitParams { forward, partials } = self.params;
        self.split.merge(partials, forward.o, forward.lse, forward.order.heads)
    }

    /// Bytes of workspace that the slices need.
    pub fn workspace_bytes(&self) -> u64 {
        self.split.workspace()
    }
}

/// How the keys of each tile are dealt out to blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Split {
    slices: FastDiv,
    /// Queries of a head.
    rows: FastDiv,
    /// Heads of all batches.
    heads: u32,
    /// The kernel that merges.
    combine: &'static CombineInfo,
}

impl Split {
    /// What `entry` does with a problem; `None` where it splits nothing.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the merge would be too large a launch.
    pub fn of(p: &Problem, entry: &AttnInfo, capabilities: &Capabilities) -> Result<Option<Self>, Error> {
        let merges =
            |combine: &CombineInfo| (combine.dtype, combine.head_dim) == (entry.dtype, entry.head_dim);
        let Some(combine) = COMBINES.iter().find(|c| merges(c)).filter(|_| entry.splits) else {
            return Ok(None);
        };
        let heads = (p.batch * p.heads_q) as u64;
        let threads = (heads.saturating_mul(p.seqlen_q as u64)).saturating_mul(u64::from(combine.row_chunks));
        let (rows, slices) = (FastDiv::new(p.seqlen_q as u32), FastDiv::new(slices(p, entry, capabilities)));
        match (rows, slices) {
            (Some(rows), Some(slices)) if threads < 1 << 31 => {
                Ok(Some(Split { slices, rows, heads: heads as u32, combine }))
            }
            _ => {
                let feature =
                    format_args!("{} for {} queries of {heads} heads", entry.contract.symbol, p.seqlen_q);
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
    pub fn workspace_of(p: &Problem, entry: &AttnInfo, capabilities: &Capabilities) -> Result<u64, Error> {
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

    /// The place of the kernel that merges.
    pub fn combine(&self) -> usize {
        place(&self.combine.contract)
    }

    /// What that is told, and its blocks.
    pub fn merge(
        &self,
        partials: Partials,
        o: Tensor,
        lse: Lse,
        heads: FastDiv,
    ) -> (CombineParams, [u32; 3]) {
        let params = CombineParams { partials, o, lse, heads, rows: self.rows };
        (params, self.combine.grid(&params))
    }

    /// What the split kernel is told, with the workspace of `tensors`.
    fn params(&self, forward: &FwdParams, tensors: &Tensors) -> SplitParams {
        SplitParams { forward: *forward, partials: self.partials(tensors) }
    }

    /// Where the slices are left: in the workspace of `tensors`. A plan may be made before there is enough of
    /// it, and then no place is right: a launch refuses it.
    pub fn partials(&self, tensors: &Tensors) -> Partials {
        let address = tensors.workspace.map_or(0, |workspace| workspace.address);
        Partials {
            rows_base: address,
            values_base: address.wrapping_add(self.rows_bytes()),
            rows: self.rows.get(),
            heads: self.heads,
            slices: self.slices,
            reserved: 0,
        }
    }
}

/// Slices of each tile, none with less than [`MIN_BLOCKS`] key blocks.
fn slices(p: &Problem, entry: &AttnInfo, capabilities: &Capabilities) -> u32 {
    let tiles = p.seqlen_q.div_ceil(entry.tile_m as usize) as u64 * (p.batch * p.heads_q) as u64;
    let resident = u64::from(capabilities.sms) * u64::from(capabilities.blocks_per_sm(&entry.contract));
    let blocks = p.seqlen_k.div_ceil(entry.tile_n as usize) as u64;
    let most = (blocks / MIN_BLOCKS).clamp(1, MAX_SLICES);
    match entry.scheduler {
        TileScheduler::Persistent => {
            (1..=most).min_by_key(|slices| longest(tiles, resident, blocks, *slices)).unwrap_or(1) as u32
        }
        // As many as the device holds blocks at once for each tile.
        _ => (resident / tiles).clamp(1, most) as u32,
    }
}

/// What the block with the most work does where `resident` ones take slice after slice, in key blocks: a
/// slice has its own, what the next one does not hide of its first loads and its last product, and where
/// there are several to a tile what it stores; then the launch that merges. (Costs are estimates, of an
/// H200.)
fn longest(tiles: u64, resident: u64, blocks: u64, slices: u64) -> u64 {
    let [slice, merge] = if slices == 1 { [2, 0] } else { [3, 3] };
    let rounds = tiles.saturating_mul(slices).div_ceil(resident.max(1));
    rounds.saturating_mul(blocks.div_ceil(slices) + slice) + merge
}
