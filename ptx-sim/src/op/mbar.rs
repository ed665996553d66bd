//! `mbarrier` instructions.

use super::Addr;
use crate::regs::R;

/// `mbarrier` instructions on shared memory of this block.
#[derive(Clone, Debug)]
pub(crate) enum Mbar {
    Init {
        addr: Addr,
        count: R,
    },
    Inval {
        addr: Addr,
    },
    /// `dst` takes the phase state. `drop` also lowers the expected count. `expect` first adds transaction
    /// bytes. `relaxed` hands over only knowledge that a fence has made available.
    Arrive {
        dst: Option<R>,
        addr: Addr,
        count: Option<R>,
        expect: Option<R>,
        drop: bool,
        no_complete: bool,
        relaxed: bool,
    },
    /// `relaxed`: the knowledge from the phase becomes available at the next fence.
    Test {
        dst: R,
        addr: Addr,
        phase: Phase,
        relaxed: bool,
    },
    /// Adds bytes that are expected, or bytes that have arrived.
    Transaction {
        addr: Addr,
        bytes: R,
        complete: bool,
    },
    /// Arrives when the thread's earlier copies have landed.
    CpAsyncArrive {
        addr: Addr,
        noinc: bool,
    },
}

/// The phase that a wait names: by its parity, or by its state.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Phase {
    Parity(R),
    State(R),
}
