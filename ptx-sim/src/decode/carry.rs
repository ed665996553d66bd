//! Decodes multi-word arithmetic: `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc`, `madc`.

use super::{Builder, Constant, integer};
use crate::{
    ast::Operand,
    op::Op,
    regs::{Alu, Kind, alu},
};

/// Defines an operation with a carry. The type `$wide` must hold the sum of two words and a carry.
macro_rules! with_carry {
    ($word:ty, $wide:ty, $subtract:expr) => {
        if $subtract {
            (
                alu!($word => |a: $word, b: $word, c: bool| a.wrapping_sub(b).wrapping_sub(c as $word)),
                alu!(bool => |a: $word, b: $word, c: bool| (a as $wide) < b as $wide + c as $wide),
            )
        } else {
            (
                alu!($word => |a: $word, b: $word, c: bool| a.wrapping_add(b).wrapping_add(c as $word)),
                alu!(bool => |a: $word, b: $word, c: bool| {
                    a as $wide + b as $wide + c as $wide > <$word>::MAX as $wide
                }),
            )
        }
    };
}

impl Builder<'_> {
    pub(super) fn carry(
        &mut self,
        op: &str,
        mods: &[&str],
        operands: &[Operand],
    ) -> Result<Option<Vec<Op>>, String> {
        let (reads, writes) = (matches!(op, "addc" | "subc" | "madc"), mods.contains(&"cc"));
        if !(reads || writes) {
            return Ok(None);
        }
        let ty = *mods.last().ok_or("a type is missing")?;
        let subtract = op.starts_with("sub");
        let (kind, (value, carry)) = match ty {
            "u32" | "s32" => (Kind::B32, with_carry!(u32, u64, subtract)),
            "u64" | "s64" => (Kind::B64, with_carry!(u64, u128, subtract)),
            _ => return Err(format!("there is no carry of .{ty}")),
        };
        let mut ops = Vec::new();
        let (d, [a, b]) = match (op, operands) {
            ("mad" | "madc", [d, a, b, c]) => {
                let half = *mods.first().ok_or("`lo` or `hi` is missing")?;
                let product = integer::find("mul", &[half, ty]).ok_or("a product has `lo` and `hi`")?;
                let args = [self.scratch(kind), self.source(a, kind)?, self.source(b, kind)?, 0, 0];
                ops.push(Op::Alu { run: product.run, args });
                (d, [args[0], self.source(c, kind)?])
            }
            ("add" | "addc" | "sub" | "subc", [d, a, b]) => {
                (d, [self.source(a, kind)?, self.source(b, kind)?])
            }
            _ => return Err("wrong number of operands".into()),
        };
        let flag = self.carry_flag();
        let before = if reads { flag } else { self.constant(Kind::Pred, Constant::Value(0)) };
        let after = self.scratch(Kind::Pred);
        // The carry is computed first, because the result may overwrite a source.
        let alu = |alu: Alu, d| Op::Alu { run: alu.run, args: [d, a, b, before, 0] };
        ops.push(alu(carry, after));
        ops.push(alu(value, self.destination(d, kind)?));
        if writes {
            ops.push(Op::MovePred { d: flag, s: after });
        }
        Ok(Some(ops))
    }
}
