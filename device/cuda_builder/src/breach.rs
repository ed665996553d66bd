//! Breaches of the rules for kernels, in words.

use std::fmt;

/// One rule broken by one entry on one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breach {
    /// The entry.
    pub entry: String,
    /// The target, as ptxas names it.
    pub target: String,
    /// The rule.
    pub rule: Rule,
}

/// The broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    /// The disassembly could not be parsed, so the rules for loops were not checked.
    Unread {
        /// Number of instructions found. None of them is `EXIT`.
        instructions: u32,
    },
    /// An array that should be in registers is in local memory.
    LocalDepot,
    /// ptxas serialised `wgmma`; the string is its message.
    Serialised(String),
    /// ptxas has lost parts of `wgmma` descriptors, so the kernel multiplies the wrong operands.
    LostDescriptors {
        /// Number of uniform registers that nothing writes.
        registers: u32,
    },
    /// Registers are spilled inside a loop.
    SpillInLoop {
        /// `STL` instructions inside loops.
        stores: u32,
        /// `LDL` instructions inside loops.
        loads: u32,
    },
    /// Registers are spilled outside loops, and no allowance covers it.
    Spill {
        /// Bytes stored.
        stores: u32,
        /// Bytes loaded.
        loads: u32,
        /// The allowance: bytes stored and loaded.
        allowed: Option<(u32, u32)>,
    },
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}: ", self.entry, self.target)?;
        match &self.rule {
            Rule::Unread { instructions } => write!(
                f,
                "the parser does not understand its disassembly ({instructions} instructions, no EXIT); \
                 try nvdisasm 13.2"
            ),
            Rule::LocalDepot => {
                write!(f, "an array lies in local memory (__local_depot): index it only by constants")
            }
            Rule::Serialised(message) => write!(f, "wgmma is serialised: {message}"),
            Rule::LostDescriptors { registers } => write!(
                f,
                "wgmma reads descriptors from {registers} uniform registers that nothing writes, because \
                 ptxas has lost parts of descriptors: keep fewer descriptors alive at once"
            ),
            Rule::SpillInLoop { stores, loads } => {
                write!(
                    f,
                    "spills inside a loop ({stores} STL, {loads} LDL): fewer registers must be alive at once"
                )
            }
            Rule::Spill { stores, loads, allowed: None } => {
                write!(
                    f,
                    "spills {stores} bytes of stores and {loads} of loads; its line in the table allows none"
                )
            }
            Rule::Spill { stores, loads, allowed: Some((s, l)) } => {
                write!(
                    f,
                    "spills {stores} bytes of stores and {loads} of loads; its line in the table \
                     allows {s} and {l}"
                )
            }
        }
    }
}
