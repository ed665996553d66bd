//! Mutants of products, bulk copies and register budgets.

use super::{Operator, Push};
use crate::ast::{Instruction, Operand};

/// The mutants of `instruction`, which reads `old`.
pub(super) fn of_instruction(old: &str, instruction: &Instruction, push: &mut Push<'_>) {
    let opcode = &*instruction.opcode;
    if opcode.starts_with("wgmma.fence") {
        push(Operator::DeleteFence, String::new());
    } else if opcode.starts_with("wgmma.mma_async") {
        product(old, instruction, push);
    } else if opcode.starts_with("setmaxnreg") {
        if let [Operand::Int(count)] = instruction.operands.as_slice() {
            push(Operator::Registers, format!("{opcode} {};", count + 8));
            // This code cannot know the number of registers that a thread needs. A survival of a mutant with
            // fewer registers would therefore prove nothing.
            if opcode.contains(".dec.") {
                push(Operator::Registers, String::new());
            }
        }
    } else if opcode.starts_with("cp.async.bulk.tensor") {
        coordinates(old, push);
    } else if opcode.starts_with("mbarrier.") && opcode.contains("expect_tx") {
        let Some((head, last)) = old.trim_end_matches(';').rsplit_once(',') else { return };
        for (change, by) in [("add.u32", 16), ("sub.u32", 16), ("shr.u32", 1)] {
            push(Operator::TransactionCount, with("b32", change, last, by, &format!("{head}, mutant;")));
        }
    }
}

/// The instruction `text`, before which `change` modifies `value` in a new register in its own scope.
fn with(ty: &str, change: &str, value: &str, by: u64, text: &str) -> String {
    format!("{{ .reg .{ty} mutant; {change} mutant, {}, {by}; {text} }}", value.trim())
}

/// Mutants of a product: a descriptor has another start, swizzle or stride; the product overwrites its
/// accumulators instead of adding to them; an operand is transposed.
fn product(old: &str, instruction: &Instruction, push: &mut Push<'_>) {
    // In the text, the accumulators are in braces. If A is in registers, A is in braces too.
    let Some(end) = old.rfind('}').or_else(|| old.find('}')) else { return };
    let (head, tail) = old.split_at(end + 1);
    let parts: Vec<&str> = tail.trim_end().trim_end_matches(';').split(',').skip(1).collect();
    let in_registers = matches!(instruction.operands.get(1), Some(Operand::Vector(_)));
    let descriptors = if in_registers { 1 } else { 2 };
    let replaced = |at: usize, value: &str| {
        let mut parts = parts.clone();
        parts[at] = value;
        format!("{head},{};", parts.join(","))
    };
    if parts.len() < descriptors + 3 {
        return;
    }
    for (at, descriptor) in parts.iter().enumerate().take(descriptors) {
        // The descriptor begins two chunks further, or a row of 128 bytes further; or it has another swizzle,
        // or another stride between groups.
        for (change, by) in [("add.u64", 2), ("add.u64", 64), ("xor.b64", 3 << 62), ("add.u64", 1 << 32)] {
            push(Operator::Descriptor, with("b64", change, descriptor, by, &replaced(at, " mutant")));
        }
    }
    if let Some(Operand::Int(adds)) = instruction.operands.get(3) {
        push(Operator::Accumulate, replaced(descriptors, &format!(" {}", u8::from(*adds == 0))));
    }
    for (at, order) in parts.iter().enumerate().skip(descriptors + 3) {
        let other = if order.trim() == "0" { " 1" } else { " 0" };
        push(Operator::Lanes, replaced(at, other));
    }
}

/// Mutants in which the box begins one element further, along each dimension.
fn coordinates(old: &str, push: &mut Push<'_>) {
    let (Some(open), Some(close)) = (old.find('{'), old.find('}')) else { return };
    let parts: Vec<&str> = old[open + 1..close].split(',').collect();
    for (at, part) in parts.iter().enumerate() {
        let mut parts = parts.clone();
        parts[at] = " mutant";
        let text = format!("{}{{{}}}{}", &old[..open], parts.join(","), &old[close + 1..]);
        push(Operator::ShiftImmediate, with("b32", "add.u32", part, 1, &text));
    }
}
