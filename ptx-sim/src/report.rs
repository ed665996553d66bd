//! Findings about a kernel.

use std::fmt::{self, Display, Formatter};

use serde::{
    Deserialize,
    de::{IntoDeserializer, value::Error as ValueError},
};

/// The kind of error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// An address outside every allocation, or beyond the end of one.
    OutOfBounds,
    /// An address that is not a multiple of the access's size.
    Misaligned,
    /// An allocation that was freed.
    UseAfterFree,
    /// An address outside of the instruction's state space.
    WrongSpace,
    /// A register that was never written.
    UninitialisedRegister,
    /// Shared memory that was never written.
    UninitialisedShared,
    /// Device memory that was never written.
    UninitialisedGlobal,
    /// Local memory that was never written.
    UninitialisedLocal,
    /// Shared memory read without a barrier after another warp's write.
    ReadAfterWrite,
    /// Shared memory written without a barrier after another warp's read.
    WriteAfterRead,
    /// Shared memory written by two warps without a barrier between the writes.
    WriteAfterWrite,
    /// Lanes of one warp exchange data through shared memory without `bar.warp.sync`.
    WarpRace,
    /// Access to the destination of an asynchronous copy before a wait for it.
    PendingCopy,
    /// Two unordered accesses to the same device memory by threads of one block or of two blocks. At least
    /// one of them is a write.
    GlobalRace,
    /// A block-wide barrier that some lanes of a warp do not reach together.
    DivergentBarrier,
    /// A warp-wide instruction that some lanes of its mask do not reach together.
    DivergentSync,
    /// A barrier that waits for warps which have exited.
    MissingParticipants,
    /// A barrier number or thread count that is invalid or changes while threads wait.
    BarrierCount,
    /// Wrong use of an mbarrier.
    Mbarrier,
    /// A thread exits without a wait for its asynchronous copies, or no warp waits for a TMA load.
    UnwaitedCopies,
    /// Access to a register that a product of the warpgroup (`wgmma`) in flight may still read or write.
    PendingProduct,
    /// Wrong use of `wgmma`: a fence is missing, a descriptor is invalid, or warps of a warpgroup differ.
    Wgmma,
    /// The asynchronous proxy (bulk copies, `wgmma`) accesses bytes that the generic proxy wrote, without
    /// `fence.proxy.async`.
    MissingProxyFence,
    /// `setmaxnreg` exceeds the block's registers, or not all of a warpgroup executes it.
    RegisterBudget,
    /// A TMA copy with a wrong size, address, tensor map or reduction.
    BulkCopy,
    /// No warp can make progress.
    Deadlock,
    /// The launch has executed `budget` instructions, or nothing has changed for `patience` instructions.
    Runaway,
    /// `trap` or a failed assertion.
    Trap,
    /// A write to read-only memory, or a read-only load of memory that this launch writes.
    ReadOnly,
}

impl Kind {
    /// Order of reports: causes come before consequences.
    pub(crate) fn rank(self) -> u8 {
        match self {
            Kind::WarpRace => 2,
            Kind::UninitialisedShared | Kind::UninitialisedRegister | Kind::Deadlock => 1,
            _ => 0,
        }
    }

    /// The kind with this name.
    ///
    /// # Errors
    /// For any other name, a text that lists all kinds.
    pub(crate) fn parse(name: &str) -> Result<Kind, String> {
        Kind::deserialize(name.into_deserializer()).map_err(|error: ValueError| error.to_string())
    }

    /// The name of the kind in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Kind::OutOfBounds => "out-of-bounds",
            Kind::Misaligned => "misaligned",
            Kind::UseAfterFree => "use-after-free",
            Kind::WrongSpace => "wrong-space",
            Kind::UninitialisedRegister => "uninitialised-register",
            Kind::UninitialisedShared => "uninitialised-shared",
            Kind::UninitialisedGlobal => "uninitialised-global",
            Kind::UninitialisedLocal => "uninitialised-local",
            Kind::ReadAfterWrite => "read-after-write",
            Kind::WriteAfterRead => "write-after-read",
            Kind::WriteAfterWrite => "write-after-write",
            Kind::WarpRace => "warp-race",
            Kind::PendingCopy => "pending-copy",
            Kind::GlobalRace => "global-race",
            Kind::DivergentBarrier => "divergent-barrier",
            Kind::DivergentSync => "divergent-sync",
            Kind::MissingParticipants => "missing-participants",
            Kind::BarrierCount => "barrier-count",
            Kind::Mbarrier => "mbarrier",
            Kind::UnwaitedCopies => "unwaited-copies",
            Kind::PendingProduct => "pending-product",
            Kind::Wgmma => "wgmma",
            Kind::MissingProxyFence => "missing-proxy-fence",
            Kind::RegisterBudget => "register-budget",
            Kind::BulkCopy => "bulk-copy",
            Kind::Deadlock => "deadlock",
            Kind::Runaway => "runaway",
            Kind::Trap => "trap",
            Kind::ReadOnly => "read-only",
        }
    }
}

/// A line of source.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct SourceLine {
    /// File as the compiler named it.
    pub file: String,
    /// Line, from one.
    pub line: u32,
    /// Column, 0 if unknown.
    pub column: u32,
}

impl SourceLine {
    pub(crate) fn new(file: &str, line: u32, column: u32) -> SourceLine {
        SourceLine { file: file.into(), line, column }
    }

    /// The most informative of an instruction's lines: the innermost line in the folder of the kernel's
    /// entry. `lines` begin with the innermost.
    pub fn in_kernel(lines: &[SourceLine]) -> Option<&SourceLine> {
        let entry = lines.last()?;
        let folder = entry.file.rsplit_once('/').map_or("", |(folder, _)| folder);
        lines.iter().find(|line| line.file.starts_with(folder))
    }
}

impl Display for SourceLine {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// An instruction of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Place {
    /// Line of the PTX, from one.
    pub ptx_line: u32,
    /// The instruction.
    pub instruction: String,
    /// Source lines, innermost first: the instruction's line, then the lines of the inlined calls.
    pub source: Vec<SourceLine>,
}

/// One of the accesses of a finding.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Side {
    /// The access.
    pub place: Place,
    /// Warp within the block.
    pub warp: u32,
    /// The warp's last synchronisation before the access.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_sync: Option<Place>,
}

/// A byte of simulated memory, by the host's name of its allocation.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Address {
    /// Allocation, `shared`, `local` or `param`.
    pub buffer: String,
    /// Byte offset; may lie outside the buffer.
    pub offset: i64,
}

impl Display for Address {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let sign = if self.offset < 0 { '-' } else { '+' };
        write!(f, "{} {sign} {:#x}", self.buffer, self.offset.unsigned_abs())
    }
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    /// The kind of error.
    pub kind: Kind,
    /// Entry.
    pub kernel: String,
    /// Block index.
    pub block: [u32; 3],
    /// Lanes of the second access's warp, as a bit mask.
    pub lanes: u32,
    /// The place in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// The earlier access of a race.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<Side>,
    /// The access that the checker caught.
    pub second: Side,
    /// The finding in a sentence.
    pub message: String,
}

impl Report {
    /// The report as one JSON object.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The report for a terminal, with or without colour.
    pub fn display(&self, colour: bool) -> impl Display + '_ {
        Shown { report: self, colour }
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.display(false).fmt(f)
    }
}

struct Shown<'r> {
    report: &'r Report,
    colour: bool,
}

impl Shown<'_> {
    fn side(&self, f: &mut Formatter<'_>, title: &str, side: &Side) -> fmt::Result {
        let (dim, off) = if self.colour { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
        write!(
            f,
            "\n  {title} warp {}: `{}` {dim}ptx line {}{off}",
            side.warp, side.place.instruction, side.place.ptx_line
        )?;
        for (depth, line) in side.place.source.iter().enumerate() {
            write!(f, "\n      {} {line}", if depth == 0 { "at" } else { "from" })?;
        }
        if let Some(sync) = &side.last_sync {
            write!(f, "\n      {dim}last sync: `{}` ptx line {}{off}", sync.instruction, sync.ptx_line)?;
            if let Some(line) = SourceLine::in_kernel(&sync.source) {
                write!(f, " at {line}")?;
            }
        }
        Ok(())
    }
}

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let report = self.report;
        let (red, bold, off) = if self.colour { ("\x1b[1;31m", "\x1b[1m", "\x1b[0m") } else { ("", "", "") };
        write!(f, "{red}{}{off}: {bold}{}{off}", report.kind.name(), report.message)?;
        write!(f, "\n  in {} block {:?} lanes {:#010x}", report.kernel, report.block, report.lanes)?;
        if let Some(address) = &report.address {
            write!(f, " address {address}")?;
        }
        if let Some(first) = &report.first {
            self.side(f, "first ", first)?;
        }
        self.side(f, if report.first.is_some() { "second" } else { "by" }, &report.second)
    }
}
