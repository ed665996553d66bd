//! The parsed module, with every register, variable and label resolved.

use std::collections::HashMap;

/// State space of a variable or an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Space {
    /// Generic address: its value tells the state space.
    Generic,
    /// Device memory.
    Global,
    /// Constant bank.
    Const,
    /// Shared memory of the thread block.
    Shared,
    /// Memory of one thread.
    Local,
    /// Kernel or function parameters.
    Param,
}

/// Width class of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegClass {
    /// `.pred`
    Pred,
    /// 8, 16 and 32 bits.
    B32,
    /// 64 bits.
    B64,
    /// 128 bits: declared, never executed.
    B128,
}

/// A variable in any state space, or a parameter.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub name: Box<str>,
    pub space: Space,
    pub align: u64,
    /// Bytes; 0 for an `extern` array without length.
    pub size: u64,
    pub init: Vec<u8>,
    /// Positions in `init` that hold addresses.
    pub relocations: Vec<Relocation>,
    pub external: bool,
    /// Whether the variable is a texture, sampler or surface, which has a name but cannot be loaded.
    pub opaque: bool,
}

/// An address, or some of its bytes, in an initialiser. `generic(name)` and `name` are equal here: both state
/// spaces that have initialisers are device memory.
#[derive(Clone, Debug)]
pub(crate) struct Relocation {
    /// Byte of the variable.
    pub at: usize,
    pub bytes: usize,
    /// Variable or function.
    pub symbol: Box<str>,
    pub addend: i64,
    /// The lowest bit of the address that the bytes hold.
    pub shift: u32,
}

/// The meaning of an identifier in an operand.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Symbol {
    /// Index into [`Function::variables`].
    Variable(u32),
    /// A module variable, a function, or unknown.
    Named(Box<str>),
}

/// Base of an address operand.
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
    /// `!p`
    Not(u32),
    Int(u64),
    F32(u32),
    F64(u64),
    /// Symbol with a byte offset.
    Symbol(Symbol, i64),
    /// A special register such as `%tid.x`.
    Special(Box<str>),
    /// `[base+offset]`; the third field holds a tensor address's coordinates after the comma.
    Address(Base, i64, Vec<Operand>),
    /// `{a, b}`
    Vector(Vec<Operand>),
    /// `(a, b)` of a call.
    Group(Vec<Operand>),
    /// `d|p`
    Pair(Box<Operand>, Box<Operand>),
    /// `_`
    Sink,
    /// Index of an instruction of this function.
    Label(u32),
}

/// One instruction.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    pub line: u32,
    /// Bytes of the text, guard and semicolon included.
    pub span: (u32, u32),
    /// Index into [`Module::locations`]; 0 is "unknown".
    pub location: u32,
    /// Predicate register and whether it is negated.
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
    /// Parameters are the first variables, return values follow them.
    pub n_params: usize,
    pub n_returns: usize,
    pub variables: Vec<Variable>,
    /// Class of each register and, for reports, its name.
    pub registers: Vec<RegRange>,
    pub n_registers: u32,
    pub instructions: Vec<Instruction>,
    pub reqntid: Option<[u32; 3]>,
    pub maxntid: Option<[u32; 3]>,
    pub minnctapersm: Option<u32>,
    pub maxnreg: Option<u32>,
    pub noreturn: bool,
    /// Parameters and results that are registers: variable and register.
    pub in_registers: Vec<(u32, u32)>,
    /// Parts of the function that are legal PTX and that the simulator does not run.
    pub refused: Vec<Refused>,
}

/// Legal PTX that the simulator does not run. A launch returns it as an error.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub line: u32,
    pub text: Box<str>,
    pub reason: Box<str>,
}

/// A range of registers, `first..first + count`. Their names are `name0..`, or `name` for a single register.
#[derive(Clone, Debug)]
pub(crate) struct RegRange {
    pub name: Box<str>,
    pub first: u32,
    pub count: u32,
    pub numbered: bool,
    pub class: RegClass,
}

impl Function {
    /// The range that holds register `id`.
    pub fn range(&self, id: u32) -> Option<&RegRange> {
        let at = self.registers.partition_point(|range| range.first <= id);
        self.registers.get(at.checked_sub(1)?)
    }
}

/// A source position as `.loc` gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Location {
    pub file: u32,
    pub line: u32,
    pub column: u32,
    /// Byte offset of the directive. The comment that lists the inlined calls follows it.
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
    /// Directives of the module that the simulator does not know. If there are any, every launch is refused.
    pub(crate) refused: Vec<Refused>,
    /// Aliases of functions.
    pub(crate) aliases: HashMap<Box<str>, Box<str>>,
}

/// An entry point and its launch directives.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Entry {
    /// Symbol.
    pub name: String,
    /// Bytes of the parameter block.
    pub param_bytes: usize,
    /// Alignment of the parameter block in bytes.
    pub param_align: usize,
    /// `.reqntid`: the only permitted block shape.
    pub reqntid: Option<[u32; 3]>,
    /// `.maxntid`: the largest block shape.
    pub maxntid: Option<[u32; 3]>,
    /// `.minnctapersm`: blocks that a multiprocessor must be able to hold at once.
    pub minnctapersm: Option<u32>,
    /// `.maxnreg`: 32-bit registers that a thread may have.
    pub maxnreg: Option<u32>,
    /// `.target` of the module, e.g. `sm_80`.
    pub target: String,
    /// Bytes of statically declared shared memory that the entry uses.
    pub static_shared: u32,
}

impl Module {
    /// The entry points in the order of the text.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// The entry named `name`.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// `.version` as (major, minor).
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    pub(crate) fn function(&self, name: &str) -> Option<usize> {
        let name = self.aliases.get(name).map_or(name, |name| name);
        let defined = self.functions.iter().position(|function| *function.name == *name && function.defined);
        defined.or_else(|| self.functions.iter().position(|function| *function.name == *name))
    }

    /// The instruction as written, with blanks reduced.
    pub(crate) fn written(&self, instruction: &Instruction) -> String {
        let (start, end) = (instruction.span.0 as usize, instruction.span.1 as usize);
        let text = self.text.get(start..end).unwrap_or(&instruction.opcode);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}
