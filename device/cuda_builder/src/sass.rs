//! Parses a disassembly, and counts the instructions of a kernel and of its loops.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::{descriptors, queued};

/// The instruction counts of one entry's disassembly.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sass {
    /// Number of instructions of the whole kernel, by opcode without modifiers (`HMMA`, `LDSM`, ...;
    /// `IMAD.MOV` is a `MOV`).
    pub kernel: BTreeMap<String, u32>,
    /// The instruction counts of the main loop, which is the shortest of the loops with the most tensor-core
    /// instructions. The map is empty if no loop has such instructions.
    pub main_loop: BTreeMap<String, u32>,
    /// Number of `LDL` inside loops.
    pub local_loads_in_loops: u32,
    /// Number of `STL` inside loops.
    pub local_stores_in_loops: u32,
    /// Number of `wgmma` products with an upper half of a descriptor that is not proved to be a layout. ptxas
    /// of CUDA 12.8 to 13.0 has lost such halves without a message.
    pub lost_descriptors: u32,
    /// The largest number of consecutive `LDG.E.128` to the same registers. Each of them waits for the one
    /// before it.
    pub queued_loads: u32,
}

/// The section of one entry in the output of `nvdisasm -c`; `None` if the cubin has no such entry.
pub fn section<'a>(entry: &str, text: &'a str) -> Option<&'a str> {
    let begin = format!("{SECTION}.text.{entry},");
    let at = text.find(&begin)? + begin.len();
    let rest = &text[at..];
    Some(rest.find(SECTION).map_or(rest, |end| &rest[..end]))
}

/// The beginning of a section.
const SECTION: &str = "\t.section\t";

impl Sass {
    /// Parses the [`section`] of one entry.
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
            queued_loads: queued::longest(text),
        }
    }

    /// Number of instructions with this opcode in the kernel.
    pub fn kernel_count(&self, opcode: &str) -> u32 {
        self.kernel.get(opcode).copied().unwrap_or(0)
    }

    /// Number of instructions with this opcode in the main loop.
    pub fn loop_count(&self, opcode: &str) -> u32 {
        self.main_loop.get(opcode).copied().unwrap_or(0)
    }

    /// Number of instructions in the kernel.
    pub fn kernel_length(&self) -> u32 {
        self.kernel.values().sum()
    }

    /// Number of instructions in the main loop.
    pub fn loop_length(&self) -> u32 {
        self.main_loop.values().sum()
    }
}

/// The tensor-core instructions, by which the main loop is recognised.
const TENSOR: [&str; 4] = ["HMMA", "QMMA", "HGMMA", "QGMMA"];

/// The instructions of one kernel, in order.
struct Code<'a> {
    opcodes: Vec<&'a str>,
    /// The branches: the position of each branch, and its target label.
    branches: Vec<(usize, &'a str)>,
    /// The labels, each with the position of the next instruction.
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
                // Behind the comment, a line that contains only an encoding has no instruction. Other
                // comments contain no address.
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

    /// Every loop, as the positions of its first and last instruction: a backward branch closes a loop.
    ///
    /// A branch to itself does not count as a loop: it is the trap behind the end of a kernel.
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
