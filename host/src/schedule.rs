//! Scheduling: the distribution of an attention's work over thread blocks. The schedule depends on problem,
//! kernel and device, not on tensors.
mod decode;
mod passes;
mod split;
mod tiles;

pub(crate) use decode::{Decode, at_once, most_seen_keys, row_blocks};
pub(crate) use passes::{Passes, PrefixPass, Room};
pub(crate) use split::Split;
pub(crate) use tiles::Tiles;

use crate::place::Place;
use crate::{AttnInfo, Capabilities, Error, Problem};
use spec::{Keys, MERGES, ManySequences, MergeInfo};

/// A kernel and its schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scheduled {
    pub kernel: &'static AttnInfo,
    /// The place of the kernel.
    pub place: Place,
    pub schedule: Schedule,
    /// The merge kernel that adds sinks to the output, if the main kernel cannot add them.
    pub merge: Option<Place>,
    /// For a mixed batch: the schedule of the decode kernel, which takes the sequences of few queries.
    pub few: Option<Few>,
    /// The number of rows of Q in all heads.
    rows: u64,
}

/// The schedule of the decode kernel of a mixed batch. This kernel takes the sequences of few queries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Few {
    pub kernel: &'static AttnInfo,
    pub place: Place,
    pub decode: Decode,
    /// Maximum number of queries of a sequence that the decode kernel takes.
    pub most: u32,
    /// The query blocks of the other sequences.
    pub many: ManySequences,
}

/// Returns the maximum number of queries of a sequence that the decode kernel of a mixed batch takes: one
/// thread block must hold their rows.
pub(crate) fn most(p: &Problem, few: &AttnInfo) -> u32 {
    few.tile_m / (p.heads_q / p.heads_k) as u32
}

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
    /// workspace. In a mixed batch, the decode kernel `few` takes the sequences of few queries.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if there are more work items than a kernel can count.
    pub fn new(
        p: &Problem,
        kernel: &'static AttnInfo,
        few: Option<&'static AttnInfo>,
        on: &Capabilities,
        allows: impl Fn(u64) -> bool,
    ) -> Result<Self, Error> {
        let most = few.map(|few| most(p, few));
        let schedule = match kernel.keys {
            _ if kernel.decodes() => Schedule::Decode(Decode::new(p, kernel, on, &allows)?),
            Keys::Cache(_) | Keys::Latent => Schedule::Tiles(Tiles::on_cache(p, kernel, most, on)?),
            Keys::Batched | Keys::Varlen => Schedule::Tiles(Tiles::on_tensors(p, kernel, on)?),
        };
        let few = few.zip(most).map(|(entry, most)| {
            let few = Problem { seqlen_q: most as usize, varlen: None, ..*p };
            let decode = Decode::new(&few, entry, on, &allows)?;
            let many = tiles::many_sequences(p, kernel.tile_m, most)?.0;
            Ok::<_, Error>(Few { kernel: entry, place: Place::of(&entry.contract), decode, most, many })
        });
        let few = few.transpose()?;
        let adds_sinks = kernel.scores.sink || matches!(schedule, Schedule::Decode(_));
        let merges = |merge: &&MergeInfo| [merge.states, merge.output] == [p.dtype; 2];
        let merge = MERGES.iter().find(merges).filter(|_| p.sinks && !adds_sinks);
        let merge = merge.map(|merge| Place::of(&merge.contract));
        let [[batches, rows, heads, _], ..] = p.shapes();
        let rows = (batches as u64).saturating_mul(rows as u64).saturating_mul(heads as u64);
        let own =
            p.variant.and_then(|variant| variant.compiled().find(|own| std::ptr::eq(own.info(), kernel)));
        let place = own.map_or_else(|| Place::of(&kernel.contract), Place::Variant);
        Ok(Scheduled { kernel, place, schedule, merge, few, rows })
    }

    /// Returns the number of bytes of workspace for the LSE that the merge kernel reads, or 0 without a merge
    /// kernel.
    pub const fn lse_bytes(&self) -> u64 {
        if self.merge.is_some() { self.rows * 4 } else { 0 }
    }

    /// Returns the bytes of workspace and of counters that the launches use.
    pub const fn scratch_bytes(&self) -> [u64; 2] {
        match &self.schedule {
            Schedule::Tiles(Tiles { split: Some(split), .. }) => [split.workspace(), 0],
            Schedule::Tiles(_) => match &self.few {
                Some(few) => [few.decode.workspace, few.decode.counters],
                None => [self.lse_bytes(), 0],
            },
            Schedule::Decode(decode) => [decode.workspace, decode.counters],
        }
    }

    /// Returns the places of the launch's kernels. The combine or merge kernel follows the main kernel.
    pub fn kernels(&self) -> impl Iterator<Item = Place> {
        let combine = match &self.schedule {
            Schedule::Tiles(tiles) => tiles.split.map(|split| split.combine()),
            Schedule::Decode(decode) => (decode.workspace > 0).then_some(decode.combine),
        };
        let few = self.few.map(|few| few.place);
        let merges = self.few.filter(|few| few.decode.workspace > 0).map(|few| few.decode.combine);
        few.into_iter().chain(merges).chain([self.place]).chain(combine).chain(self.merge)
    }
}
