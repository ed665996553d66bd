//! Rows for the registers and constants of one function.

use std::collections::HashMap;

use super::{Symbols, scoped_shared, special::Special, special::special};
use crate::{
    ast::{Base, Function, Module, Operand, RegClass, Space, Symbol},
    op::{Addr, Guard, Op, Slot},
    parse::layout,
    regs::{Args, Kind, R, Run, alu},
};

/// Start of the generic addresses of shared memory. The windows of local memory and of parameters follow.
pub(crate) const SHARED_WINDOW: u64 = 1 << 60;
/// Start of the generic addresses of local memory.
pub(crate) const LOCAL_WINDOW: u64 = 2 << 60;
/// Start of the generic addresses of parameters.
pub(crate) const PARAM_WINDOW: u64 = 3 << 60;

/// The initial value of a constant's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Constant {
    Value(u64),
    Special(Special),
    /// The address of a byte in the frame's memory.
    Frame(u32),
}

/// The data that a call of a function needs.
#[derive(Debug)]
pub(crate) struct FunctionCode {
    pub start: u32,
    pub n32: u32,
    pub n64: u32,
    pub n_pred: u32,
    /// The constants: register file, row and initial value of each.
    pub constants: Vec<(Kind, R, Constant)>,
    pub frame_bytes: u32,
    /// Offsets and sizes of parameters and results in the frame's memory.
    pub params: Vec<(u32, u32)>,
    pub returns: Vec<(u32, u32)>,
}

/// Decodes one function.
pub(super) struct Builder<'a> {
    pub module: &'a Module,
    pub function: &'a Function,
    pub guard: Option<Guard>,
    pub rejoin: u32,
    /// The comparison of a `setp`, for [`super::Program::equal`].
    pub equal: Option<(Run, Args)>,
    /// Operations that must run before the current instruction.
    pub prelude: Vec<Op>,
    shared: &'a Symbols,
    /// The functions of the program.
    pub order: &'a [usize],
    carry: Option<R>,
    index: Vec<(RegClass, R)>,
    counts: [u32; 3],
    constants: HashMap<(u8, Constant), R>,
    listed: Vec<(Kind, R, Constant)>,
    frame: Vec<(u32, u32)>,
    frame_bytes: u32,
    entry_params: Vec<(u64, u64)>,
}

fn file(kind: Kind) -> u8 {
    match kind {
        Kind::Pred => 0,
        Kind::B32 | Kind::F32 => 1,
        Kind::B64 | Kind::F64 => 2,
    }
}

impl<'a> Builder<'a> {
    pub fn new(module: &'a Module, index: usize, shared: &'a Symbols, order: &'a [usize]) -> Builder<'a> {
        let function = &module.functions[index];
        let mut counts = [0u32; 3];
        let mut registers = Vec::with_capacity(function.n_registers as usize);
        for range in &function.registers {
            let file = match range.class {
                RegClass::Pred => 0,
                RegClass::B32 => 1,
                RegClass::B64 | RegClass::B128 => 2,
            };
            for _ in 0..range.count {
                registers.push((range.class, counts[file]));
                counts[file] += 1;
            }
        }
        let mut frame = Vec::new();
        let mut end = 0u64;
        for (at, variable) in function.variables.iter().enumerate() {
            let in_frame = match variable.space {
                Space::Local => true,
                Space::Param => !(function.entry && at < function.n_params),
                _ => false,
            };
            if in_frame {
                let offset = end.next_multiple_of(variable.align.max(8));
                frame.push((offset as u32, variable.size as u32));
                end = offset.saturating_add(variable.size).min(1 << 24);
            } else {
                frame.push((0, 0));
            }
        }
        Builder {
            module,
            function,
            guard: None,
            rejoin: crate::cfg::NEVER,
            equal: None,
            prelude: Vec::new(),
            shared,
            order,
            carry: None,
            index: registers,
            counts,
            constants: HashMap::new(),
            listed: Vec::new(),
            frame,
            frame_bytes: end as u32,
            entry_params: layout(&function.variables[..function.n_params]),
        }
    }

    pub fn finish(self, start: u32) -> FunctionCode {
        let (params, rest) = self.frame.split_at(self.function.n_params);
        FunctionCode {
            start,
            n_pred: self.counts[0],
            n32: self.counts[1],
            n64: self.counts[2],
            constants: self.listed,
            frame_bytes: self.frame_bytes.next_multiple_of(16),
            params: if self.function.entry { Vec::new() } else { params.to_vec() },
            returns: rest[..self.function.n_returns].to_vec(),
        }
    }

    /// The row of register `id` in its register file.
    pub fn index(&self, id: u32) -> R {
        self.index.get(id as usize).map_or(0, |&(_, row)| row)
    }

    pub fn frame_slot(&self, variable: u32) -> (u32, u32) {
        self.frame.get(variable as usize).copied().unwrap_or((0, 0))
    }

    /// A new register for intermediate values.
    pub fn scratch(&mut self, kind: Kind) -> R {
        let count = &mut self.counts[file(kind) as usize];
        *count += 1;
        *count - 1
    }

    pub fn constant(&mut self, kind: Kind, value: Constant) -> R {
        if let Some(&row) = self.constants.get(&(file(kind), value)) {
            return row;
        }
        let row = self.scratch(kind);
        self.constants.insert((file(kind), value), row);
        self.listed.push((kind, row, value));
        row
    }

    /// The carry flag of `add.cc` and similar instructions. Each function has its own flag.
    pub fn carry_flag(&mut self) -> R {
        let flag = self.carry.unwrap_or_else(|| self.scratch(Kind::Pred));
        *self.carry.insert(flag)
    }

    /// Allocates bytes in the frame, and returns their offset.
    pub fn frame_space(&mut self, bytes: u32) -> u32 {
        let offset = self.frame_bytes.next_multiple_of(8);
        self.frame_bytes = offset + bytes;
        offset
    }

    pub fn class(&self, id: u32) -> Option<RegClass> {
        self.index.get(id as usize).map(|&(class, _)| class)
    }

    fn register(&self, id: u32, kind: Kind) -> Result<R, String> {
        let (class, row) = self.index.get(id as usize).copied().ok_or("unknown register")?;
        let wanted = match kind {
            Kind::Pred => RegClass::Pred,
            Kind::B32 | Kind::F32 => RegClass::B32,
            Kind::B64 | Kind::F64 => RegClass::B64,
        };
        if class == wanted {
            return Ok(row);
        }
        Err(format!("register {} has the wrong width for this operand", self.name(id)))
    }

    fn name(&self, id: u32) -> String {
        match self.function.range(id) {
            Some(range) if range.numbered => format!("{}{}", range.name, id - range.first),
            Some(range) => range.name.to_string(),
            None => "?".into(),
        }
    }

    pub fn destination(&mut self, operand: &Operand, kind: Kind) -> Result<R, String> {
        match operand {
            Operand::Reg(id) => self.register(*id, kind),
            Operand::Sink => Ok(self.scratch(kind)),
            _ => Err("the destination must be a register".into()),
        }
    }

    pub fn source(&mut self, operand: &Operand, kind: Kind) -> Result<R, String> {
        let value = match operand {
            Operand::Reg(id) => return self.register(*id, kind),
            Operand::Not(id) if kind == Kind::Pred => {
                let args = [self.scratch(kind), self.register(*id, kind)?, 0, 0, 0];
                self.prelude.push(Op::Alu { run: alu!(bool => |p: bool| !p).run, args });
                return Ok(args[0]);
            }
            Operand::Int(value) => Constant::Value(match kind {
                Kind::F32 => u64::from((*value as i64 as f32).to_bits()),
                Kind::F64 => (*value as i64 as f64).to_bits(),
                _ => *value,
            }),
            Operand::F32(bits) => Constant::Value(match kind {
                Kind::F64 => f64::from(f32::from_bits(*bits)).to_bits(),
                _ => u64::from(*bits),
            }),
            Operand::F64(bits) => Constant::Value(match kind {
                Kind::F32 | Kind::B32 => u64::from((f64::from_bits(*bits) as f32).to_bits()),
                _ => *bits,
            }),
            Operand::Special(name) => Constant::Special(
                special(name).ok_or_else(|| format!("the simulator has no special register {name}"))?,
            ),
            Operand::Symbol(symbol, offset) => self.symbol(symbol, *offset)?,
            _ => return Err("this operand has no value".into()),
        };
        Ok(self.constant(kind, value))
    }

    /// The address of a variable within the variable's own state space.
    fn symbol(&self, symbol: &Symbol, offset: i64) -> Result<Constant, String> {
        let value = match symbol {
            Symbol::Named(name) => {
                let at = self.shared.get(name).copied().or_else(|| self.function_address(name));
                Constant::Value(at.ok_or_else(|| self.unknown(name))?.wrapping_add_signed(offset))
            }
            Symbol::Variable(index) => {
                let variable = self.function.variables.get(*index as usize).ok_or("unknown variable")?;
                match variable.space {
                    Space::Shared => {
                        let at = self
                            .shared
                            .get(&scoped_shared(&self.function.name, &variable.name))
                            .ok_or("unknown shared variable")?;
                        Constant::Value(at.wrapping_add_signed(offset))
                    }
                    Space::Param if self.is_entry_param(*index) => {
                        Constant::Value(self.entry_params[*index as usize].0.wrapping_add_signed(offset))
                    }
                    Space::Local | Space::Param => {
                        Constant::Frame(self.frame_slot(*index).0.wrapping_add(offset as u32))
                    }
                    _ => return Err(format!("variable {} cannot be declared in a function", variable.name)),
                }
            }
        };
        Ok(value)
    }

    fn unknown(&self, name: &str) -> String {
        match self.module.globals.iter().any(|variable| variable.opaque && *variable.name == *name) {
            true => format!("`{name}` is a texture, a sampler or a surface: these are not simulated"),
            false => format!("this module has no variable or function `{name}`"),
        }
    }

    fn is_entry_param(&self, index: u32) -> bool {
        self.function.entry && (index as usize) < self.function.n_params
    }

    /// The operand as an address, with its state space. The base of the address determines the state space;
    /// otherwise the state space is `space`.
    pub fn address(&mut self, operand: &Operand, space: Space) -> Result<(Addr, Space), String> {
        let (base, offset) = match operand {
            Operand::Address(base, offset, rest) if rest.is_empty() => (base, *offset),
            _ => return Err("an address in brackets is missing".into()),
        };
        match base {
            Base::Reg(id) => {
                let (class, row) = self.index.get(*id as usize).copied().ok_or("unknown register")?;
                match class {
                    RegClass::B32 => Ok((Addr { wide: false, base: row, offset }, space)),
                    RegClass::B64 => Ok((Addr { wide: true, base: row, offset }, space)),
                    _ => Err("an address must be a 32- or 64-bit register".into()),
                }
            }
            Base::Absolute => {
                let base = self.constant(Kind::B64, Constant::Value(0));
                Ok((Addr { wide: true, base, offset }, space))
            }
            Base::Symbol(symbol) => {
                // Parameters of device functions, and of calls that the caller prepares, are in the memory of
                // the frame.
                let own = match symbol {
                    Symbol::Variable(index) if space == Space::Param && !self.is_entry_param(*index) => {
                        Space::Local
                    }
                    _ => space,
                };
                let value = self.symbol(symbol, offset)?;
                Ok((Addr { wide: true, base: self.constant(Kind::B64, value), offset: 0 }, own))
            }
        }
    }

    /// The slot of an operand of a load, a store, an atomic or a call: `_`, a register of 32 or 64 bits
    /// whatever `kind` is, or, if `write` is false, any other source of `kind`.
    pub fn slot(&mut self, operand: &Operand, kind: Kind, write: bool) -> Result<Slot, String> {
        match operand {
            Operand::Sink => Ok(Slot::Sink),
            Operand::Reg(id) => match self.index.get(*id as usize) {
                Some(&(RegClass::B32, row)) => Ok(Slot::W32(row)),
                Some(&(RegClass::B64, row)) => Ok(Slot::W64(row)),
                _ => Err("a 32- or 64-bit register is needed".into()),
            },
            _ if write => Err("the destination must be a register".into()),
            other => {
                let row = self.source(other, kind)?;
                Ok(if file(kind) == 2 { Slot::W64(row) } else { Slot::W32(row) })
            }
        }
    }

    /// The register rows of `{a, b, c, d}`, or of a single register.
    pub fn rows(&mut self, operand: &Operand, write: bool) -> Result<Vec<R>, String> {
        let parts = match operand {
            Operand::Vector(parts) => parts.as_slice(),
            single => std::slice::from_ref(single),
        };
        parts
            .iter()
            .map(|part| if write { self.destination(part, Kind::B32) } else { self.source(part, Kind::B32) })
            .collect()
    }
}
