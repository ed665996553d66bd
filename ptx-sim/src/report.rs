//! Reports of findings about a kernel.

use std::fmt::{self, Display, Formatter};

use serde::{
    Deserialize,
    de::{IntoDeserializer, value::Error as ValueError},
};

/// The kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// An access to an address outside of every allocation, or beyond the end of an allocation.
    OutOfBounds,
    /// An access to an address that is not a multiple of the access's size.
    Misaligned,
    /// An access to an allocation that was freed.
    UseAfterFree,
    /// An access to an address outside of the instruction's state space.
    WrongSpace,
    /// A read of a register that was never written.
    UninitialisedRegister,
    /// A read of shared memory that was never written.
    UninitialisedShared,
    /// A read of device memory that was never written.
    UninitialisedGlobal,
    /// A read of local memory that was never written.
    UninitialisedLocal,
    /// A read of shared memory without a barrier after another warp's write.
    ReadAfterWrite,
    /// A write to shared memory without a barrier after another warp's read.
    WriteAfterRead,
    /// Writes of two warps to the same shared memory without a barrier between the writes.
    WriteAfterWrite,
    /// An exchange of data between lanes of one warp through shared memory without `bar.warp.sync`.
    WarpRace,
    /// An access to the destination of an asynchronous copy before a wait for the copy.
    PendingCopy,
    /// Two unordered accesses to the same device memory by threads of one block or of two blocks. At least
    /// one of them is a write.
    GlobalRace,
    /// A block-wide barrier that some lanes of a warp do not reach together.
    DivergentBarrier,
    /// A warp-wide instruction that some lanes of its mask do not reach together.
    DivergentSync,
    /// A barrier that waits for warps that have exited.
    MissingParticipants,
    /// A barrier number or thread count that is invalid or changes while threads wait.
    BarrierCount,
    /// A wrong use of an mbarrier.
    Mbarrier,
    /// A thread exits without a wait for its asynchronous copies, or no warp waits for a TMA load.
    UnwaitedCopies,
    /// An access to a register that a product of the warpgroup (`wgmma`) in flight may still read or write.
    PendingProduct,
    /// A wrong use of `wgmma`: a fence is missing, a descriptor is invalid, or the warps of a warpgroup
    /// execute different instructions.
    Wgmma,
    /// An access of the asynchronous proxy (bulk copies, `wgmma`) to bytes that the generic proxy wrote,
    /// without `fence.proxy.async`.
    MissingProxyFence,
    /// A `setmaxnreg` that exceeds the block's registers, or that some warps of a warpgroup do not execute.
    RegisterBudget,
    /// A TMA copy that has a wrong size, address, tensor map or reduction.
    BulkCopy,
    /// A state in which no warp can make progress.
    Deadlock,
    /// The launch has executed `budget` instructions, or nothing has changed for `patience` instructions.
    Runaway,
    /// A `trap`, or a failed assertion.
    Trap,
    /// A thread of a dependent launch (programmatic dependent launch) reads what the launch before wrote,
    /// or writes, or ends, before `griddepcontrol.wait`.
    DependentLaunch,
    /// A write to read-only memory, or a read-only load of memory that this launch writes.
    ReadOnly,
}

impl Kind {
    /// The position of the kind in the order of reports: causes come before consequences.
    pub(crate) fn rank(self) -> u8 {
        match self {
            Kind::WarpRace => 2,
            Kind::UninitialisedShared | Kind::UninitialisedRegister | Kind::Deadlock => 1,
            _ => 0,
        }
    }

    /// The kind with the name `name`.
    ///
    /// # Errors
    /// Returns a text that lists all kinds if there is no kind with this name.
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
            Kind::DependentLaunch => "dependent-launch",
            Kind::ReadOnly => "read-only",
        }
    }
}

/// A line of source code.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct SourceLine {
    /// The name of the file, as the compiler wrote it.
    pub file: String,
    /// Number of the line, from 1.
    pub line: u32,
    /// Column, or 0 if it is unknown.
    pub column: u32,
}

impl SourceLine {
    pub(crate) fn new(file: &str, line: u32, column: u32) -> SourceLine {
        SourceLine { file: file.into(), line, column }
    }

    /// The most informative source line of an instruction: the innermost line in the folder of the kernel's
    /// entry. `lines` must begin with the innermost line.
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

/// The place of an instruction of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Place {
    /// Number of the line in the PTX, from 1.
    pub ptx_line: u32,
    /// The text of the instruction.
    pub instruction: String,
    /// Source lines, innermost first: the instruction's line, then the lines of the inlined calls.
    pub source: Vec<SourceLine>,
}

/// One of the accesses that a finding describes.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Side {
    /// The place of the access.
    pub place: Place,
    /// Index of the warp in its block.
    pub warp: u32,
    /// The warp's last synchronisation before the access.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_sync: Option<Place>,
}

/// The address of a byte of simulated memory, relative to an allocation that the host has named.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Address {
    /// The name of the allocation, or `shared`, `local` or `param`.
    pub buffer: String,
    /// The offset of the byte, which may lie outside of the buffer.
    pub offset: i64,
}

impl Display for Address {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let sign = if self.offset < 0 { '-' } else { '+' };
        write!(f, "{} {sign} {:#x}", self.buffer, self.offset.unsigned_abs())
    }
}

/// A finding about a kernel.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    /// The kind of the finding.
    pub kind: Kind,
    /// The name of the entry.
    pub kernel: String,
    /// The index of the block.
    pub block: [u32; 3],
    /// The lanes of the warp that made the second access, as a bit mask.
    pub lanes: u32,
    /// The address in memory, if the finding has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// The earlier access of a race.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<Side>,
    /// The access that the checker caught.
    pub second: Side,
    /// A sentence that describes the finding.
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
