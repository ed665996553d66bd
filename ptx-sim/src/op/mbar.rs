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
    /// `dst` takes the phase state; `drop` also lowers the expected count; `expect` adds transaction bytes
    /// first; `relaxed` hands over what a fence has shown, and nothing else.
    Arrive {
        dst: Option<R>,
        addr: Addr,
        count: Option<R>,
        expect: Option<R>,
        drop: bool,
        no_complete: bool,
        relaxed: bool,
    },
    /// `relaxed`: what the phase hands over is known from the next fence on.
    Test {
        dst: R,
        addr: Addr,
        phase: Phase,
        relaxed: bool,
    },
    /// Bytes that are expected, or have come.
    Transaction {
        addr: Addr,
        bytes: R,
        complete: bool,
    },
    /// Arrives when the thread's copies so far have landed.
    CpAsyncArrive {
        addr: Addr,
        noinc: bool,
    },
}

/// The phase that a wait is for: the one of this parity, or of this state.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Phase {
    Parity(R),
    State(R),
}
