//! Decodes calls, returns, and parameters that are registers.

use super::{Builder, Constant, Decoded, code_address};
use crate::{
    ast::{Function, Operand, RegClass, Space, Symbol},
    op::{Access, Addr, Call, Callee, Extend, Op, Order, Slot},
    regs::Kind,
};

/// The arguments or results of a call: their places in the frame's memory, and the operations that copy
/// registers to or from them.
type Passed = (Vec<(u32, u32)>, Vec<Op>);

impl Builder<'_> {
    pub(super) fn call(&mut self, operands: &[Operand]) -> Decoded {
        let (returns, rest) = match operands {
            [Operand::Group(returns), rest @ ..] => (returns.as_slice(), rest),
            rest => (&[][..], rest),
        };
        let (target, args) = match rest {
            [target, Operand::Group(args), ..] => (target, args.as_slice()),
            [target, ..] => (target, &[][..]),
            [] => return Err("call needs a function".into()),
        };
        let named = match target {
            Operand::Symbol(Symbol::Named(name), _) => self.module.function(name),
            _ => None,
        };
        let function = named.map(|index| &self.module.functions[index]);
        let target = match target {
            Operand::Symbol(Symbol::Named(name), _) => match &**name {
                "vprintf" => Callee::Vprintf,
                "__assertfail" => Callee::AssertFail,
                name => match function {
                    Some(function) if is_panic(function) => Callee::Panic(function.name.clone()),
                    _ => self.callee(name),
                },
            },
            Operand::Reg(_) => Callee::Pointer(self.source(target, Kind::B64)?),
            _ => return Err("call needs a function, or a register with a function's address".into()),
        };
        let variables = function.map_or(&[][..], |function| &function.variables);
        let (n_params, n_returns) = function.map_or((0, 0), |f| (f.n_params, f.n_returns));
        let size = |at: usize| variables.get(at).map(|variable| variable.size as u32);
        let sizes = |from: usize, count: usize| (from..from + count).map(size).collect::<Vec<_>>();
        let (args, mut ops) = self.passed(args, &sizes(0, n_params), false)?;
        let (returns, after) = self.passed(returns, &sizes(n_params, n_returns), true)?;
        ops.push(Op::Call(Box::new(Call { target, args, returns })));
        ops.extend(after);
        Ok(ops)
    }

    fn passed(
        &mut self,
        operands: &[Operand],
        sizes: &[Option<u32>],
        result: bool,
    ) -> Result<Passed, String> {
        let (mut places, mut moves) = (Vec::new(), Vec::new());
        for (at, operand) in operands.iter().enumerate() {
            if let Operand::Symbol(Symbol::Variable(index), _) = operand {
                places.push(self.frame_slot(*index));
                continue;
            }
            let own = match operand {
                Operand::Reg(id) => match self.class(*id) {
                    Some(RegClass::B64) => 8,
                    Some(RegClass::B32) => 4,
                    _ => return Err("a predicate cannot be passed to a function".into()),
                },
                _ => 8,
            };
            let bytes = sizes.get(at).copied().flatten().unwrap_or(own);
            if !matches!(bytes, 1 | 2 | 4 | 8) {
                return Err(format!("a parameter of {bytes} bytes cannot be a register"));
            }
            let slot = self.slot(operand, if bytes == 8 { Kind::B64 } else { Kind::B32 }, result)?;
            let place = (self.frame_space(bytes), bytes);
            places.push(place);
            moves.push(self.frame_access(place, slot, result));
        }
        Ok((places, moves))
    }

    /// A load from the frame's memory, or a store to it.
    fn frame_access(&mut self, (offset, bytes): (u32, u32), slot: Slot, load: bool) -> Op {
        let base = self.constant(Kind::B64, Constant::Frame(offset));
        let access = Box::new(Access {
            space: Space::Local,
            bytes,
            extend: Extend::Zero,
            slots: vec![slot],
            addr: Addr { wide: true, base, offset: 0 },
            order: Order::default(),
            read_only: false,
        });
        if load { Op::Load(access) } else { Op::Store(access) }
    }

    /// Operations that copy parameters into their registers, or results out of their registers.
    pub(super) fn in_registers(&mut self, results: bool) -> Decoded {
        let function = self.function;
        let of = |&&(variable, _): &&(u32, u32)| (variable as usize >= function.n_params) == results;
        let moves = function.in_registers.iter().filter(of).map(|&(variable, register)| {
            let slot = self.slot(&Operand::Reg(register), Kind::B32, !results)?;
            Ok(self.frame_access(self.frame_slot(variable), slot, !results))
        });
        moves.collect()
    }

    pub(super) fn ret(&mut self) -> Decoded {
        if self.function.noreturn {
            return Ok(vec![Op::Returns]);
        }
        let mut ops = self.in_registers(true)?;
        ops.push(Op::Ret);
        Ok(ops)
    }

    fn callee(&mut self, name: &str) -> Callee {
        let known = self.module.function(name).and_then(|index| self.order.iter().position(|&f| f == index));
        known.map_or_else(|| Callee::Unknown(name.into()), Callee::Function)
    }

    /// The address of a function, for calls through a pointer.
    pub(super) fn function_address(&self, name: &str) -> Option<u64> {
        self.module.function(name).map(code_address)
    }
}

/// Whether `function` is a panic of Rust's core library: in that library, only panics never return.
fn is_panic(function: &Function) -> bool {
    function.noreturn && function.name.contains("4core")
}
