//! The parsed module. Every register, variable and label in the module is resolved.

use std::collections::HashMap;

/// The state space of a variable or an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Space {
    /// Generic addresses, whose value determines the state space.
    Generic,
    /// Device memory.
    Global,
    /// The constant bank.
    Const,
    /// Shared memory of the thread block.
    Shared,
    /// The memory of one thread.
    Local,
    /// Parameters of a kernel or function.
    Param,
}

/// The width of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegClass {
    /// Predicates (`.pred`).
    Pred,
    /// Registers of 8, 16 and 32 bits.
    B32,
    /// Registers of 64 bits.
    B64,
    /// Registers of 128 bits, which a kernel may declare but the simulator never executes.
    B128,
}

/// A variable in any state space, or a parameter.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub name: Box<str>,
    pub space: Space,
    pub align: u64,
    /// Size in bytes; 0 for an `extern` array without length.
    pub size: u64,
    pub init: Vec<u8>,
    /// The parts of `init` that contain addresses of variables and functions.
    pub relocations: Vec<Relocation>,
    pub external: bool,
    /// Whether the variable is a texture, sampler or surface, which instructions can name but not load.
    pub opaque: bool,
}

/// An address, or some of the bytes of an address, in an initialiser. `generic(name)` and `name` are the same
/// address here, because both state spaces that have initialisers are device memory.
#[derive(Clone, Debug)]
pub(crate) struct Relocation {
    /// Index of the byte in the variable.
    pub at: usize,
    pub bytes: usize,
    /// Name of the variable or function.
    pub symbol: Box<str>,
    pub addend: i64,
    /// Number of the lowest bit of the address that the bytes contain.
    pub shift: u32,
}

/// The meaning of an identifier in an operand.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Symbol {
    /// A variable of the function: index into [`Function::variables`].
    Variable(u32),
    /// A variable of the module, a function, or an unknown name.
    Named(Box<str>),
}

/// The base of an address operand.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Base {
    Reg(u32),
    Symbol(Symbol),
    Absolute,
}

/// An instruction operand.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    Reg(u32),
    /// A negated predicate: `!p`.
    Not(u32),
    Int(u64),
    F32(u32),
    F64(u64),
    /// A symbol with a byte offset.
    Symbol(Symbol, i64),
    /// A special register, such as `%tid.x`.
    Special(Box<str>),
    /// An address: `[base+offset]`. The third field has the coordinates that follow the comma in a tensor
    /// address.
    Address(Base, i64, Vec<Operand>),
    /// A vector: `{a, b}`.
    Vector(Vec<Operand>),
    /// The arguments or results of a call: `(a, b)`.
    Group(Vec<Operand>),
    /// Two destinations: `d|p`.
    Pair(Box<Operand>, Box<Operand>),
    /// A destination that discards its value: `_`.
    Sink,
    /// A label: index of an instruction of this function.
    Label(u32),
}

/// One instruction.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    pub line: u32,
    /// The first and the last byte of the instruction in the text, including guard and semicolon.
    pub span: (u32, u32),
    /// Index into [`Module::locations`]; 0 if the location is unknown.
    pub location: u32,
    /// The predicate register of the guard, and whether it is negated.
    pub guard: Option<(u32, bool)>,
    pub opcode: Box<str>,
    pub operands: Vec<Operand>,
}

/// An entry or a device function.
#[derive(Clone, Debug, Default)]
pub(crate) struct Function {
    pub name: Box<str>,
    pub entry: bool,
    pub defined: bool,
    pub line: u32,
    /// Number of parameters. The parameters are the first variables, and the return values follow.
    pub n_params: usize,
    pub n_returns: usize,
    pub variables: Vec<Variable>,
    /// For each range of registers, its width, and the names of the registers in reports.
    pub registers: Vec<RegRange>,
    pub n_registers: u32,
    pub instructions: Vec<Instruction>,
    pub reqntid: Option<[u32; 3]>,
    pub maxntid: Option<[u32; 3]>,
    pub minnctapersm: Option<u32>,
    pub maxnreg: Option<u32>,
    pub noreturn: bool,
    /// The parameters and results that are registers: index of the variable, and index of the register.
    pub in_registers: Vec<(u32, u32)>,
    /// Parts of the function that are legal PTX but that the simulator does not execute.
    pub refused: Vec<Refused>,
}

/// Legal PTX that the simulator does not execute. A launch returns this part as an error.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub line: u32,
    pub text: Box<str>,
    pub reason: Box<str>,
}

/// A range of registers, `first..first + count`. The names of the registers are `name0..`, or `name` for a
/// single register.
#[derive(Clone, Debug)]
pub(crate) struct RegRange {
    pub name: Box<str>,
    pub first: u32,
    pub count: u32,
    pub numbered: bool,
    pub class: RegClass,
}

impl Function {
    /// The range that contains register `id`.
    pub fn range(&self, id: u32) -> Option<&RegRange> {
        let at = self.registers.partition_point(|range| range.first <= id);
        self.registers.get(at.checked_sub(1)?)
    }
}

/// A source position that a `.loc` directive gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Location {
    pub file: u32,
    pub line: u32,
    pub column: u32,
    /// Byte offset of the directive in the text. A comment that lists the inlined calls may follow the
    /// directive.
    pub at: u32,
}

/// A parsed PTX module.
#[derive(Clone, Debug)]
pub struct Module {
    pub(crate) id: u64,
    pub(crate) version: (u32, u32),
    pub(crate) target: Box<str>,
    pub(crate) files: HashMap<u32, Box<str>>,
    pub(crate) locations: Vec<Location>,
    pub(crate) globals: Vec<Variable>,
    pub(crate) functions: Vec<Function>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) text: Box<str>,
    /// Directives of the module that the simulator does not know. If there are any, the simulator refuses
    /// every launch.
    pub(crate) refused: Vec<Refused>,
    /// Aliases of functions: the name of each alias, and the function that the alias stands for.
    pub(crate) aliases: HashMap<Box<str>, Box<str>>,
}

/// An entry point, and its launch directives.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Entry {
    /// The symbol of the entry.
    pub name: String,
    /// Size of the parameter block in bytes.
    pub param_bytes: usize,
    /// Alignment of the parameter block in bytes.
    pub param_align: usize,
    /// `.reqntid`: the only permitted block shape.
    pub reqntid: Option<[u32; 3]>,
    /// `.maxntid`: the largest block shape.
    pub maxntid: Option<[u32; 3]>,
    /// `.minnctapersm`: the number of blocks that an SM must be able to hold at once.
    pub minnctapersm: Option<u32>,
    /// `.maxnreg`: the number of 32-bit registers that a thread may have.
    pub maxnreg: Option<u32>,
    /// `.target` of the module, for example `sm_80`.
    pub target: String,
    /// Number of bytes of statically declared shared memory that the entry uses.
    pub static_shared: u32,
}

impl Module {
    /// The entry points, in the order of the text.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// The entry named `name`.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// The `.version` directive as (major, minor).
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    pub(crate) fn function(&self, name: &str) -> Option<usize> {
        let name = self.aliases.get(name).map_or(name, |name| name);
        let defined = self.functions.iter().position(|function| *function.name == *name && function.defined);
        defined.or_else(|| self.functions.iter().position(|function| *function.name == *name))
    }

    /// The instruction as the text has it, with each run of blanks reduced to one.
    pub(crate) fn written(&self, instruction: &Instruction) -> String {
        let (start, end) = (instruction.span.0 as usize, instruction.span.1 as usize);
        let text = self.text.get(start..end).unwrap_or(&instruction.opcode);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}
