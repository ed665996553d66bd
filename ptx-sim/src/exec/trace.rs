//! Maps instructions to source lines, and collects reports.

use super::{Block, Context, block::Stop, warp::Warp};
use crate::{
    report::{Address, Kind, Place, Report, Side},
    stamp::Stamp,
};

/// The instruction of a site, with its PTX line and Rust source lines.
pub(crate) fn place(context: &Context<'_>, site: u32) -> Place {
    let Some(site) = context.program.sites.get(site as usize) else {
        return Place { ptx_line: 0, instruction: String::new(), source: Vec::new() };
    };
    let function = &context.module.functions[site.function as usize];
    let at = (site.instruction as usize).min(function.instructions.len().saturating_sub(1));
    let Some(instruction) = function.instructions.get(at) else {
        return Place { ptx_line: function.line, instruction: String::new(), source: Vec::new() };
    };
    let source = crate::debug::source(context.module, function, at);
    Place { ptx_line: instruction.line, instruction: context.module.written(instruction), source }
}

impl<'a> Block<'a> {
    /// The warp for which an agent acts.
    pub fn warp_of(&self, agent: usize) -> usize {
        match agent.checked_sub(self.agents.all()) {
            Some(mbarrier) => self.owners.get(mbarrier).copied().unwrap_or(0),
            None => self.agents.warp(agent),
        }
    }

    /// The name of an agent in reports.
    pub fn agent_name(&self, agent: usize) -> String {
        let (agents, warp) = (self.agents, self.warp_of(agent));
        match agent {
            agent if agent >= agents.all() => format!("a bulk copy of warp {warp}"),
            agent if agent >= agents.landing(0) => format!("a bulk store of warp {warp}"),
            agent if agent >= agents.readers() => format!("warp {warp}"),
            agent if agent >= agents.outbox(0) => format!("a bulk store of warp {warp}"),
            agent if agent >= agents.tensor(0) => {
                format!("a product of warps {warp} to {}", (warp + 4).min(self.context.warps) - 1)
            }
            _ => format!("warp {warp}"),
        }
    }

    /// One of the two accesses in a report. For an access of another block, only the place is known.
    fn side(&self, block: u32, site: u32, agent: usize, clock: u32) -> Side {
        let here = (block == self.number).then_some(&self.clocks);
        let last_sync = here.and_then(|clocks| clocks.last_sync(agent, clock));
        Side {
            place: place(self.context, site),
            warp: self.warp_of(agent) as u32,
            last_sync: last_sync.map(|site| place(self.context, site)),
        }
    }

    /// Adds a report about the instruction that `warp` is executing.
    pub fn report(
        &mut self,
        warp: &Warp<'a>,
        kind: Kind,
        lanes: u32,
        address: Option<Address>,
        message: String,
    ) {
        self.report_pair(warp, kind, lanes, address, None, message);
    }

    pub fn report_pair(
        &mut self,
        warp: &Warp<'a>,
        kind: Kind,
        lanes: u32,
        address: Option<Address>,
        earlier: Option<Stamp>,
        message: String,
    ) {
        let first_site = earlier.map_or(u32::MAX, |earlier| earlier.site);
        if !self.context.options.enabled(kind) || !self.seen.insert((kind, warp.site, first_site)) {
            return;
        }
        if self.reports.len() >= self.context.options.max_reports {
            return;
        }
        let first = earlier
            .map(|earlier| self.side(earlier.block, earlier.site, earlier.agent.into(), earlier.clock));
        let second = self.side(self.number, warp.site, warp.index, self.clocks.now(warp.index));
        let kernel = self.context.kernel.to_string();
        self.reports.push(Report { kind, kernel, block: self.id, lanes, address, first, second, message });
        if self.reports.len() >= self.context.options.max_reports {
            self.stop = self.stop.take().or(Some(Stop::Reported));
        }
    }
}
