//! Coverage of a launch: which instructions ran, which guards were true, which comparisons had equal
//! operands.

use std::collections::HashMap;

use crate::{
    Module,
    ast::Instruction,
    decode::Program,
    op::{Code, Op},
    regs::{LANES, Regs, lanes},
};

/// Coverage of one instruction, over the lanes of all warps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Met {
    /// At least one lane executed the instruction.
    pub executed: bool,
    /// At least one lane reached the instruction with a false guard.
    pub skipped: bool,
    /// A `setp` compared two equal numbers.
    pub equal: bool,
    /// A `cp.async` read fewer bytes than it wrote.
    pub short: bool,
}

impl Met {
    /// Records one execution: the lanes of `all` reached the instruction, and the lanes of `mask` executed
    /// it.
    pub fn note(&mut self, program: &Program, code: &Code, regs: &mut Regs, all: u32, mask: u32) {
        self.skipped |= mask != all;
        if mask == 0 {
            return;
        }
        self.executed = true;
        if let Some((run, args)) = program.equal.get(&code.site).filter(|_| !self.equal) {
            run(regs, args, mask);
            self.equal = regs.pred(args[0], mask) & mask != 0;
        }
        if let Op::CpAsync(copy) = &code.op
            && let Some(row) = copy.src_bytes
        {
            let bytes: [u32; LANES] = *regs.row32(row, mask);
            self.short |= lanes(mask).any(|lane| bytes[lane] < copy.bytes);
        }
    }

    fn add(&mut self, other: Met) {
        self.executed |= other.executed;
        self.skipped |= other.skipped;
        self.equal |= other.equal;
        self.short |= other.short;
    }
}

/// Coverage of every instruction of a kernel, and a digest of its effects. [`crate::mutate::Mutant::differs`]
/// uses both.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// Coverage of each instruction, by the byte of the text at which the instruction begins.
    met: HashMap<u32, Met>,
    effects: u64,
}

impl Coverage {
    /// A digest of accesses, stored values and waits of all threads. The order of a warp's accesses between
    /// two synchronisations does not change the digest. The digest contains addresses relative to their
    /// allocations.
    pub fn effects(&self) -> u64 {
        self.effects
    }

    /// Adds the coverage of a block, which is indexed by site.
    pub(crate) fn add(&mut self, module: &Module, program: &Program, block: &[Met], digest: u64) {
        self.effects = self.effects.wrapping_add(digest);
        for (site, met) in program.sites.iter().zip(block) {
            let function = &module.functions[site.function as usize];
            if let Some(Instruction { span, .. }) = function.instructions.get(site.instruction as usize) {
                self.met.entry(span.0).or_default().add(*met);
            }
        }
    }

    /// Adds the coverage of another launch of the same PTX text.
    pub fn merge(&mut self, other: &Coverage) {
        self.effects = self.effects.wrapping_add(other.effects);
        other.met.iter().for_each(|(at, met)| self.met.entry(*at).or_default().add(*met));
    }

    /// Coverage of the instruction whose text begins at byte `at`.
    pub(crate) fn at(&self, at: usize) -> Met {
        u32::try_from(at).ok().and_then(|at| self.met.get(&at)).copied().unwrap_or_default()
    }
}
