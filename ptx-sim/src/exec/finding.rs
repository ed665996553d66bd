//! Messages about accesses to wrong addresses.

use super::{Block, warp::Warp};
use crate::{
    ast::Space,
    decode::SHARED_BASE,
    memory::Fault,
    report::{Address, Kind},
};

impl<'a> Block<'a> {
    /// Names the address, for a report.
    pub(super) fn address(&self, space: Space, at: u64) -> Address {
        let simple =
            |buffer: &str, base: u64| Address { buffer: buffer.into(), offset: at.wrapping_sub(base) as i64 };
        match space {
            Space::Shared => simple("shared", u64::from(SHARED_BASE)),
            Space::Local => simple("local", 0),
            Space::Param => simple("param", 0),
            _ => match self.context.memory.owner(at) {
                Some((_, allocation)) => simple(&allocation.name, allocation.base),
                None => simple("nowhere", 0),
            },
        }
    }

    /// Reports an access of `bytes` bytes that is not possible.
    pub(super) fn fault(
        &mut self,
        warp: &Warp<'a>,
        space: Space,
        at: u64,
        bytes: usize,
        lane: usize,
        what: &str,
    ) {
        let address = self.address(space, at);
        let (kind, message) = match space {
            Space::Shared | Space::Local | Space::Param => {
                (Kind::OutOfBounds, format!("{what} of {bytes} bytes outside {} memory", address.buffer))
            }
            _ => match self.context.memory.resolve(at, bytes) {
                Err(Fault::Freed(_)) => {
                    (Kind::UseAfterFree, format!("{what} of {bytes} bytes in freed {}", address.buffer))
                }
                Err(Fault::Wild) => (
                    Kind::OutOfBounds,
                    format!("{what} of {bytes} bytes at {at:#x}, which no allocation contains"),
                ),
                _ => {
                    let size = self.context.memory.owner(at).map_or(0, |(_, allocation)| allocation.len);
                    (
                        Kind::OutOfBounds,
                        format!("{what} of {bytes} bytes outside {} of {size} bytes", address.buffer),
                    )
                }
            },
        };
        self.report(warp, kind, 1 << lane, Some(address), message);
    }

    pub(super) fn uninitialised_global(&mut self, warp: &Warp<'a>, at: u64, lane: usize) {
        let address = self.address(Space::Global, at);
        let message = format!("read of {}, which was never written there", address.buffer);
        self.report(warp, Kind::UninitialisedGlobal, 1 << lane, Some(address), message);
    }
}
