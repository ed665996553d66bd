//! Executes atomics: each lane reads, modifies and writes, one lane after the other.

use super::{
    Block,
    memory::{LaneAccess, get_slot, set_slot},
    order::Touches,
    warp::Warp,
};
use crate::{
    decode::float::{f64_to_bf16, f64_to_f16, from_bf16, from_f16, halves, pack},
    op::{Atomic, AtomicOp, AtomicType},
    regs::{LANES, lanes},
    shadow,
};

impl<'a> Block<'a> {
    pub(super) fn atomic(&mut self, warp: &mut Warp<'a>, atomic: &Atomic, mask: u32) {
        let addresses = self.addresses(warp, &atomic.addr, mask);
        let bytes = atomic.ty.bytes() as usize;
        let sources: Vec<_> = atomic.src.iter().map(|slot| get_slot(warp, *slot, mask)).collect();
        let new = atomic.new.map(|slot| get_slot(warp, slot, mask));
        let mut old = vec![[0u64; LANES]; atomic.dst.len()];
        let mut touched = self.touched();
        let mut spoken = [None; LANES];
        for lane in lanes(mask) {
            if sources.len() > 1 && !addresses[lane].is_multiple_of((bytes * sources.len()) as u64) {
                let _ =
                    self.place(warp, atomic.space, addresses[lane], bytes * sources.len(), lane, "atomic");
                continue;
            }
            for (i, source) in sources.iter().enumerate() {
                let at = addresses[lane].wrapping_add((i * bytes) as u64);
                let mut data = [0u8; 8];
                let one = LaneAccess { space: atomic.space, at, lane };
                if !self.read_lane(warp, one, &mut data[..bytes], &mut touched) {
                    break;
                }
                let before = u64::from_le_bytes(data);
                let after = apply(
                    atomic.op,
                    atomic.ty,
                    before,
                    source[lane],
                    new.as_ref().map_or(0, |new| new[lane]),
                );
                let fails = atomic.op == AtomicOp::Cas && before != source[lane];
                self.write_lane(warp, one, &after.to_le_bytes()[..bytes], &mut touched);
                let touches = if fails { Touches::Read } else { Touches::ReadAndWrite };
                spoken[lane] = Some(touches);
                if let Some(old) = old.get_mut(i) {
                    old[lane] = before;
                }
            }
        }
        self.check_access(warp, touched, shadow::Access::Atomic, atomic.order);
        for lane in lanes(mask) {
            if let Some(touches) = spoken[lane] {
                self.speak(warp, (atomic.space, addresses[lane]), touches, atomic.order);
            }
        }
        for (slot, old) in atomic.dst.iter().zip(&old) {
            set_slot(warp, *slot, mask, old);
        }
    }
}

/// The value that an atomic operation writes.
pub(super) fn apply(op: AtomicOp, ty: AtomicType, old: u64, x: u64, new: u64) -> u64 {
    let add_f16 = |a: u16, b: u16| f64_to_f16(f64::from(from_f16(a)) + f64::from(from_f16(b)));
    let add_bf16 = |a: u16, b: u16| f64_to_bf16(f64::from(from_bf16(a)) + f64::from(from_bf16(b)));
    let limit = if ty.bytes() == 8 { u64::MAX } else { u64::from(u32::MAX) };
    let signed = |x: u64| if ty == AtomicType::S32 { i64::from(x as i32) } else { x as i64 };
    let is_signed = matches!(ty, AtomicType::S32 | AtomicType::S64);
    let value = match (op, ty) {
        (AtomicOp::Add, AtomicType::F32) => {
            u64::from((f32::from_bits(old as u32) + f32::from_bits(x as u32)).to_bits())
        }
        (AtomicOp::Add, AtomicType::F64) => (f64::from_bits(old) + f64::from_bits(x)).to_bits(),
        (AtomicOp::Add, AtomicType::F16) => u64::from(add_f16(old as u16, x as u16)),
        (AtomicOp::Add, AtomicType::Bf16) => u64::from(add_bf16(old as u16, x as u16)),
        (AtomicOp::Add, AtomicType::F16x2 | AtomicType::Bf16x2) => {
            let (a, b) = (halves(old as u32), halves(x as u32));
            let add =
                |i: usize| if ty == AtomicType::F16x2 { add_f16(a[i], b[i]) } else { add_bf16(a[i], b[i]) };
            u64::from(pack([add(0), add(1)]))
        }
        (AtomicOp::Add, _) => old.wrapping_add(x),
        (AtomicOp::Min, AtomicType::F32) => {
            u64::from(f32::from_bits(old as u32).min(f32::from_bits(x as u32)).to_bits())
        }
        (AtomicOp::Max, AtomicType::F32) => {
            u64::from(f32::from_bits(old as u32).max(f32::from_bits(x as u32)).to_bits())
        }
        (AtomicOp::Min | AtomicOp::Max, AtomicType::F16 | AtomicType::Bf16) => {
            let wide = |x: u64| match ty {
                AtomicType::F16 => from_f16(x as u16),
                _ => from_bf16(x as u16),
            };
            let less = wide(old) < wide(x) || wide(x).is_nan();
            if less == (op == AtomicOp::Min) { old } else { x }
        }
        (AtomicOp::Min, _) if is_signed => signed(old).min(signed(x)) as u64,
        (AtomicOp::Max, _) if is_signed => signed(old).max(signed(x)) as u64,
        (AtomicOp::Min, _) => old.min(x),
        (AtomicOp::Max, _) => old.max(x),
        (AtomicOp::And, _) => old & x,
        (AtomicOp::Or, _) => old | x,
        (AtomicOp::Xor, _) => old ^ x,
        (AtomicOp::Inc, _) => {
            if old >= x {
                0
            } else {
                old + 1
            }
        }
        (AtomicOp::Dec, _) => {
            if old == 0 || old > x {
                x
            } else {
                old - 1
            }
        }
        (AtomicOp::Exch, _) => x,
        (AtomicOp::Cas, _) => {
            if old == x {
                new
            } else {
                old
            }
        }
    };
    value & limit
}
