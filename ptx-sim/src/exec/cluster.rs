//! Executes `barrier.cluster`, in clusters of one block.

use super::{
    Block,
    block::Stop,
    order::Handover,
    warp::{Status, Warp},
};
use crate::{op::ClusterStep, report::Kind};

/// The barrier of a cluster, at which each thread arrives and then waits for all threads. The barrier stores
/// a mask of lanes for each warp.
#[derive(Debug)]
pub(super) struct ClusterBarrier {
    /// The lanes that have arrived in the current phase.
    arrived: Vec<u32>,
    /// The lanes that arrived in the previous phase and have not waited yet.
    passing: Vec<u32>,
    /// The knowledge that arrivals of the current phase hand over to the waiting warps.
    knowledge: Handover,
    /// The knowledge that arrivals of the previous phase hand over to the waiting warps.
    done: Handover,
}

impl ClusterBarrier {
    pub fn new(warps: usize) -> ClusterBarrier {
        let (knowledge, done) = Default::default();
        ClusterBarrier { arrived: vec![0; warps], passing: vec![0; warps], knowledge, done }
    }

    /// Whether all lanes of `warp` have waited.
    pub fn is_complete(&self, warp: usize) -> bool {
        self.arrived[warp] == 0
    }
}

impl<'a> Block<'a> {
    pub(super) fn cluster_barrier(
        &mut self,
        warp: &mut Warp<'a>,
        step: ClusterStep,
        aligned: bool,
        mask: u32,
    ) {
        if aligned && mask != warp.live {
            let message = format!(
                "lanes {mask:#010x} of warp {} execute barrier.cluster with .aligned, lanes {:#010x} do \
                 not: all lanes must execute it together; make the warp converge, or leave out .aligned",
                warp.index,
                warp.live & !mask
            );
            self.report(warp, Kind::DivergentBarrier, mask, None, message);
            self.stop = Some(Stop::Reported);
            return;
        }
        match step {
            ClusterStep::Arrive { relaxed } => self.arrive_at_cluster(warp, relaxed, mask),
            ClusterStep::Wait => self.wait_for_cluster(warp, mask),
        }
    }

    fn arrive_at_cluster(&mut self, warp: &mut Warp<'a>, relaxed: bool, mask: u32) {
        let index = warp.index;
        let twice = (self.cluster.arrived[index] | self.cluster.passing[index]) & mask;
        if twice != 0 {
            let message = format!(
                "warp {index} arrives at barrier.cluster again without a wait: each barrier.cluster.arrive \
                 needs a barrier.cluster.wait after it"
            );
            return self.bad_cluster_barrier(warp, twice, message);
        }
        let handover = if relaxed { self.fenced_handover(index) } else { self.handover(index) };
        self.cluster.knowledge.merge(&handover);
        self.cluster.arrived[index] |= mask;
        self.clocks.tick(index, warp.site);
        self.complete_cluster(Some(warp));
    }

    fn wait_for_cluster(&mut self, warp: &mut Warp<'a>, mask: u32) {
        let index = warp.index;
        let (arrived, passing) = (self.cluster.arrived[index], self.cluster.passing[index]);
        let missing = mask & !(arrived | passing);
        if missing != 0 {
            let message = format!(
                "warp {index} waits at barrier.cluster without having arrived: put barrier.cluster.arrive \
                 before barrier.cluster.wait"
            );
            return self.bad_cluster_barrier(warp, missing, message);
        }
        if arrived & mask != 0 {
            // The warp executes the instruction again after all threads have arrived.
            if let Some(path) = warp.frames.last_mut().and_then(|frame| frame.paths.last_mut()) {
                path.pc -= 1;
            }
            if !warp.other_lanes(false) {
                warp.status = Status::Cluster;
            }
            return;
        }
        self.cluster.passing[index] &= !mask;
        let done = self.cluster.done.clone();
        self.take_over(index, &done);
        self.clocks.tick(index, warp.site);
        warp.epoch += 1;
    }

    /// Ends the phase if every live thread has arrived. `running` is the warp that is being executed.
    pub(super) fn complete_cluster(&mut self, running: Option<&Warp<'a>>) {
        let live = |index: usize| match (&self.warps[index], running) {
            (Some(warp), _) => warp.live,
            (None, Some(running)) if running.index == index => running.live,
            (None, _) => 0,
        };
        let cluster = &self.cluster;
        let all = (0..self.warps.len()).all(|index| live(index) & !cluster.arrived[index] == 0);
        if all && cluster.arrived.iter().any(|&lanes| lanes != 0) {
            let cluster = &mut self.cluster;
            cluster.passing = std::mem::replace(&mut cluster.arrived, vec![0; self.warps.len()]);
            cluster.done = std::mem::take(&mut cluster.knowledge);
            self.moved = true;
        }
    }

    fn bad_cluster_barrier(&mut self, warp: &Warp<'a>, lanes: u32, message: String) {
        self.report(warp, Kind::BarrierCount, lanes, None, message);
        self.stop = Some(Stop::Reported);
    }
}
