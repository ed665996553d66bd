//! Parses a disassembly, and counts the instructions of a kernel and of its loops.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::descriptors;

/// The instruction counts of one entry's disassembly.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sass {
    /// Instructions of the whole kernel by opcode without its modifiers (`HMMA`, `LDSM`, ...; `IMAD.MOV` is
    /// a `MOV`).
    pub kernel: BTreeMap<String, u32>,
    /// The counts of the main loop: the shortest of the loops with the most tensor-core instructions. Empty
    /// if no loop has such instructions.
    pub main_loop: BTreeMap<String, u32>,
    /// Number of `LDL` inside loops.
    pub local_loads_in_loops: u32,
    /// Number of `STL` inside loops.
    pub local_stores_in_loops: u32,
    /// Number of uniform registers that `wgmma` reads as parts of descriptors although nothing on some path
    /// has written them. ptxas 13.0 has lost halves of 64-bit sums without a message.
    pub lost_descriptors: u32,
}

impl Sass {
    /// Parses the output of `nvdisasm -c` for a cubin with one entry.
    pub fn parse(text: &str) -> Self {
        let code = Code::parse(text);
        let loops = code.loops();
        let in_loop = |at: usize| loops.iter().any(|&(first, last)| (first..=last).contains(&at));
        let inside = |opcode: &str| {
            let found = code.opcodes.iter().enumerate().filter(|&(at, &o)| o == opcode && in_loop(at));
            u32::try_from(found.count()).unwrap_or(u32::MAX)
        };
        let tensor = |&(first, last): &(usize, usize)| {
            code.opcodes[first..=last].iter().filter(|o| TENSOR.contains(o)).count()
        };
        let main = loops.iter().copied().filter(|l| tensor(l) > 0);
        let main = main.max_by_key(|l| (tensor(l), std::cmp::Reverse(l.1 - l.0)));
        Self {
            kernel: count(&code.opcodes),
            main_loop: main.map(|(first, last)| count(&code.opcodes[first..=last])).unwrap_or_default(),
            local_loads_in_loops: inside("LDL"),
            local_stores_in_loops: inside("STL"),
            lost_descriptors: descriptors::lost(text),
        }
    }

    /// Number of instructions of the kernel with an opcode.
    pub fn kernel_count(&self, opcode: &str) -> u32 {
        self.kernel.get(opcode).copied().unwrap_or(0)
    }

    /// Number of instructions of the main loop with an opcode.
    pub fn loop_count(&self, opcode: &str) -> u32 {
        self.main_loop.get(opcode).copied().unwrap_or(0)
    }

    /// Number of instructions of the kernel.
    pub fn kernel_length(&self) -> u32 {
        self.kernel.values().sum()
    }

    /// Number of instructions of the main loop.
    pub fn loop_length(&self) -> u32 {
        self.main_loop.values().sum()
    }
}

/// Tensor-core instructions, which identify the main loop.
const TENSOR: [&str; 4] = ["HMMA", "QMMA", "HGMMA", "QGMMA"];

/// One kernel's instructions in order.
struct Code<'a> {
    opcodes: Vec<&'a str>,
    /// Branches: the position of each, and its target label.
    branches: Vec<(usize, &'a str)>,
    /// Labels, with the position of the next instruction.
    labels: HashMap<&'a str, usize>,
}

impl<'a> Code<'a> {
    fn parse(text: &'a str) -> Self {
        let mut code = Self { opcodes: Vec::new(), branches: Vec::new(), labels: HashMap::new() };
        for line in text.lines() {
            let line = line.trim();
            if let Some(label) = line.strip_suffix(':').filter(|l| l.starts_with(".L")) {
                code.labels.insert(label, code.opcodes.len());
            } else if let Some((address, rest)) = line.strip_prefix("/*").and_then(|l| l.split_once("*/")) {
                // Lines that have only the encoding have nothing after the comment. Other comments are no
                // addresses.
                if rest.trim().is_empty() || u32::from_str_radix(address, 16).is_err() {
                    continue;
                }
                let mut words = rest.split_whitespace().skip_while(|w| w.starts_with('@') || *w == "{");
                let Some(opcode) = words.next().map(|w| w.trim_end_matches(';')) else { continue };
                // `IMAD.MOV` is a move on the integer unit.
                let stem = if opcode.starts_with("IMAD.MOV") {
                    "MOV"
                } else {
                    opcode.split('.').next().unwrap_or(opcode)
                };
                if stem == "BRA" {
                    let label = rest.split_once("`(").and_then(|(_, l)| l.split_once(')')).map(|l| l.0);
                    code.branches.extend(label.map(|l| (code.opcodes.len(), l)));
                }
                code.opcodes.push(stem);
            }
        }
        code
    }

    /// Every span that a backward branch closes, as positions of its first and last instruction.
    ///
    /// A branch to itself is the padding trap after the end of a kernel, not a loop.
    fn loops(&self) -> Vec<(usize, usize)> {
        let span = |&(at, label): &(usize, &str)| self.labels.get(label).map(|&start| (start, at));
        self.branches.iter().filter_map(span).filter(|(start, end)| start < end).collect()
    }
}

fn count(opcodes: &[&str]) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for opcode in opcodes {
        *counts.entry((*opcode).to_owned()).or_insert(0) += 1;
    }
    counts
}
