//! One thread block: shared memory, warps, and the schedule of the warps.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use super::{
    Context,
    barrier::Barrier,
    bulk::Load,
    cluster::ClusterBarrier,
    effects::Effects,
    mbarrier::MBarrier,
    order::{Published, View},
    touched::Touch,
    warp::Warp,
    warpgroup::Warpgroup,
};
use crate::{
    LaunchError,
    clocks::{Agents, Clocks},
    coverage::Met,
    decode::SHARED_BASE,
    memory::POISON,
    regs::LANES,
    report::{Kind, Report},
    shadow::{CELL, Readers, Shadow},
};

/// Number of barriers of a block.
pub(super) const BARRIERS: usize = 16;

/// The reason why a block ended early.
#[derive(Debug)]
pub(super) enum Stop {
    /// A report states why.
    Reported,
    Error(LaunchError),
}

/// The results of a block.
pub(crate) struct Finished {
    pub reports: Vec<Report>,
    pub instructions: u64,
    pub output: String,
    pub error: Option<LaunchError>,
    /// Coverage of each instruction, by site, if [`crate::Options::coverage`] is on.
    pub coverage: Vec<Met>,
    /// A digest of the block's effects, if [`crate::Options::coverage`] is on.
    pub digest: u64,
}

pub(crate) struct Block<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) id: [u32; 3],
    /// The block's index within the grid, modulo 2^32.
    pub(super) number: u32,
    /// The bytes of shared memory from [`SHARED_BASE`] on.
    pub(super) shared: Vec<u8>,
    /// For each cell of shared memory, a mask of the bytes that were ever written.
    pub(super) written: Vec<u16>,
    pub(super) shadow: Shadow,
    pub(super) clocks: Clocks,
    pub(super) agents: Agents,
    /// For each agent of an mbarrier, the warp for which it acts.
    pub(super) owners: Vec<usize>,
    pub(super) warpgroups: Vec<Warpgroup<'a>>,
    /// Number of registers that no warp owns: see [`crate::op::Op::SetRegisters`].
    pub(super) free_registers: u32,
    /// Bulk loads that have not landed, oldest first.
    pub(super) loads: VecDeque<Load>,
    pub(super) barriers: [Barrier; BARRIERS],
    pub(super) cluster: ClusterBarrier,
    pub(super) mbarriers: BTreeMap<u32, MBarrier>,
    /// For each cell of shared memory, a mask of the bytes that belong to live mbarriers.
    pub(super) guarded: Vec<u16>,
    /// Number of mbarriers that were initialised so far.
    pub(super) initialised: u32,
    pub(super) warps: Vec<Option<Warp<'a>>>,
    pub(super) reports: Vec<Report>,
    pub(super) seen: HashSet<(Kind, u32, u32)>,
    pub(super) output: String,
    pub(super) instructions: u64,
    pub(super) random: Random,
    /// For each warp, the knowledge that is not in the block's clocks.
    pub(super) views: Vec<View>,
    /// Knowledge that the block's warps have published through shared memory.
    pub(super) published: Published,
    /// The addresses in device memory at which the block's warps have published knowledge for each other.
    pub(super) published_at: Vec<u64>,
    /// Buffers of earlier sets of touched cells. Later instructions use these buffers again.
    pub(super) spare: Vec<Vec<Touch>>,
    /// A cache of the offsets of an operand's chunks. The key is the descriptor, the extent and the order.
    pub(super) operands: HashMap<(u64, usize, bool), Arc<[usize]>>,
    pub(super) stop: Option<Stop>,
    /// Coverage by site; empty if [`crate::Options::coverage`] is off.
    pub(super) coverage: Vec<Met>,
    /// Effects by warp; empty if [`crate::Options::coverage`] is off.
    pub(super) effects: Vec<Effects>,
    /// Whether an event has happened since [`Self::flushed`] was set, for which warps may wait.
    pub(super) moved: bool,
    /// Number of instructions that the launch's [`super::Progress`] already counts.
    pub(super) flushed: u64,
    /// Index of the warp that ran last.
    pub(super) last: usize,
}

/// A SplitMix64 random number generator.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

impl<'a> Block<'a> {
    pub fn new(context: &'a Context<'a>, id: [u32; 3]) -> Block<'a> {
        let bytes = (context.program.dynamic_base + context.dynamic_shared - SHARED_BASE) as usize;
        let cells = bytes.div_ceil(CELL);
        let linear = context.linear(id);
        let agents = Agents::new(context.warps);
        Block {
            context,
            id,
            number: linear as u32,
            shared: vec![POISON; cells * CELL],
            written: vec![0; cells],
            shadow: Shadow::new(cells, Readers::Warps(agents.readers())),
            clocks: Clocks::new(agents.all()),
            agents,
            owners: Vec::new(),
            warpgroups: (0..agents.warpgroups()).map(|_| Warpgroup::default()).collect(),
            free_registers: 0,
            loads: VecDeque::new(),
            barriers: Default::default(),
            cluster: ClusterBarrier::new(context.warps),
            mbarriers: BTreeMap::new(),
            guarded: vec![0; cells],
            initialised: 0,
            warps: (0..context.warps).map(|warp| Some(Warp::new(context, id, warp))).collect(),
            reports: Vec::new(),
            seen: HashSet::new(),
            output: String::new(),
            instructions: 0,
            random: Random(context.options.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ linear),
            views: vec![View::default(); context.warps],
            published: Published::default(),
            published_at: Vec::new(),
            spare: Vec::new(),
            operands: HashMap::new(),
            stop: None,
            effects: vec![Effects::default(); if context.options.coverage { context.warps } else { 0 }],
            coverage: vec![
                Met::default();
                if context.options.coverage { context.program.sites.len() } else { 0 }
            ],
            moved: true,
            flushed: 0,
            last: context.warps - 1,
        }
    }

    /// The offset in [`Self::shared`] of the shared address `at`, if `bytes` bytes lie there.
    pub(super) fn shared_offset(&self, at: u64, bytes: usize) -> Option<usize> {
        let offset = at.checked_sub(u64::from(SHARED_BASE))? as usize;
        let size = (self.context.program.dynamic_base + self.context.dynamic_shared - SHARED_BASE) as usize;
        (at < 1 << 32 && offset + bytes <= size).then_some(offset)
    }
}

/// A warp must have 32 lanes, because the masks below rely on this number.
const _: () = assert!(LANES == 32);
