//! Reads a disassembly: which instructions a kernel has, and which of them stand in its loops.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};

/// What the disassembly of one entry shows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sass {
    /// Instructions of the whole kernel by opcode without its modifiers (`HMMA`, `LDSM`, ...; `IMAD.MOV` is
    /// a `MOV`).
    pub kernel: BTreeMap<String, u32>,
    /// The same for the main loop: of the loops with the most tensor-core instructions, the shortest. Empty
    /// if no loop has any.
    pub main_loop: BTreeMap<String, u32>,
    /// `LDL` inside any loop.
    pub local_loads_in_loops: u32,
    /// `STL` inside any loop.
    pub local_stores_in_loops: u32,
    /// Uniform registers that descriptors of `wgmma` are read from, and that nothing writes: ptxas 13.0 has
    /// lost halves of 64-bit sums, without a word.
    pub lost_descriptors: u32,
}

impl Sass {
    /// Reads what `nvdisasm -c` prints for a cubin with one entry.
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
            lost_descriptors: lost_descriptors(text),
        }
    }

    /// How often the kernel has an opcode.
    pub fn kernel_count(&self, opcode: &str) -> u32 {
        self.kernel.get(opcode).copied().unwrap_or(0)
    }

    /// How often the main loop has an opcode.
    pub fn loop_count(&self, opcode: &str) -> u32 {
        self.main_loop.get(opcode).copied().unwrap_or(0)
    }

    /// Instructions of the kernel.
    pub fn kernel_length(&self) -> u32 {
        self.kernel.values().sum()
    }

    /// Instructions of the main loop.
    pub fn loop_length(&self) -> u32 {
        self.main_loop.values().sum()
    }
}

/// Tensor-core instructions: they make a loop the main loop.
const TENSOR: [&str; 4] = ["HMMA", "QMMA", "HGMMA", "QGMMA"];

/// One kernel's instructions in order.
struct Code<'a> {
    opcodes: Vec<&'a str>,
    /// Branches: the position of each, and the label it goes to.
    branches: Vec<(usize, &'a str)>,
    /// Labels: the position of the instruction that follows.
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
                // Lines that carry only the encoding have nothing behind the comment; other comments are no
                // addresses.
                if rest.trim().is_empty() || u32::from_str_radix(address, 16).is_err() {
                    continue;
                }
                let mut words = rest.split_whitespace().skip_while(|w| w.starts_with('@') || *w == "{");
                let Some(opcode) = words.next().map(|w| w.trim_end_matches(';')) else { continue };
                // A move that borrows the integer unit is a move.
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
    /// A branch to itself is the padding trap behind the end of a kernel, not a loop.
    fn loops(&self) -> Vec<(usize, usize)> {
        let span = |&(at, label): &(usize, &str)| self.labels.get(label).map(|&start| (start, at));
        self.branches.iter().filter_map(span).filter(|(start, end)| start < end).collect()
    }
}

/// How many uniform registers hold parts of descriptors and are never written by the warps that compute:
/// those behind the instruction that takes registers, where there is one.
fn lost_descriptors(text: &str) -> u32 {
    let computing = text.find("USETMAXREG.TRY").map_or(text, |at| &text[at..]);
    let (mut written, mut read) = (HashSet::new(), HashSet::new());
    for line in computing.lines() {
        let code = line.split("*/").nth(1).unwrap_or_default().trim().trim_end_matches(';');
        let code = if code.starts_with('@') { code.split_once(' ').map_or("", |c| c.1) } else { code };
        let (opcode, operands) = code.trim().split_once(' ').unwrap_or_default();
        let is_predicate = |o: &&str| ["P", "UP"].iter().any(|p| o.strip_prefix(p).is_some_and(is_number));
        let target =
            operands.split(',').map(str::trim).find(|o| !is_predicate(o) && *o != "PT" && *o != "UPT");
        if let Some(first) = target.and_then(|o| o.strip_prefix("UR")).and_then(|n| n.parse::<u32>().ok()) {
            let pair = opcode.contains(".64") || opcode.contains(".WIDE");
            written.extend(first..=first + u32::from(pair));
        }
        if let Some(at) = operands.split_once("gdesc[UR").and_then(|(_, o)| o.split(']').next()?.parse().ok())
        {
            // Two descriptors stand side by side, or one where the left operand is in registers.
            let first: u32 = at;
            let left_in_registers = operands.split(',').nth(1).is_some_and(|o| o.trim().starts_with('R'));
            read.extend(first..first + if left_in_registers { 2 } else { 4 });
        }
    }
    u32::try_from(read.difference(&written).count()).unwrap_or(u32::MAX)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

fn count(opcodes: &[&str]) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for opcode in opcodes {
        *counts.entry((*opcode).to_owned()).or_insert(0) += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_that_nobody_writes_is_counted() {
        let code = |high: &str| {
            format!(
                "        /*0000*/                   UMOV UR21, UR4 ;\n\
                         /*0010*/                   USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xf0 ;\n\
                         /*0020*/                   UIADD3 UR20, UP0, UR14, 0x2000002, URZ ;\n{high}\
                         /*0030*/                   UIADD3.64 UR22, UR18, 0x2, URZ ;\n\
                         /*0040*/                   HGMMA.64x96x16.F32 R24, gdesc[UR20], R24 ;\n\
                         /*0050*/               @P0 R2UR UR8, R3 ;\n\
                         /*0060*/                   UMOV UR9, 0x40000040 ;\n\
                         /*0070*/                   HGMMA.64x192x16.F32 R24, R168, gdesc[UR8].tnspB, R24 ;\n"
            )
        };
        assert_eq!(lost_descriptors(&code("")), 1);
        let high = "/*0028*/                   UIADD3.X UR21, UR15, 0x40000040, URZ, UP0, !UPT ;\n";
        assert_eq!(lost_descriptors(&code(high)), 0);
    }
}
