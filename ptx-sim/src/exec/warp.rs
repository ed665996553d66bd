//! The state of one warp: call frames, paths of diverged lanes, memory of threads, copies in flight.

use std::collections::VecDeque;

use crate::{
    cfg::NEVER,
    decode::{Constant, FunctionCode, Special},
    exec::{Context, bulk::Store, order::Phases},
    op::{Call, Product},
    regs::{FULL, Kind, LANES, Regs},
};

/// Lanes that run together until they reach instruction `rejoin`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub pc: u32,
    pub rejoin: u32,
    pub mask: u32,
    pub waits: Option<Wait>,
}

/// The event for which diverged lanes wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The lanes wait at the barrier with this number.
    Barrier(usize),
    /// The lanes wait for the other lanes of the warp.
    Company,
}

/// The call frame of one function.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub function: usize,
    pub regs: Regs,
    /// The paths of the frame, the last of which runs. A split path comes before its parts in this list, and
    /// waits for them.
    pub paths: Vec<Path>,
    /// Start of the frame in the warp's local memory.
    pub base: u32,
    pub call: Option<&'a Call>,
    pub mask: u32,
}

/// The state of a warp: it runs, or it waits for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Ready,
    /// The warp waits at the barrier with this number.
    Barrier(usize),
    /// The warp polls the mbarrier at this address. The second number is the version of the mbarrier at the
    /// last poll.
    Polling(u32, u32),
    /// The warp waits until its warpgroup has completed this group of products.
    Products(u64),
    /// The warp waits until other warps have released this number of registers.
    Registers(u32),
    /// The warp waits until all threads of its cluster have arrived.
    Cluster,
    Done,
}

/// The copies of one `cp.async` instruction, for all lanes whose copies are in flight.
#[derive(Debug)]
pub(crate) struct Copies {
    pub mask: u32,
    pub group: [u32; LANES],
    pub dst: [u32; LANES],
    pub src: [u64; LANES],
    pub read: [u8; LANES],
    pub bytes: u32,
    pub site: u32,
    /// Whether the bytes have been copied. Even then, the checks treat the copies as in flight.
    pub landed: bool,
}

/// The arrivals of one `cp.async.mbarrier.arrive` instruction.
#[derive(Debug)]
pub(crate) struct AsyncArrival {
    pub mask: u32,
    pub bar: [u32; LANES],
    /// For each lane, the phase of the mbarrier that must count the lane's arrival.
    pub phase: [u64; LANES],
    /// The knowledge of the warp about all mbarriers.
    pub phases: Phases,
    pub site: u32,
}

/// An asynchronous operation in flight.
#[derive(Debug)]
pub(crate) enum Pending {
    Copies(Box<Copies>),
    /// An arrival at the mbarrier `bar[lane]`, after all earlier operations of the queue have landed.
    Arrive(Box<AsyncArrival>),
}

/// A product that a warp has issued and for which it has not waited.
#[derive(Debug)]
pub(crate) struct Flying<'a> {
    /// Number of groups that the warp had committed before.
    pub group: u64,
    pub product: &'a Product,
    /// Index of the product's accumulators.
    pub tile: usize,
    pub site: u32,
    /// Index of the call frame that owns the product's registers.
    pub frame: usize,
}

#[derive(Debug)]
pub(crate) struct Warp<'a> {
    pub index: usize,
    pub frames: Vec<Frame<'a>>,
    /// A mask of the lanes that have not exited.
    pub live: u32,
    pub status: Status,
    /// Local memory, which consists of `LANES` slices of `local_size` bytes, and the bytes of it that were
    /// written.
    pub local: Vec<u8>,
    pub local_written: Vec<bool>,
    pub local_size: usize,
    pub pending: VecDeque<Pending>,
    /// For each lane, the number of groups that it has committed.
    pub commits: [u32; LANES],
    /// Groups of copies that have landed for an mbarrier, and for which no lane has waited: the number of
    /// groups before them, and the engine's clock.
    pub watched: Vec<(u32, u32)>,
    /// Number of synchronisations of the warp.
    pub epoch: u32,
    /// Site of the instruction that the warp is executing.
    pub site: u32,
    pub polls: u32,
    /// The products for which this warp has not waited.
    pub flying: Vec<Flying<'a>>,
    /// The bulk stores that have not landed.
    pub stores: Vec<Store>,
    /// The bulk stores that have landed and for which no thread has waited:
    pub landed: Vec<(usize, u32, u32)>,
    /// A mask of the lanes that know that the launches before have ended.
    pub waited: u32,
    /// For each lane, the number of bulk groups that it has committed.
    pub bulk_commits: [u32; LANES],
    /// Whether some lanes run alone instead of waiting for reconvergence: see [`super::lanes`].
    pub strayed: bool,
}

impl<'a> Warp<'a> {
    pub fn new(context: &Context<'a>, block: [u32; 3], index: usize) -> Warp<'a> {
        let threads = context.threads as usize;
        let lanes = (threads - index * LANES).min(LANES);
        let live = if lanes == LANES { FULL } else { (1 << lanes) - 1 };
        let mut warp = Warp {
            index,
            frames: Vec::with_capacity(2),
            live,
            status: Status::Ready,
            local: Vec::new(),
            local_written: Vec::new(),
            local_size: 0,
            pending: VecDeque::new(),
            commits: [0; LANES],
            watched: Vec::new(),
            epoch: 0,
            site: 0,
            polls: 0,
            strayed: false,
            flying: Vec::new(),
            stores: Vec::new(),
            landed: Vec::new(),
            waited: if context.dependent { 0 } else { FULL },
            bulk_commits: [0; LANES],
        };
        warp.push_frame(context, block, 0, live, None);
        warp
    }

    /// Enters `function` with the lanes of `mask`.
    pub fn push_frame(
        &mut self,
        context: &Context<'a>,
        block: [u32; 3],
        function: usize,
        mask: u32,
        call: Option<&'a Call>,
    ) {
        let code = &context.program.functions[function];
        let base = self
            .frames
            .last()
            .map_or(0, |frame| frame.base + context.program.functions[frame.function].frame_bytes);
        self.grow_local((base + code.frame_bytes) as usize);
        let mut regs = registers(context, code, block, self.index, base);
        regs.fences = self.frames.last().map_or(0, |frame| frame.regs.fences);
        let paths = vec![Path { pc: code.start, rejoin: NEVER, mask, waits: None }];
        self.frames.push(Frame { function, regs, paths, base, call, mask });
    }

    fn grow_local(&mut self, size: usize) {
        if size <= self.local_size {
            return;
        }
        // Pages of zeros take no memory before the first access. Reads of unwritten bytes return poison.
        let mut local = vec![0; size * LANES];
        let mut written = vec![false; size * LANES];
        for lane in 0..LANES {
            let old = lane * self.local_size..(lane + 1) * self.local_size;
            local[lane * size..][..self.local_size].copy_from_slice(&self.local[old.clone()]);
            written[lane * size..][..self.local_size].copy_from_slice(&self.local_written[old]);
        }
        (self.local, self.local_written, self.local_size) = (local, written, size);
    }

    /// Removes lanes from every path of the running frame, or of all frames.
    pub fn retire(&mut self, mask: u32, all_frames: bool) {
        let from = if all_frames { 0 } else { self.frames.len().saturating_sub(1) };
        for frame in &mut self.frames[from..] {
            frame.paths.iter_mut().for_each(|path| path.mask &= !mask);
        }
    }

    pub fn regs(&mut self) -> &mut Regs {
        let last = self.frames.len() - 1;
        &mut self.frames[last].regs
    }
}

/// The registers of a frame, with the values of its constants.
fn registers(context: &Context<'_>, code: &FunctionCode, block: [u32; 3], warp: usize, base: u32) -> Regs {
    let sizes = [code.n32, code.n64, code.n_pred];
    let mut regs = Regs::new(sizes, context.options.initcheck);
    for &(kind, row, constant) in &code.constants {
        let value = |lane: usize| match constant {
            Constant::Value(value) => value,
            Constant::Frame(offset) => u64::from(base) + u64::from(offset),
            Constant::Special(special) => u64::from(special_value(context, special, block, warp, lane)),
        };
        match kind {
            Kind::Pred => regs.set_pred(row, FULL, if value(0) != 0 { FULL } else { 0 }),
            Kind::B32 | Kind::F32 => regs.set32(row, FULL, &std::array::from_fn(|lane| value(lane) as u32)),
            Kind::B64 | Kind::F64 => regs.set64(row, FULL, &std::array::from_fn(value)),
        }
    }
    regs
}

fn special_value(context: &Context<'_>, special: Special, block: [u32; 3], warp: usize, lane: usize) -> u32 {
    use crate::decode::LaneMask;
    let thread = (warp * LANES + lane) as u32;
    let [x, y, _] = context.block;
    let bit = 1u32 << lane;
    match special {
        Special::Tid(0) => thread % x,
        Special::Tid(1) => thread / x % y,
        Special::Tid(_) => thread / (x * y),
        Special::Ntid(axis) => context.block[usize::from(axis)],
        Special::Ctaid(axis) => block[usize::from(axis)],
        Special::Nctaid(axis) => context.grid[usize::from(axis)],
        Special::LaneId => lane as u32,
        Special::WarpId => warp as u32,
        Special::NWarpId => context.warps as u32,
        Special::LaneMask(LaneMask::Eq) => bit,
        Special::LaneMask(LaneMask::Lt) => bit - 1,
        Special::LaneMask(LaneMask::Le) => bit | (bit - 1),
        Special::LaneMask(LaneMask::Gt) => !(bit | (bit - 1)),
        Special::LaneMask(LaneMask::Ge) => !(bit - 1),
        Special::DynamicSmemSize => context.dynamic_shared,
        Special::TotalSmemSize => context.dynamic_shared + context.program.static_shared,
        Special::SmId => (context.linear(block) % u64::from(context.profile.multiprocessors)) as u32,
        Special::Zero => 0,
        Special::One => 1,
    }
}
