//! Decodes `mov`, which copies registers, addresses and special registers, and packs and unpacks vectors.

use super::{Builder, Decoded, kind};
use crate::{
    ast::Operand,
    op::{Clock, Op},
    regs::{Alu, Kind, alu},
};

impl Builder<'_> {
    /// Decodes `mov`, including packing and unpacking of vectors, addresses and special registers.
    pub(super) fn mov(&mut self, ty: &str, operands: &[Operand]) -> Decoded {
        let [d, s] = operands else { return Err("mov takes two operands".into()) };
        if let Operand::Special(name) = s {
            let clock = match (&**name, ty) {
                ("%clock" | "%clock_hi", _) => Some(Clock::Clock32(self.destination(d, Kind::B32)?)),
                ("%clock64", _) => Some(Clock::Clock64(self.destination(d, Kind::B64)?)),
                ("%globaltimer", _) => Some(Clock::Nanoseconds(self.destination(d, Kind::B64)?)),
                ("%globaltimer_lo", _) => Some(Clock::Clock32(self.destination(d, Kind::B32)?)),
                _ => None,
            };
            if let Some(clock) = clock {
                return Ok(vec![Op::Clock(clock)]);
            }
        }
        match (d, s) {
            (Operand::Vector(parts), _) => self.unpack(ty, parts, s),
            (_, Operand::Vector(parts)) => self.pack(ty, d, parts),
            _ => Ok(vec![match kind(ty)? {
                Kind::Pred => {
                    Op::MovePred { d: self.destination(d, Kind::Pred)?, s: self.source(s, Kind::Pred)? }
                }
                kind @ (Kind::B32 | Kind::F32) => {
                    Op::Move32 { d: self.destination(d, kind)?, s: self.source(s, kind)? }
                }
                kind => Op::Move64 { d: self.destination(d, kind)?, s: self.source(s, kind)? },
            }]),
        }
    }

    /// Decodes `mov.v4.u32 %q, %tid;` and moves between vectors.
    pub(super) fn mov_vector(&mut self, ty: &str, operands: &[Operand]) -> Decoded {
        let [Operand::Vector(to), from] = operands else { return Err("mov.v takes two vectors".into()) };
        let from: Vec<Operand> = match from {
            Operand::Special(name) => {
                let axis = |axis| Operand::Special(format!("{name}.{axis}").into());
                // The fourth component is always 0.
                ["x", "y", "z"].map(axis).into_iter().chain([Operand::Int(0)]).collect()
            }
            Operand::Vector(from) if from.len() == to.len() => from.clone(),
            _ => return Err("the vectors have different lengths".into()),
        };
        let kind = kind(ty)?;
        let moved = |d, s| match kind {
            Kind::B64 | Kind::F64 => Op::Move64 { d, s },
            _ => Op::Move32 { d, s },
        };
        // A destination may also be a source, so all values pass through scratch registers.
        let held: Vec<_> = to.iter().map(|_| self.scratch(kind)).collect();
        let mut ops = Vec::new();
        for (&d, from) in held.iter().zip(&from) {
            ops.push(moved(d, self.source(from, kind)?));
        }
        for (to, s) in to.iter().zip(held) {
            ops.push(moved(self.destination(to, kind)?, s));
        }
        Ok(ops)
    }

    fn unpack(&mut self, ty: &str, parts: &[Operand], s: &Operand) -> Decoded {
        let rows: &[Alu] = match (ty, parts.len()) {
            ("b64", 2) => &[alu!(u32 => |a: u64| a as u32), alu!(u32 => |a: u64| (a >> 32) as u32)],
            ("b32", 2) => &[alu!(u16 => |a: u32| a as u16), alu!(u16 => |a: u32| (a >> 16) as u16)],
            ("b64", 4) => &[
                alu!(u16 => |a: u64| a as u16),
                alu!(u16 => |a: u64| (a >> 16) as u16),
                alu!(u16 => |a: u64| (a >> 32) as u16),
                alu!(u16 => |a: u64| (a >> 48) as u16),
            ],
            ("b32", 4) => &[
                alu!(u8 => |a: u32| a as u8),
                alu!(u8 => |a: u32| (a >> 8) as u8),
                alu!(u8 => |a: u32| (a >> 16) as u8),
                alu!(u8 => |a: u32| (a >> 24) as u8),
            ],
            ("b16", 2) => &[alu!(u8 => |a: u16| a as u8), alu!(u8 => |a: u16| (a >> 8) as u8)],
            _ => return Err(format!("mov.{ty} into {} parts is not executed", parts.len())),
        };
        // A destination may also be the source, so this code copies the source first.
        let hold = self.scratch(if ty == "b64" { Kind::B64 } else { Kind::B32 });
        let mut ops = vec![if ty == "b64" {
            Op::Move64 { d: hold, s: self.source(s, Kind::B64)? }
        } else {
            Op::Move32 { d: hold, s: self.source(s, Kind::B32)? }
        }];
        for (part, row) in parts.iter().zip(rows) {
            if *part != Operand::Sink {
                let d = self.destination(part, row.d)?;
                ops.push(Op::Alu { run: row.run, args: [d, hold, 0, 0, 0] });
            }
        }
        Ok(ops)
    }

    fn pack(&mut self, ty: &str, d: &Operand, parts: &[Operand]) -> Decoded {
        let row = match (ty, parts.len()) {
            ("b64", 2) => alu!(u64 => |a: u32, b: u32| u64::from(a) | u64::from(b) << 32),
            ("b32", 2) => alu!(u32 => |a: u16, b: u16| u32::from(a) | u32::from(b) << 16),
            ("b64", 4) => alu!(u64 => |a: u16, b: u16, c: u16, d: u16| {
                u64::from(a) | u64::from(b) << 16 | u64::from(c) << 32 | u64::from(d) << 48
            }),
            ("b32", 4) => alu!(u32 => |a: u8, b: u8, c: u8, d: u8| u32::from_le_bytes([a, b, c, d])),
            ("b16", 2) => alu!(u16 => |a: u8, b: u8| u16::from(a) | u16::from(b) << 8),
            _ => return Err(format!("mov.{ty} from {} parts is not executed", parts.len())),
        };
        let mut all = vec![d.clone()];
        all.extend(parts.iter().cloned());
        self.alu(Some(row), &all)
    }
}
