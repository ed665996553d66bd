//! Decodes loads, stores, atomics and address conversions.

use super::{Builder, Decoded, builder, kind};
use crate::{
    ast::{Base, Operand, Space},
    op::{Access, Atomic, AtomicOp, AtomicType, Extend, Op, Order, Scope, Slot},
    parse::type_bytes,
    regs::{Kind, alu},
};

/// The state space that one of the modifiers names.
pub(super) fn space_of(mods: &[&str]) -> Space {
    mods.iter().find_map(|word| named_space(word)).unwrap_or(Space::Generic)
}

fn named_space(word: &str) -> Option<Space> {
    Some(match word.split("::").next().unwrap_or(word) {
        "global" => Space::Global,
        "shared" => Space::Shared,
        "local" => Space::Local,
        "param" => Space::Param,
        "const" => Space::Const,
        _ => return None,
    })
}

impl Builder<'_> {
    pub(super) fn memory(
        &mut self,
        op: &str,
        mods: &[&str],
        operands: &[Operand],
    ) -> Result<Option<Vec<Op>>, String> {
        match op {
            "ld" | "ldu" => match operands {
                [d, a] => self.access(mods, d, a, true).map(|access| Some(vec![Op::Load(Box::new(access))])),
                _ => Err("ld takes a register and an address".into()),
            },
            "st" => match operands {
                [a, s] => {
                    self.access(mods, s, a, false).map(|access| Some(vec![Op::Store(Box::new(access))]))
                }
                _ => Err("st takes an address and a register".into()),
            },
            "atom" | "red" => self.atomic(op, mods, operands).map(Some),
            "isspacep" => match operands {
                [p, a] => Ok(Some(vec![Op::IsSpace {
                    p: self.destination(p, Kind::Pred)?,
                    addr: crate::op::Addr { wide: true, base: self.source(a, Kind::B64)?, offset: 0 },
                    space: space_of(mods),
                }])),
                _ => Err("isspacep takes a predicate and an address".into()),
            },
            _ => Ok(None),
        }
    }

    fn access(
        &mut self,
        mods: &[&str],
        data: &Operand,
        address: &Operand,
        load: bool,
    ) -> Result<Access, String> {
        let ty = *mods.last().ok_or("a type is missing")?;
        let bytes = type_bytes(ty)
            .filter(|&bytes| bytes <= 8)
            .ok_or_else(|| format!("the simulator does not execute type .{ty}"))? as u32;
        let (addr, space) = self.address(address, space_of(mods))?;
        let parts = match data {
            Operand::Vector(parts) => parts.as_slice(),
            single => std::slice::from_ref(single),
        };
        let kind = kind(ty)?;
        let slots = parts.iter().map(|part| self.slot(part, kind, load)).collect::<Result<Vec<_>, _>>()?;
        let width = mods.iter().find_map(|word| match *word {
            "v2" => Some(2),
            "v4" => Some(4),
            "v8" => Some(8),
            _ => None,
        });
        if slots.len() != width.unwrap_or(1) {
            return Err(format!("{} registers for a vector of {}", slots.len(), width.unwrap_or(1)));
        }
        let extend = if ty.starts_with('s') { Extend::Sign } else { Extend::Zero };
        Ok(Access {
            space,
            bytes,
            extend,
            slots,
            addr,
            order: order_of(mods),
            read_only: mods.contains(&"nc"),
        })
    }

    fn atomic(&mut self, op: &str, mods: &[&str], operands: &[Operand]) -> Decoded {
        let word = *mods.last().ok_or("a type is missing")?;
        let ty = AtomicType::by_name(word)
            .ok_or_else(|| format!("the simulator does not execute atomics on .{word}"))?;
        let atomic = mods.iter().find_map(|word| AtomicOp::by_name(word));
        let atomic = atomic.ok_or("the operation of this atomic is missing")?;
        let kind = if ty.bytes() == 8 { Kind::B64 } else { Kind::B32 };
        let (dst, rest) = match (op, operands) {
            ("atom", [d, rest @ ..]) => (self.slots(d, kind, true)?, rest),
            (_, rest) => (Vec::new(), rest),
        };
        let [address, source, more @ ..] = rest else { return Err("operands are missing".into()) };
        let (addr, space) = self.address(address, space_of(mods))?;
        let src = self.slots(source, kind, false)?;
        let new = match (atomic, more.first()) {
            (AtomicOp::Cas, Some(new)) => Some(self.slot(new, kind, false)?),
            (AtomicOp::Cas, None) => return Err("cas needs a new value".into()),
            _ => None,
        };
        Ok(vec![Op::Atomic(Box::new(Atomic {
            space,
            op: atomic,
            ty,
            dst,
            addr,
            src,
            new,
            order: Order { strong: true, ..order_of(mods) },
        }))])
    }

    fn slots(&mut self, operand: &Operand, kind: Kind, write: bool) -> Result<Vec<Slot>, String> {
        match operand {
            Operand::Vector(parts) => parts.iter().map(|part| self.slot(part, kind, write)).collect(),
            single => Ok(vec![self.slot(single, kind, write)?]),
        }
    }

    /// Decodes `cvta` and `cvta.to`, which convert between an address in a state space and a generic address.
    pub(super) fn cvta(&mut self, mods: &[&str], operands: &[Operand]) -> Decoded {
        let [d, s] = operands else { return Err("cvta takes two operands".into()) };
        let to = mods.first() == Some(&"to");
        let s = match s {
            // PTX contains both `cvta.shared.u64 %rd, name` and `[name]`.
            Operand::Address(Base::Symbol(symbol), offset, _) => Operand::Symbol(symbol.clone(), *offset),
            other => other.clone(),
        };
        let s = self.source(&s, Kind::B64)?;
        let window = match space_of(mods) {
            Space::Shared => builder::SHARED_WINDOW,
            Space::Local => builder::LOCAL_WINDOW,
            Space::Param => builder::PARAM_WINDOW,
            _ => 0,
        };
        let d = self.destination(d, Kind::B64)?;
        if window == 0 {
            return Ok(vec![Op::Move64 { d, s }]);
        }
        let window = self
            .constant(Kind::B64, builder::Constant::Value(if to { window.wrapping_neg() } else { window }));
        let add = alu!(u64 => |a: u64, b: u64| a.wrapping_add(b));
        Ok(vec![Op::Alu { run: add.run, args: [d, s, window, 0, 0] }])
    }
}

fn order_of(mods: &[&str]) -> Order {
    let has = |names: &[&str]| mods.iter().any(|word| names.contains(word));
    Order {
        strong: has(&["volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"]),
        volatile: has(&["volatile"]),
        acquire: has(&["acquire", "acq_rel"]),
        release: has(&["release", "acq_rel"]),
        scope: scope_of(mods),
    }
}

/// The scope that one of the modifiers names. Without such a modifier, the scope is the device, as for
/// atomics and `volatile`.
pub(super) fn scope_of(mods: &[&str]) -> Scope {
    if mods.iter().any(|word| matches!(*word, "cta" | "cluster")) { Scope::Block } else { Scope::Device }
}
