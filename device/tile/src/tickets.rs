//! Tickets: the work tiles of a persistent block, numbered in the order in which blocks take them.
//!
//! A counter in device memory has the number of the next ticket. The producer takes a ticket and passes it to
//! the block's other warps. A block finishes its tickets in ascending order. Of all tickets that are not
//! finished, the lowest one therefore belongs to a block that runs and works on it. If a work tile waits only
//! for work tiles of lower tickets, the lowest one waits for nothing. Each launch then ends, whatever its
//! grid, the number of SMs and the order in which blocks begin.
use crate::Warp;
use crate::group::sealed::Sealed;
use crate::group::{Capability, Warpgroup};
use crate::pipeline::Specialized;
use crate::shared::Place;
use contract::TileSums;
use cuda_std::atomic::{Order, Scope, atom_add};
use cuda_std::mbarrier;
use cuda_std::memory::{ld_shared_b32, st_shared_b32};

/// Shared memory for the block's next ticket, which consumer warps and `KEEPERS` keepers read, with its two
/// mbarriers.
pub struct Tickets<const KEEPERS: u32> {
    base: u32,
}

/// The producer's side: the thread that takes tickets.
pub struct TicketProducer {
    base: u32,
    parity: u32,
}

/// The side of the warps and keepers that read tickets.
pub struct TicketConsumer {
    base: u32,
    parity: u32,
}

impl Sealed for TicketProducer {}
impl Capability for TicketProducer {}
impl Sealed for TicketConsumer {}
impl Capability for TicketConsumer {}

/// Offsets of the mbarrier *empty* and of the ticket. The mbarrier *full* lies at 0.
const EMPTY: u32 = mbarrier::BYTES as u32;
const TICKET: u32 = 2 * mbarrier::BYTES as u32;

// SAFETY: the layout has two mbarriers and a word.
unsafe impl<const KEEPERS: u32> Place for Tickets<KEEPERS> {
    const BYTES: usize = 32;
    const ALIGN: usize = mbarrier::BYTES;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        Tickets { base }
    }
}

impl<const KEEPERS: u32> Specialized for Tickets<KEEPERS> {
    type Producer = TicketProducer;
    type Converter = TicketConsumer;
    type Consumer = TicketConsumer;
    const PRODUCERS: u32 = 1;
    const KEEPERS: u32 = KEEPERS;
    #[inline(always)]
    unsafe fn init(&self, consumers: u32) {
        // SAFETY: the mbarriers belong to `self`; the caller keeps the other preconditions.
        unsafe {
            mbarrier::init(self.base, 1);
            mbarrier::init(self.base + EMPTY, consumers + KEEPERS);
        }
    }
    #[inline(always)]
    unsafe fn producer(self, _: Warp) -> TicketProducer {
        TicketProducer { base: self.base, parity: 0 }
    }
    #[inline(always)]
    unsafe fn converter(self, _: Warp) -> TicketConsumer {
        TicketConsumer { base: self.base, parity: 0 }
    }
    #[inline(always)]
    unsafe fn consumer(self, _: Warp) -> TicketConsumer {
        TicketConsumer { base: self.base, parity: 0 }
    }
}

impl TicketProducer {
    /// Takes the next ticket, and passes it to the other warps as soon as all of them have read the last one.
    #[inline(always)]
    pub fn take(&mut self, sums: &TileSums) -> u32 {
        // SAFETY: the counter exists, as `TileSums` promises, and all threads use atomics. `specialize` has
        // initialised the mbarriers. All readers have read the last ticket, or the wait is for the phase
        // before the first, which counts as ended. This thread alone arrives at *full*.
        unsafe {
            let ticket = atom_add(sums.counters() as *mut u32, 1, Order::Relaxed, Scope::Device);
            mbarrier::wait_parity(self.base + EMPTY, self.parity ^ 1);
            st_shared_b32(self.base + TICKET, ticket);
            mbarrier::arrive(self.base);
            self.parity ^= 1;
            ticket
        }
    }
}

impl TicketConsumer {
    /// Waits for the block's next ticket and reads it. `arrive` arrives at *empty*.
    #[inline(always)]
    fn read(&mut self) -> u32 {
        // SAFETY: `specialize` has initialised the mbarriers. The end of the phase makes the ticket visible,
        // and the producer writes the next one only after this reader has arrived.
        let ticket = unsafe {
            mbarrier::wait_parity(self.base, self.parity);
            ld_shared_b32(self.base + TICKET)
        };
        self.parity ^= 1;
        ticket
    }

    /// The block's next ticket, for a keeper.
    #[inline(always)]
    pub fn receive(&mut self) -> u32 {
        let ticket = self.read();
        // SAFETY: each keeper arrives once per phase.
        unsafe { mbarrier::arrive(self.base + EMPTY) }
        ticket
    }

    /// The block's next ticket, for a warpgroup.
    #[inline(always)]
    pub fn receive_with<const W: usize>(&mut self, group: &mut Warpgroup<W>) -> u32 {
        // The same number in all lanes: all lanes have read.
        let ticket = group.warp.uniform(self.read());
        // SAFETY: each warp arrives once per phase.
        unsafe { mbarrier::arrive_if(self.base + EMPTY, group.warp.lane == 0) }
        ticket
    }
}
