//! Decodes loads, stores and products of matrices.

use super::{Builder, memory::space_of};
use crate::{
    ast::Operand,
    op::{Element, Matrix, Mma, MmaKind, Op},
    regs::Kind,
};

impl Builder<'_> {
    pub(super) fn tensor(
        &mut self,
        op: &str,
        mods: &[&str],
        operands: &[Operand],
    ) -> Result<Option<Vec<Op>>, String> {
        let found = match (op, mods) {
            ("ldmatrix", ["sync", "aligned", "m8n8", count, ..]) => match operands {
                [d, a] => Op::LdMatrix(Box::new(self.matrix(mods, count, d, a, true)?)),
                _ => return Err("ldmatrix takes registers and an address".into()),
            },
            ("stmatrix", ["sync", "aligned", "m8n8", count, ..]) => match operands {
                [a, s] => Op::StMatrix(Box::new(self.matrix(mods, count, s, a, false)?)),
                _ => return Err("stmatrix takes an address and registers".into()),
            },
            ("movmatrix", ["sync", "aligned", "m8n8", "trans", "b16"]) => match operands {
                [d, s] => Op::MovMatrix { d: self.destination(d, Kind::B32)?, s: self.source(s, Kind::B32)? },
                _ => return Err("movmatrix takes two registers".into()),
            },
            ("mma", ["sync", "aligned", shape, "row", "col", d, a, b, c]) => {
                let kind = match (*shape, [*d, *a, *b, *c]) {
                    ("m16n8k8" | "m16n8k16", [d, a, b, c]) => {
                        let (element, half) = match (a, b, d, c) {
                            ("f16", "f16", "f32", "f32") => (Element::F16, false),
                            ("f16", "f16", "f16", "f16") => (Element::F16, true),
                            ("bf16", "bf16", "f32", "f32") => (Element::Bf16, false),
                            _ => return Ok(None),
                        };
                        MmaKind::Half { element, k: if *shape == "m16n8k8" { 8 } else { 16 }, half }
                    }
                    ("m16n8k32", ["f32", "e4m3", "e4m3", "f32"]) => MmaKind::E4m3,
                    ("m16n8k32", ["s32", "s8", "s8", "s32"]) => MmaKind::S8,
                    _ => return Ok(None),
                };
                self.mma(kind, operands)?
            }
            _ => return Ok(None),
        };
        Ok(Some(vec![found]))
    }

    fn matrix(
        &mut self,
        mods: &[&str],
        count: &str,
        regs: &Operand,
        addr: &Operand,
        load: bool,
    ) -> Result<Matrix, String> {
        let count = match count {
            "x1" => 1,
            "x2" => 2,
            "x4" => 4,
            _ => return Err("x1, x2 or x4 matrices".into()),
        };
        if mods.last() != Some(&"b16") {
            return Err("matrices of .b16 only".into());
        }
        let regs = self.rows(regs, load)?;
        if regs.len() != count {
            return Err(format!("{} registers for {count} matrices", regs.len()));
        }
        let (addr, space) = self.address(addr, space_of(mods))?;
        Ok(Matrix { regs, transposed: mods.contains(&"trans"), space, addr })
    }

    fn mma(&mut self, kind: MmaKind, operands: &[Operand]) -> Result<Op, String> {
        let [d, a, b, c] = operands else { return Err("mma takes four operands".into()) };
        let (d, a, b, c) =
            (self.rows(d, true)?, self.rows(a, false)?, self.rows(b, false)?, self.rows(c, false)?);
        let wanted = match kind {
            MmaKind::Half { k, half: false, .. } => [4, k / 4, k / 8, 4],
            MmaKind::Half { k, half: true, .. } => [2, k / 4, k / 8, 2],
            MmaKind::E4m3 | MmaKind::S8 => [4, 4, 2, 4],
        };
        let found = [d.len(), a.len(), b.len(), c.len()];
        if wanted != found {
            return Err(format!("mma needs {wanted:?} registers, has {found:?}"));
        }
        Ok(Op::Mma(Box::new(Mma { kind, d, a, b, c })))
    }
}
