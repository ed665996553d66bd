//! Mutants of operands, immediates, predicates, lanes and order.

use std::collections::HashSet;

use super::{Operator, Push};
use crate::{
    ast::{Base, Function, Instruction, Operand},
    cfg,
};

/// Instructions that have effects other than writes of registers.
const EFFECTS: [&str; 17] = [
    "ld",
    "ldu",
    "st",
    "cp",
    "ldmatrix",
    "stmatrix",
    "atom",
    "red",
    "bar",
    "barrier",
    "mbarrier",
    "fence",
    "membar",
    "shfl",
    "vote",
    "activemask",
    "wgmma",
];
/// The instructions in [`EFFECTS`] that only read.
const READS: [&str; 3] = ["ld", "ldu", "ldmatrix"];
/// Number of earlier instructions that are searched for registers of the same kind.
const NEAR: usize = 64;

/// The mutants of instruction `at`, which reads `old`.
pub(super) fn of_instruction(function: &Function, at: usize, old: &str, push: &mut Push<'_>) {
    let instruction = &function.instructions[at];
    let opcode = &*instruction.opcode;
    let base = cfg::base(opcode);
    if matches!(base, "bra" | "brx" | "call" | "ret" | "exit" | "trap" | "") {
        return;
    }
    let Some(start) = old.find(opcode).map(|at| at + opcode.len()) else { return };
    let (head, tail) = old.split_at(start);
    immediates(base, opcode, instruction, head, tail, push);
    lanes(base, opcode, instruction, old, push);
    operands(function, at, head, tail, push);
    if let Some((guard, negated)) = instruction.guard
        && let Some(other) = near(function, at, guard, &[guard])
    {
        let sign = if negated { "@!" } else { "@" };
        push(
            Operator::ChangePredicate,
            format!("{sign}{} {}", name(function, other), &old[head.len() - opcode.len()..]),
        );
    }
    if base == "selp"
        && let [_, a, b, _] = split(tail)[..]
        && a.trim() != b.trim()
    {
        let (d, p) = (split(tail)[0], split(tail)[3]);
        push(Operator::ChangePredicate, format!("{head}{d},{b},{a},{p};"));
    }
}

/// The operands of an instruction, as texts.
fn split(tail: &str) -> Vec<&str> {
    tail.trim_end().trim_end_matches(';').split(',').collect()
}

/// Mutants in which a constant is off by one, or an address is off by one element.
fn immediates(
    base: &str,
    opcode: &str,
    instruction: &Instruction,
    head: &str,
    tail: &str,
    push: &mut Push<'_>,
) {
    for (at, operand) in instruction.operands.iter().enumerate() {
        match operand {
            Operand::Address(Base::Reg(_) | Base::Symbol(_), offset, rest) if rest.is_empty() => {
                let (Some(open), Some(close)) =
                    (nth(tail, '[', at, instruction), nth(tail, ']', at, instruction))
                else {
                    continue;
                };
                let inner = tail[open + 1..close].split(['+', '-']).next().unwrap_or("").trim();
                let step = access_bytes(opcode);
                let (before, after) = (&tail[..open], &tail[close + 1..]);
                push(
                    Operator::ShiftImmediate,
                    format!("{head}{before}[{inner}+{}]{after}", offset.wrapping_add(step)),
                );
            }
            Operand::Int(value)
                if !matches!(
                    base,
                    "cp" | "bar" | "barrier" | "mbarrier" | "shfl" | "vote" | "wgmma" | "setmaxnreg"
                ) =>
            {
                let operator = if matches!(base, "setp" | "min" | "max") {
                    Operator::Bound
                } else {
                    Operator::ShiftImmediate
                };
                let mut parts: Vec<String> = split(tail).into_iter().map(str::to_owned).collect();
                if parts.len() == instruction.operands.len() {
                    parts[at] = format!(" {}", (*value as i64).wrapping_add(1));
                    push(operator, format!("{head}{};", parts.join(",")));
                }
            }
            _ => {}
        }
    }
}

/// The byte of `tail` at which the bracket of operand `at` stands. The addresses stand in the order of the
/// operands.
fn nth(tail: &str, bracket: char, at: usize, instruction: &Instruction) -> Option<usize> {
    let before = instruction.operands[..at].iter().filter(|o| matches!(o, Operand::Address(..))).count();
    tail.match_indices(bracket).nth(before).map(|(at, _)| at)
}

/// Number of bytes that a load, store or copy moves for one lane.
fn access_bytes(opcode: &str) -> i64 {
    let words: Vec<&str> = opcode.split('.').collect();
    let element = words.last().and_then(|ty| crate::parse::type_bytes(ty)).unwrap_or(16) as i64;
    let vector = [("v2", 2), ("v4", 4)].into_iter().find(|(word, _)| words.contains(word));
    match words[0] {
        "cp" | "ldmatrix" | "stmatrix" => 16,
        _ => element * vector.map_or(1, |(_, n)| n),
    }
}

/// Mutants in which other lanes take part, or in which a lane takes another lane's value.
fn lanes(base: &str, opcode: &str, instruction: &Instruction, old: &str, push: &mut Push<'_>) {
    match (base, instruction.operands.as_slice()) {
        ("shfl", [_, _, lane, clamp, members]) => {
            let parts = split(&old[old.find(opcode).unwrap_or(0) + opcode.len()..]).len();
            let with = |index: usize, value: i64| {
                let start = old.find(opcode).unwrap_or(0) + opcode.len();
                let mut parts: Vec<String> = split(&old[start..]).into_iter().map(str::to_owned).collect();
                parts[index] = format!(" {value}");
                format!("{}{};", &old[..start], parts.join(","))
            };
            if let (Operand::Int(lane), 5) = (lane, parts) {
                push(Operator::Lanes, with(2, (*lane ^ 3) as i64));
            }
            if let (Operand::Int(clamp), 5) = (clamp, parts) {
                push(Operator::Lanes, with(3, (*clamp ^ 16) as i64));
            }
            if let (Operand::Int(members), 5) = (members, parts) {
                push(Operator::Lanes, with(4, i64::from(*members as u32 & 0x7fff_ffff)));
            }
        }
        ("vote", [.., Operand::Int(members)]) => {
            for (from, to) in [(".any.", ".all."), (".all.", ".any.")] {
                if opcode.contains(from) {
                    push(Operator::Lanes, old.replacen(from, to, 1));
                }
            }
            if let Some((head, _)) = old.rsplit_once(',') {
                push(Operator::Lanes, format!("{head}, {};", *members as u32 & 0x7fff_ffff));
            }
        }
        ("ldmatrix", _) if opcode.contains(".trans") => push(Operator::Lanes, old.replacen(".trans", "", 1)),
        ("ldmatrix", _) => {
            let transposed = opcode.replacen(".shared", ".trans.shared", 1);
            if transposed != opcode {
                push(Operator::Lanes, old.replacen(opcode, &transposed, 1));
            }
        }
        ("mov", [_, Operand::Special(name)]) => {
            let other = match &**name {
                "%tid.x" => "%laneid",
                "%laneid" => "%tid.x",
                "%ctaid.x" => "%ctaid.y",
                "%ctaid.y" => "%ctaid.x",
                _ => return,
            };
            push(Operator::Lanes, old.replacen(&**name, other, 1));
        }
        _ => {}
    }
}

/// Mutants that replace one source register by the last written register of its kind.
fn operands(function: &Function, at: usize, head: &str, tail: &str, push: &mut Push<'_>) {
    let instruction = &function.instructions[at];
    let first =
        usize::from(!matches!(instruction.opcode.split('.').next(), Some("st" | "red" | "cp" | "bar")));
    let mut used = Vec::new();
    instruction.operands.iter().for_each(|operand| registers(operand, &mut used));
    let mut sources = Vec::new();
    instruction.operands.iter().skip(first).for_each(|operand| registers(operand, &mut sources));
    sources.dedup();
    for source in sources {
        let old = name(function, source);
        let Some(other) = near(function, at, source, &used) else { continue };
        // The destination may have the same name, so the last occurrence is a source.
        if let Some(place) = last_word(tail, &old) {
            let (before, after) = (&tail[..place], &tail[place + old.len()..]);
            push(Operator::Operand, format!("{head}{before}{}{after}", name(function, other)));
        }
    }
}

fn registers(operand: &Operand, out: &mut Vec<u32>) {
    match operand {
        Operand::Reg(id) | Operand::Not(id) => out.push(*id),
        Operand::Address(base, _, coordinates) => {
            out.extend(if let Base::Reg(id) = base { Some(*id) } else { None });
            coordinates.iter().for_each(|o| registers(o, out));
        }
        Operand::Vector(inner) | Operand::Group(inner) => inner.iter().for_each(|o| registers(o, out)),
        Operand::Pair(a, b) => [a, b].into_iter().for_each(|o| registers(o, out)),
        _ => {}
    }
}

/// The register that was written last before instruction `at`, among registers that are declared like
/// `register` and not in `used`.
fn near(function: &Function, at: usize, register: u32, used: &[u32]) -> Option<u32> {
    let kind = function.range(register)?.first;
    let before = &function.instructions[at.saturating_sub(NEAR)..at];
    before.iter().rev().find_map(|instruction| {
        let mut written = Vec::new();
        instruction.operands.first().into_iter().for_each(|operand| registers(operand, &mut written));
        let fits = |id: &u32| !used.contains(id) && function.range(*id).is_some_and(|it| it.first == kind);
        written.into_iter().find(fits)
    })
}

fn name(function: &Function, id: u32) -> String {
    match function.range(id) {
        Some(range) if range.numbered => format!("{}{}", range.name, id - range.first),
        Some(range) => range.name.to_string(),
        None => String::new(),
    }
}

/// Position of the last occurrence of `word` in `text` that is a whole word.
fn last_word(text: &str, word: &str) -> Option<usize> {
    let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.');
    let whole =
        |&(at, _): &(usize, &str)| !text[at + word.len()..].starts_with(part) && !text[..at].ends_with(part);
    text.rmatch_indices(word).find(whole).map(|(at, _)| at)
}

/// The first instruction of each pair of neighbours whose order matters. The order matters if one reads or
/// overwrites registers of the other, or if both have effects and at least one of them writes.
pub(super) fn swaps(text: &str, function: &Function) -> Vec<usize> {
    let labels: HashSet<u32> = function
        .instructions
        .iter()
        .flat_map(|instruction| &instruction.operands)
        .filter_map(|operand| if let Operand::Label(at) = operand { Some(*at) } else { None })
        .collect();
    (0..function.instructions.len().saturating_sub(1))
        .filter(|&at| {
            let [first, second] = [&function.instructions[at], &function.instructions[at + 1]];
            let free = [first, second].iter().all(|it| {
                !matches!(cfg::base(&it.opcode), "bra" | "brx" | "call" | "ret" | "exit" | "trap" | "")
            });
            let between = text.get(first.span.1 as usize..second.span.0 as usize).unwrap_or("{");
            // Braces of scopes, and declarations, must stay in their place.
            let plain = between.lines().all(|line| {
                let line = line.split("//").next().unwrap_or("").trim();
                line.is_empty() || line.starts_with(".loc")
            });
            free && plain && !labels.contains(&(at as u32 + 1)) && matters(first, second)
        })
        .collect()
}

fn matters(first: &Instruction, second: &Instruction) -> bool {
    let written = |instruction: &Instruction| {
        let mut out = Vec::new();
        if !matches!(cfg::base(&instruction.opcode), "st" | "red") {
            instruction.operands.first().into_iter().for_each(|operand| registers(operand, &mut out));
        }
        out
    };
    let touched = |instruction: &Instruction| {
        let mut out = Vec::new();
        instruction.operands.iter().for_each(|operand| registers(operand, &mut out));
        out.extend(instruction.guard.map(|(register, _)| register));
        out
    };
    let meets = |a: &[u32], b: &[u32]| a.iter().any(|register| b.contains(register));
    let depend = meets(&written(first), &touched(second)) || meets(&written(second), &touched(first));
    let [a, b] = [first, second].map(|it| cfg::base(&it.opcode));
    // The `activemask` beside a product only keeps compilers from duplicating the product.
    if matches!((a, b), ("activemask", "wgmma") | ("wgmma", "activemask")) {
        return depend;
    }
    depend || EFFECTS.contains(&a) && EFFECTS.contains(&b) && !(READS.contains(&a) && READS.contains(&b))
}
