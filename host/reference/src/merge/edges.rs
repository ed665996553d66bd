//! The problems that each merge kernel must solve.
use ferroflash::DType;
use ferroflash::request::LseUnit;
use ferroflash::spec::MergeInfo;

/// Memory layout of partial states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Each state has tensors of its own: O `[batch, seqlen, heads, head_dim]`, LSE `[batch, heads, seqlen]`.
    Apart,
    /// States side by side in a row, as in FlashInfer: O `[rows, states, heads, head_dim]`, LSE `[rows,
    /// states, heads]`.
    SideBySide,
}
use Lie::{Apart, SideBySide};

/// A merge problem. The seed draws the states.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MergeCase {
    /// Element type of the states' O, and element type of the result's O.
    pub dtypes: [DType; 2],
    /// `[batch, seqlen, heads, head_dim]`.
    pub shape: [usize; 4],
    /// Number of states.
    pub states: usize,
    /// Memory layout of the states.
    pub lie: Lie,
    /// Unit of the states' LSE, and unit of the result's LSE.
    pub units: [LseUnit; 2],
    /// Whether the problem has attention sinks.
    pub sinks: bool,
    /// The index of the state that the result overwrites. If the element types differ, the result overwrites
    /// only that state's LSE.
    pub place_of: Option<usize>,
    /// Seed of the states.
    pub seed: u64,
}

impl std::fmt::Display for MergeCase {
    /// Prints, for example, `3 states f16 to f16 of [1, 33, 4, 96], Apart, units [Natural, Two], sinks, in
    /// place of 0, seed 1`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let MergeCase { states, shape, lie, units, seed, .. } = self;
        let [from, to] = self.dtypes.map(DType::name);
        write!(f, "{states} states {from} to {to} of {shape:?}, {lie:?}, units {units:?}")?;
        write!(f, "{}", if self.sinks { ", sinks" } else { "" })?;
        self.place_of.map_or(Ok(()), |state| write!(f, ", in place of {state}"))?;
        write!(f, ", seed {seed}")
    }
}

/// A case with two states of 2 x 17 rows of 3 heads of 64 columns.
const PLAIN: MergeCase = MergeCase {
    dtypes: [DType::F16; 2],
    shape: [2, 17, 3, 64],
    states: 2,
    lie: Apart,
    units: [LseUnit::Natural; 2],
    sinks: false,
    place_of: None,
    seed: 1,
};
const TWO: LseUnit = LseUnit::Two;
const WIDE: MergeCase = MergeCase { shape: [1, 7, 3, 512], ..PLAIN };

/// Cases for any element types.
#[rustfmt::skip]
const ANY: &[MergeCase] = &[
    PLAIN,
    MergeCase { states: 1, sinks: true, ..PLAIN },
    MergeCase { states: 3, shape: [1, 33, 4, 96], sinks: true, ..PLAIN },
    MergeCase { states: 9, lie: SideBySide, shape: [1, 21, 2, 128], units: [TWO; 2], ..PLAIN },
    MergeCase { states: 6, units: [TWO, LseUnit::Natural], sinks: true, shape: [3, 5, 2, 256], ..PLAIN },
    MergeCase { states: 8, units: [LseUnit::Natural, TWO], sinks: true, ..PLAIN },
    MergeCase { shape: [1, 1, 1, 8], ..PLAIN },
    MergeCase { shape: [1, 9, 2, 128], ..PLAIN },
];
/// Cases whose result overwrites a state.
#[rustfmt::skip]
const IN_PLACE: &[MergeCase] = &[
    MergeCase { place_of: Some(0), shape: [1, 40, 5, 24], ..PLAIN },
    MergeCase { place_of: Some(1), lie: SideBySide, states: 4, units: [TWO; 2], ..WIDE },
    MergeCase { place_of: Some(0), sinks: true, shape: [1, 19, 1, 72], ..PLAIN },
    MergeCase { place_of: Some(2), states: 3, units: [LseUnit::Natural, TWO], ..PLAIN },
    MergeCase { states: 5, lie: SideBySide, shape: [1, 30, 2, 40], place_of: Some(3), ..PLAIN },
];

/// Returns problems that hit a kernel's edges: rows without a key in some or all states; every layout, LSE
/// base and number of states; sinks; results that overwrite a state.
pub fn merge_edges(kernel: &MergeInfo, seed: u64) -> Vec<MergeCase> {
    let dtypes = [kernel.states, kernel.output];
    let cases = ANY.iter().chain(IN_PLACE).zip(seed..);
    cases.map(|(case, seed)| MergeCase { dtypes, seed, ..*case }).collect()
}
