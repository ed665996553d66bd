//! Vector clocks of one block: what each of its agents knows of the others.
//!
//! Agents are the warps, behind them each warp's asynchronous copies, and last the phases of all mbarriers.

#[derive(Debug)]
pub(crate) struct Clocks {
    n: usize,
    rows: Vec<u32>,
    /// For each agent the site of the synchronisation that began each of its clock values.
    log: Vec<Vec<u32>>,
}

impl Clocks {
    pub fn new(agents: usize) -> Clocks {
        let mut rows = vec![0; agents * agents];
        (0..agents).for_each(|agent| rows[agent * agents + agent] = 1);
        Clocks { n: agents, rows, log: vec![vec![u32::MAX]; agents] }
    }

    pub fn now(&self, agent: usize) -> u32 {
        self.rows[agent * self.n + agent]
    }

    /// What `agent` knows of `other`.
    #[inline]
    pub fn known(&self, agent: usize, other: usize) -> u32 {
        self.rows[agent * self.n + other]
    }

    pub fn row(&self, agent: usize) -> &[u32] {
        &self.rows[agent * self.n..(agent + 1) * self.n]
    }

    /// `agent` learns all that `from` holds.
    pub fn join(&mut self, agent: usize, from: &[u32]) {
        let row = &mut self.rows[agent * self.n..(agent + 1) * self.n];
        row.iter_mut().zip(from).for_each(|(mine, &theirs)| *mine = theirs.max(*mine));
    }

    /// What `agent` does from now on is later than what it published.
    pub fn tick(&mut self, agent: usize, site: u32) {
        self.rows[agent * self.n + agent] += 1;
        self.log[agent].push(site);
    }

    /// The synchronisation before `agent`'s clock value `at`.
    pub fn last_sync(&self, agent: usize, at: u32) -> Option<u32> {
        let site = self.log.get(agent)?.get((at as usize).checked_sub(1)?)?;
        (*site != u32::MAX).then_some(*site)
    }
}

/// Joins `from` into an accumulator.
pub(crate) fn merge(into: &mut Vec<u32>, from: &[u32]) {
    into.resize(from.len().max(into.len()), 0);
    into.iter_mut().zip(from).for_each(|(a, &b)| *a = b.max(*a));
}
