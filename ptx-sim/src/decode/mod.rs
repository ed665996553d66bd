//! Parsed instructions to [`Op`]s, once per launch.

mod builder;
mod call;
mod carry;
mod compare;
mod cvt;
pub(crate) mod float;
mod hopper;
mod integer;
mod memory;
mod mov;
pub(crate) mod needs;
mod special;
mod sync;
mod tensor;

use std::collections::HashMap;

pub(crate) use builder::{Constant, FunctionCode};
pub(crate) use special::{LaneMask, Special};

use crate::{
    LaunchError,
    ast::{Function, Module, Operand},
    cfg,
    decode::builder::Builder,
    op::{Code, Guard, Op},
    regs::{Alu, Args, Kind, Run},
};

/// Everything a launch executes.
#[derive(Debug)]
pub(crate) struct Program {
    /// All functions, one after the other.
    pub code: Vec<Code>,
    pub functions: Vec<FunctionCode>,
    /// Index into `functions` by [`code_address`].
    pub addresses: HashMap<u64, usize>,
    pub sites: Vec<Site>,
    /// Whether the operands of a `setp`, by its site, are equal: for coverage.
    pub equal: HashMap<u32, (Run, Args)>,
    /// Some reachable instruction is a global atomic or waits for another block.
    pub blocks_communicate: bool,
    /// Static shared memory from the start of the window, dynamic memory after it.
    pub static_shared: u32,
    pub dynamic_base: u32,
}

/// Where an instruction came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    pub function: u32,
    pub instruction: u32,
}

/// Why a function must not come to its end.
const RETURNS: &str = "the function is `.noreturn`: what follows its return is undefined";

/// Start of shared memory in its window: the first KiB belongs to the system since sm_80.
pub(crate) const SHARED_BASE: u32 = 1024;

/// Addresses of module variables.
pub(crate) type Symbols = HashMap<Box<str>, u64>;

/// Address of a module's function: in a window of its own, where nothing can be loaded.
pub(crate) fn code_address(function: usize) -> u64 {
    (4 << 60) + 16 * (function as u64 + 1)
}

/// `entry` and all the functions that it can call, by name or through what it, or a variable's initialiser,
/// takes the address of.
fn called(module: &Module, entry: usize) -> Vec<usize> {
    let used = crate::parse::reachable(module, &module.functions[entry]);
    let others = module.functions.iter().enumerate().filter(|(index, function)| {
        *index != entry
            && function.defined
            && used.contains(&function.name)
            && module.function(&function.name) == Some(*index)
    });
    std::iter::once(entry).chain(others.map(|(index, _)| index)).collect()
}

/// Whether `entry` can be launched at all, as far as the module tells.
///
/// # Errors
/// [`LaunchError::Needs`] and [`LaunchError::Unsupported`] name the first line, of the entry or of what it
/// calls, that the module's target does not have or the simulator does not run.
pub(crate) fn check(module: &Module, entry: usize) -> Result<(), LaunchError> {
    let functions = || called(module, entry).into_iter().map(|index| &module.functions[index]);
    needs::check(module, functions().flat_map(|function| &function.instructions))?;
    match functions().flat_map(|function| &function.refused).next() {
        Some(refused) => Err(LaunchError::Unsupported {
            line: refused.line,
            text: refused.text.to_string(),
            reason: refused.reason.to_string(),
        }),
        None => Ok(()),
    }
}

/// Decodes `entry` (an index into the module's functions) and all it can call.
pub(crate) fn program(module: &Module, entry: usize, symbols: &Symbols) -> Program {
    let mut program = Program {
        code: Vec::new(),
        functions: Vec::new(),
        addresses: HashMap::new(),
        sites: Vec::new(),
        equal: HashMap::new(),
        blocks_communicate: false,
        static_shared: 0,
        dynamic_base: SHARED_BASE,
    };
    let order = called(module, entry);
    program.addresses = order.iter().enumerate().map(|(at, &index)| (code_address(index), at)).collect();
    let mut shared = shared_layout(module, &module.functions[entry], &mut program);
    shared.extend(symbols.iter().map(|(name, &at)| (name.clone(), at)));
    for &index in &order {
        let start = program.code.len() as u32;
        let mut builder = Builder::new(module, index, &shared, &order);
        let function = &module.functions[index];
        let rejoin = cfg::reconvergence(function);
        let mut starts = Vec::with_capacity(function.instructions.len() + 1);
        let mut code: Vec<Code> = Vec::new();
        let site = program.sites.len() as u32;
        let params = executable(builder.in_registers(false)).into_iter();
        code.extend(params.map(|op| Code { op, guard: None, site }));
        for (at, instruction) in function.instructions.iter().enumerate() {
            starts.push(start + code.len() as u32);
            let site = program.sites.len() as u32;
            program.sites.push(Site { function: index as u32, instruction: at as u32 });
            builder.guard =
                instruction.guard.map(|(reg, negated)| Guard { reg: builder.index(reg), negated });
            builder.rejoin = rejoin[at];
            let ops = builder.decode(instruction).map(|ops| builder.prelude.drain(..).chain(ops).collect());
            let ops = executable(ops);
            builder.prelude.clear();
            program.equal.extend(builder.equal.take().map(|equal| (site, equal)));
            for op in ops {
                program.blocks_communicate |= communicates(&op);
                code.push(Code { op, guard: builder.guard, site });
            }
        }
        starts.push(start + code.len() as u32);
        program.sites.push(Site { function: index as u32, instruction: function.instructions.len() as u32 });
        let site = program.sites.len() as u32 - 1;
        code.extend(executable(builder.ret()).into_iter().map(|op| Code { op, guard: None, site }));
        for code in &mut code {
            relocate(&mut code.op, &starts);
        }
        program.functions.push(builder.finish(start));
        program.code.append(&mut code);
    }
    program
}

/// What does not decode is refused where a launch reaches it.
fn executable(ops: Decoded) -> Vec<Op> {
    ops.unwrap_or_else(|reason| vec![Op::Unsupported(reason.into_boxed_str())])
}

/// An instruction that the simulator does not execute.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Unsupported {
    /// Line of the PTX, from one.
    pub line: u32,
    /// The instruction.
    pub instruction: String,
    /// Why.
    pub reason: String,
}

impl Module {
    /// What `entry` and the functions it calls contain that a launch could not execute; empty for an unknown
    /// entry. Launches fail only where they reach such an instruction.
    pub fn unsupported(&self, entry: &str) -> Vec<Unsupported> {
        let Some(index) = self.function(entry) else { return Vec::new() };
        let variables = self.globals.iter().filter(|variable| !variable.opaque);
        let symbols = variables.map(|variable| (variable.name.clone(), 0)).collect();
        let program = program(self, index, &symbols);
        let refused =
            called(self, index).into_iter().flat_map(|index| &self.functions[index].refused).map(|refused| {
                Unsupported {
                    line: refused.line,
                    instruction: refused.text.to_string(),
                    reason: refused.reason.to_string(),
                }
            });
        let mut found: Vec<_> = refused.collect();
        for code in &program.code {
            if let Op::Unsupported(reason) = &code.op {
                let site = program.sites[code.site as usize];
                // The end of a `.noreturn` function stands in no line, and is not reached.
                let function = &self.functions[site.function as usize];
                let Some(instruction) = function.instructions.get(site.instruction as usize) else {
                    continue;
                };
                found.push(Unsupported {
                    line: instruction.line,
                    instruction: self.written(instruction),
                    reason: reason.to_string(),
                });
            }
        }
        found
    }
}

/// Whether blocks may wait for each other through this instruction.
fn communicates(op: &Op) -> bool {
    use crate::ast::Space;
    match op {
        Op::Atomic(atomic) => !matches!(atomic.space, Space::Shared),
        Op::Load(access) | Op::Store(access) => {
            access.order.strong && matches!(access.space, Space::Global | Space::Generic)
        }
        _ => false,
    }
}

/// Instruction indices of branches become code indices.
fn relocate(op: &mut Op, starts: &[u32]) {
    let code = |at: u32| starts.get(at as usize).copied().unwrap_or(at);
    match op {
        Op::Bra { target, rejoin } => {
            *target = code(*target);
            *rejoin = code(*rejoin);
        }
        Op::BrxIdx { targets, rejoin, .. } => {
            targets.iter_mut().for_each(|target| *target = code(*target));
            *rejoin = code(*rejoin);
        }
        _ => {}
    }
}

/// Places every shared variable the entry reaches; `extern` arrays all begin behind the static ones.
fn shared_layout(module: &Module, entry: &Function, program: &mut Program) -> Symbols {
    use crate::ast::Space;
    let used = crate::parse::reachable(module, entry);
    let mut symbols = Symbols::new();
    let mut end = u64::from(SHARED_BASE);
    let variables = module.globals.iter().map(|v| (None, v)).chain(
        module
            .functions
            .iter()
            .filter(|f| used.contains(&f.name))
            .flat_map(|f| f.variables.iter().map(move |v| (Some(f), v))),
    );
    let mut dynamic_align = 16;
    let mut dynamic = Vec::new();
    for (function, variable) in variables.filter(|(_, v)| v.space == Space::Shared) {
        if variable.external {
            dynamic_align = dynamic_align.max(variable.align);
            dynamic.push(variable.name.clone());
        } else if function.is_some() || used.contains(&variable.name) {
            end = end.next_multiple_of(variable.align.max(1));
            let name = function.map_or(variable.name.clone(), |f| scoped_shared(&f.name, &variable.name));
            symbols.insert(name, end);
            end = end.saturating_add(variable.size).min(1 << 31);
        }
    }
    program.static_shared = (end - u64::from(SHARED_BASE)) as u32;
    let base = end.next_multiple_of(dynamic_align);
    program.dynamic_base = base as u32;
    symbols.extend(dynamic.into_iter().map(|name| (name, base)));
    symbols
}

/// Key of a shared variable declared inside a function.
pub(crate) fn scoped_shared(function: &str, variable: &str) -> Box<str> {
    format!("{function}/{variable}").into()
}

type Decoded = Result<Vec<Op>, String>;

impl Builder<'_> {
    fn decode(&mut self, instruction: &crate::ast::Instruction) -> Decoded {
        let mut parts = instruction.opcode.split('.');
        let op = parts.next().unwrap_or("");
        let mods: Vec<&str> = parts.collect();
        let operands = &instruction.operands;
        match (op, mods.as_slice()) {
            ("mov", [ty]) => self.mov(ty, operands),
            ("mov", ["v2" | "v4", ty]) => self.mov_vector(ty, operands),
            ("cvta", _) => self.cvta(&mods, operands),
            ("setp", mods) => self.setp(mods, operands),
            ("cvt", mods) => self.cvt(mods, operands),
            ("bra", _) => match operands.as_slice() {
                [Operand::Label(target)] => Ok(vec![Op::Bra { target: *target, rejoin: self.rejoin }]),
                _ => Err("bra needs a label of this function".into()),
            },
            ("brx", ["idx"] | ["idx", "uni"]) => self.brx(operands),
            ("call", _) => self.call(operands),
            ("ret", _) => self.ret(),
            ("exit", _) => Ok(vec![Op::Exit]),
            ("trap", _) => Ok(vec![Op::Trap]),
            ("", _) | ("nanosleep" | "pmevent" | "prefetchu" | "discard" | "applypriority", _) => {
                Ok(vec![Op::Nop])
            }
            ("brkpt", _) => Ok(vec![Op::Trap]),
            ("griddepcontrol", _) => Ok(vec![Op::Nop]),
            ("shfl", _) if mods.first() != Some(&"sync") => {
                Err("shfl without .sync does not exist since sm_70".into())
            }
            _ => {
                if let Some(ops) = self.hopper(op, &mods, operands)? {
                    return Ok(ops);
                }
                if op == "prefetch" {
                    return Ok(vec![Op::Nop]);
                }
                if let Some(ops) = self.memory(op, &mods, operands)? {
                    return Ok(ops);
                }
                if let Some(ops) = self.synchronise(op, &mods, operands)? {
                    return Ok(ops);
                }
                if let Some(ops) = self.tensor(op, &mods, operands)? {
                    return Ok(ops);
                }
                if let Some(ops) = self.carry(op, &mods, operands)? {
                    return Ok(ops);
                }
                let found = integer::find(op, &mods)
                    .or_else(|| float::find(op, &mods))
                    .or_else(|| compare::find(op, &mods));
                match found {
                    Some(alu) => self.alu(Some(alu), operands),
                    None if matches!(op, "tex" | "tld4" | "txq" | "suld" | "sust" | "sured" | "suq") => {
                        Err("textures and surfaces are not simulated".into())
                    }
                    None => Err("this instruction is not implemented".into()),
                }
            }
        }
    }

    fn alu(&mut self, alu: Option<Alu>, operands: &[Operand]) -> Decoded {
        let alu = alu.ok_or("this form of the instruction is not implemented")?;
        let [d, sources @ ..] = operands else { return Err("operands are missing".into()) };
        if sources.len() != alu.s.len() {
            return Err(format!("takes {} sources, has {}", alu.s.len(), sources.len()));
        }
        let mut args = [0; 5];
        args[0] = self.destination(d, alu.d)?;
        for (at, (source, kind)) in sources.iter().zip(alu.s).enumerate() {
            args[at + 1] = self.source(source, *kind)?;
        }
        Ok(vec![Op::Alu { run: alu.run, args }])
    }

    fn brx(&mut self, operands: &[Operand]) -> Decoded {
        let [index, Operand::Label(table)] = operands else {
            return Err("brx.idx needs an index and a table".into());
        };
        let table =
            self.function.instructions.get(*table as usize).ok_or("brx.idx needs a .branchtargets table")?;
        let target = |operand: &Operand| {
            if let Operand::Label(at) = operand { Ok(*at) } else { Err("unknown label in table") }
        };
        let targets = table.operands.iter().map(target).collect::<Result<Vec<_>, _>>()?;
        Ok(vec![Op::BrxIdx {
            index: self.source(index, Kind::B32)?,
            targets: targets.into(),
            rejoin: self.rejoin,
        }])
    }
}

/// How operands of a type such as `u32` are read.
pub(crate) fn kind(ty: &str) -> Result<Kind, String> {
    Ok(match ty {
        "pred" => Kind::Pred,
        "f32" => Kind::F32,
        "f64" => Kind::F64,
        "b64" | "u64" | "s64" => Kind::B64,
        "b8" | "u8" | "s8" | "b16" | "u16" | "s16" | "f16" | "bf16" | "b32" | "u32" | "s32" | "f16x2"
        | "bf16x2" => Kind::B32,
        ty => return Err(format!("type .{ty} is not implemented")),
    })
}
