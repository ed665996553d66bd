//! Programmatic dependent launch. A dependent launch may begin while the launch before it still runs, so that
//! its threads wait (`griddepcontrol.wait`) before they read what that launch wrote. The simulator runs one
//! launch after the other, and reports each access that does not wait. `griddepcontrol.launch_dependents`
//! orders no access, and has no effect here: a dependent launch may begin at any time.

use super::{Block, warp::Warp};
use crate::{ast::Space, report::Kind};

impl<'a> Block<'a> {
    /// Reports an access of `lane` to device memory that precedes the lane's wait: a read of bytes that the
    /// launch before wrote, or any write, because that launch may still access the same bytes.
    #[inline]
    pub(super) fn follows_wait(&mut self, warp: &Warp<'a>, at: u64, bytes: usize, lane: usize, writes: bool) {
        if warp.waited >> lane & 1 == 0 {
            self.precedes_wait(warp, at, bytes, lane, writes);
        }
    }

    #[cold]
    fn precedes_wait(&mut self, warp: &Warp<'a>, at: u64, bytes: usize, lane: usize, writes: bool) {
        let Ok((allocation, offset)) = self.context.memory.resolve(at, bytes) else { return };
        let message = match (writes, allocation.recent(offset, bytes)) {
            (true, _) => "write before griddepcontrol.wait: the launch before may still access these bytes",
            (false, true) => "read of bytes that the launch before wrote, before griddepcontrol.wait",
            (false, false) => return,
        };
        let address = self.address(Space::Global, at);
        self.report(warp, Kind::DependentLaunch, 1 << lane, Some(address), message.into());
    }

    /// Reports lanes that end without a wait. The next launch waits for this one only.
    pub(super) fn ends_after_wait(&mut self, warp: &Warp<'a>, mask: u32) {
        let early = mask & !warp.waited;
        if early != 0 {
            let message = "a thread of a dependent launch ends without griddepcontrol.wait: the next launch \
                           may begin before the launch before has ended";
            self.report(warp, Kind::DependentLaunch, early, None, message.into());
        }
    }
}
