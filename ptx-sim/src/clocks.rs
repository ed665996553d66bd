//! Vector clocks of one block. A clock row contains an agent's knowledge of all agents.
//!
//! The agents are the warps, each warpgroup's tensor cores, and each warp's bulk stores and other
//! asynchronous copies (see [`Agents`]). A block adds one agent for each mbarrier that watches copies.

/// The numbers of the agents of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agents {
    warps: usize,
}

impl Agents {
    pub fn new(warps: usize) -> Agents {
        Agents { warps }
    }

    /// Number of warpgroups. Each warpgroup has four warps; the last one may have fewer.
    pub fn warpgroups(self) -> usize {
        self.warps.div_ceil(4)
    }

    /// The agent of a warpgroup's tensor cores.
    pub fn tensor(self, warpgroup: usize) -> usize {
        self.warps + warpgroup
    }

    /// The agent that stands for a warp's bulk stores when they read shared memory.
    pub fn outbox(self, warp: usize) -> usize {
        self.tensor(self.warpgroups()) + warp
    }

    /// The number of agents that read shared memory. These agents have the lowest numbers.
    pub fn readers(self) -> usize {
        self.outbox(self.warps)
    }

    /// The agent of a warp's `cp.async` copies.
    pub fn engine(self, warp: usize) -> usize {
        self.readers() + warp
    }

    /// The agent that stands for a warp's bulk stores when they write device memory.
    pub fn landing(self, warp: usize) -> usize {
        self.engine(self.warps) + warp
    }

    /// The number of all these agents. Agents of mbarriers have higher numbers.
    pub fn all(self) -> usize {
        self.landing(self.warps)
    }

    /// Whether the agent writes through the generic proxy.
    pub fn generic(self, agent: usize) -> bool {
        agent < self.warps || (self.readers()..self.landing(0)).contains(&agent)
    }

    /// The warp of an agent, or the first of its warps. The agent of an mbarrier has no warp.
    pub fn warp(self, agent: usize) -> usize {
        match agent {
            agent if agent < self.warps => agent,
            agent if agent < self.outbox(0) => 4 * (agent - self.warps),
            agent if agent < self.readers() => agent - self.outbox(0),
            agent if agent < self.landing(0) => agent - self.readers(),
            agent if agent < self.all() => agent - self.landing(0),
            _ => 0,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Clocks {
    /// The number of agents for which a row has room.
    n: usize,
    /// For each agent that can know of other agents, a row of clocks.
    rows: Vec<u32>,
    /// For each agent, the sites of the synchronisations that began its clock values.
    log: Vec<Vec<u32>>,
}

impl Clocks {
    pub fn new(agents: usize) -> Clocks {
        let mut rows = vec![0; agents * agents];
        (0..agents).for_each(|agent| rows[agent * agents + agent] = 1);
        Clocks { n: agents, rows, log: vec![vec![u32::MAX]; agents] }
    }

    /// Adds an agent and returns its number.
    pub fn add(&mut self) -> usize {
        let wide = self.n + 1;
        self.rows = self.rows.chunks_exact(self.n).flat_map(|row| row.iter().copied().chain([0])).collect();
        self.n = wide;
        wide - 1
    }

    /// Records that `agent` knows that `other` has reached the clock value `at`.
    pub fn learn(&mut self, agent: usize, other: usize, at: u32) {
        let known = &mut self.rows[agent * self.n + other];
        *known = at.max(*known);
    }

    pub fn now(&self, agent: usize) -> u32 {
        self.rows[agent * self.n + agent]
    }

    /// The clock of `other` that `agent` knows.
    #[inline]
    pub fn known(&self, agent: usize, other: usize) -> u32 {
        self.rows[agent * self.n + other]
    }

    pub fn row(&self, agent: usize) -> &[u32] {
        &self.rows[agent * self.n..(agent + 1) * self.n]
    }

    /// Adds the knowledge in `from` to the knowledge of `agent`.
    pub fn join(&mut self, agent: usize, from: &[u32]) {
        let row = &mut self.rows[agent * self.n..(agent + 1) * self.n];
        row.iter_mut().zip(from).for_each(|(mine, &theirs)| *mine = theirs.max(*mine));
    }

    /// Advances the clock of `agent` after `agent` has published its knowledge. The published knowledge then
    /// does not cover later accesses of `agent`.
    pub fn tick(&mut self, agent: usize, site: u32) {
        self.rows[agent * self.n + agent] += 1;
        self.log[agent].push(site);
    }

    /// Advances the clock of `agent` without a synchronisation.
    pub fn step(&mut self, agent: usize) {
        let site = self.log[agent].last().copied().unwrap_or(u32::MAX);
        self.tick(agent, site);
    }

    /// The site of the synchronisation that began clock value `at` of `agent`.
    pub fn last_sync(&self, agent: usize, at: u32) -> Option<u32> {
        let site = self.log.get(agent)?.get((at as usize).checked_sub(1)?)?;
        (*site != u32::MAX).then_some(*site)
    }
}

/// Adds the knowledge in `from` to `into`.
pub(crate) fn merge(into: &mut Vec<u32>, from: &[u32]) {
    into.resize(from.len().max(into.len()), 0);
    into.iter_mut().zip(from).for_each(|(a, &b)| *a = b.max(*a));
}
