//! Decodes bulk copies, prefetches and reductions.

use super::{Builder, memory::space_of};
use crate::{
    ast::{Operand as Source, Space},
    op::{Addr, AtomicOp, AtomicType, Bulk, Op, Reduction, Region},
    regs::Kind,
};

type Found = Result<Option<Vec<Op>>, String>;

impl Builder<'_> {
    pub(super) fn bulk(&mut self, op: &str, mods: &[&str], operands: &[Source]) -> Found {
        // `tile` is the only mode of boxes that the simulator executes.
        let mods: Vec<&str> = mods.iter().copied().filter(|word| *word != "tile").collect();
        let bulk = match (op, mods.as_slice(), operands) {
            ("prefetch", [.., "tensormap"], [map]) => {
                Bulk::Map { map: self.address(map, space_of(&mods))?.0 }
            }
            ("prefetch", ..) => return Ok(Some(vec![Op::Nop])),
            ("cp", ["async", "bulk", rest @ ..], operands) => self.copy(rest, operands)?,
            ("cp", ["reduce", "async", "bulk", "tensor", rank, _, _, word, "bulk_group"], [map, at]) => {
                let reduction = Reduction { op: reduction(word)?, ty: None };
                let to = self.tensor_region(map, rank)?;
                Bulk::Store { from: self.shared(at)?, to, reduction: Some(reduction) }
            }
            ("cp", ["reduce", "async", "bulk", _, _, _, word, .., ty], [to, at, bytes]) => {
                let reduction = Reduction { op: reduction(word)?, ty: Some(element(ty)?) };
                let to = self.plain_region(to, bytes)?;
                Bulk::Store { from: self.shared(at)?, to, reduction: Some(reduction) }
            }
            _ => return Ok(None),
        };
        Ok(Some(vec![Op::Bulk(Box::new(bulk))]))
    }

    fn copy(&mut self, mods: &[&str], operands: &[Source]) -> Result<Bulk, String> {
        Ok(match (mods, operands) {
            (["commit_group"], []) => Bulk::Commit,
            (["wait_group", rest @ ..], [Source::Int(keep)]) => {
                Bulk::Wait { keep: *keep as u32, read: !rest.is_empty() }
            }
            (["wait_group", ..], _) => return Err("cp.async.bulk.wait_group takes a constant".into()),
            (["prefetch", "tensor", rank, ..], [map]) => {
                Bulk::Prefetch { from: self.tensor_region(map, rank)? }
            }
            (["prefetch", ..], [from, bytes]) => Bulk::Prefetch { from: self.plain_region(from, bytes)? },
            (["tensor", rank, "global", ..], [map, at]) => {
                let to = self.tensor_region(map, rank)?;
                Bulk::Store { from: self.shared(at)?, to, reduction: None }
            }
            (["tensor", rank, ..], [at, map, mbar]) => {
                let from = self.tensor_region(map, rank)?;
                Bulk::Load { to: self.shared(at)?, from, mbar: self.shared(mbar)? }
            }
            (["global", ..], [to, at, bytes]) => {
                let to = self.plain_region(to, bytes)?;
                Bulk::Store { from: self.shared(at)?, to, reduction: None }
            }
            (_, [at, from, bytes, mbar]) => {
                let from = self.plain_region(from, bytes)?;
                Bulk::Load { to: self.shared(at)?, from, mbar: self.shared(mbar)? }
            }
            _ => return Err("operands of a bulk copy are missing".into()),
        })
    }

    fn shared(&mut self, operand: &Source) -> Result<Addr, String> {
        Ok(self.address(operand, Space::Shared)?.0)
    }

    fn plain_region(&mut self, addr: &Source, bytes: &Source) -> Result<Region, String> {
        let addr = self.address(addr, Space::Global)?.0;
        Ok(Region::Bytes { addr, bytes: self.source(bytes, Kind::B32)? })
    }

    /// The box that `operand` selects by its coordinates, in a tensor of `rank` dimensions (for example
    /// `3d`).
    fn tensor_region(&mut self, operand: &Source, rank: &str) -> Result<Region, String> {
        let Source::Address(base, offset, coordinates) = operand else {
            return Err("a tensor map and its coordinates are missing".into());
        };
        let coordinates = match coordinates.as_slice() {
            [Source::Vector(inner)] => inner,
            several => several,
        };
        if format!("{}d", coordinates.len()) != rank {
            return Err(format!(".{rank} takes {} coordinates, not {}", &rank[..1], coordinates.len()));
        }
        let at = coordinates.iter().map(|c| self.source(c, Kind::B32)).collect::<Result<Vec<_>, _>>()?;
        let map: Addr = self.address(&Source::Address(base.clone(), *offset, Vec::new()), Space::Generic)?.0;
        Ok(Region::Tensor { map, at })
    }
}

fn reduction(word: &str) -> Result<AtomicOp, String> {
    AtomicOp::by_name(word).ok_or_else(|| format!("PTX has no reduction .{word}"))
}

fn element(word: &str) -> Result<AtomicType, String> {
    AtomicType::by_name(word).ok_or_else(|| format!("the simulator executes no reductions of .{word}"))
}
