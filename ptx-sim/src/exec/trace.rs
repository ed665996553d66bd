//! From instructions to source lines, and reports about them.

use super::{Block, Context, warp::Warp};
use crate::{
    report::{Address, Kind, Place, Report, Side},
    shadow::Hazard,
};

/// The instruction of a site in the words of PTX and Rust source.
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
    fn side(&self, warp: usize, site: u32, agent: usize, clock: u32) -> Side {
        let last_sync = self.clocks.last_sync(agent, clock).map(|site| place(self.context, site));
        Side { place: place(self.context, site), warp: warp as u32, last_sync }
    }

    /// Files a report about the instruction that `warp` executes.
    pub fn report(&mut self, warp: &Warp<'a>, kind: Kind, lanes: u32, address: Option<Address>, message: String) {
        self.report_pair(warp, kind, lanes, address, None, message);
    }

    pub fn report_pair(
        &mut self,
        warp: &Warp<'a>,
        kind: Kind,
        lanes: u32,
        address: Option<Address>,
        hazard: Option<Hazard>,
        message: String,
    ) {
        let first_site = hazard.map_or(u32::MAX, |hazard| hazard.site);
        if !self.context.options.enabled(kind) || !self.seen.insert((kind, warp.site, first_site)) {
            return;
        }
        if self.reports.len() >= self.context.options.max_reports {
            return;
        }
        let first =
            hazard.map(|hazard| self.side(hazard.agent % self.context.warps, hazard.site, hazard.agent, hazard.clock));
        let second = self.side(warp.index, warp.site, warp.index, self.clocks.now(warp.index));
        let kernel = self.context.kernel.to_string();
        self.reports.push(Report { kind, kernel, block: self.id, lanes, address, first, second, message });
    }
}
