//! Decodes `setp`, `set`, `selp` and `slct`.

use super::{Builder, Decoded, integer};
use crate::{
    ast::Operand,
    op::Op,
    regs::{Alu, Kind, Run, alu},
};

macro_rules! compare {
    ($t:ty, $cmp:expr, $x:ident => $key:expr) => {
        match $cmp {
            "eq" => Some(alu!(bool => |a: $t, b: $t| { let k = |$x: $t| $key; k(a) == k(b) })),
            "ne" => Some(alu!(bool => |a: $t, b: $t| { let k = |$x: $t| $key; k(a) != k(b) })),
            "lt" => Some(alu!(bool => |a: $t, b: $t| { let k = |$x: $t| $key; k(a) < k(b) })),
            "le" => Some(alu!(bool => |a: $t, b: $t| { let k = |$x: $t| $key; k(a) <= k(b) })),
            "gt" => Some(alu!(bool => |a: $t, b: $t| { let k = |$x: $t| $key; k(a) > k(b) })),
            "ge" => Some(alu!(bool => |a: $t, b: $t| { let k = |$x: $t| $key; k(a) >= k(b) })),
            _ => None,
        }
    };
    ($t:ty, $cmp:expr) => { compare!($t, $cmp, x => x) };
}

/// The comparisons of floats, including unordered forms (such as `ltu`, which is true if either operand is
/// NaN), `num` and `nan`. PTX `ne` is not an unordered form: it is false on NaN.
macro_rules! compare_float {
    ($t:ty, $cmp:expr, $x:ident => $key:expr) => {
        match $cmp {
            "ne" => Some(alu!(bool => |a: $t, b: $t| { let k = |$x: $t| $key; k(a) < k(b) || k(a) > k(b) })),
            "equ" => Some(alu!(bool => |a: $t, b: $t| {
                let k = |$x: $t| $key; k(a) == k(b) || k(a).is_nan() || k(b).is_nan()
            })),
            "neu" => Some(alu!(bool => |a: $t, b: $t| { let k = |$x: $t| $key; k(a) != k(b) })),
            "ltu" => Some(alu!(bool => |a: $t, b: $t| {
                let k = |$x: $t| $key; k(a) < k(b) || k(a).is_nan() || k(b).is_nan()
            })),
            "leu" => Some(alu!(bool => |a: $t, b: $t| {
                let k = |$x: $t| $key; k(a) <= k(b) || k(a).is_nan() || k(b).is_nan()
            })),
            "gtu" => Some(alu!(bool => |a: $t, b: $t| {
                let k = |$x: $t| $key; k(a) > k(b) || k(a).is_nan() || k(b).is_nan()
            })),
            "geu" => Some(alu!(bool => |a: $t, b: $t| {
                let k = |$x: $t| $key; k(a) >= k(b) || k(a).is_nan() || k(b).is_nan()
            })),
            "num" => Some(alu!(bool => |a: $t, b: $t| {
                let k = |$x: $t| $key; !k(a).is_nan() && !k(b).is_nan()
            })),
            "nan" => Some(alu!(bool => |a: $t, b: $t| {
                let k = |$x: $t| $key; k(a).is_nan() || k(b).is_nan()
            })),
            cmp => compare!($t, cmp, $x => $key),
        }
    };
}

/// Replaces `lo ls hi hs` by `lt le gt ge`, because they are the unsigned names of these comparisons.
fn unsigned(cmp: &str) -> &str {
    match cmp {
        "lo" => "lt",
        "ls" => "le",
        "hi" => "gt",
        "hs" => "ge",
        cmp => cmp,
    }
}

impl Builder<'_> {
    pub(super) fn setp(&mut self, mods: &[&str], operands: &[Operand]) -> Decoded {
        let (&ty, rest) = mods.split_last().ok_or("setp needs a type")?;
        let (&cmp, flags) = rest.split_first().ok_or("setp needs a comparison")?;
        let ftz = flags.contains(&"ftz");
        let combine = flags.iter().find(|flag| **flag != "ftz");
        let [d, sources @ ..] = operands else { return Err("operands are missing".into()) };
        let (p, q) = match d {
            Operand::Pair(p, q) => ((**p).clone(), Some((**q).clone())),
            other => (other.clone(), None),
        };
        let compare = setp(cmp, ty, ftz).ok_or("the simulator does not execute this comparison")?;
        let third = match combine {
            Some(_) => self.source(sources.get(2).ok_or("a predicate source is missing")?, Kind::Pred)?,
            None => 0,
        };
        let [a, b, ..] = sources else { return Err("operands are missing".into()) };
        // A destination may also be a source. The code therefore writes all values to scratch registers
        // first.
        let [yes, no] = [self.scratch(Kind::Pred), self.scratch(Kind::Pred)];
        let args = [yes, self.source(a, compare.s[0])?, self.source(b, compare.s[1])?, 0, 0];
        self.equal = setp("eq", ty, ftz).map(|equal| (equal.run, [no, args[1], args[2], 0, 0]));
        if combine.is_none() && q.is_none() {
            return Ok(vec![Op::Alu {
                run: compare.run,
                args: [self.destination(&p, Kind::Pred)?, args[1], args[2], 0, 0],
            }]);
        }
        let not = integer::find("not", &["pred"]).ok_or("not.pred")?;
        let mut ops =
            vec![Op::Alu { run: compare.run, args }, Op::Alu { run: not.run, args: [no, yes, 0, 0, 0] }];
        if let Some(logic) = combine {
            let logic = integer::find(logic, &["pred"]).ok_or("only and, or, xor combine predicates")?;
            ops.extend([yes, no].map(|row| Op::Alu { run: logic.run, args: [row, row, third, 0, 0] }));
        }
        for (d, s) in [(Some(&p), yes), (q.as_ref(), no)] {
            if let Some(d) = d.filter(|d| **d != Operand::Sink) {
                ops.push(Op::MovePred { d: self.destination(d, Kind::Pred)?, s });
            }
        }
        Ok(ops)
    }
}

/// The comparison `cmp` on type `ty`.
pub(super) fn setp(cmp: &str, ty: &str, ftz: bool) -> Option<Alu> {
    use super::float::{flush, from_bf16, from_f16};
    match ty {
        "b16" | "u16" => compare!(u16, unsigned(cmp)),
        "b32" | "u32" => compare!(u32, unsigned(cmp)),
        "b64" | "u64" => compare!(u64, unsigned(cmp)),
        "s16" => compare!(i16, cmp),
        "s32" => compare!(i32, cmp),
        "s64" => compare!(i64, cmp),
        "f32" if ftz => compare_float!(f32, cmp, x => flush(x)),
        "f32" => compare_float!(f32, cmp, x => x),
        "f64" => compare_float!(f64, cmp, x => x),
        "f16" => compare_float!(u16, cmp, x => from_f16(x)),
        "bf16" => compare_float!(u16, cmp, x => from_bf16(x)),
        _ => None,
    }
}

/// The selection with this opcode.
pub(super) fn find(op: &str, mods: &[&str]) -> Option<Alu> {
    match (op, mods) {
        ("selp", ["b16" | "u16" | "s16" | "f16"]) => {
            Some(alu!(u16 => |a: u16, b: u16, p: bool| if p { a } else { b }))
        }
        ("selp", ["b32" | "u32" | "s32" | "f32"]) => {
            let kind = if mods == ["f32"] { Kind::F32 } else { Kind::B32 };
            Some(selection(kind, |regs, &[d, a, b, p, _], mask| {
                let first = regs.pred(p, mask) & mask;
                regs.move32(d, a, first);
                regs.move32(d, b, mask & !first);
            }))
        }
        ("selp", ["b64" | "u64" | "s64" | "f64"]) => {
            let kind = if mods == ["f64"] { Kind::F64 } else { Kind::B64 };
            Some(selection(kind, |regs, &[d, a, b, p, _], mask| {
                let first = regs.pred(p, mask) & mask;
                regs.move64(d, a, first);
                regs.move64(d, b, mask & !first);
            }))
        }
        ("slct", ["b32" | "u32" | "s32" | "f32", "s32"]) => {
            Some(alu!(u32 => |a: u32, b: u32, c: i32| if c >= 0 { a } else { b }))
        }
        ("set", [cmp, d, s]) => set(cmp, d, s),
        _ => None,
    }
}

/// A selection may read an uninitialised register, because LLVM emits selections of undefined values.
fn selection(kind: Kind, run: Run) -> Alu {
    let s: &[Kind] = match kind {
        Kind::B32 => &[Kind::B32, Kind::B32, Kind::Pred],
        Kind::F32 => &[Kind::F32, Kind::F32, Kind::Pred],
        Kind::B64 => &[Kind::B64, Kind::B64, Kind::Pred],
        _ => &[Kind::F64, Kind::F64, Kind::Pred],
    };
    Alu { run, d: kind, s }
}

fn set(cmp: &str, d: &str, s: &str) -> Option<Alu> {
    let wanted = match cmp {
        "eq" => 0b010u32,
        "ne" => 0b101,
        "lt" | "lo" => 0b001,
        "le" | "ls" => 0b011,
        "gt" | "hi" => 0b100,
        "ge" | "hs" => 0b110,
        _ => return None,
    };
    macro_rules! by_cmp {
        ($d:ty, $t:ty, $yes:expr, $no:expr, $($n:literal)*) => { match wanted { $(
            $n => Some(alu!($d => |a: $t, b: $t| {
                let bit = match a.partial_cmp(&b) {
                    Some(core::cmp::Ordering::Less) => 1u32,
                    Some(core::cmp::Ordering::Equal) => 2,
                    Some(core::cmp::Ordering::Greater) => 4,
                    None => 0,
                };
                if bit & $n != 0 { $yes } else { $no }
            })), )* _ => None } };
    }
    match (d, s) {
        ("u32" | "s32" | "b32", "u32" | "b32") => by_cmp!(u32, u32, !0, 0, 1 2 3 4 5 6),
        ("u32" | "s32" | "b32", "s32") => by_cmp!(u32, i32, !0, 0, 1 2 3 4 5 6),
        ("u32" | "s32" | "b32", "f32") => by_cmp!(u32, f32, !0, 0, 1 2 3 4 5 6),
        ("f32", "f32") => by_cmp!(f32, f32, 1.0, 0.0, 1 2 3 4 5 6),
        _ => None,
    }
}
