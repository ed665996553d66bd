//! Executes `wgmma`. A product is in flight from its issue until a wait for it. The simulator executes a
//! product as late as the waits allow, after all four warps have committed it. Only then does the simulator
//! read the operands and write the accumulators.

mod tile;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use tile::Tile;

use super::{
    Block,
    check::Engine,
    memory::shared_cells,
    warp::{Flying, Status, Warp},
    warpgroup::{Came, MEMBERS, Step},
};
use crate::{
    ast::Space,
    decode::SHARED_BASE,
    op::{Operand, Order, Product, Wgmma},
    options::Completion,
    regs::{FULL, LANES, R, Regs, lanes},
    report::Kind,
    shadow::{Access, CELL},
    wgmma::{Descriptor, ROWS, accumulate, fetch, fetch_registers},
};

/// The products of a warpgroup.
#[derive(Debug, Default)]
pub(super) struct Products<'a> {
    /// The accumulators in flight, by index.
    tiles: BTreeMap<usize, Tile<'a>>,
    /// The number of indices that were used so far.
    numbers: usize,
    /// The products that all warps have issued but not all warps have committed.
    open: Vec<Issued<'a>>,
    /// The groups that all warps have committed and that are not complete, oldest first.
    groups: VecDeque<Vec<Issued<'a>>>,
    /// The number of groups that all warps have committed.
    pub committed: u64,
    /// The number of groups that are complete.
    done: u64,
    /// The number of groups that each warp has committed.
    commits: [u64; MEMBERS],
    /// For each group, the clock of the tensor cores at its end.
    ends: Vec<u32>,
}

/// A product that all four warps have issued.
#[derive(Debug)]
struct Issued<'a> {
    product: &'a Product,
    tile: usize,
    accumulates: bool,
    /// The offsets of the chunks of B, and of A if A is in shared memory.
    a: Arc<[usize]>,
    b: Arc<[usize]>,
}

impl<'a> Block<'a> {
    pub(super) fn wgmma(&mut self, warp: &mut Warp<'a>, wgmma: &'a Wgmma, mask: u32) {
        let (group, member) = (warp.index / MEMBERS, warp.index % MEMBERS);
        match wgmma {
            Wgmma::Product(product) => self.issue(warp, product, mask),
            Wgmma::Fence => {
                if self.come(warp, mask, [0; 3], |_, _, _| {}).is_some() {
                    warp.regs().fences += 1;
                }
            }
            Wgmma::Commit => {
                let Some(came) = self.come(warp, mask, [0; 3], |_, _, _| {}) else { return };
                let tensor = self.agents.tensor(group);
                let products = &mut self.warpgroups[group].products;
                products.commits[member] += 1;
                let Came::Last(_) = came else { return };
                let open = std::mem::take(&mut products.open);
                products.groups.push_back(open);
                products.committed += 1;
                products.ends.push(self.clocks.now(tensor));
                self.clocks.tick(tensor, warp.site);
                let eager = match self.context.options.completion {
                    Completion::Eager => true,
                    Completion::Late => false,
                    Completion::Random => self.random.next() & 1 == 0,
                };
                if eager {
                    let all = self.warpgroups[group].products.committed;
                    self.execute(warp, all);
                }
            }
            Wgmma::Wait(keep) => {
                if self.come(warp, mask, [0; 3], |_, _, _| {}).is_none() {
                    return;
                }
                let products = &self.warpgroups[group].products;
                let target = products.commits[member].saturating_sub(u64::from(*keep));
                match products.committed >= target {
                    true => self.settle_products(warp, target),
                    false => warp.status = Status::Products(target),
                }
            }
        }
    }

    /// Completes the first `target` groups. `warp` then knows that these groups are complete.
    pub(super) fn settle_products(&mut self, warp: &mut Warp<'a>, target: u64) {
        self.execute(warp, target);
        let group = warp.index / MEMBERS;
        if let Some(last) = target.checked_sub(1) {
            let end = self.warpgroups[group].products.ends[last as usize];
            self.clocks.learn(warp.index, self.agents.tensor(group), end);
        }
        let (done, left) =
            std::mem::take(&mut warp.flying).into_iter().partition(|it: &Flying<'a>| it.group < target);
        warp.flying = left;
        let done: Vec<_> = done;
        for (all, flies) in [(&done, false), (&warp.flying, true)] {
            for flying in all {
                let Some(frame) = warp.frames.get_mut(flying.frame) else { continue };
                registers(flying.product).for_each(|r| frame.regs.flying[r as usize] = flies);
            }
        }
    }

    fn issue(&mut self, warp: &mut Warp<'a>, product: &'a Product, mask: u32) {
        let Some(operands) = self.uniform_operands(warp, product, mask) else { return };
        self.check_registers(warp, product);
        let (group, member, frame) = (warp.index / MEMBERS, warp.index % MEMBERS, warp.frames.len() - 1);
        // The accumulators may already be in flight, if an incomplete product of an earlier group uses them.
        let tiles = &self.warpgroups[group].products.tiles;
        let known = warp.flying.iter().rfind(|it| it.product.d == product.d).map(|it| it.tile);
        let known = known.filter(|tile| tiles.contains_key(tile));
        let mut tile = 0;
        let index = warp.index;
        let meet = |block: &mut Self, step: &mut Step, first: bool| {
            let (row, proxy) = (block.clocks.row(index), &block.views[index].proxy);
            if first {
                step.proxy = proxy.clone();
                let products = &mut block.warpgroups[group].products;
                step.tile = known.unwrap_or_else(|| products.new_tile(product, frame));
                if let Some(tile) = products.tiles.get_mut(&step.tile) {
                    tile.users += 1;
                }
            } else {
                least(&mut step.row, row);
                least(&mut step.proxy, proxy);
            }
            tile = step.tile;
        };
        let Some(came) = self.come(warp, mask, operands, meet) else { return };
        if known != Some(tile)
            && let Some(tile) = self.warpgroups[group].products.tiles.get_mut(&tile)
        {
            tile.take(warp.regs(), member, operands[2] != 0);
        }
        let regs = warp.regs();
        for r in registers(product) {
            regs.flying[r as usize] = true;
        }
        let number = self.warpgroups[group].products.commits[member];
        warp.flying.push(Flying { group: number, product, tile, site: warp.site, frame });
        if let Came::Last(step) = came {
            self.launch(warp, product, &step, operands);
        }
    }

    /// The descriptors of A and B, and whether the product adds to D. These operands must be the same in all
    /// lanes.
    fn uniform_operands(&mut self, warp: &mut Warp<'a>, product: &Product, mask: u32) -> Option<[u64; 3]> {
        let regs = warp.regs();
        let mut uniform = true;
        let mut value = |operand: &Operand| match operand {
            Operand::Registers(_) => 0,
            Operand::Shared { descriptor, .. } => {
                let row = regs.row64(*descriptor, mask);
                let first = row[mask.trailing_zeros() as usize % LANES];
                uniform &= lanes(mask).all(|lane| row[lane] == first);
                first
            }
        };
        let (a, b) = (value(&product.a), value(&product.b));
        let accumulates = regs.pred(product.accumulates, mask) & mask;
        uniform &= accumulates == 0 || accumulates == mask;
        if !uniform {
            self.report(warp, Kind::Wgmma, mask, None, "lanes disagree about the operands of wgmma".into());
            self.stop = Some(super::block::Stop::Reported);
            return None;
        }
        Some([a, b, u64::from(accumulates != 0)])
    }

    /// Checks that a fence follows the last access to the registers of the product, and that no other product
    /// uses them.
    fn check_registers(&mut self, warp: &mut Warp<'a>, product: &Product) {
        let a: &[R] = if let Operand::Registers(a) = &product.a { a } else { &[] };
        let Some(regs) = warp.frames.last().map(|frame| &frame.regs) else { return };
        let late = |r: &&R| {
            let r = **r as usize;
            !regs.flying[r] && (regs.fences == 0 || regs.touched[r].get() == regs.fences)
        };
        let unwritten = a.iter().filter(|r| !regs.flying[**r as usize]);
        let unwritten = unwritten.fold(0, |lanes, &r| lanes | !regs.init32[r as usize]);
        regs.missing.set(regs.missing.get() | unwritten);
        let unfenced = product.d.iter().chain(a).find(late).is_some();
        let flying = |r: &&R| regs.flying[**r as usize];
        // Products of the same shape may share accumulators. Several products may read the same A.
        let chained = |it: &Flying<'_>| it.product.d == product.d;
        let mut other = product.d.iter().find(flying).copied();
        if product.d.iter().all(|r| flying(&r)) && warp.flying.iter().any(chained) {
            other = None;
        }
        let written = |r: &&R| {
            product.d.contains(r) || flying(r) && warp.flying.iter().any(|it| it.product.d.contains(r))
        };
        let other = other.or_else(|| a.iter().find(written).copied());
        if unfenced {
            let message = "this product needs a wgmma.fence before it: it is the first one, or another \
                           instruction has accessed its registers since the last fence";
            self.report(warp, Kind::Wgmma, FULL, None, message.into());
        }
        if let Some(register) = other {
            self.disturbed(warp, register);
        }
    }

    /// Reports that an instruction has accessed registers of a product in flight.
    pub(super) fn disturbed(&mut self, warp: &mut Warp<'a>, register: R) {
        let flying = warp.flying.iter().rfind(|flying| registers(flying.product).any(|r| r == register));
        let earlier = flying.map(|flying| self.earlier(flying.site, warp.index));
        let text = super::trace::place(self.context, warp.site).instruction;
        let message = format!(
            "`{text}` accesses a register of a product in flight: execute wgmma.wait_group before it"
        );
        self.report_pair(warp, Kind::PendingProduct, FULL, None, earlier, message);
    }

    /// Begins a product that all four warps have issued. From now on, the product may read its operands.
    fn launch(&mut self, warp: &mut Warp<'a>, product: &'a Product, step: &Step, operands: [u64; 3]) {
        let a = self.operand(warp, &product.a, operands[0], ROWS, step);
        let b = self.operand(warp, &product.b, operands[1], product.columns, step);
        let products = &mut self.warpgroups[warp.index / MEMBERS].products;
        let accumulates = operands[2] != 0;
        products.open.push(Issued { product, tile: step.tile, accumulates, a, b });
    }

    /// The offsets of an operand's chunks, after checks, or `None` if the descriptor is invalid.
    fn operand(
        &mut self,
        warp: &mut Warp<'a>,
        operand: &Operand,
        bits: u64,
        extent: usize,
        step: &Step,
    ) -> Arc<[usize]> {
        let Operand::Shared { across, .. } = *operand else { return Arc::default() };
        let Some(chunks) = self.chunks(warp, (bits, extent, across)) else { return Arc::default() };
        let agent = self.agents.tensor(warp.index / MEMBERS);
        let clock = self.clocks.now(agent);
        let engine = Engine { agent, clock, row: &step.row, others: None, proxy: Some(&step.proxy) };
        for chunks in chunks.chunks(2 * LANES) {
            let mut touched = self.touched();
            touched.collective = true;
            chunks.iter().for_each(|&at| touched.add(shared_cells(at), CELL, 0, 0));
            self.check_engine(warp, Some(engine), touched, Access::Collective, Order::default());
        }
        chunks
    }

    /// The chunks that a descriptor selects. The chunks are cached, because a kernel has few descriptors and
    /// uses each of them often.
    fn chunks(&mut self, warp: &Warp<'a>, key: (u64, usize, bool)) -> Option<Arc<[usize]>> {
        if let Some(known) = self.operands.get(&key) {
            return Some(Arc::clone(known));
        }
        let (bits, extent, across) = key;
        let chunks = match Descriptor::decode(bits, extent, across) {
            Ok(descriptor) => descriptor.chunks(extent, across),
            Err(message) => {
                self.report(warp, Kind::Wgmma, FULL, None, message);
                return None;
            }
        };
        let outside = |&&at: &&u32| self.shared_offset(at.into(), CELL).is_none();
        if let Some(&at) = chunks.iter().find(outside) {
            self.fault(warp, Space::Shared, at.into(), CELL, 0, "operand of wgmma");
            return None;
        }
        let chunks: Arc<[usize]> = chunks.into_iter().map(|at| (at - SHARED_BASE) as usize).collect();
        self.operands.insert(key, Arc::clone(&chunks));
        Some(chunks)
    }

    /// Executes all groups up to number `target`. `running` is the warp that is being executed.
    fn execute(&mut self, running: &mut Warp<'a>, target: u64) {
        let group = running.index / MEMBERS;
        let (mut a, mut b) = (Vec::new(), Vec::new());
        while self.warpgroups[group].products.done < target {
            let products = &mut self.warpgroups[group].products;
            products.done += 1;
            for issued in products.groups.pop_front().unwrap_or_default() {
                self.multiply(running, &issued, (&mut a, &mut b));
            }
        }
    }

    fn multiply(
        &mut self,
        running: &mut Warp<'a>,
        issued: &Issued<'a>,
        (a, b): (&mut Vec<f32>, &mut Vec<f32>),
    ) {
        let Issued { product, tile: index, .. } = *issued;
        let group = running.index / MEMBERS;
        let Some(mut tile) = self.warpgroups[group].products.tiles.remove(&index) else { return };
        let across = |operand: &Operand| matches!(operand, Operand::Shared { across: true, .. });
        fetch(product.element, &self.shared, &issued.b, (product.columns, across(&product.b)), b);
        fetch(product.element, &self.shared, &issued.a, (ROWS, across(&product.a)), a);
        if let Operand::Registers(rows) = &product.a {
            for member in 0..MEMBERS {
                let Some(regs) = self.regs_of(running, MEMBERS * group + member, tile.frame) else {
                    continue;
                };
                let rows = [0, 1, 2, 3].map(|r| regs.peek32(rows[r]));
                fetch_registers(product.element, member, rows, a);
            }
        }
        if product.negated {
            a.iter_mut().for_each(|value| *value = -*value);
        }
        if !issued.accumulates {
            tile.values.fill(0.0);
        }
        accumulate(product.element, a, b, &mut tile.values, self.context.options.mma);
        tile.users -= 1;
        if tile.users > 0 {
            self.warpgroups[group].products.tiles.insert(index, tile);
            return;
        }
        for member in 0..MEMBERS {
            if let Some(regs) = self.regs_of(running, MEMBERS * group + member, tile.frame) {
                tile.give(regs, member);
            }
        }
    }

    fn regs_of<'w>(
        &'w mut self,
        running: &'w mut Warp<'a>,
        warp: usize,
        frame: usize,
    ) -> Option<&'w mut Regs> {
        let warp = if warp == running.index { Some(running) } else { self.warps[warp].as_mut() };
        warp?.frames.get_mut(frame).map(|frame| &mut frame.regs)
    }
}

impl<'a> Products<'a> {
    fn new_tile(&mut self, product: &'a Product, frame: usize) -> usize {
        let tile = Tile { product, values: vec![0.0; ROWS * product.columns], users: 0, frame };
        self.numbers += 1;
        self.tiles.insert(self.numbers, tile);
        self.numbers
    }
}

/// The registers of a product: accumulators and A.
fn registers(product: &Product) -> impl Iterator<Item = R> {
    let a: &[R] = if let Operand::Registers(a) = &product.a { a } else { &[] };
    product.d.iter().chain(a).copied()
}

/// Reduces `mine` to the knowledge that `theirs` has too.
fn least(mine: &mut Vec<u32>, theirs: &[u32]) {
    mine.truncate(theirs.len());
    mine.iter_mut().zip(theirs).for_each(|(mine, &theirs)| *mine = theirs.min(*mine));
}
