//! Decodes warpgroup products, register budgets and proxy fences.

use super::Builder;
use crate::{
    ast::Operand as Source,
    op::{Element, Op, Operand, Product, Proxy, Wgmma, WgmmaElement},
    regs::Kind,
};

type Found = Result<Option<Vec<Op>>, String>;

fn one(op: Op) -> Found {
    Ok(Some(vec![op]))
}

impl Builder<'_> {
    pub(super) fn hopper(&mut self, op: &str, mods: &[&str], operands: &[Source]) -> Found {
        match (op, mods, operands) {
            ("fence", ["proxy", "async", spaces @ ..], _) => {
                let shared = spaces.is_empty() || spaces.iter().any(|space| space.starts_with("shared"));
                one(if shared { Op::Proxy(Proxy::Async) } else { Op::Nop })
            }
            // The simulator does not simulate other proxies, so it cannot report a missing fence for such a
            // proxy.
            ("fence", ["proxy", ..], _) => one(Op::Nop),
            ("fence", ["mbarrier_init", ..], _) => one(Op::Proxy(Proxy::Mbarriers)),
            ("setmaxnreg", ["inc" | "dec", "sync", "aligned", "u32"], [Source::Int(count)]) => {
                if !(24..=256).contains(count) || count % 8 != 0 {
                    return Err(format!("setmaxnreg takes a multiple of 8 from 24 to 256, not {count}"));
                }
                one(Op::SetRegisters { more: mods[0] == "inc", count: *count as u32 })
            }
            ("wgmma", ["fence", "sync", "aligned"], []) => self.wgmma(Wgmma::Fence),
            ("wgmma", ["commit_group", "sync", "aligned"], []) => self.wgmma(Wgmma::Commit),
            ("wgmma", ["wait_group", "sync", "aligned"], [Source::Int(keep)]) => {
                self.wgmma(Wgmma::Wait(*keep as u32))
            }
            ("wgmma", ["mma_async", "sync", "aligned", shape, "f32", a, b], _) => {
                let element = match (*a, *b) {
                    ("f16", "f16") => WgmmaElement::Half(Element::F16),
                    ("bf16", "bf16") => WgmmaElement::Half(Element::Bf16),
                    ("e4m3", "e4m3") => WgmmaElement::E4m3,
                    _ => return Ok(None),
                };
                let columns = shape.strip_prefix("m64n").and_then(|shape| shape.split_once('k'));
                let columns = columns.filter(|(_, k)| k.parse() == Ok(element.depth())).map(|(n, _)| n);
                let columns = columns.and_then(|n| n.parse().ok()).filter(|n| n % 8 == 0);
                let columns = columns.filter(|n| (8..=256).contains(n));
                let columns =
                    columns.ok_or("the shape is m64nNk16, for e4m3 m64nNk32, N a multiple of 8 up to 256")?;
                self.product(element, columns, operands)
            }
            _ => Ok(None),
        }
    }

    fn wgmma(&mut self, wgmma: Wgmma) -> Found {
        one(Op::Wgmma(Box::new(wgmma)))
    }

    fn product(&mut self, element: WgmmaElement, columns: usize, operands: &[Source]) -> Found {
        let [d, a, b, accumulates, rest @ ..] = operands else { return Err("operands are missing".into()) };
        let constants = rest.iter().map(|operand| match operand {
            Source::Int(value) => Ok(*value as i64 as i32),
            _ => Err("imm-scale and imm-trans must be constants"),
        });
        let constants = constants.collect::<Result<Vec<_>, _>>()?;
        let in_registers = matches!(a, Source::Vector(_));
        let (signs, orders) = match (constants.as_slice(), in_registers) {
            ([a, b], _) if element == WgmmaElement::E4m3 => ([*a, *b], [0; 2]),
            _ if element == WgmmaElement::E4m3 => {
                return Err("products of e4m3 take imm-scale-a and imm-scale-b, and no imm-trans".into());
            }
            ([a, b, across], true) => ([*a, *b], [0, *across]),
            ([a, b, across_a, across_b], false) => ([*a, *b], [*across_a, *across_b]),
            _ => {
                return Err("wgmma takes imm-scale-a and imm-scale-b, and one imm-trans per operand in \
                            shared memory"
                    .into());
            }
        };
        if !signs.iter().all(|sign| matches!(sign, 1 | -1)) || !orders.iter().all(|it| matches!(it, 0 | 1)) {
            return Err("imm-scale must be 1 or -1, imm-trans 0 or 1".into());
        }
        let d = self.rows(d, true)?;
        if d.len() != columns / 2 {
            return Err(format!(
                "{} registers: too many or too few for accumulators of {columns} columns",
                d.len()
            ));
        }
        let a = match in_registers {
            true => Operand::Registers(self.rows(a, false)?),
            false => self.descriptor(a, orders[0])?,
        };
        if matches!(&a, Operand::Registers(rows) if rows.len() != 4) {
            return Err("A has four registers".into());
        }
        let b = self.descriptor(b, orders[1])?;
        let accumulates = match accumulates {
            Source::Int(value) => self.constant(Kind::Pred, super::Constant::Value(u64::from(*value != 0))),
            p => self.source(p, Kind::Pred)?,
        };
        let negated = signs[0] != signs[1];
        self.wgmma(Wgmma::Product(Product { element, columns, d, a, b, accumulates, negated }))
    }

    fn descriptor(&mut self, operand: &Source, order: i32) -> Result<Operand, String> {
        Ok(Operand::Shared { descriptor: self.source(operand, Kind::B64)?, across: order != 0 })
    }
}
