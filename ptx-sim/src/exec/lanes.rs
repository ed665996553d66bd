//! Fair turns of the lanes of a warp that went different ways.
//!
//! Lanes rejoin where their ways meet again, as compilers arrange it. Lanes that are there already may be who
//! the others wait for, so when nothing else goes on they stray: they go on by themselves, up to the next
//! instruction that lanes execute together.

use super::warp::{Frame, Path, Wait, Warp};
use crate::op::Op;

/// Parts of the path `at`: those who split from it.
fn parts(paths: &[Path], at: usize) -> u32 {
    paths[at + 1..].iter().fold(0, |lanes, part| lanes | part.mask) & paths[at].mask
}

impl Warp<'_> {
    /// Lanes that have gone another way, and could run, get their turn; false where there are none. `stray`:
    /// first of all those who wait for others to rejoin them.
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

    /// Before an instruction that lanes execute together: those who strayed wait for the others, and go on
    /// with them. False where the running lanes wait.
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
        // Nobody is left who could come.
        if let Some(path) = self.frames.last_mut().and_then(|frame| frame.paths.last_mut()) {
            path.waits = None;
        }
        true
    }
}

/// Whether lanes execute `op` together.
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
