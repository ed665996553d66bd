//! Decodes parsed instructions to [`Op`]s, once per launch.

mod builder;
mod bulk;
mod call;
mod carry;
mod compare;
mod cvt;
pub(crate) mod float;
mod hopper;
mod integer;
mod mbarrier;
mod memory;
mod mov;
pub(crate) mod needs;
mod special;
mod sync;
mod tensor;
mod words;

use std::collections::{HashMap, HashSet};

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

/// The decoded code and data of a launch.
#[derive(Debug)]
pub(crate) struct Program {
    /// The code of all functions, one after the other.
    pub code: Vec<Code>,
    pub functions: Vec<FunctionCode>,
    /// Indices into `functions`, by [`code_address`].
    pub addresses: HashMap<u64, usize>,
    pub sites: Vec<Site>,
    /// For coverage: for the site of each `setp`, an operation that compares the operands for equality.
    pub equal: HashMap<u32, (Run, Args)>,
    /// Whether the program contains a global atomic, or a wait for another block.
    pub blocks_communicate: bool,
    /// Parts of the text that the simulator does not execute. If there are any, the simulator refuses
    /// launches of the module.
    pub refused: Vec<Unsupported>,
    /// Bytes of static shared memory, from the start of the window. Dynamic shared memory follows.
    pub static_shared: u32,
    pub dynamic_base: u32,
}

/// The place of an instruction in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    pub function: u32,
    pub instruction: u32,
}

/// Start of shared memory in its window. Since sm_80, the first KiB belongs to the system.
pub(crate) const SHARED_BASE: u32 = 1024;

/// Addresses of the module's variables, by name.
pub(crate) type Symbols = HashMap<Box<str>, u64>;

/// The address of a function of the module. No load can read addresses in this window.
pub(crate) fn code_address(function: usize) -> u64 {
    (4 << 60) + 16 * (function as u64 + 1)
}

/// The functions that `entry` can call, including `entry`: by name, or through an address that a function or
/// an initialiser contains.
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

/// Checks that the module's target and version have all instructions of `entry` and of the functions that it
/// calls.
///
/// # Errors
/// Returns [`LaunchError::Needs`], which names the first line with an instruction that the target or version
/// lacks.
pub(crate) fn check(module: &Module, entry: usize) -> Result<(), LaunchError> {
    let functions = called(module, entry).into_iter().map(|index| &module.functions[index]);
    needs::check(module, functions.flat_map(|function| &function.instructions))
}

/// The parts of `functions`, and of the module's directives, that the simulator does not know.
fn refused(module: &Module, functions: &[usize]) -> Vec<Unsupported> {
    let functions = || functions.iter().map(|&index| &module.functions[index]);
    let directives = module.refused.iter().chain(functions().flat_map(|function| &function.refused));
    let mut found: Vec<_> = directives
        .map(|refused| Unsupported {
            line: refused.line,
            instruction: refused.text.to_string(),
            reason: refused.reason.to_string(),
        })
        .collect();
    found.extend(words::unknown(module, functions().flat_map(|function| &function.instructions)));
    found
}

/// Decodes `entry` (an index into the module's functions) and all functions that it can call.
pub(crate) fn program(module: &Module, entry: usize, symbols: &Symbols) -> Program {
    let mut program = Program {
        code: Vec::new(),
        functions: Vec::new(),
        addresses: HashMap::new(),
        sites: Vec::new(),
        equal: HashMap::new(),
        blocks_communicate: false,
        refused: Vec::new(),
        static_shared: 0,
        dynamic_base: SHARED_BASE,
    };
    let order = called(module, entry);
    program.refused = refused(module, &order);
    let refused: HashSet<u32> = program.refused.iter().map(|refused| refused.line).collect();
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
        let params = builder.in_registers(false).into_iter();
        code.extend(params.flatten().map(|op| Code { op, guard: None, site }));
        for (at, instruction) in function.instructions.iter().enumerate() {
            starts.push(start + code.len() as u32);
            let site = program.sites.len() as u32;
            program.sites.push(Site { function: index as u32, instruction: at as u32 });
            builder.guard =
                instruction.guard.map(|(reg, negated)| Guard { reg: builder.index(reg), negated });
            builder.rejoin = rejoin[at];
            let ops = builder.decode(instruction).map(|ops| builder.prelude.drain(..).chain(ops).collect());
            let ops = ops.unwrap_or_else(|reason| {
                let (line, instruction) = (instruction.line, module.written(instruction));
                if !refused.contains(&line) {
                    program.refused.push(Unsupported { line, instruction, reason });
                }
                Vec::new()
            });
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
        code.extend(builder.ret().into_iter().flatten().map(|op| Code { op, guard: None, site }));
        for code in &mut code {
            relocate(&mut code.op, &starts);
        }
        program.functions.push(builder.finish(start));
        program.code.append(&mut code);
    }
    program
}

/// An instruction that the simulator does not execute.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Unsupported {
    /// Number of the line in the PTX, from 1.
    pub line: u32,
    /// The text of the instruction.
    pub instruction: String,
    /// The reason why the simulator does not execute the instruction.
    pub reason: String,
}

impl Module {
    /// The parts of `entry`, of the functions that it calls, and of the module's directives that the
    /// simulator does not execute. If there are any, [`launch`](crate::Gpu::launch) refuses the kernel. The
    /// list is empty for an unknown entry.
    pub fn unsupported(&self, entry: &str) -> Vec<Unsupported> {
        let Some(index) = self.function(entry) else { return Vec::new() };
        let variables = self.globals.iter().filter(|variable| !variable.opaque);
        let symbols = variables.map(|variable| (variable.name.clone(), 0)).collect();
        program(self, index, &symbols).refused
    }
}

/// Whether blocks may wait for each other through this instruction, or combine their results in place. Such
/// blocks take turns, so that each read, modification and write is one step, in an order that the seed
/// determines.
fn communicates(op: &Op) -> bool {
    use crate::{ast::Space, op::Bulk};
    match op {
        Op::Atomic(atomic) => !matches!(atomic.space, Space::Shared),
        Op::Load(access) | Op::Store(access) => {
            access.order.strong && matches!(access.space, Space::Global | Space::Generic)
        }
        Op::Bulk(bulk) => matches!(**bulk, Bulk::Store { reduction: Some(_), .. }),
        _ => false,
    }
}

/// Converts the instruction indices of branches into code indices.
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

/// Assigns places to all shared variables that the entry uses. All `extern` arrays begin after the static
/// variables.
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

/// The key of a shared variable that is declared inside a function.
pub(crate) fn scoped_shared(function: &str, variable: &str) -> Box<str> {
    format!("{function}/{variable}").into()
}

type Decoded = Result<Vec<Op>, String>;

impl Builder<'_> {
    fn decode(&mut self, instruction: &crate::ast::Instruction) -> Decoded {
        let mut parts = instruction.opcode.split('.');
        let op = parts.next().unwrap_or("");
        let mut mods: Vec<&str> = parts.collect();
        let mut operands = instruction.operands.as_slice();
        if let Some(at) = mods.iter().position(|word| *word == words::HINT) {
            let [rest @ .., policy] = operands else { return Err("a cache policy is missing".into()) };
            self.source(policy, Kind::B64)?;
            mods.remove(at);
            operands = rest;
        }
        let all = [
            Self::control,
            Self::hopper,
            Self::bulk,
            Self::memory,
            Self::synchronise,
            Self::mbarriers,
            Self::tensor,
            Self::carry,
        ];
        for family in all {
            if let Some(ops) = family(self, op, &mods, operands)? {
                return Ok(ops);
            }
        }
        let found =
            integer::find(op, &mods).or_else(|| float::find(op, &mods)).or_else(|| compare::find(op, &mods));
        self.alu(found, operands)
    }

    /// Decodes branches, calls, moves, comparisons, conversions, and instructions that have no effect in the
    /// simulator.
    fn control(&mut self, op: &str, mods: &[&str], operands: &[Operand]) -> Result<Option<Vec<Op>>, String> {
        let ops = match (op, mods, operands) {
            ("mov", [ty], _) => self.mov(ty, operands)?,
            ("mov", [_, ty], _) => self.mov_vector(ty, operands)?,
            ("cvta", ..) => self.cvta(mods, operands)?,
            ("setp", ..) => self.setp(mods, operands)?,
            ("cvt", ..) => self.cvt(mods, operands)?,
            ("bra", _, [Operand::Label(target)]) => {
                vec![Op::Bra { target: *target, rejoin: self.rejoin }]
            }
            ("bra", ..) => return Err("bra needs a label of this function".into()),
            ("brx", ..) => self.brx(operands)?,
            ("call", ..) => self.call(operands)?,
            ("ret", ..) => self.ret()?,
            ("exit", ..) => vec![Op::Exit],
            ("trap" | "brkpt", ..) => vec![Op::Trap],
            ("griddepcontrol", ["wait"], _) => vec![Op::GridWait],
            // These instructions have no effect here: tables of labels, hints, and instructions that order or
            // measure launches.
            ("" | "prefetchu" | "applypriority" | "nanosleep" | "pmevent" | "griddepcontrol", ..) => {
                vec![Op::Nop]
            }
            // The policy is a hint, so any value is valid.
            ("createpolicy", _, [d, ..]) => {
                let s = self.constant(Kind::B64, Constant::Value(0x14f0_0000_0000_0000));
                vec![Op::Move64 { d: self.destination(d, Kind::B64)?, s }]
            }
            _ => return Ok(None),
        };
        Ok(Some(ops))
    }

    fn alu(&mut self, alu: Option<Alu>, operands: &[Operand]) -> Decoded {
        let alu = alu.ok_or("the simulator does not execute this combination of words")?;
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

/// The register kind for operands of a type such as `u32`.
pub(crate) fn kind(ty: &str) -> Result<Kind, String> {
    Ok(match ty {
        "pred" => Kind::Pred,
        "f32" => Kind::F32,
        "f64" => Kind::F64,
        "b64" | "u64" | "s64" => Kind::B64,
        "b8" | "u8" | "s8" | "b16" | "u16" | "s16" | "f16" | "bf16" | "b32" | "u32" | "s32" | "f16x2"
        | "bf16x2" => Kind::B32,
        ty => return Err(format!("the simulator does not execute type .{ty}")),
    })
}
