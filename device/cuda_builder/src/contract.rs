//! What a kernel promises about its launch: stamped into the PTX, so that ptxas may count on it and a wrong launch fails.

/// The launch contract of one entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Contract {
    /// The entry's symbol.
    pub symbol: String,
    /// Threads per block, exactly: becomes `.reqntid`.
    pub threads: u32,
    /// Blocks that must fit on one multiprocessor together, at least: becomes `.minnctapersm` and bounds the registers. 0 leaves it out.
    pub min_blocks_per_sm: u32,
    /// Dynamic shared memory of a launch in bytes. Not stamped; the report's occupancy needs it.
    pub smem_bytes: u32,
    /// Spills outside loops that are known and accepted; `None` accepts none.
    pub spill_allowance: Option<SpillAllowance>,
}

impl Contract {
    /// A contract with no lower bound on resident blocks, no dynamic shared memory and no allowance.
    pub fn new(symbol: impl Into<String>, threads: u32) -> Self {
        Self { symbol: symbol.into(), threads, min_blocks_per_sm: 0, smem_bytes: 0, spill_allowance: None }
    }

    /// Sets the blocks that must fit on one multiprocessor together.
    pub fn min_blocks_per_sm(mut self, blocks: u32) -> Self {
        self.min_blocks_per_sm = blocks;
        self
    }

    /// Sets the dynamic shared memory of a launch in bytes.
    pub fn smem_bytes(mut self, bytes: u32) -> Self {
        self.smem_bytes = bytes;
        self
    }

    /// Accepts spills outside loops.
    pub fn spill_allowance(mut self, allowance: SpillAllowance) -> Self {
        self.spill_allowance = Some(allowance);
        self
    }
}

/// How many bytes an entry may spill outside its loops, on any target, and why that is the better choice.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SpillAllowance {
    /// Spill stores in bytes, as ptxas reports them, at most.
    pub stores: u32,
    /// Spill loads in bytes, as ptxas reports them, at most.
    pub loads: u32,
    /// The measurement that earned it.
    pub reason: String,
}
