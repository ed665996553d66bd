//! The guards that keep LLVM from cloning convergent instructions. This file checks that no guard is missing,
//! and removes the guards from the PTX.
//!
//! LLVM treats neither inline assembly nor its intrinsics of matrix instructions as `convergent`. LLVM may
//! therefore clone or sink them into the arms of a divergent branch. `cuda_std` therefore sets an
//! `activemask` beside each of them. LLVM treats `activemask` as convergent, so LLVM does not clone the basic
//! block that contains both instructions.

use std::collections::{HashMap, HashSet};

/// The instruction of a guard.
const GUARD: &str = "activemask.b32";

/// Instructions whose LLVM intrinsics are not convergent.
const MATRIX: [&str; 5] = ["mma", "wmma", "ldmatrix", "stmatrix", "movmatrix"];

/// Convergent instructions whose names need no suffix: barriers and their two halves (arrive and wait), votes
/// and shuffles from before Volta, and calls, because a callee may execute any instruction.
const TOGETHER: [&str; 8] = ["bar", "barrier", "vote", "shfl", "match", "redux", "elect", "call"];

/// Returns the first instruction of `text` that lacks a guard. `text` is the PTX of one function as rustc
/// wrote it. A matrix instruction needs a guard, and so does a convergent instruction in inline assembly.
///
/// In a basic block, each guard covers the next piece of assembly. LLVM keeps the order of the guard and the
/// assembly, but may put other instructions between them.
pub(crate) fn unguarded(text: &str) -> Option<&str> {
    let (mut guards, mut in_assembly, mut covered) = (0u32, false, false);
    for line in text.lines().map(str::trim) {
        if line.starts_with("// begin inline asm") || line.starts_with("// end inline asm") {
            (in_assembly, covered) = (line.starts_with("// begin"), false);
            continue;
        }
        for instruction in statements(line) {
            let name = opcode(instruction);
            // Labels of debug information do not end a basic block.
            let is_label = instruction.ends_with(':') && !instruction.starts_with("$L__tmp");
            if is_label || ["bra", "brx", "ret", "exit", "trap"].contains(&stem(name)) {
                guards = 0;
            } else if name == GUARD {
                guards += 1;
            } else if collective(name) && (in_assembly || MATRIX.contains(&stem(name))) && !covered {
                guards = match guards.checked_sub(1) {
                    Some(left) => left,
                    None => return Some(instruction),
                };
                covered = in_assembly;
            }
        }
    }
    None
}

/// The registers of `text` that only guards write and no instruction reads. The guards of these registers can
/// be removed.
pub(crate) fn idle_guards(text: &str) -> HashSet<&str> {
    let mut uses: HashMap<&str, u32> =
        text.lines().filter_map(guarded).map(|register| (register, 0)).collect();
    if !uses.is_empty() {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "%_$".contains(c);
        for word in text.split(|c| !is_name(c)).filter(|word| word.starts_with('%')) {
            uses.entry(word).and_modify(|count| *count += 1);
        }
    }
    uses.into_iter().filter(|&(_, count)| count == 1).map(|(register, _)| register).collect()
}

/// The register that `line` writes, if `line` is a guard.
pub(crate) fn guarded(line: &str) -> Option<&str> {
    let (name, register) = line.trim().strip_suffix(';')?.split_once(char::is_whitespace)?;
    (name == GUARD).then(|| register.trim())
}

/// The instructions of a line, without comments.
fn statements(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split("//").next().unwrap_or(line);
    code.split([';', '{', '}']).map(str::trim).filter(|statement| !statement.is_empty())
}

/// The opcode of an instruction with its suffixes, without the predicate.
fn opcode(instruction: &str) -> &str {
    instruction.split_whitespace().find(|word| !word.starts_with('@')).unwrap_or_default()
}

fn stem(opcode: &str) -> &str {
    opcode.split('.').next().unwrap_or(opcode)
}

/// Whether all lanes of a warp, or all threads of a block or a cluster, must execute the instruction
/// together.
fn collective(opcode: &str) -> bool {
    TOGETHER.contains(&stem(opcode))
        || MATRIX.contains(&stem(opcode))
        || opcode.split('.').skip(1).any(|suffix| ["sync", "aligned"].contains(&suffix))
}
