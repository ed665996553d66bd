//! Broken rules of kernels, described in words.

use std::fmt;

/// One rule that one entry breaks on one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breach {
    /// The symbol of the entry.
    pub entry: String,
    /// The name of the target, as ptxas writes it.
    pub target: String,
    /// The rule that is broken.
    pub rule: Rule,
}

/// A broken rule of `gate`, with the details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    /// The disassembly could not be parsed, so the rules about loops were not checked.
    Unread {
        /// Number of instructions that the parser found. None of them is `EXIT`.
        instructions: u32,
    },
    /// An array that should be in registers is in local memory.
    LocalDepot,
    /// ptxas serialised `wgmma`; the string is its message.
    Serialised(String),
    /// ptxas has lost parts of `wgmma` descriptors, so the kernel multiplies wrong operands.
    LostDescriptors {
        /// Number of products whose descriptors are not proved.
        products: u32,
        /// Number of products in the kernel.
        of: u32,
    },
    /// Wide global loads use the same registers one after the other, so their latencies add up.
    QueuedLoads {
        /// Number of loads in a row.
        loads: u32,
    },
    /// Registers are spilled inside a loop.
    SpillInLoop {
        /// Number of `STL` instructions inside loops.
        stores: u32,
        /// Number of `LDL` instructions inside loops.
        loads: u32,
    },
    /// Registers are spilled outside of loops, and no allowance covers these spills.
    Spill {
        /// Number of bytes stored.
        stores: u32,
        /// Number of bytes loaded.
        loads: u32,
        /// The allowance, if there is one: bytes stored, and bytes loaded.
        allowed: Option<(u32, u32)>,
    },
}

/// The remedy that the message of a spill names.
const REMEDY: &str = "keep fewer registers alive at once, for example with a smaller tile";

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}: ", self.entry, self.target)?;
        match &self.rule {
            Rule::Unread { instructions } => write!(
                f,
                "the parser does not understand the disassembly ({instructions} instructions, no EXIT); \
                 try nvdisasm 13.2"
            ),
            Rule::LocalDepot => {
                write!(f, "an array lies in local memory (__local_depot): index it only by constants")
            }
            Rule::Serialised(message) => write!(f, "wgmma is serialised: {message}"),
            Rule::LostDescriptors { products, of } => write!(
                f,
                "{products} of {of} wgmma products have a descriptor whose upper half is no layout on some \
                 path, because ptxas has lost it: add only distances to descriptors, and keep fewer of them \
                 alive at once"
            ),
            Rule::QueuedLoads { loads } => write!(
                f,
                "{loads} loads of 16 bytes wait for each other, because ptxas gave them the same registers: \
                 start them before the shuffles"
            ),
            Rule::SpillInLoop { stores, loads } => {
                write!(f, "spills inside a loop ({stores} STL, {loads} LDL): {REMEDY}")
            }
            Rule::Spill { stores, loads, allowed: None } => {
                write!(
                    f,
                    "spills {stores} bytes of stores and {loads} of loads; its contract permits none: \
                     {REMEDY}"
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
