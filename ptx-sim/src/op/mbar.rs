//! The `mbarrier` instructions.

use super::Addr;
use crate::regs::R;

/// An `mbarrier` instruction on shared memory of this block.
#[derive(Clone, Debug)]
pub(crate) enum Mbar {
    Init {
        addr: Addr,
        count: R,
    },
    Inval {
        addr: Addr,
    },
    /// Arrives; `dst` receives the state of the phase. `drop` also lowers the expected count. `expect` first
    /// adds transaction bytes. `relaxed` only hands over knowledge that a fence has made available.
    Arrive {
        dst: Option<R>,
        addr: Addr,
        count: Option<R>,
        expect: Option<R>,
        drop: bool,
        no_complete: bool,
        relaxed: bool,
    },
    /// If `relaxed`, the knowledge from the phase becomes available at the next fence.
    Test {
        dst: R,
        addr: Addr,
        phase: Phase,
        relaxed: bool,
    },
    /// Adds bytes that the phase expects, or bytes that have arrived.
    Transaction {
        addr: Addr,
        bytes: R,
        complete: bool,
    },
    /// Arrives as soon as the earlier copies of the thread have landed.
    CpAsyncArrive {
        addr: Addr,
        noinc: bool,
    },
}

/// The phase that a wait names, either by its parity or by its state.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Phase {
    Parity(R),
    State(R),
}
