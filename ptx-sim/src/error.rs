//! Errors of the simulator. A finding about a kernel is no error but a [`crate::Report`].

/// A text that is not PTX.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {message}")]
pub struct ParseError {
    /// Number of the line, from 1.
    pub line: u32,
    /// Column in bytes, from 1.
    pub column: u32,
    /// The text that the parser expected, and the text that it found.
    pub message: String,
}

/// The reason why the simulator refused a host's access to simulated memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// No allocation contains the address.
    #[error("address {address:#x} belongs to no allocation")]
    Unknown {
        /// The address.
        address: u64,
    },
    /// The range reaches beyond its allocation.
    #[error("{bytes} bytes at {name}+{offset} leave the allocation of {size} bytes")]
    OutOfBounds {
        /// Name of the allocation.
        name: String,
        /// Offset of the range's first byte in the allocation.
        offset: i64,
        /// Number of bytes of the range.
        bytes: usize,
        /// Number of bytes of the allocation.
        size: usize,
    },
    /// The allocation was freed.
    #[error("{name} was freed")]
    Freed {
        /// Name of the allocation.
        name: String,
    },
    /// No instruction and no copy wrote this byte.
    #[error("{name}+{offset} was never written")]
    Uninitialised {
        /// Name of the allocation.
        name: String,
        /// Offset of the first byte that was never written.
        offset: u64,
    },
    /// The size or the alignment of the allocation is not possible.
    #[error(
        "{name}: {bytes} bytes with alignment {align} cannot be allocated (at most 2^35 bytes, alignment a \
         power of two up to 2^20)"
    )]
    BadAllocation {
        /// Name of the allocation.
        name: String,
        /// The requested number of bytes.
        bytes: usize,
        /// The requested alignment in bytes.
        align: usize,
    },
}

/// The reason why the simulator refused a launch, before any instruction ran.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// There is no device profile with this name.
    #[error("no device profile `{name}`; known: {known}")]
    UnknownProfile {
        /// The requested name.
        name: String,
        /// The names of all profiles.
        known: String,
    },
    /// The module has no such entry.
    #[error("no entry `{name}` in this module; it has: {known}")]
    UnknownEntry {
        /// The requested name.
        name: String,
        /// The names of the module's entries.
        known: String,
    },
    /// The module was compiled for another architecture.
    #[error("the module targets {target}, which {device} (sm_{compute_capability}) does not run")]
    Target {
        /// The module's `.target`.
        target: String,
        /// Name of the device profile.
        device: &'static str,
        /// The device's architecture as a number: 80 for sm_80.
        compute_capability: u32,
    },
    /// The kernel contains an instruction that the module's `.target` or `.version` does not have. The error
    /// does not depend on whether threads reach the instruction.
    #[error("ptx line {line}: `{text}` needs {needs}, but the module declares {says}")]
    Needs {
        /// Number of the line in the PTX.
        line: u32,
        /// The text of the instruction.
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
        /// Name of the entry.
        name: String,
        /// Number of bytes of static and dynamic shared memory.
        bytes: u64,
        /// Name of the device profile.
        device: &'static str,
        /// Largest number of bytes with opt-in.
        limit: u32,
    },
    /// The kernel needs more shared memory than the host has opted in to.
    #[error(
        "{name} needs {bytes} bytes of shared memory; above {limit} the host must opt in first (the \
         attribute is set to {opt_in})"
    )]
    SharedMemoryOptIn {
        /// Name of the entry.
        name: String,
        /// Number of bytes of static and dynamic shared memory.
        bytes: u64,
        /// Largest number of bytes without opt-in.
        limit: u32,
        /// The value of the attribute; 0 if it was never set.
        opt_in: u32,
    },
    /// The block shape contradicts `.reqntid` or `.maxntid`.
    #[error("{name} must be launched with {directive} {wanted:?}, not with block {block:?}")]
    BlockShape {
        /// Name of the entry.
        name: String,
        /// Name of the directive.
        directive: &'static str,
        /// The directive's values.
        wanted: [u32; 3],
        /// The launch's block shape.
        block: [u32; 3],
    },
    /// The block is empty or larger than the device allows.
    #[error("block {block:?} has {threads} threads; {device} runs 1 to {limit} (64 in z)")]
    BlockSize {
        /// The launch's block shape.
        block: [u32; 3],
        /// Number of threads of the block.
        threads: u64,
        /// Name of the device profile.
        device: &'static str,
        /// Largest number of threads of a block.
        limit: u32,
    },
    /// `.minnctapersm` requires blocks with more threads than an SM can hold.
    #[error(
        "{name} has .minnctapersm {blocks}, but a multiprocessor of {device} holds {limit} threads, so at \
            most {} blocks of {threads}",
        u64::from(*.limit) / (*.threads).max(1)
    )]
    BlocksPerMultiprocessor {
        /// Name of the entry.
        name: String,
        /// The directive's value.
        blocks: u32,
        /// Number of threads of a block, from `.maxntid`, or else from the launch.
        threads: u64,
        /// Name of the device profile.
        device: &'static str,
        /// Number of threads that an SM can hold.
        limit: u32,
    },
    /// The launch states more registers per thread than a thread can have.
    #[error("{name}: the launch gives {registers} registers per thread; a thread has at most {limit}")]
    RegistersOfThread {
        /// Name of the entry.
        name: String,
        /// The launch's number of registers.
        registers: u32,
        /// The largest number of registers per thread.
        limit: u32,
    },
    /// The threads of a block need more registers than the device has.
    #[error(
        "{name} has {registers} registers per thread ({origin}): {threads} threads exceed the {limit} \
         registers of {device}; {fit} per thread would fit"
    )]
    Registers {
        /// Name of the entry.
        name: String,
        /// Number of 32-bit registers per thread.
        registers: u32,
        /// The source of the number of registers, in words.
        origin: &'static str,
        /// Number of threads of the block.
        threads: u64,
        /// Name of the device profile.
        device: &'static str,
        /// Number of 32-bit registers of an SM.
        limit: u32,
        /// The largest number of registers per thread with which the block fits.
        fit: u64,
    },
    /// The kernel needs more local memory than a thread can have.
    #[error(
        "{name} needs {bytes} bytes of .local and .param memory per thread; a thread has at most {limit}"
    )]
    LocalMemory {
        /// Name of the entry.
        name: String,
        /// Number of bytes of the largest frame of the entry and the functions that it calls.
        bytes: u32,
        /// The largest number of bytes.
        limit: u32,
    },
    /// The grid is empty or larger than the device allows.
    #[error("grid {grid:?} is outside 1..=[2147483647, 65535, 65535]")]
    Grid {
        /// The launch's grid.
        grid: [u32; 3],
    },
    /// The parameter block has the wrong size.
    #[error("{name} takes {wanted} bytes of parameters, the launch gives {given}")]
    ParamSize {
        /// Name of the entry.
        name: String,
        /// Number of bytes in the PTX.
        wanted: usize,
        /// Number of bytes in the launch.
        given: usize,
    },
    /// The kernel, or a function that it calls, contains an instruction or a directive that the simulator
    /// does not execute.
    #[error("ptx line {line}: `{text}`: {reason}")]
    Unsupported {
        /// Number of the line in the PTX.
        line: u32,
        /// The line's text.
        text: String,
        /// The reason why the simulator does not execute this part.
        reason: String,
    },
}

/// The reason why a script failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScriptError {
    /// A statement of the script is malformed.
    #[error("script line {line}: {message}")]
    Syntax {
        /// Number of the line in the script, from 1.
        line: usize,
        /// The problem and its remedy.
        message: String,
    },
    /// The simulator refused a launch.
    #[error("script line {line}: {error}")]
    Launch {
        /// Number of the line with the `run` statement.
        line: usize,
        /// The reason.
        error: LaunchError,
    },
    /// An access of the host failed, for example because the kernel did not write an expected value.
    #[error("script line {line}: {error}")]
    Memory {
        /// Number of the line with the statement.
        line: usize,
        /// The reason.
        error: MemoryError,
    },
    /// An element of a buffer has another value than expected.
    #[error("script line {line}: {buffer}[{index}] is {found}, expected {expected}")]
    Value {
        /// Number of the line with the `expect` statement.
        line: usize,
        /// Name of the buffer.
        buffer: String,
        /// Index of the element.
        index: usize,
        /// The value that the buffer has.
        found: String,
        /// The expected value.
        expected: String,
    },
}
