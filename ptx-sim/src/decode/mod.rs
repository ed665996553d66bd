//! Parsed instructions to [`Op`]s, once per launch.

mod builder;
mod compare;
mod cvt;
pub(crate) mod float;
mod integer;
mod memory;
mod mov;
pub(crate) mod needs;
mod sync;
mod tensor;

use std::collections::HashMap;

pub(crate) use builder::{Constant, FunctionCode, LaneMask, Special};

use crate::{
    ast::{Function, Module, Operand, Symbol},
    cfg,
    decode::builder::Builder,
    op::{Call, Callee, Code, Guard, Op},
    regs::{Alu, Args, Kind, Run},
};

/// Everything a launch executes.
#[derive(Debug)]
pub(crate) struct Program {
    /// All functions, one after the other.
    pub code: Vec<Code>,
    pub functions: Vec<FunctionCode>,
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

/// Decodes `entry` (an index into the module's functions) and all it can call.
pub(crate) fn program(module: &Module, entry: usize, symbols: &Symbols) -> Program {
    let mut program = Program {
        code: Vec::new(),
        functions: Vec::new(),
        sites: Vec::new(),
        equal: HashMap::new(),
        blocks_communicate: false,
        static_shared: 0,
        dynamic_base: SHARED_BASE,
    };
    let mut order = vec![entry];
    let mut shared = shared_layout(module, &module.functions[entry], &mut program);
    shared.extend(symbols.iter().map(|(name, &at)| (name.clone(), at)));
    let mut done = 0;
    while let Some(&index) = order.get(done) {
        let start = program.code.len() as u32;
        let mut builder = Builder::new(module, index, &shared, &mut order, start);
        let function = &module.functions[index];
        let rejoin = cfg::reconvergence(function);
        let mut starts = Vec::with_capacity(function.instructions.len() + 1);
        let mut code: Vec<Code> = Vec::new();
        for (at, instruction) in function.instructions.iter().enumerate() {
            starts.push(start + code.len() as u32);
            let site = program.sites.len() as u32;
            program.sites.push(Site { function: index as u32, instruction: at as u32 });
            builder.guard = instruction.guard.map(|(reg, negated)| Guard { reg: builder.index(reg), negated });
            builder.rejoin = rejoin[at];
            let ops =
                builder.decode(instruction).unwrap_or_else(|reason| vec![Op::Unsupported(reason.into_boxed_str())]);
            program.equal.extend(builder.equal.take().map(|equal| (site, equal)));
            for op in ops {
                program.blocks_communicate |= communicates(&op);
                code.push(Code { op, guard: builder.guard, site });
            }
        }
        starts.push(start + code.len() as u32);
        program.sites.push(Site { function: index as u32, instruction: function.instructions.len() as u32 });
        let end = if function.noreturn { Op::Unsupported(RETURNS.into()) } else { Op::Ret };
        code.push(Code { op: end, guard: None, site: program.sites.len() as u32 - 1 });
        for code in &mut code {
            relocate(&mut code.op, &starts);
        }
        program.functions.push(builder.finish(start));
        program.code.append(&mut code);
        done += 1;
    }
    program
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
    /// What `entry` and the functions it calls contain that a launch could not execute; empty for an unknown entry. Launches fail only where
    /// they reach such an instruction.
    pub fn unsupported(&self, entry: &str) -> Vec<Unsupported> {
        let Some(index) = self.function(entry) else { return Vec::new() };
        let symbols = self.globals.iter().map(|variable| (variable.name.clone(), 0)).collect();
        let program = program(self, index, &symbols);
        let mut found = Vec::new();
        for code in &program.code {
            if let Op::Unsupported(reason) = &code.op {
                let site = program.sites[code.site as usize];
                // The end of a `.noreturn` function stands in no line, and is not reached.
                let function = &self.functions[site.function as usize];
                let Some(instruction) = function.instructions.get(site.instruction as usize) else { continue };
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
            ("cvta", _) => self.cvta(&mods, operands),
            ("setp", mods) => self.setp(mods, operands),
            ("cvt", mods) => self.alu(cvt::find(mods), operands),
            ("bra", _) => match operands.as_slice() {
                [Operand::Label(target)] => Ok(vec![Op::Bra { target: *target, rejoin: self.rejoin }]),
                _ => Err("bra needs a label of this function".into()),
            },
            ("brx", ["idx"] | ["idx", "uni"]) => self.brx(operands),
            ("call", _) => self.call(operands),
            ("ret", _) if self.function.noreturn => Err(RETURNS.into()),
            ("ret", _) => Ok(vec![Op::Ret]),
            ("exit", _) => Ok(vec![Op::Exit]),
            ("trap", _) => Ok(vec![Op::Trap]),
            ("", _) | ("nanosleep" | "pmevent" | "prefetch" | "prefetchu" | "discard" | "applypriority", _) => {
                Ok(vec![Op::Nop])
            }
            ("brkpt", _) => Ok(vec![Op::Trap]),
            ("griddepcontrol", _) => Ok(vec![Op::Nop]),
            ("shfl", _) if mods.first() != Some(&"sync") => Err("shfl without .sync does not exist since sm_70".into()),
            _ => {
                if let Some(ops) = self.memory(op, &mods, operands)? {
                    return Ok(ops);
                }
                if let Some(ops) = self.synchronise(op, &mods, operands)? {
                    return Ok(ops);
                }
                if let Some(ops) = self.tensor(op, &mods, operands)? {
                    return Ok(ops);
                }
                let found =
                    integer::find(op, &mods).or_else(|| float::find(op, &mods)).or_else(|| compare::find(op, &mods));
                match found {
                    Some(alu) => self.alu(Some(alu), operands),
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

    fn setp(&mut self, mods: &[&str], operands: &[Operand]) -> Decoded {
        let (&ty, rest) = mods.split_last().ok_or("setp needs a type")?;
        let (&cmp, flags) = rest.split_first().ok_or("setp needs a comparison")?;
        let ftz = flags.contains(&"ftz");
        let combine = flags.iter().find(|flag| **flag != "ftz");
        let [d, sources @ ..] = operands else { return Err("operands are missing".into()) };
        let (p, q) = match d {
            Operand::Pair(p, q) => ((**p).clone(), Some((**q).clone())),
            other => (other.clone(), None),
        };
        let compare = compare::setp(cmp, ty, ftz).ok_or("this comparison is not implemented")?;
        let third = match combine {
            Some(_) => self.source(sources.get(2).ok_or("a predicate source is missing")?, Kind::Pred)?,
            None => 0,
        };
        let [a, b, ..] = sources else { return Err("operands are missing".into()) };
        // Sources may be among the destinations: everything goes through scratch first.
        let [yes, no] = [self.scratch(Kind::Pred), self.scratch(Kind::Pred)];
        let args = [yes, self.source(a, compare.s[0])?, self.source(b, compare.s[1])?, 0, 0];
        self.equal = compare::setp("eq", ty, ftz).map(|equal| (equal.run, [no, args[1], args[2], 0, 0]));
        if combine.is_none() && q.is_none() {
            return Ok(vec![Op::Alu {
                run: compare.run,
                args: [self.destination(&p, Kind::Pred)?, args[1], args[2], 0, 0],
            }]);
        }
        let not = integer::find("not", &["pred"]).ok_or("not.pred")?;
        let mut ops = vec![Op::Alu { run: compare.run, args }, Op::Alu { run: not.run, args: [no, yes, 0, 0, 0] }];
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

    fn brx(&mut self, operands: &[Operand]) -> Decoded {
        let [index, Operand::Label(table)] = operands else { return Err("brx.idx needs an index and a table".into()) };
        let table = self.function.instructions.get(*table as usize).ok_or("brx.idx needs a .branchtargets table")?;
        let target =
            |operand: &Operand| if let Operand::Label(at) = operand { Ok(*at) } else { Err("unknown label in table") };
        let targets = table.operands.iter().map(target).collect::<Result<Vec<_>, _>>()?;
        Ok(vec![Op::BrxIdx { index: self.source(index, Kind::B32)?, targets: targets.into(), rejoin: self.rejoin }])
    }

    fn call(&mut self, operands: &[Operand]) -> Decoded {
        let (returns, rest) = match operands {
            [Operand::Group(returns), rest @ ..] => (returns.as_slice(), rest),
            rest => (&[][..], rest),
        };
        let (target, args) = match rest {
            [target, Operand::Group(args), ..] => (target, args.as_slice()),
            [target, ..] => (target, &[][..]),
            [] => return Err("call needs a function".into()),
        };
        let Operand::Symbol(Symbol::Named(name), _) = target else {
            return Err("indirect calls are not implemented".into());
        };
        let target = match &**name {
            "vprintf" => Callee::Vprintf,
            "__assertfail" => Callee::AssertFail,
            name => self.callee(name),
        };
        let place = |operand: &Operand| match operand {
            Operand::Symbol(Symbol::Variable(index), _) => Ok(self.frame_slot(*index)),
            _ => Err("a call's arguments must be .param variables".to_string()),
        };
        let args = args.iter().map(place).collect::<Result<_, _>>()?;
        let returns = returns.iter().map(place).collect::<Result<_, _>>()?;
        Ok(vec![Op::Call(Box::new(Call { target, args, returns }))])
    }
}

/// How operands of a type such as `u32` are read.
pub(crate) fn kind(ty: &str) -> Result<Kind, String> {
    Ok(match ty {
        "pred" => Kind::Pred,
        "f32" => Kind::F32,
        "f64" => Kind::F64,
        "b64" | "u64" | "s64" => Kind::B64,
        "b8" | "u8" | "s8" | "b16" | "u16" | "s16" | "f16" | "bf16" | "b32" | "u32" | "s32" | "f16x2" | "bf16x2" => {
            Kind::B32
        }
        ty => return Err(format!("type .{ty} is not implemented")),
    })
}
