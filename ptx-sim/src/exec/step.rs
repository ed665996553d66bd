//! Executes one instruction of one warp.

use super::{
    Block,
    block::Stop,
    lanes::together,
    trace::place,
    warp::{Path, Status, Wait, Warp},
};
use crate::{
    cfg::NEVER,
    op::{Addr, Clock, Op},
    regs::{FULL, LANES, Row64, lanes},
    report::Kind,
};

impl<'a> Block<'a> {
    /// Executes the next instruction of `warp`.
    pub(super) fn step(&mut self, warp: &mut Warp<'a>) {
        let Some(frame) = warp.frames.last_mut() else {
            warp.status = Status::Done;
            return;
        };
        let Some(path) = frame.paths.last_mut() else { return self.leave(warp) };
        if path.pc == path.rejoin || path.mask == 0 {
            frame.paths.pop();
            return;
        }
        if let Some(wait) = path.waits {
            if warp.other_lanes(false) {
                return;
            }
            match wait {
                Wait::Barrier(id) => warp.status = Status::Barrier(id),
                // No other lane can arrive any more.
                Wait::Company => {
                    warp.frames.iter_mut().filter_map(|frame| frame.paths.last_mut()).for_each(|path| {
                        path.waits = path.waits.filter(|wait| *wait != Wait::Company);
                    });
                }
            }
            return;
        }
        if warp.strayed && together(&self.context.program.code[path.pc as usize].op) && !warp.gather() {
            return;
        }
        let Some(frame) = warp.frames.last_mut() else { return };
        let Some(path) = frame.paths.last_mut() else { return };
        let program = self.context.program;
        let code = &program.code[path.pc as usize];
        path.pc += 1;
        let mut mask = path.mask;
        warp.site = code.site;
        self.instructions += 1;
        if let Some(guard) = code.guard {
            let value = frame.regs.pred(guard.reg, mask);
            if frame.regs.missing.get() != 0 {
                return self.missing_register(warp);
            }
            mask &= if guard.negated { !value } else { value };
        }
        if let Some(met) = self.coverage.get_mut(code.site as usize) {
            met.note(program, code, &mut frame.regs, path.mask, mask);
        }
        if mask == 0 {
            return;
        }
        if !self.effects.is_empty() {
            self.note_effects(warp, &code.op, mask);
        }
        let Some(frame) = warp.frames.last_mut() else { return };
        match &code.op {
            Op::Alu { run, args } => run(&mut frame.regs, args, mask),
            Op::Move32 { d, s } => frame.regs.move32(*d, *s, mask),
            Op::Move64 { d, s } => frame.regs.move64(*d, *s, mask),
            Op::MovePred { d, s } => frame.regs.move_pred(*d, *s, mask),
            Op::Mma(mma) => {
                if self.converged(warp, mask, "mma.sync.aligned") {
                    crate::mma::execute(mma, warp.regs(), self.context.options.mma);
                }
            }
            Op::Load(access) => self.load(warp, access, mask),
            Op::Store(access) => self.store(warp, access, mask),
            Op::Atomic(atomic) => self.atomic(warp, atomic, mask),
            Op::CpAsync(copy) => self.cp_async(warp, copy, mask),
            Op::CpCommit => lanes(mask).for_each(|lane| warp.commits[lane] += 1),
            Op::CpWait(keep) => self.cp_wait(warp, *keep, mask),
            Op::LdMatrix(matrix) => self.ldmatrix(warp, matrix, mask),
            Op::StMatrix(matrix) => self.stmatrix(warp, matrix, mask),
            Op::MovMatrix { d, s } => self.movmatrix(warp, *d, *s, mask),
            Op::Bar(bar) => self.bar(warp, bar, mask),
            Op::WarpSync { members } => self.warp_sync(warp, *members, mask),
            Op::Shfl(shfl) => self.shfl(warp, shfl, mask),
            Op::Vote { mode, d, p, negated, members } => {
                self.vote(warp, (*mode, *d, *p, *negated), *members, mask)
            }
            Op::ActiveMask { d } => frame.regs.set32(*d, mask, &[mask; LANES]),
            Op::Match { d, a, members } => self.match_any(warp, *d, *a, *members, mask),
            Op::Redux { op, d, a, members } => self.redux(warp, (*op, *d, *a), *members, mask),
            Op::Elect { d, p, members } => self.elect(warp, *d, *p, *members, mask),
            Op::Mbar(mbar) => self.mbar(warp, mbar, mask),
            Op::Fence(scope) => self.fence(warp, *scope),
            Op::Proxy(proxy) => self.proxy_fence(warp, *proxy),
            Op::Wgmma(wgmma) => self.wgmma(warp, wgmma, mask),
            Op::SetRegisters { more, count } => self.set_registers(warp, *more, *count, mask),
            Op::Bulk(bulk) => self.bulk(warp, bulk, mask),
            Op::Cluster { step, aligned } => self.cluster_barrier(warp, *step, *aligned, mask),
            Op::GridWait => warp.waited |= mask,
            Op::Nop => {}
            Op::IsSpace { p, addr, space } => self.is_space(warp, *p, addr, *space, mask),
            Op::Clock(clock) => self.clock(warp, *clock, mask),
            Op::Bra { target, rejoin } => branch(&mut frame.paths, mask, *target, *rejoin),
            Op::BrxIdx { index, targets, rejoin } => {
                let index = *frame.regs.row32(*index, mask);
                branch_table(&mut frame.paths, mask, &index, targets, *rejoin);
            }
            Op::Call(call) => self.call(warp, call, mask),
            Op::Ret if warp.frames.len() > 1 => warp.retire(mask, false),
            Op::Ret | Op::Exit => self.exit(warp, mask),
            Op::Trap => {
                self.report(warp, Kind::Trap, mask, None, "the kernel executed `trap`".into());
                self.stop = Some(Stop::Reported);
            }
            Op::Returns => {
                let message = "the function is `.noreturn`, but returns: the behaviour is undefined; end it \
                               with `trap` or `exit`";
                self.report(warp, Kind::Trap, mask, None, message.into());
                self.stop = Some(Stop::Reported);
            }
        }
        let Some(frame) = warp.frames.last() else { return };
        let (missing, disturbed) = (frame.regs.missing.get() != 0, frame.regs.disturbed.take());
        if let Some(register) = disturbed {
            self.disturbed(warp, register);
        }
        if missing {
            self.missing_register(warp);
        }
    }

    fn missing_register(&mut self, warp: &mut Warp<'a>) {
        let lanes = warp.regs().missing.take();
        let text = place(self.context, warp.site).instruction;
        self.report(
            warp,
            Kind::UninitialisedRegister,
            lanes,
            None,
            format!("`{text}` reads a register that was never written"),
        );
    }

    /// Checks that every live lane executes an `.aligned` instruction. Makes a report if a lane does not.
    pub(super) fn converged(&mut self, warp: &mut Warp<'a>, mask: u32, what: &str) -> bool {
        if mask == FULL {
            return true;
        }
        let message = format!(
            "{what} needs all 32 lanes of the warp together, lanes {:#010x} are missing{}",
            !mask,
            if warp.live == FULL { "" } else { " (some have exited)" }
        );
        self.report(warp, Kind::DivergentSync, mask, None, message);
        self.stop = Some(Stop::Reported);
        false
    }

    fn exit(&mut self, warp: &mut Warp<'a>, mask: u32) {
        self.unwaited(warp, mask);
        self.bulk_unwaited(warp, mask);
        self.ends_after_wait(warp, mask);
        warp.retire(mask, true);
        warp.live &= !mask;
        self.lanes_left(warp);
        self.complete_cluster(Some(warp));
        if warp.live == 0 {
            self.leave_warpgroup(warp);
            warp.frames.clear();
            warp.status = Status::Done;
        }
    }

    fn clock(&mut self, warp: &mut Warp<'a>, clock: Clock, mask: u32) {
        let now = self.instructions;
        match clock {
            Clock::Clock32(d) => warp.regs().set32(d, mask, &[now as u32; LANES]),
            Clock::Clock64(d) => warp.regs().set64(d, mask, &[now; LANES]),
            Clock::Nanoseconds(d) => warp.regs().set64(d, mask, &[now; LANES]),
        }
    }

    /// The addresses of the lanes in `mask`.
    pub(super) fn addresses(&self, warp: &mut Warp<'a>, addr: &Addr, mask: u32) -> Row64 {
        let regs = warp.regs();
        // Loops take less time than `map` of an array, which the compiler does not vectorise.
        let mut addresses = [0; LANES];
        if addr.wide {
            for (address, base) in addresses.iter_mut().zip(regs.row64(addr.base, mask)) {
                *address = base.wrapping_add_signed(addr.offset);
            }
        } else {
            for (address, base) in addresses.iter_mut().zip(regs.row32(addr.base, mask)) {
                *address = u64::from(base.wrapping_add(addr.offset as u32));
            }
        }
        addresses
    }
}

/// Splits the running path if lanes take different branches.
fn branch(paths: &mut Vec<Path>, taken: u32, target: u32, rejoin: u32) {
    let Some(top) = paths.last_mut() else { return };
    let stay = top.mask & !taken;
    if stay == 0 {
        top.pc = target;
        return;
    }
    let fall = top.pc;
    if rejoin == NEVER {
        top.mask = stay;
        let outer = top.rejoin;
        paths.push(Path { pc: target, rejoin: outer, mask: taken, waits: None });
        return;
    }
    top.pc = rejoin;
    paths.push(Path { pc: fall, rejoin, mask: stay, waits: None });
    paths.push(Path { pc: target, rejoin, mask: taken, waits: None });
}

fn branch_table(paths: &mut Vec<Path>, mask: u32, index: &[u32; LANES], targets: &[u32], rejoin: u32) {
    let Some(top) = paths.last_mut() else { return };
    let (fall, outer, stay) = (top.pc, top.rejoin, top.mask & !mask);
    let rejoin = if rejoin == NEVER { outer } else { rejoin };
    top.pc = rejoin;
    if rejoin == outer {
        paths.pop();
    }
    if stay != 0 {
        paths.push(Path { pc: fall, rejoin, mask: stay, waits: None });
    }
    let mut left = mask;
    while left != 0 {
        let value = index[left.trailing_zeros() as usize];
        let same = lanes(left).filter(|&lane| index[lane] == value).fold(0, |mask, lane| mask | 1 << lane);
        left &= !same;
        let target = targets.get(value as usize).copied().unwrap_or(fall);
        paths.push(Path { pc: target, rejoin, mask: same, waits: None });
    }
}
