//! Operations and types of atomic read-modify-write.

use super::{Addr, Order, Slot};
use crate::ast::Space;

/// An atomic read-modify-write.
#[derive(Clone, Debug)]
pub(crate) struct Atomic {
    pub space: Space,
    pub op: AtomicOp,
    pub ty: AtomicType,
    /// The destinations of the old values, for `atom`.
    pub dst: Vec<Slot>,
    pub addr: Addr,
    pub src: Vec<Slot>,
    /// The new value, for `cas`.
    pub new: Option<Slot>,
    pub order: Order,
}

/// The operation of an atomic or of a bulk reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Inc,
    Dec,
    Exch,
    Cas,
}

impl AtomicOp {
    /// The operation that the word `word` of an opcode names.
    pub fn by_name(word: &str) -> Option<AtomicOp> {
        Some(match word {
            "add" => AtomicOp::Add,
            "min" => AtomicOp::Min,
            "max" => AtomicOp::Max,
            "and" => AtomicOp::And,
            "or" => AtomicOp::Or,
            "xor" => AtomicOp::Xor,
            "inc" => AtomicOp::Inc,
            "dec" => AtomicOp::Dec,
            "exch" => AtomicOp::Exch,
            "cas" => AtomicOp::Cas,
            _ => return None,
        })
    }
}

/// The type of an atomic or of a bulk reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicType {
    U32,
    S32,
    U64,
    S64,
    F32,
    F64,
    F16x2,
    Bf16x2,
    F16,
    Bf16,
}

impl AtomicType {
    /// The type that the word `word` of an opcode names.
    pub fn by_name(word: &str) -> Option<AtomicType> {
        Some(match word {
            "u32" | "b32" => AtomicType::U32,
            "s32" => AtomicType::S32,
            "u64" | "b64" => AtomicType::U64,
            "s64" => AtomicType::S64,
            "f32" => AtomicType::F32,
            "f64" => AtomicType::F64,
            "f16x2" => AtomicType::F16x2,
            "bf16x2" => AtomicType::Bf16x2,
            "f16" => AtomicType::F16,
            "bf16" => AtomicType::Bf16,
            _ => return None,
        })
    }

    pub fn bytes(self) -> u32 {
        match self {
            AtomicType::F16 | AtomicType::Bf16 => 2,
            AtomicType::U64 | AtomicType::S64 | AtomicType::F64 => 8,
            _ => 4,
        }
    }
}
