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
use contract::{NoteWords, TileSums, note_bytes};
use core::marker::PhantomData;
use cuda_std::atomic::{Order, Scope, atom_add};
use cuda_std::mbarrier;
use cuda_std::memory::{ld_shared_b32, ld_shared_v4_b32, st_shared_b32, st_shared_v4_b32};

/// A note that the producer passes to the other warps: a ticket, or words about the ticket's work tile.
pub trait Note: NoteWords + Sealed {
    /// Writes the note.
    ///
    /// # Safety
    /// - [`NoteWords::BYTES`] bytes at `to`, a multiple of 16 in shared memory, may be written.
    unsafe fn write(self, to: u32);
    /// Reads the note.
    ///
    /// # Safety
    /// - A note lies at `from`, a multiple of 16 in shared memory.
    unsafe fn read(from: u32) -> Self;
    /// The note, which all lanes have, in registers that ptxas may make uniform.
    fn uniform(self, warp: Warp) -> Self;
}

impl Sealed for u32 {}
impl Note for u32 {
    #[inline(always)]
    unsafe fn write(self, to: u32) {
        // SAFETY: the caller keeps the preconditions.
        unsafe { st_shared_b32(to, self) }
    }
    #[inline(always)]
    unsafe fn read(from: u32) -> u32 {
        // SAFETY: the caller keeps the preconditions.
        unsafe { ld_shared_b32(from) }
    }
    #[inline(always)]
    fn uniform(self, warp: Warp) -> u32 {
        warp.uniform(self)
    }
}

impl Sealed for [[u32; 4]; 3] {}
impl Note for [[u32; 4]; 3] {
    #[inline(always)]
    unsafe fn write(self, to: u32) {
        let [a, b, c] = self;
        // SAFETY: the caller keeps the preconditions.
        unsafe {
            st_shared_v4_b32(to, a);
            st_shared_v4_b32(to + 16, b);
            st_shared_v4_b32(to + 32, c);
        }
    }
    #[inline(always)]
    unsafe fn read(from: u32) -> Self {
        // SAFETY: the caller keeps the preconditions.
        [0, 16, 32].map(|at| unsafe { ld_shared_v4_b32(from + at) })
    }
    #[inline(always)]
    fn uniform(self, warp: Warp) -> Self {
        self.map(|quad| quad.map(|word| warp.uniform(word)))
    }
}

/// Shared memory for the note of the block's next ticket, which `W` consumer warpgroups and `KEEPERS` keepers
/// read, with its two mbarriers; behind it, a copy for each consumer warp, if the note is kept.
pub struct Tickets<N, const KEEPERS: u32, const W: usize> {
    base: u32,
    note: PhantomData<N>,
}

/// The producer's side: the thread that takes tickets.
pub struct TicketProducer<N> {
    base: u32,
    parity: u32,
    note: PhantomData<N>,
}

/// The side of the warps and keepers that read notes.
pub struct TicketConsumer<N> {
    base: u32,
    parity: u32,
    /// The address of the copy, if this is a consumer warp's side.
    copy: u32,
    note: PhantomData<N>,
}

impl<N> Sealed for TicketProducer<N> {}
impl<N> Capability for TicketProducer<N> {}
impl<N> Sealed for TicketConsumer<N> {}
impl<N> Capability for TicketConsumer<N> {}

/// Offsets of the mbarrier *empty* and of the note. The mbarrier *full* lies at 0.
const EMPTY: u32 = mbarrier::BYTES as u32;
const NOTE: u32 = 2 * mbarrier::BYTES as u32;

// SAFETY: the layout has two mbarriers and the notes.
unsafe impl<N: Note, const KEEPERS: u32, const W: usize> Place for Tickets<N, KEEPERS, W> {
    const BYTES: usize = NOTE as usize + note_bytes::<N>(4 * W);
    const ALIGN: usize = 16;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        Tickets { base, note: PhantomData }
    }
}

impl<N: Note, const KEEPERS: u32, const W: usize> Specialized for Tickets<N, KEEPERS, W> {
    type Producer = TicketProducer<N>;
    type Converter = TicketConsumer<N>;
    type Consumer = TicketConsumer<N>;
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
    unsafe fn producer(self, _: Warp) -> TicketProducer<N> {
        TicketProducer { base: self.base, parity: 0, note: PhantomData }
    }
    #[inline(always)]
    unsafe fn converter(self, _: Warp) -> TicketConsumer<N> {
        TicketConsumer { base: self.base, parity: 0, copy: 0, note: PhantomData }
    }
    #[inline(always)]
    unsafe fn consumer(self, warp: Warp) -> TicketConsumer<N> {
        let copy = self.base + NOTE + (1 + warp.index) * N::BYTES as u32;
        TicketConsumer { base: self.base, parity: 0, copy, note: PhantomData }
    }
}

impl<N: Note> TicketProducer<N> {
    /// Takes the next ticket.
    #[inline(always)]
    pub fn take(&mut self, sums: &TileSums) -> u32 {
        // SAFETY: the counter exists, as `TileSums` promises, and all threads use atomics.
        unsafe { atom_add(sums.counters() as *mut u32, 1, Order::Relaxed, Scope::Device) }
    }

    /// Passes the note of a ticket to the other warps, as soon as all of them have read the last one. A
    /// ticket without a work tile needs no note.
    #[inline(always)]
    pub fn pass(&mut self, note: N) {
        // SAFETY: `specialize` has initialised the mbarriers. All readers have read the last note, or the
        // wait is for the phase before the first, which counts as ended. This thread alone arrives at *full*.
        unsafe {
            mbarrier::wait_parity(self.base + EMPTY, self.parity ^ 1);
            note.write(self.base + NOTE);
            mbarrier::arrive(self.base);
        }
        self.parity ^= 1;
    }

    /// The note that was passed last. It takes no register until then.
    #[inline(always)]
    pub fn passed(&self) -> N {
        // SAFETY: only this thread writes notes. Before the first note, the words have any values.
        unsafe { N::read(self.base + NOTE) }
    }
}

impl<N: Note> TicketConsumer<N> {
    /// Waits for the block's next note and reads it. `arrive` arrives at *empty*.
    #[inline(always)]
    fn read(&mut self) -> N {
        // SAFETY: `specialize` has initialised the mbarriers. The end of the phase makes the note visible,
        // and the producer writes the next one only after this reader has arrived.
        let note = unsafe {
            mbarrier::wait_parity(self.base, self.parity);
            N::read(self.base + NOTE)
        };
        self.parity ^= 1;
        note
    }

    /// The block's next note, for a keeper.
    #[inline(always)]
    pub fn receive(&mut self) -> N {
        let note = self.read();
        // SAFETY: each keeper arrives once per phase.
        unsafe { mbarrier::arrive(self.base + EMPTY) }
        note
    }

    /// The block's next note, for a warpgroup.
    #[inline(always)]
    pub fn receive_with<const W: usize>(&mut self, group: &mut Warpgroup<W>) -> N {
        // The same words in all lanes: all lanes have read.
        let note = self.read().uniform(group.warp);
        // SAFETY: each warp arrives once per phase. If the note is kept, the warp has a place for its copy,
        // which no lane reads any more: all lanes have come.
        unsafe {
            mbarrier::arrive_if(self.base + EMPTY, group.warp.lane == 0);
            if N::IS_KEPT {
                note.write(self.copy);
                group.warp.sync();
            }
        }
        note
    }

    /// The note that a warpgroup received last, if it is kept.
    #[inline(always)]
    pub fn kept(&self, warp: Warp) -> N {
        const { assert!(N::IS_KEPT, "the warp has no copy of the note") }
        // SAFETY: all lanes have written the same copy. Before the first note, the words have any values.
        unsafe { N::read(self.copy) }.uniform(warp)
    }
}
