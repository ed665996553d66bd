//! Describes the position of every warp in a deadlock.

use super::{Block, block::Stop, warp::Status};
use crate::{
    decode::SHARED_BASE,
    report::{Kind, SourceLine},
};

impl<'a> Block<'a> {
    /// The position of every warp, one per line, and the barriers at which some threads have arrived.
    fn standing(&self) -> String {
        let mut text = String::new();
        for warp in self.warps.iter().flatten() {
            let place = super::trace::place(self.context, warp.site);
            let what = match warp.status {
                Status::Ready => "running".to_string(),
                Status::Barrier(id) => format!("waiting at barrier {id}"),
                Status::Polling(address, _) => {
                    format!("polling the mbarrier at shared + {:#x}", address - SHARED_BASE)
                }
                Status::Products(_) => {
                    "waiting for products that its warpgroup has not committed".to_string()
                }
                Status::Registers(count) => format!("waiting for {count} registers"),
                Status::Cluster => "waiting at barrier.cluster".to_string(),
                Status::Done => "exited".to_string(),
            };
            let source =
                SourceLine::in_kernel(&place.source).map_or(String::new(), |line| format!(" at {line}"));
            text += &format!(
                "\n    warp {}: {what}, ptx line {} `{}`{source}",
                warp.index, place.ptx_line, place.instruction
            );
        }
        for (id, barrier) in self.barriers.iter().enumerate().filter(|(_, barrier)| barrier.arrived > 0) {
            text += &format!("\n    barrier {id}: {barrier}");
        }
        for (address, bar) in &self.mbarriers {
            text += &format!("\n    mbarrier at shared + {:#x}: {bar}", address - SHARED_BASE);
        }
        text
    }

    pub(super) fn report_standing(&mut self, kind: Kind, message: String) {
        let message = message + &self.standing();
        let stuck = (0..self.warps.len()).find(|&warp| self.status(warp) != Status::Done).unwrap_or(0);
        if let Some(warp) = self.warps[stuck].take() {
            self.report(&warp, kind, warp.live, None, message);
            self.warps[stuck] = Some(warp);
        }
        self.stop = Some(Stop::Reported);
    }
}
