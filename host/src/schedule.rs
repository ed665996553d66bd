//! Scheduling: the distribution of a pass's work over thread blocks. The schedule depends on problem, kernel
//! and device, not on tensors.
mod decode;
mod gradient;
mod split;
mod tiles;

pub(crate) use decode::{Decode, at_once, most_seen_keys, row_blocks};
pub(crate) use gradient::{GradientPass, GradientWork, HeadShares, Padding, sequences};
pub(crate) use split::Split;
pub(crate) use tiles::{Tiles, numbers_bytes};

use crate::place::Place;
use crate::{AttnInfo, Capabilities, Contract, Error, Problem};
use spec::{Entry, Keys, NumberTiles};

/// A kernel and its schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scheduled {
    pub kernel: &'static AttnInfo,
    /// The place of the kernel.
    pub place: Place,
    pub schedule: Schedule,
}

/// Returns the maximum number of queries of a sequence that the decode kernel of a mixed batch takes: one
/// thread block must hold their rows.
pub(crate) fn most(p: &Problem, few: &AttnInfo) -> u32 {
    few.tile_m / (p.heads_q / p.heads_k) as u32
}

/// The kernel that numbers the tiles of a mixed batch.
pub(crate) const NUMBER_TILES: Contract = <NumberTiles as Entry>::CONTRACT;

/// A schedule: the distribution of work over thread blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Schedule {
    /// Blocks take work tiles of queries.
    Tiles(Tiles),
    /// Blocks take splits of the sequences' keys.
    Decode(Decode),
}

impl Scheduled {
    /// Returns the schedule of a kernel that solves a problem, for launches with at most `allows` bytes of
    /// workspace.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if there are more work items than a kernel can count.
    pub fn new(
        p: &Problem,
        kernel: &'static AttnInfo,
        on: &Capabilities,
        allows: impl Fn(u64) -> bool,
    ) -> Result<Self, Error> {
        let schedule = match kernel.keys {
            _ if kernel.decodes() => Schedule::Decode(Decode::new(p, kernel, on, allows)?),
            Keys::Cache(_) | Keys::OperandCache | Keys::Latent | Keys::Listed => {
                Schedule::Tiles(Tiles::on_cache(p, kernel, None, on)?)
            }
            Keys::Batched | Keys::Varlen | Keys::Quantised | Keys::QuantisedAlone => {
                Schedule::Tiles(Tiles::on_tensors(p, kernel, on)?)
            }
        };
        Ok(Scheduled { kernel, place: Place::of_either(kernel, p.variant), schedule })
    }

    /// Returns the schedules of a mixed batch. The decode kernel `few` takes the sequences of few queries,
    /// the prefill kernel `many` takes the others.
    ///
    /// # Errors
    /// Returns the errors of [`Scheduled::new`].
    pub fn mixed(
        p: &Problem,
        [few, many]: [&'static AttnInfo; 2],
        on: &Capabilities,
        allows: impl Fn(u64) -> bool,
    ) -> Result<[Self; 2], Error> {
        let most = most(p, few);
        let tiles = Schedule::Tiles(Tiles::on_cache(p, many, Some(most), on)?);
        let queries = Problem { seqlen_q: most as usize, varlen: None, ..*p };
        let decode = Schedule::Decode(Decode::new(&queries, few, on, allows)?);
        let new = |(kernel, schedule): (&'static AttnInfo, _)| Scheduled {
            kernel,
            place: Place::of(&kernel.contract),
            schedule,
        };
        Ok([(few, decode), (many, tiles)].map(new))
    }

    /// Returns the bytes of workspace and of counters that the kernel uses.
    pub const fn scratch_bytes(&self) -> [u64; 2] {
        match &self.schedule {
            Schedule::Tiles(tiles) => [tiles.workspace(), 0],
            Schedule::Decode(decode) => [decode.workspace, decode.counters],
        }
    }

    /// Returns the places of the kernel, of the kernel that numbers its tiles, and of its combine kernel if
    /// its splits may need one.
    pub fn kernels(&self) -> impl Iterator<Item = Place> {
        let [before, behind] = match &self.schedule {
            Schedule::Tiles(Tiles { few: Some(_), .. }) => [Some(Place::of(&NUMBER_TILES)), None],
            Schedule::Tiles(tiles) => [None, tiles.split.and_then(|split| split.combine())],
            Schedule::Decode(decode) => [None, (decode.workspace > 0).then_some(decode.combine)],
        };
        before.into_iter().chain([self.place]).chain(behind)
    }
}
