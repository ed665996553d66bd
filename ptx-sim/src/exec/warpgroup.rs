//! Warpgroups. Their four warps execute the same steps (`wgmma`, `setmaxnreg`), each at a different time.

use std::collections::VecDeque;

use super::{
    Block,
    block::Stop,
    warp::{Status, Warp},
    wgmma::Products,
};
use crate::{
    regs::{FULL, LANES},
    report::Kind,
    stamp::Stamp,
};

/// Number of warps of a warpgroup.
pub(super) const MEMBERS: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Warpgroup<'a> {
    /// The steps that some of the warps have reached and others have not, oldest first.
    steps: VecDeque<Step>,
    /// The number of steps that all warps have completed.
    done: u64,
    /// The number of steps that each warp has reached.
    made: [u64; MEMBERS],
    /// For each warp, the number of registers of its threads, if `setmaxnreg` has changed it.
    registers: [Option<u32>; MEMBERS],
    pub products: Products<'a>,
}

/// An instruction that all warps of a warpgroup execute.
#[derive(Debug)]
pub(super) struct Step {
    site: u32,
    /// Index of the first warp that reached the step.
    warp: usize,
    /// Operands that must be the same in all warps.
    operands: [u64; 3],
    /// For a product: the index of its accumulators in [`Products`].
    pub tile: usize,
    /// For each agent: the latest clock that every warp which has reached the step knows.
    pub row: Vec<u32>,
    /// For each agent: the latest clock up to which the asynchronous proxy of every such warp sees the
    /// agent's writes. Empty if the step is no product.
    pub proxy: Vec<u32>,
}

/// The result of a warp's arrival at a step.
pub(super) enum Came {
    /// Other warps have not reached the step yet.
    Early,
    Last(Step),
}

impl<'a> Block<'a> {
    /// Lets `warp` arrive at the next step of its warpgroup; `meet` adds the warp's data to the step. If the
    /// step differs from the step of the other warps, or if some warp cannot arrive, the function makes a
    /// report and returns nothing.
    pub(super) fn come(
        &mut self,
        warp: &mut Warp<'a>,
        mask: u32,
        operands: [u64; 3],
        meet: impl FnOnce(&mut Self, &mut Step, bool),
    ) -> Option<Came> {
        let text = |block: &Self, warp: &Warp<'a>| super::trace::place(block.context, warp.site).instruction;
        if mask != FULL {
            let what = text(self, warp);
            self.converged(warp, mask, what.split(' ').next().unwrap_or_default());
            return None;
        }
        let (group, member) = (warp.index / MEMBERS, warp.index % MEMBERS);
        let made = &self.warpgroups[group].made;
        let gone = (0..MEMBERS).find(|&other| {
            let index = MEMBERS * group + other;
            let exited = index >= self.warps.len() || self.status(index) == Status::Done;
            other != member && exited && made[other] <= made[member]
        });
        if let Some(gone) = gone.map(|gone| MEMBERS * group + gone) {
            let place = text(self, warp);
            let message =
                format!("`{place}` needs all four warps of a warpgroup, but warp {gone} has exited");
            return self.parted(warp, warp.site, None, message);
        }
        let own = &mut self.warpgroups[group];
        let at = (own.made[member] - own.done) as usize;
        let first = at == own.steps.len();
        if first {
            let (row, proxy) = (self.clocks.row(warp.index).to_vec(), Vec::new());
            let (site, warp) = (warp.site, warp.index);
            own.steps.push_back(Step { site, warp, operands, tile: usize::MAX, row, proxy });
        }
        let step = &own.steps[at];
        if step.site != warp.site || step.operands != operands {
            let (site, other) = (step.site, step.warp);
            let (earlier, place) = (self.earlier(site, other), text(self, warp));
            let what = match site == warp.site {
                true => "with other operands",
                false => "at another instruction of the warpgroup",
            };
            let message = format!(
                "warp {} executes `{place}`, warp {other} of its warpgroup is {what}: all four must execute \
                 equal instructions in equal order",
                warp.index
            );
            return self.parted(warp, warp.site, Some(earlier), message);
        }
        let mut step = self.warpgroups[group].steps.remove(at)?;
        meet(self, &mut step, first);
        let own = &mut self.warpgroups[group];
        own.made[member] += 1;
        let all = own.made.iter().all(|&made| made > own.done);
        own.done += u64::from(all);
        if all {
            return Some(Came::Last(step));
        }
        own.steps.insert(at, step);
        Some(Came::Early)
    }

    /// The earlier access in a report: an action of `warp` at `site`.
    pub(super) fn earlier(&self, site: u32, warp: usize) -> Stamp {
        let clock = self.clocks.now(warp);
        Stamp { block: self.number, agent: warp as u16, site, clock, ..Stamp::NONE }
    }

    /// Reports that the warps of a warpgroup execute different steps at this site.
    fn parted(
        &mut self,
        warp: &Warp<'a>,
        site: u32,
        earlier: Option<Stamp>,
        message: String,
    ) -> Option<Came> {
        let kind = match self.context.program.code.iter().find(|code| code.site == site) {
            Some(code) if matches!(code.op, crate::op::Op::SetRegisters { .. }) => Kind::RegisterBudget,
            _ => Kind::Wgmma,
        };
        self.report_pair(warp, kind, FULL, None, earlier, message);
        self.stop = Some(Stop::Reported);
        None
    }

    /// Checks a warpgroup after `warp` has exited. No warp of the warpgroup may be ahead of `warp`, and no
    /// product may be in flight.
    pub(super) fn leave_warpgroup(&mut self, warp: &mut Warp<'a>) {
        if let Some(flying) = warp.flying.first() {
            let exit = std::mem::replace(&mut warp.site, flying.site);
            let message = format!("warp {} exits without having waited for this product", warp.index);
            self.report(warp, Kind::PendingProduct, FULL, None, message);
            warp.site = exit;
        }
        let own = &self.warpgroups[warp.index / MEMBERS];
        let at = (own.made[warp.index % MEMBERS] - own.done) as usize;
        if let Some(step) = own.steps.get(at) {
            let site = step.site;
            let earlier = self.earlier(site, step.warp);
            let message =
                format!("warp {} exits, but warp {} of its warpgroup is ahead", warp.index, step.warp);
            self.parted(warp, site, Some(earlier), message);
        }
    }

    /// Executes `setmaxnreg`.
    pub(super) fn set_registers(&mut self, warp: &mut Warp<'a>, more: bool, count: u32, mask: u32) {
        let operands = [u64::from(more), u64::from(count), 0];
        if self.come(warp, mask, operands, |_, _, _| {}).is_none() {
            return;
        }
        let entry = self.context.module.entry(self.context.kernel);
        if entry.is_some_and(|entry| entry.reqntid.or(entry.maxntid).is_none()) {
            let message = "ptxas ignores setmaxnreg in an entry without .maxntid or .reqntid".into();
            self.report(warp, Kind::RegisterBudget, mask, None, message);
        }
        let (group, member) = (warp.index / MEMBERS, warp.index % MEMBERS);
        let old = self.warpgroups[group].registers[member].replace(count).unwrap_or(self.context.registers);
        if more != (count >= old) && count != old {
            let word = if more { "inc" } else { "dec" };
            let message = format!("setmaxnreg.{word} to {count} registers of a warp that has {old}");
            self.report(warp, Kind::RegisterBudget, mask, None, message);
        }
        let difference = count.abs_diff(old) * LANES as u32;
        if count < old {
            self.free_registers += difference;
            self.moved = true;
        } else if difference > self.free_registers {
            warp.status = Status::Registers(difference);
        } else {
            self.free_registers -= difference;
        }
    }
}
