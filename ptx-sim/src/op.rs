//! Decoded instructions. Every operand is a register row, so the execution looks up no names.

mod atomic;
mod hopper;
mod mbar;

use crate::{
    ast::Space,
    regs::{Args, R, Run},
};
pub(crate) use atomic::{Atomic, AtomicOp, AtomicType};
pub(crate) use hopper::{Bulk, Operand, Product, Proxy, Reduction, Region, Wgmma};
pub(crate) use mbar::{Mbar, Phase};

/// A decoded instruction.
#[derive(Debug)]
pub(crate) struct Code {
    pub op: Op,
    pub guard: Option<Guard>,
    /// Index into [`crate::decode::Program::sites`].
    pub site: u32,
}

/// A predicate that guards an instruction: `@p` or `@!p`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guard {
    pub reg: R,
    pub negated: bool,
}

/// A row of addresses, 32 or 64 bits wide, plus a constant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addr {
    pub wide: bool,
    pub base: R,
    pub offset: i64,
}

/// A 32- or 64-bit register, or no register (`_`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    W32(R),
    W64(R),
    Sink,
}

/// The part of its register that a loaded element fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extend {
    Zero,
    Sign,
}

/// A load or a store.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub space: Space,
    /// Number of bytes of one element.
    pub bytes: u32,
    pub extend: Extend,
    pub slots: Vec<Slot>,
    pub addr: Addr,
    pub order: Order,
    /// Whether the access uses the read-only path (`.nc`).
    pub read_only: bool,
}

/// The scope of an access or a fence: the block, which is also its cluster, or all threads (`gpu`, `sys`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    Block,
    #[default]
    Device,
}

/// Memory ordering of an access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Order {
    /// Whether the access takes part in communication between threads: `volatile`, `relaxed` and stronger,
    /// atomics.
    pub strong: bool,
    /// Whether the access is `volatile`: strong, but without order between lanes of a warp.
    pub volatile: bool,
    pub acquire: bool,
    pub release: bool,
    pub scope: Scope,
}

/// `cp.async`: copies 4, 8 or 16 bytes from global to shared memory.
#[derive(Clone, Debug)]
pub(crate) struct CpAsync {
    pub dst: Addr,
    pub src: Addr,
    pub bytes: u32,
    /// Number of bytes to read, if it is given. The other bytes become zero.
    pub src_bytes: Option<R>,
    /// A predicate that makes all bytes zero.
    pub ignore: Option<R>,
}

/// `ldmatrix` and `stmatrix`: copy `regs.len()` 8x8 matrices of 16-bit elements.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    pub regs: Vec<R>,
    pub transposed: bool,
    pub space: Space,
    pub addr: Addr,
}

/// Element type of a tensor-core operand of 16-bit elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F16,
    Bf16,
}

/// Element type of the operands of `wgmma`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WgmmaElement {
    Half(Element),
    E4m3,
}

impl WgmmaElement {
    /// Number of elements in 16 bytes.
    pub const fn chunk(self) -> usize {
        match self {
            WgmmaElement::Half(_) => 8,
            WgmmaElement::E4m3 => 16,
        }
    }

    /// The depth of a product: 32 bytes of each row.
    pub const fn depth(self) -> usize {
        2 * self.chunk()
    }
}

/// The types and the depth of `mma`, whose products are 16 rows by 8 columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MmaKind {
    /// A depth of 8 or 16, and accumulators in f32, or in packed f16 if `half`.
    Half { element: Element, k: usize, half: bool },
    /// A depth of 32, and accumulators in f32.
    E4m3,
    /// A depth of 32, and accumulators in s32.
    S8,
}

/// `mma.sync`.
#[derive(Clone, Debug)]
pub(crate) struct Mma {
    pub kind: MmaKind,
    pub d: Vec<R>,
    pub a: Vec<R>,
    pub b: Vec<R>,
    pub c: Vec<R>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarKind {
    Sync,
    Arrive,
    RedPopc,
    RedAnd,
    RedOr,
}

/// The instructions `bar` and `barrier`.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub kind: BarKind,
    /// Whether all threads of a warp arrive together: `bar`, and `barrier` with `.aligned`.
    pub aligned: bool,
    pub id: R,
    pub threads: Option<R>,
    /// The destination and the source predicate of a reduction.
    pub reduce: Option<(Slot, R, R)>,
}

/// The two halves of `barrier.cluster`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClusterStep {
    /// If `relaxed`, the arrival only hands over knowledge that a fence has made available.
    Arrive {
        relaxed: bool,
    },
    Wait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShflMode {
    Up,
    Down,
    Bfly,
    Idx,
}

#[derive(Clone, Debug)]
pub(crate) struct Shfl {
    pub mode: ShflMode,
    pub d: R,
    pub p: Option<R>,
    pub a: R,
    pub b: R,
    pub c: R,
    pub members: R,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VoteMode {
    All,
    Any,
    Uni,
    Ballot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReduxOp {
    Add,
    MinU,
    MaxU,
    MinS,
    MaxS,
    And,
    Or,
    Xor,
}

/// A call. The parameters of the function lie in the frame memory of the caller.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub target: Callee,
    /// Offsets and sizes of the arguments in the frame of the caller.
    pub args: Vec<(u32, u32)>,
    pub returns: Vec<(u32, u32)>,
}

#[derive(Clone, Debug)]
pub(crate) enum Callee {
    /// A function: index into [`crate::decode::Program::functions`].
    Function(usize),
    /// A function pointer: a row of addresses, see [`crate::decode::code_address`].
    Pointer(R),
    /// A function of Rust's core library that panics, by its symbol.
    Panic(Box<str>),
    Vprintf,
    /// A failed assertion on the device: file, line, function, message.
    AssertFail,
    Unknown(Box<str>),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    Clock32(R),
    Clock64(R),
    Nanoseconds(R),
}

/// The operation of an instruction.
#[derive(Debug)]
pub(crate) enum Op {
    Alu {
        run: Run,
        args: Args,
    },
    Move32 {
        d: R,
        s: R,
    },
    Move64 {
        d: R,
        s: R,
    },
    MovePred {
        d: R,
        s: R,
    },
    Load(Box<Access>),
    Store(Box<Access>),
    Atomic(Box<Atomic>),
    CpAsync(Box<CpAsync>),
    CpCommit,
    /// Waits for all groups except for the last `n`; `None` waits for all copies, whether they belong to a
    /// group or not.
    CpWait(Option<u32>),
    LdMatrix(Box<Matrix>),
    StMatrix(Box<Matrix>),
    MovMatrix {
        d: R,
        s: R,
    },
    Mma(Box<Mma>),
    Bar(Box<Bar>),
    WarpSync {
        members: R,
    },
    Shfl(Box<Shfl>),
    Vote {
        mode: VoteMode,
        d: R,
        p: R,
        negated: bool,
        members: R,
    },
    ActiveMask {
        d: R,
    },
    Match {
        d: R,
        a: Slot,
        members: R,
    },
    Redux {
        op: ReduxOp,
        d: R,
        a: R,
        members: R,
    },
    Elect {
        d: Option<R>,
        p: R,
        members: R,
    },
    Mbar(Box<Mbar>),
    /// Orders memory.
    Fence(Scope),
    Proxy(Proxy),
    Wgmma(Box<Wgmma>),
    /// `setmaxnreg`: takes or releases registers.
    SetRegisters {
        more: bool,
        count: u32,
    },
    Bulk(Box<Bulk>),
    /// `barrier.cluster`, in a cluster of one block.
    Cluster {
        step: ClusterStep,
        aligned: bool,
    },
    /// `griddepcontrol.wait`.
    GridWait,
    IsSpace {
        p: R,
        addr: Addr,
        space: Space,
    },
    Clock(Clock),
    Bra {
        target: u32,
        rejoin: u32,
    },
    BrxIdx {
        index: R,
        targets: Box<[u32]>,
        rejoin: u32,
    },
    Call(Box<Call>),
    Ret,
    Exit,
    Trap,
    Nop,
    /// The end of a `.noreturn` function, which no thread may reach.
    Returns,
}
