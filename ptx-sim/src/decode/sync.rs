//! Decodes barriers, votes, shuffles and asynchronous copies.

use super::{Builder, memory::scope_of};
use crate::{
    ast::{Operand, Space},
    op::{Bar, BarKind, ClusterStep, CpAsync, Mbar, Op, ReduxOp, Shfl, ShflMode, Slot, VoteMode},
    regs::Kind,
};

type Found = Result<Option<Vec<Op>>, String>;

fn one(op: Op) -> Found {
    Ok(Some(vec![op]))
}

impl Builder<'_> {
    pub(super) fn synchronise(&mut self, op: &str, mods: &[&str], operands: &[Operand]) -> Found {
        match (op, mods) {
            ("bar" | "barrier", ["warp", "sync"]) => match operands {
                [members] => one(Op::WarpSync { members: self.source(members, Kind::B32)? }),
                _ => Err("bar.warp.sync takes a member mask".into()),
            },
            ("barrier", ["cluster", half, ..]) => {
                let relaxed = mods.contains(&"relaxed");
                let step = if *half == "wait" { ClusterStep::Wait } else { ClusterStep::Arrive { relaxed } };
                one(Op::Cluster { step, aligned: mods.contains(&"aligned") })
            }
            ("bar" | "barrier", _) => self.bar(op == "bar" || mods.contains(&"aligned"), mods, operands),
            ("shfl", ["sync", mode, "b32"]) => self.shfl(mode, operands),
            ("vote", ["sync", mode, _]) => self.vote(mode, operands),
            ("activemask", ["b32"]) => {
                one(Op::ActiveMask { d: self.destination(first(operands)?, Kind::B32)? })
            }
            ("match", ["any", "sync", ty]) => match operands {
                [d, a, members] => {
                    let a = match *ty {
                        "b64" => Slot::W64(self.source(a, Kind::B64)?),
                        _ => Slot::W32(self.source(a, Kind::B32)?),
                    };
                    let d = self.destination(d, Kind::B32)?;
                    one(Op::Match { d, a, members: self.source(members, Kind::B32)? })
                }
                _ => Err("match.any takes three operands".into()),
            },
            ("redux", ["sync", operation, ty]) => self.redux(operation, ty, operands),
            ("elect", ["sync"]) => self.elect(operands),
            ("membar" | "fence", _) => one(Op::Fence(scope_of(mods))),
            ("cp", ["async", "commit_group"]) => one(Op::CpCommit),
            ("cp", ["async", "wait_all"]) => one(Op::CpWait(None)),
            ("cp", ["async", "wait_group"]) => match operands {
                [Operand::Int(n)] => one(Op::CpWait(Some(*n as u32))),
                _ => Err("cp.async.wait_group takes a constant".into()),
            },
            ("cp", ["async", "mbarrier", "arrive", rest @ ..]) => {
                let (addr, _) = self.address(first(operands)?, Space::Shared)?;
                one(Op::Mbar(Box::new(Mbar::CpAsyncArrive { addr, noinc: rest.contains(&"noinc") })))
            }
            ("cp", ["async", "ca" | "cg", "shared" | "shared::cta", "global", ..]) => self.cp_async(operands),
            _ => Ok(None),
        }
    }

    fn bar(&mut self, aligned: bool, mods: &[&str], operands: &[Operand]) -> Found {
        let mods: Vec<&str> =
            mods.iter().copied().filter(|word| !matches!(*word, "cta" | "aligned")).collect();
        let kind = match mods.as_slice() {
            ["sync"] => BarKind::Sync,
            ["arrive"] => BarKind::Arrive,
            ["red", "popc", "u32"] => BarKind::RedPopc,
            ["red", "and", "pred"] => BarKind::RedAnd,
            ["red", "or", "pred"] => BarKind::RedOr,
            _ => return Ok(None),
        };
        let reducing = matches!(kind, BarKind::RedPopc | BarKind::RedAnd | BarKind::RedOr);
        let (d, rest) = match operands {
            [d, rest @ ..] if reducing => (Some(d), rest),
            rest => (None, rest),
        };
        let [id, rest @ ..] = rest else { return Err("a barrier number is missing".into()) };
        let (threads, p) = match (reducing, rest) {
            (true, [p]) => (None, Some(p)),
            (true, [threads, p]) => (Some(threads), Some(p)),
            (false, []) => (None, None),
            (false, [threads]) => (Some(threads), None),
            _ => return Err("wrong number of operands".into()),
        };
        let reduce = match (d, p) {
            (Some(d), Some(p)) => {
                let p = self.source(p, Kind::Pred)?;
                match kind {
                    BarKind::RedPopc => Some((Slot::W32(self.destination(d, Kind::B32)?), 0, p)),
                    _ => Some((Slot::Sink, self.destination(d, Kind::Pred)?, p)),
                }
            }
            _ => None,
        };
        let id = self.source(id, Kind::B32)?;
        let threads = threads.map(|threads| self.source(threads, Kind::B32)).transpose()?;
        one(Op::Bar(Box::new(Bar { kind, aligned, id, threads, reduce })))
    }

    fn shfl(&mut self, mode: &str, operands: &[Operand]) -> Found {
        let [d, a, b, c, members] = operands else { return Err("shfl.sync takes five operands".into()) };
        let mode = match mode {
            "up" => ShflMode::Up,
            "down" => ShflMode::Down,
            "bfly" => ShflMode::Bfly,
            "idx" => ShflMode::Idx,
            _ => return Ok(None),
        };
        let (d, p) = match d {
            Operand::Pair(d, p) => (&**d, Some(self.destination(p, Kind::Pred)?)),
            d => (d, None),
        };
        one(Op::Shfl(Box::new(Shfl {
            mode,
            d: self.destination(d, Kind::B32)?,
            p,
            a: self.source(a, Kind::B32)?,
            b: self.source(b, Kind::B32)?,
            c: self.source(c, Kind::B32)?,
            members: self.source(members, Kind::B32)?,
        })))
    }

    fn vote(&mut self, mode: &str, operands: &[Operand]) -> Found {
        let [d, p, members] = operands else { return Err("vote.sync takes three operands".into()) };
        let mode = match mode {
            "all" => VoteMode::All,
            "any" => VoteMode::Any,
            "uni" => VoteMode::Uni,
            "ballot" => VoteMode::Ballot,
            _ => return Ok(None),
        };
        let (p, negated) = match p {
            Operand::Not(id) => (Operand::Reg(*id), true),
            p => (p.clone(), false),
        };
        let d = self.destination(d, if mode == VoteMode::Ballot { Kind::B32 } else { Kind::Pred })?;
        let p = self.predicate(&p)?;
        one(Op::Vote { mode, d, p, negated, members: self.source(members, Kind::B32)? })
    }

    /// The predicate that the operand names, which may also be the literal 0 or 1.
    fn predicate(&mut self, operand: &Operand) -> Result<u32, String> {
        match operand {
            Operand::Int(value) => {
                Ok(self.constant(Kind::Pred, super::Constant::Value(u64::from(*value != 0))))
            }
            operand => self.source(operand, Kind::Pred),
        }
    }

    fn redux(&mut self, operation: &str, ty: &str, operands: &[Operand]) -> Found {
        let [d, a, members] = operands else { return Err("redux.sync takes three operands".into()) };
        let op = match (operation, ty) {
            ("add", _) => ReduxOp::Add,
            ("min", "u32") => ReduxOp::MinU,
            ("max", "u32") => ReduxOp::MaxU,
            ("min", "s32") => ReduxOp::MinS,
            ("max", "s32") => ReduxOp::MaxS,
            ("and", _) => ReduxOp::And,
            ("or", _) => ReduxOp::Or,
            ("xor", _) => ReduxOp::Xor,
            _ => return Ok(None),
        };
        let (d, a) = (self.destination(d, Kind::B32)?, self.source(a, Kind::B32)?);
        one(Op::Redux { op, d, a, members: self.source(members, Kind::B32)? })
    }

    fn elect(&mut self, operands: &[Operand]) -> Found {
        let [Operand::Pair(d, p), members] = operands else {
            return Err("elect.sync takes d|p and a mask".into());
        };
        let d = if **d == Operand::Sink { None } else { Some(self.destination(d, Kind::B32)?) };
        one(Op::Elect { d, p: self.destination(p, Kind::Pred)?, members: self.source(members, Kind::B32)? })
    }

    fn cp_async(&mut self, operands: &[Operand]) -> Found {
        let [dst, src, Operand::Int(bytes), rest @ ..] = operands else {
            return Err("cp.async takes two addresses and a constant size".into());
        };
        if !matches!(bytes, 4 | 8 | 16) {
            return Err(format!("cp.async copies 4, 8 or 16 bytes, not {bytes}"));
        }
        let is_pred = |builder: &mut Self, operand: &Operand| builder.source(operand, Kind::Pred).ok();
        let (src_bytes, ignore) = match rest.first() {
            None => (None, None),
            Some(Operand::Int(value)) => (Some(self.source(&Operand::Int(*value), Kind::B32)?), None),
            Some(operand) => match is_pred(self, operand) {
                Some(p) => (None, Some(p)),
                None => (Some(self.source(operand, Kind::B32)?), None),
            },
        };
        let dst = self.address(dst, Space::Shared)?.0;
        let src = self.address(src, Space::Global)?.0;
        one(Op::CpAsync(Box::new(CpAsync { dst, src, bytes: *bytes as u32, src_bytes, ignore })))
    }
}

fn first(operands: &[Operand]) -> Result<&Operand, String> {
    operands.first().ok_or_else(|| "operands are missing".into())
}
