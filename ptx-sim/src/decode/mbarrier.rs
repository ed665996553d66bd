//! Decodes `mbarrier` instructions.

use super::{Builder, memory::space_of};
use crate::{
    ast::Operand,
    op::{Mbar, Op, Phase},
    regs::Kind,
};

impl Builder<'_> {
    pub(super) fn mbarriers(
        &mut self,
        op: &str,
        mods: &[&str],
        operands: &[Operand],
    ) -> Result<Option<Vec<Op>>, String> {
        let ("mbarrier", [kind, words @ ..]) = (op, mods) else { return Ok(None) };
        let (space, relaxed) = (space_of(words), words.contains(&"relaxed"));
        let mbar = match (*kind, operands) {
            ("init", [a, count]) => {
                Mbar::Init { addr: self.address(a, space)?.0, count: self.source(count, Kind::B32)? }
            }
            ("expect_tx" | "complete_tx", [a, bytes]) => Mbar::Transaction {
                addr: self.address(a, space)?.0,
                bytes: self.source(bytes, Kind::B32)?,
                complete: *kind == "complete_tx",
            },
            ("inval", [a]) => Mbar::Inval { addr: self.address(a, space)?.0 },
            ("arrive" | "arrive_drop", [d, a, rest @ ..]) => {
                let dst = match d {
                    Operand::Sink => None,
                    d => Some(self.destination(d, Kind::B64)?),
                };
                let addr = self.address(a, space)?.0;
                let value = rest.first().map(|operand| self.source(operand, Kind::B32)).transpose()?;
                let expecting = words.contains(&"expect_tx");
                let (count, expect) = if expecting { (None, value) } else { (value, None) };
                let (drop, no_complete) = (*kind == "arrive_drop", words.contains(&"noComplete"));
                Mbar::Arrive { dst, addr, count, expect, drop, no_complete, relaxed }
            }
            ("test_wait" | "try_wait", [d, a, phase, limit @ ..]) => {
                let phase = if words.contains(&"parity") {
                    Phase::Parity(self.source(phase, Kind::B32)?)
                } else {
                    Phase::State(self.source(phase, Kind::B64)?)
                };
                // This operand is the time for which the hardware may suspend the thread. The simulator does
                // not suspend threads.
                limit.iter().try_for_each(|limit| self.source(limit, Kind::B32).map(|_| ()))?;
                let addr = self.address(a, space)?.0;
                Mbar::Test { dst: self.destination(d, Kind::Pred)?, addr, phase, relaxed }
            }
            _ => return Err("operands of this mbarrier instruction are missing".into()),
        };
        Ok(Some(vec![Op::Mbar(Box::new(mbar))]))
    }
}
