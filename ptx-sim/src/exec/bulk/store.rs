//! Executes bulk stores and reductions. These instructions move bytes from shared to device memory. A thread
//! commits its stores in groups, and waits for the groups.

use super::*;
use crate::{
    exec::atomic,
    op::{AtomicOp, AtomicType, Reduction, Scope},
    tensor_map::ElementType,
};

impl<'a> Block<'a> {
    pub(super) fn bulk_store(&mut self, warp: &mut Warp<'a>, copy: Copy, reduction: Option<Reduction>) {
        let Ok(reduction) = self.reduction(warp, &copy, reduction) else { return };
        let outside = |row: &&crate::tensor_map::Row| {
            row.bytes > 0 && self.context.memory.resolve(row.address, row.bytes as usize).is_err()
        };
        if let Some(&row) = copy.rows.iter().find(outside) {
            return self.fault(warp, Space::Global, row.address, row.bytes as usize, copy.lane, "bulk copy");
        }
        for row in copy.rows.iter().filter(|row| row.bytes > 0) {
            self.follows_wait(warp, row.address, row.bytes as usize, copy.lane, true);
        }
        let agent = self.agents.outbox(warp.index);
        let (row, proxy) = (self.clocks.row(warp.index).to_vec(), self.views[warp.index].proxy.clone());
        let number = self.clocks.now(agent);
        let engine = Engine { agent, clock: number, row: &row, others: None, proxy: Some(&proxy) };
        let used = (0..copy.rows.len()).filter(|&at| copy.rows[at].bytes > 0);
        let offsets: Vec<usize> = used.flat_map(|at| copy.row_chunks(at)).collect();
        for offsets in offsets.chunks(2 * LANES) {
            let mut touched = self.touched();
            offsets.iter().for_each(|&at| touched.add(shared_cells(at), CELL, copy.lane, 0));
            self.check_engine(warp, Some(engine), touched, Access::Collective, Order::default());
        }
        self.clocks.tick(agent, warp.site);
        // The warp's later accesses are not ordered before this store.
        self.clocks.step(warp.index);
        let others = self.views[warp.index].others().clone();
        let eager = match self.context.options.completion {
            Completion::Eager => true,
            Completion::Late => false,
            Completion::Random => self.random.next() & 1 == 0,
        };
        let group = warp.bulk_commits[copy.lane];
        let mut store = Store { group, copy, number, row, others, reduction, landed: false };
        if eager {
            self.land_store(warp, &mut store);
        }
        warp.stores.push(store);
    }

    fn land_store(&mut self, warp: &mut Warp<'a>, store: &mut Store) {
        if std::mem::replace(&mut store.landed, true) {
            return;
        }
        let copy = &store.copy;
        let here = std::mem::replace(&mut warp.site, copy.site);
        let mut parts = Vec::new();
        for (number, row) in copy.rows.iter().enumerate().filter(|(_, row)| row.bytes > 0) {
            let chunks = copy.row_chunks(number).flat_map(|at| self.shared[at..at + CELL].iter().copied());
            let mut data: Vec<u8> = chunks.skip(row.skip as usize).take(row.bytes as usize).collect();
            let Ok((allocation, offset)) = self.context.memory.resolve(row.address, data.len()) else {
                continue;
            };
            if allocation.read_only {
                let address = self.address(Space::Global, row.address);
                let message = "bulk store to constant memory".into();
                self.report(warp, Kind::ReadOnly, 1 << copy.lane, Some(address), message);
                continue;
            }
            if let Some(reduction) = store.reduction {
                let missing = reduce(reduction, &mut data, |old| allocation.load(offset, old));
                if missing && let Some(at) = (0..data.len()).find(|at| !allocation.is_written(offset + at)) {
                    self.uninitialised_global(warp, row.address + at as u64, copy.lane);
                }
            }
            for (at, bytes) in region::cells(row.address, row.bytes) {
                let from = (at - row.address) as usize;
                let changed = allocation.store(offset + from, &data[from..from + bytes]);
                parts.push((at, bytes, changed));
            }
        }
        // The check uses the knowledge that the warp had when it issued the store.
        let agent = self.agents.landing(warp.index);
        let Store { number, row, others, .. } = &*store;
        let engine = Engine { agent, clock: *number, row, others: Some(others), proxy: None };
        let (access, order) = match store.reduction {
            // The copy of each element is one atomic operation.
            Some(_) => (Access::Atomic, Order { strong: true, scope: Scope::Device, ..Order::default() }),
            None => (Access::Write, Order::default()),
        };
        for parts in parts.chunks(2 * LANES) {
            let mut touched = self.touched();
            parts.iter().for_each(|&(at, bytes, changed)| touched.add(at, bytes, copy.lane, changed));
            self.check_engine(warp, Some(engine), touched, access, order);
        }
        self.moved = true;
        warp.site = here;
    }

    /// Completes all groups of each lane, except for its last `keep` groups: the stores of these groups have
    /// read their sources. Unless `read` is true, their results are also visible in device memory.
    pub(super) fn bulk_wait(&mut self, warp: &mut Warp<'a>, keep: u32, read: bool, mask: u32) {
        let commits = warp.bulk_commits;
        let done = |lane: usize, group| mask >> lane & 1 != 0 && group < commits[lane].saturating_sub(keep);
        let mut stores = std::mem::take(&mut warp.stores);
        for store in stores.iter_mut().filter(|store| done(store.copy.lane, store.group)) {
            self.land_store(warp, store);
            warp.landed.push((store.copy.lane, store.group, store.number));
        }
        stores.retain(|store| !done(store.copy.lane, store.group));
        let outbox = self.agents.outbox(warp.index);
        let now = self.clocks.now(outbox);
        let first_left = stores.iter().map(|store| store.number).min().unwrap_or(now);
        self.clocks.learn(warp.index, outbox, first_left - 1);
        if !read {
            warp.landed.retain(|&(lane, group, _)| !done(lane, group));
            let unseen = warp.landed.iter().map(|&(.., number)| number).min().unwrap_or(now);
            self.clocks.learn(warp.index, self.agents.landing(warp.index), unseen.min(first_left) - 1);
        }
        warp.stores = stores;
    }

    /// Checks the stores of lanes that exit. These stores must have read shared memory before the lanes exit.
    pub(in crate::exec) fn bulk_unwaited(&mut self, warp: &mut Warp<'a>, mask: u32) {
        let mut stores = std::mem::take(&mut warp.stores);
        for store in stores.iter_mut().filter(|store| mask >> store.copy.lane & 1 != 0) {
            let exit = std::mem::replace(&mut warp.site, store.copy.site);
            let message = format!(
                "warp {} exits without having waited for this store: execute \
                 cp.async.bulk.wait_group.read before",
                warp.index
            );
            self.report(warp, Kind::UnwaitedCopies, 1 << store.copy.lane, None, message);
            warp.site = exit;
            self.land_store(warp, store);
        }
        stores.retain(|store| mask >> store.copy.lane & 1 == 0);
        warp.stores = stores;
    }

    /// The reduction with its element type. For a tensor, the tensor map contains the type.
    fn reduction(
        &mut self,
        warp: &Warp<'a>,
        copy: &Copy,
        reduction: Option<Reduction>,
    ) -> Result<Option<(AtomicOp, AtomicType)>, ()> {
        let Some(Reduction { op, ty }) = reduction else { return Ok(None) };
        let of_map = || copy.element.and_then(atomic_type);
        match ty.or_else(of_map).filter(|&ty| reduces(op, ty)) {
            Some(ty) => Ok(Some((op, ty))),
            None => {
                let message = format!("PTX has no reduction {op:?} of elements of type {:?}", copy.element);
                self.report(warp, Kind::BulkCopy, 1 << copy.lane, None, message);
                Err(())
            }
        }
    }
}

/// The type with which reductions compute on the elements of a tensor. `None` if no reduction supports the
/// elements.
fn atomic_type(element: ElementType) -> Option<AtomicType> {
    Some(match element {
        ElementType::U32 => AtomicType::U32,
        ElementType::I32 => AtomicType::S32,
        ElementType::U64 => AtomicType::U64,
        ElementType::I64 => AtomicType::S64,
        ElementType::F16 => AtomicType::F16,
        ElementType::Bf16 => AtomicType::Bf16,
        ElementType::F32 => AtomicType::F32,
        ElementType::F64 => AtomicType::F64,
        ElementType::U8 | ElementType::U16 => return None,
    })
}

/// Whether PTX has this reduction.
fn reduces(op: AtomicOp, ty: AtomicType) -> bool {
    use AtomicType::{Bf16, F16, F32, F64, S32, S64, U32, U64};
    match op {
        AtomicOp::Add => matches!(ty, U32 | S32 | U64 | F16 | Bf16 | F32 | F64),
        AtomicOp::Min | AtomicOp::Max => matches!(ty, U32 | S32 | U64 | S64 | F16 | Bf16),
        AtomicOp::Inc | AtomicOp::Dec => ty == U32,
        AtomicOp::And | AtomicOp::Or | AtomicOp::Xor => matches!(ty, U32 | S32 | U64 | S64),
        AtomicOp::Exch | AtomicOp::Cas => false,
    }
}

/// Combines `data` with the bytes that `load` returns. Returns whether some of these bytes are uninitialised.
fn reduce((op, ty): (AtomicOp, AtomicType), data: &mut [u8], load: impl Fn(&mut [u8]) -> u64) -> bool {
    let mut old = vec![0; data.len()];
    let missing = load(&mut old) != 0;
    let width = ty.bytes() as usize;
    let value = |bytes: &[u8]| bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
    for (new, old) in data.chunks_exact_mut(width).zip(old.chunks_exact(width)) {
        let after = atomic::apply(op, ty, value(old), value(new), 0);
        new.copy_from_slice(&after.to_le_bytes()[..width]);
    }
    missing
}
