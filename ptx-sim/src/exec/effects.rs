//! A digest of the effects of a block that others can observe: its accesses and its waits.
//!
//! The order of a warp's accesses between two synchronisations does not change the digest. If one access
//! determines the value of another access, the stored values change the digest.

use super::{Block, warp::Warp};
use crate::{
    op::{Addr, Bulk, Mbar, Op, Operand, Region, Slot, Wgmma},
    regs::{R, lanes},
};

/// A mask of the bits of an address within its allocation. The addresses of allocations differ from launch to
/// launch.
const WITHIN: u64 = (1 << 36) - 1;

/// The digest of the effects of one warp.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Effects {
    /// A digest of all effects up to the last synchronisation. Their order matters.
    past: u64,
    /// A digest of the effects since the last synchronisation. The order of these effects does not matter.
    present: u64,
}

/// A number whose bits all depend on all bits of `a` and `b` (the finaliser of SplitMix64).
fn mix(a: u64, b: u64) -> u64 {
    let z = a.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(b);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl<'a> Block<'a> {
    /// Records the effects of `op` before `op` is executed.
    pub(super) fn note_effects(&mut self, warp: &mut Warp<'a>, op: &Op, mask: u32) {
        match op {
            Op::Load(access) => self.accesses(warp, 1, Some(&access.addr), &[], mask),
            Op::Store(access) => self.accesses(warp, 2, Some(&access.addr), &access.slots, mask),
            Op::Atomic(atomic) => self.accesses(warp, 3, Some(&atomic.addr), &atomic.src, mask),
            Op::LdMatrix(matrix) => self.accesses(warp, 4, Some(&matrix.addr), &[], mask),
            Op::StMatrix(matrix) => {
                self.accesses(warp, 5, Some(&matrix.addr), &words(matrix.regs.iter().copied()), mask);
            }
            Op::CpAsync(copy) => {
                let to = self.addresses(warp, &copy.dst, mask);
                let from = self.addresses(warp, &copy.src, mask);
                let short = copy.src_bytes.map(|row| *warp.regs().row32(row, mask));
                let ignored = copy.ignore.map_or(0, |row| warp.regs().pred(row, mask));
                for lane in lanes(mask) {
                    let bytes = match (ignored >> lane & 1, short) {
                        (0, Some(short)) => short[lane],
                        (0, None) => copy.bytes,
                        _ => 0,
                    };
                    let digest = mix(mix(6, to[lane]), mix(from[lane] & WITHIN, u64::from(bytes)));
                    self.add(warp, mix(digest, lane as u64));
                }
            }
            Op::CpCommit => self.synchronises(warp, 7, None, &[], mask),
            Op::CpWait(keep) => {
                self.synchronises(warp, 8 + (u64::from(keep.unwrap_or(u32::MAX)) << 8), None, &[], mask)
            }
            Op::Bar(bar) => {
                // The number of the barrier does not matter. The values that warps read from each other show
                // which warps meet.
                let operands = words(bar.threads);
                self.synchronises(warp, 9, None, &operands, mask);
            }
            Op::WarpSync { members } => self.synchronises(warp, 10, None, &words([*members]), mask),
            Op::Fence { .. } => self.synchronises(warp, 11, None, &[], mask),
            Op::Mbar(mbar) => match &**mbar {
                Mbar::Init { addr, count } => self.synchronises(warp, 12, Some(addr), &words([*count]), mask),
                Mbar::Inval { addr } => self.synchronises(warp, 13, Some(addr), &[], mask),
                Mbar::Arrive { addr, count, expect, .. } => {
                    let operands = words(count.iter().chain(expect).copied());
                    self.synchronises(warp, 14, Some(addr), &operands, mask);
                }
                Mbar::CpAsyncArrive { addr, .. } => self.synchronises(warp, 15, Some(addr), &[], mask),
                Mbar::Transaction { addr, bytes, .. } => {
                    self.synchronises(warp, 16, Some(addr), &words([*bytes]), mask);
                }
                // The number of polls of an mbarrier depends on the schedule, so polls do not change the
                // digest.
                Mbar::Test { .. } => {}
            },
            Op::Wgmma(wgmma) => self.products(warp, wgmma, mask),
            Op::SetRegisters { count, .. } => {
                self.synchronises(warp, 17 + (u64::from(*count) << 8), None, &[], mask);
            }
            Op::Proxy(proxy) => self.synchronises(warp, 18 + ((*proxy as u64) << 8), None, &[], mask),
            Op::Bulk(bulk) => self.bulk_copies(warp, bulk, mask),
            Op::Cluster { .. } => self.synchronises(warp, 28, None, &[], mask),
            Op::GridWait => self.synchronises(warp, 40, None, &[], mask),
            _ => {}
        }
    }

    /// Records the effects of `wgmma`. Registers are recorded by name.
    fn products(&mut self, warp: &mut Warp<'a>, wgmma: &Wgmma, mask: u32) {
        match wgmma {
            Wgmma::Fence => self.synchronises(warp, 19, None, &[], mask),
            Wgmma::Commit => self.synchronises(warp, 20, None, &[], mask),
            Wgmma::Wait(keep) => self.synchronises(warp, 21 + (u64::from(*keep) << 8), None, &[], mask),
            Wgmma::Product(product) => {
                let descriptor = |operand: &Operand| match operand {
                    Operand::Shared { descriptor, .. } => Slot::W64(*descriptor),
                    Operand::Registers(_) => Slot::Sink,
                };
                let operands = [descriptor(&product.a), descriptor(&product.b)];
                let adds = warp.regs().pred(product.accumulates, mask) & mask != 0;
                let across = |operand: &Operand| matches!(operand, Operand::Shared { across: true, .. });
                let orders = u64::from(across(&product.a)) << 10 | u64::from(across(&product.b)) << 11;
                let shape = (product.columns as u64) << 16 | orders | u64::from(product.negated) << 9;
                self.synchronises(warp, 22 + (shape | u64::from(adds) << 8), None, &operands, mask);
            }
        }
    }

    fn bulk_copies(&mut self, warp: &mut Warp<'a>, bulk: &Bulk, mask: u32) {
        let (kind, region, shared) = match bulk {
            Bulk::Load { to, from, mbar } => {
                self.accesses(warp, 23, Some(mbar), &[], mask);
                (24, from, to)
            }
            Bulk::Store { from, to, reduction } => {
                (25 + reduction.map_or(0, |it| (it.op as u64 + 1) << 8), to, from)
            }
            Bulk::Commit => return self.synchronises(warp, 26, None, &[], mask),
            Bulk::Wait { keep, read } => {
                let kind = 27 + (u64::from(*keep) << 8 | u64::from(*read) << 40);
                return self.synchronises(warp, kind, None, &[], mask);
            }
            Bulk::Map { .. } | Bulk::Prefetch { .. } => return,
        };
        let (device, operands) = match region {
            Region::Tensor { map, at } => (map, words(at.iter().copied())),
            Region::Bytes { addr, bytes } => (addr, words([*bytes])),
        };
        self.accesses(warp, kind, Some(shared), &operands, mask);
        self.accesses(warp, kind + 8, Some(device), &[], mask);
    }

    fn accesses(&mut self, warp: &mut Warp<'a>, kind: u64, addr: Option<&Addr>, values: &[Slot], mask: u32) {
        let at = addr.map(|addr| self.addresses(warp, addr, mask));
        let mut rows: Vec<[u64; 32]> = Vec::with_capacity(values.len());
        for slot in values {
            rows.push(match slot {
                Slot::W32(row) => warp.regs().row32(*row, mask).map(u64::from),
                Slot::W64(row) => *warp.regs().row64(*row, mask),
                Slot::Sink => continue,
            });
        }
        for lane in lanes(mask) {
            let place = at.map_or(0, |at| at[lane] & WITHIN);
            let digest = rows.iter().fold(mix(kind, place), |digest, row| mix(digest, row[lane]));
            self.add(warp, mix(digest, lane as u64));
        }
    }

    fn synchronises(
        &mut self,
        warp: &mut Warp<'a>,
        kind: u64,
        addr: Option<&Addr>,
        values: &[Slot],
        mask: u32,
    ) {
        let before = self.effects[warp.index];
        self.effects[warp.index].present = 0;
        self.accesses(warp, kind, addr, values, mask);
        let own = self.effects[warp.index].present;
        self.effects[warp.index] = Effects { past: mix(mix(before.past, before.present), own), present: 0 };
    }

    fn add(&mut self, warp: &Warp<'a>, digest: u64) {
        let effects = &mut self.effects[warp.index];
        effects.present = effects.present.wrapping_add(digest);
    }

    /// A digest of all effects of the block.
    pub(super) fn digest(&self) -> u64 {
        let warps = self.effects.iter().zip(0u64..);
        let all = warps.map(|(effects, warp)| mix(mix(effects.past, effects.present), warp));
        mix(u64::from(self.number), all.fold(0, u64::wrapping_add))
    }
}

fn words(rows: impl IntoIterator<Item = R>) -> Vec<Slot> {
    rows.into_iter().map(Slot::W32).collect()
}
