//! Gives fair turns to the diverged lanes of a warp.
//!
//! Lanes reconverge where their paths meet, as compilers intend. Lanes that wait for reconvergence may block
//! other lanes, for example if they hold a lock. If no other lanes can proceed, the waiting lanes *stray*:
//! they continue alone, up to the next collective instruction.

use super::warp::{Frame, Path, Wait, Warp};
use crate::op::Op;

/// Number of paths into which path `at` was split.
fn parts(paths: &[Path], at: usize) -> u32 {
    paths[at + 1..].iter().fold(0, |lanes, part| lanes | part.mask) & paths[at].mask
}

impl Warp<'_> {
    /// Switches to another path of which the lanes can run. Returns false if there is no such path. If
    /// `stray`, the function prefers lanes that wait for reconvergence.
    pub fn other_lanes(&mut self, stray: bool) -> bool {
        let Some(Frame { paths, .. }) = self.frames.last_mut() else { return false };
        let mut others = (0..paths.len().saturating_sub(1)).filter(|&at| paths[at].waits.is_none());
        let arrived =
            |at: &usize| !matches!(parts(paths, *at), 0) && paths[*at].mask & !parts(paths, *at) != 0;
        if stray && let Some(at) = others.clone().find(arrived) {
            let split = Path { mask: paths[at].mask & !parts(paths, at), ..paths[at] };
            paths[at].mask &= !split.mask;
            paths.push(split);
            self.strayed = true;
            return true;
        }
        let found = others.find(|&at| paths[at].mask != 0 && parts(paths, at) == 0);
        if let Some(at) = found {
            paths[at..].rotate_left(1);
        }
        found.is_some()
    }

    /// Makes strayed lanes wait for the other lanes before a collective instruction. Returns false if the
    /// running lanes must wait.
    pub fn gather(&mut self) -> bool {
        let live = self.live;
        let Some(Frame { paths, .. }) = self.frames.last_mut() else { return true };
        let Some(mut path) = paths.pop() else { return true };
        paths.retain(|other| {
            let here = other.waits == Some(Wait::Company) && other.pc == path.pc;
            if here {
                path.mask |= other.mask;
            }
            !here
        });
        let waits = (path.mask != live).then_some(Wait::Company);
        paths.push(Path { waits, ..path });
        if waits.is_none() || self.other_lanes(false) {
            return waits.is_none();
        }
        // All other lanes have exited or wait, so none of them can arrive.
        if let Some(path) = self.frames.last_mut().and_then(|frame| frame.paths.last_mut()) {
            path.waits = None;
        }
        true
    }
}

/// Whether all lanes must execute `op` together.
pub(super) fn together(op: &Op) -> bool {
    matches!(
        op,
        Op::Bar(_)
            | Op::WarpSync { .. }
            | Op::Shfl(_)
            | Op::Vote { .. }
            | Op::Match { .. }
            | Op::Redux { .. }
            | Op::Elect { .. }
            | Op::Mma(_)
            | Op::Wgmma(_)
            | Op::SetRegisters { .. }
            | Op::LdMatrix(_)
            | Op::StMatrix(_)
            | Op::MovMatrix { .. }
            | Op::Cluster { aligned: true, .. }
    )
}
