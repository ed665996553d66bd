//! A problem that an entry must solve, as data.
use super::alibi::Slopes;
use super::extras::Extras;
use super::masks::fit;
use super::memory::{Layout, Memory};
use super::sequences::{Lengths, Sequences};
use super::told::Told;
use ferroflash::kernels::{AttnInfo, MaskKind};
use ferroflash::plan::Problem;

/// A problem, its memory layout, and the seed of its inputs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// The problem.
    pub problem: Problem,
    /// Memory layout of its tensors.
    pub layout: Layout,
    /// Seed of the inputs.
    pub seed: u64,
    /// Distribution of the inputs.
    pub values: Values,
}

/// Distribution of a case's inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Values {
    /// Standard normal.
    #[default]
    Normal,
    /// Standard normal, but some rows see one key with a huge score ([`Memory::with_peaks`]).
    Peaks {
        /// Keys per block.
        block: u32,
    },
    /// Standard normal, as a varlen batch. Rows that no sequence uses are NaN.
    Packed {
        /// The sequences.
        lengths: &'static [Lengths],
        /// Queries per tile and keys per block.
        tile: [u32; 2],
        /// The lengths in device memory, one entry per launch of one plan.
        told: &'static [Told],
    },
}

impl Case {
    /// Returns the case's tensors.
    pub fn memory(&self) -> Memory {
        self.with_values(Memory::random(self.problem, self.layout, self.seed))
    }

    /// Returns the case's tensors with all elements 0, for callers that only plan.
    pub fn places(&self) -> Memory {
        let memory = Memory::filled(self.problem, self.layout, |len| vec![0; len]);
        let memory = Memory { extras: Extras::random(&self.problem, self.seed), ..memory };
        let memory = match self.problem.alibi {
            true => {
                memory.with_slopes(Slopes::random(self.seed, self.problem.batch, self.problem.heads_q, -1))
            }
            false => memory,
        };
        match self.values {
            Values::Packed { lengths, tile, .. } => memory.with_sequences(Sequences::of(lengths, tile)),
            Values::Normal | Values::Peaks { .. } => memory,
        }
    }

    fn with_values(&self, memory: Memory) -> Memory {
        match self.values {
            Values::Normal => memory,
            Values::Peaks { block } => memory.with_peaks(block as usize),
            Values::Packed { lengths, tile, told } => {
                let memory = memory.with_sequences(Sequences::of(lengths, tile)).with_poison();
                Memory { told: told.into(), ..memory }
            }
        }
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} seed {}", self.problem, self.layout.name(), self.seed)?;
        match self.values {
            Values::Peaks { .. } => write!(f, " with peaks"),
            Values::Normal | Values::Packed { .. } => Ok(()),
        }
    }
}

/// Gives cases the scores of an entry, and masks of the cases' sizes. Drops each case whose mask equals a
/// simpler mask, because the kernels of masks with parameters do not solve such a case.
pub(super) fn of(entry: &AttnInfo, cases: Vec<Case>) -> Vec<Case> {
    let scored = cases.into_iter().map(|case| {
        let problem = scored(entry, fit(case.problem));
        // See `Extras::random`.
        let seed = case.seed | u64::from(entry.has_maps() && entry.scores.bias.is_some());
        Case { problem, seed, ..case }
    });
    let is_plain = matches!(entry.mask, MaskKind::Full | MaskKind::Causal | MaskKind::Local);
    scored.filter(|case| is_plain || case.problem.mask_kind() == entry.mask).collect()
}

/// A problem with an entry's scores. Kernels of [`MaskKind::Local`] also solve problems without slopes.
pub fn scored(entry: &AttnInfo, problem: Problem) -> Problem {
    let alibi = problem.alibi || entry.scores.alibi;
    problem.sinks(entry.scores.sink).bias(entry.scores.bias).alibi(alibi)
}

/// Returns whether an entry of [`MaskKind::Local`] supports ALiBi slopes. Hopper's entries do not.
pub(super) fn takes_slopes(entry: &AttnInfo) -> bool {
    !entry.has_maps()
}

/// Returns numbers of columns of keys and of values that run on an entry: the entry's own, and smaller ones
/// that the entry pads.
pub(super) fn columns(entry: &AttnInfo) -> [[usize; 2]; 2] {
    let held = entry.columns().map(|columns| columns as usize);
    [held, held.map(padded)]
}

/// Returns a problem without rows, with these columns of keys and of values.
pub(super) fn of_columns(entry: &AttnInfo, [head_dim, head_dim_v]: [usize; 2]) -> Problem {
    Problem::new(entry.dtype, 1, 0, 0, head_dim).head_dim_v(head_dim_v)
}

/// Returns a number of columns that entries of `held` columns pad.
const fn padded(held: usize) -> usize {
    match held {
        32 => 24,
        64 => 40,
        96 => 80,
        128 => 112,
        192 => 160,
        256 => 224,
        // In kernels of head dim 512, two warps share the columns. Head dim 264 has one chunk more than the
        // first warp's half.
        512 => 264,
        other => other - 8,
    }
}
