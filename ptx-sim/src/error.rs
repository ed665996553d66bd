//! Errors. Findings about a kernel are not errors but [`crate::Report`]s.

/// The text is not PTX.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {message}")]
pub struct ParseError {
    /// Line, from one.
    pub line: u32,
    /// Column in bytes, from one.
    pub column: u32,
    /// The expected and the found text.
    pub message: String,
}

/// A host-side access to simulated memory was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// No allocation contains the address.
    #[error("address {address:#x} belongs to no allocation")]
    Unknown {
        /// The address.
        address: u64,
    },
    /// The range leaves its allocation.
    #[error("{bytes} bytes at {name}+{offset} leave the allocation of {size} bytes")]
    OutOfBounds {
        /// The allocation.
        name: String,
        /// First byte of the range.
        offset: i64,
        /// Length of the range.
        bytes: usize,
        /// Length of the allocation.
        size: usize,
    },
    /// The allocation was freed.
    #[error("{name} was freed")]
    Freed {
        /// The allocation.
        name: String,
    },
    /// No instruction and no copy wrote this byte.
    #[error("{name}+{offset} was never written")]
    Uninitialised {
        /// The allocation.
        name: String,
        /// First such byte.
        offset: u64,
    },
    /// The allocation is larger than the simulator's address stride.
    #[error(
        "{name}: {bytes} bytes with alignment {align} cannot be allocated (at most 2^35 bytes, alignment a \
         power of two up to 2^20)"
    )]
    BadAllocation {
        /// The allocation.
        name: String,
        /// Requested length.
        bytes: usize,
        /// Requested alignment.
        align: usize,
    },
}

/// A launch was refused before any instruction ran.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// No such device profile.
    #[error("no device profile `{name}`; known: {known}")]
    UnknownProfile {
        /// The requested name.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// The module has no such entry.
    #[error("no entry `{name}` in this module; it has: {known}")]
    UnknownEntry {
        /// The requested name.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// The module was compiled for another architecture.
    #[error("the module targets {target}, which {device} (sm_{compute_capability}) does not run")]
    Target {
        /// `.target`
        target: String,
        /// Profile name.
        device: &'static str,
        /// The device's architecture.
        compute_capability: u32,
    },
    /// An instruction that the module's `.target` or `.version` does not have, reached or not.
    #[error("ptx line {line}: `{text}` needs {needs}, but the module declares {says}")]
    Needs {
        /// Line of the PTX.
        line: u32,
        /// The instruction.
        text: String,
        /// The lowest `.target` or `.version` that has the instruction.
        needs: String,
        /// The module's `.target` or `.version`.
        says: String,
    },
    /// The kernel needs more shared memory than any block may have.
    #[error(
        "{name} needs {bytes} bytes of shared memory (static and dynamic), but a block on {device} has at \
         most {limit}"
    )]
    SharedMemory {
        /// Entry.
        name: String,
        /// Static plus dynamic.
        bytes: u64,
        /// Profile name.
        device: &'static str,
        /// Largest size with opt-in.
        limit: u32,
    },
    /// The kernel needs more shared memory than the host has opted in to.
    #[error(
        "{name} needs {bytes} bytes of shared memory; above {limit} the host must opt in first (the \
         attribute is set to {opt_in})"
    )]
    SharedMemoryOptIn {
        /// Entry.
        name: String,
        /// Static plus dynamic.
        bytes: u64,
        /// The limit without opt-in.
        limit: u32,
        /// The attribute's value; 0 if it was never set.
        opt_in: u32,
    },
    /// The block shape contradicts `.reqntid` or `.maxntid`.
    #[error("{name} must be launched with {directive} {wanted:?}, not with block {block:?}")]
    BlockShape {
        /// Entry.
        name: String,
        /// The directive.
        directive: &'static str,
        /// The directive's values.
        wanted: [u32; 3],
        /// The launch's block shape.
        block: [u32; 3],
    },
    /// The block is empty or larger than the device allows.
    #[error("block {block:?} has {threads} threads; {device} runs 1 to {limit} (64 in z)")]
    BlockSize {
        /// The block.
        block: [u32; 3],
        /// Number of its threads.
        threads: u64,
        /// Profile name.
        device: &'static str,
        /// Largest number of threads.
        limit: u32,
    },
    /// `.minnctapersm` requires more blocks than an SM has threads for.
    #[error(
        "{name} has .minnctapersm {blocks}, but a multiprocessor of {device} holds {limit} threads, so at \
            most {} blocks of {threads}",
        u64::from(*.limit) / (*.threads).max(1)
    )]
    BlocksPerMultiprocessor {
        /// Entry.
        name: String,
        /// The directive's value.
        blocks: u32,
        /// Threads of a block, from `.maxntid` or else from the launch.
        threads: u64,
        /// Profile name.
        device: &'static str,
        /// Threads of an SM.
        limit: u32,
    },
    /// The launch states more registers per thread than a thread can have.
    #[error("{name}: the launch gives {registers} registers per thread; a thread has at most {limit}")]
    RegistersOfThread {
        /// Entry.
        name: String,
        /// The launch's number of registers.
        registers: u32,
        /// The maximum.
        limit: u32,
    },
    /// The threads of a block need more registers than the device has.
    #[error(
        "{name} has {registers} registers per thread ({origin}): {threads} threads exceed the {limit} \
         registers of {device}; {fit} per thread would fit"
    )]
    Registers {
        /// Entry.
        name: String,
        /// 32-bit registers per thread.
        registers: u32,
        /// The source of the number of registers, in words.
        origin: &'static str,
        /// Threads of the block.
        threads: u64,
        /// Profile name.
        device: &'static str,
        /// 32-bit registers of an SM.
        limit: u32,
        /// The largest number of registers per thread with which the block fits.
        fit: u64,
    },
    /// The kernel needs more local memory than a thread can have.
    #[error(
        "{name} needs {bytes} bytes of .local and .param memory per thread; a thread has at most {limit}"
    )]
    LocalMemory {
        /// Entry.
        name: String,
        /// Largest frame of the entry and the functions that it calls.
        bytes: u32,
        /// The maximum.
        limit: u32,
    },
    /// The grid is empty or larger than the device allows.
    #[error("grid {grid:?} is outside 1..=[2147483647, 65535, 65535]")]
    Grid {
        /// The grid.
        grid: [u32; 3],
    },
    /// The parameter block has the wrong size.
    #[error("{name} takes {wanted} bytes of parameters, the launch gives {given}")]
    ParamSize {
        /// Entry.
        name: String,
        /// Size in the PTX.
        wanted: usize,
        /// Size in the launch.
        given: usize,
    },
    /// The kernel, or a function that it calls, contains an instruction or a directive that the simulator
    /// does not execute.
    #[error("ptx line {line}: `{text}`: {reason}")]
    Unsupported {
        /// Line of the PTX.
        line: u32,
        /// The line's text.
        text: String,
        /// Why.
        reason: String,
    },
}

/// A script cannot be read, or an expectation does not hold.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScriptError {
    /// A statement is malformed.
    #[error("script line {line}: {message}")]
    Syntax {
        /// Line of the text, from one.
        line: usize,
        /// The error and its remedy.
        message: String,
    },
    /// A launch was refused.
    #[error("script line {line}: {error}")]
    Launch {
        /// Line of the `run` statement.
        line: usize,
        /// Why.
        error: LaunchError,
    },
    /// A host access failed, for example because the kernel did not write an expected value.
    #[error("script line {line}: {error}")]
    Memory {
        /// Line of the statement.
        line: usize,
        /// Why.
        error: MemoryError,
    },
    /// A buffer has another value than expected.
    #[error("script line {line}: {buffer}[{index}] is {found}, expected {expected}")]
    Value {
        /// Line of the `expect` statement.
        line: usize,
        /// Buffer.
        buffer: String,
        /// Element.
        index: usize,
        /// The found value.
        found: String,
        /// The expected value.
        expected: String,
    },
}
