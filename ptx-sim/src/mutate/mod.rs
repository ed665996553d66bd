//! Mutation testing. This module plants one small bug at a time in a kernel's PTX, to test whether checkers
//! or results reveal the bug.

mod hopper;
mod values;

use crate::{
    Coverage, ParseError, SourceLine,
    ast::{Function, Instruction, Module, Operand},
    cfg, debug,
};

/// The way in which a mutant changes the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operator {
    /// Deletes a barrier, of the block or of a warp.
    DeleteBarrier,
    /// Deletes a wait for asynchronous copies or for an mbarrier.
    DeleteWait,
    /// Deletes a commit of asynchronous copies.
    DeleteCommit,
    /// Deletes a fence.
    DeleteFence,
    /// Deletes an arrival on an mbarrier.
    DeleteArrive,
    /// Deletes the initialisation of an mbarrier.
    DeleteInit,
    /// Weakens a wait: `wait_group n` becomes `wait_group n + 1`.
    WeakenWait,
    /// Gives a barrier another number.
    BarrierNumber,
    /// Makes a barrier wait for one warp more or less, or an mbarrier for one arrival more or less.
    BarrierCount,
    /// Makes a wait for an mbarrier use the other parity.
    WrongPhase,
    /// Deletes the guard of a load, store, copy or atomic.
    DeleteGuard,
    /// Negates the guard of a load, store, copy or atomic.
    NegateGuard,
    /// Makes the source size of a `cp.async` the full size in every lane.
    ConstantSourceSize,
    /// Negates the condition of a branch.
    NegateBranch,
    /// Makes a conditional branch always jump.
    AlwaysBranch,
    /// Makes a conditional branch never jump.
    NeverBranch,
    /// Adds equality to a comparison or removes it: `lt` becomes `le`.
    OffByOne,
    /// Swaps an instruction with the next one, if their order matters.
    SwapNeighbours,
    /// Adds one to a constant, or one element to an address.
    ShiftImmediate,
    /// Replaces a guard by another predicate, or makes a selection return the other value.
    ChangePredicate,
    /// Adds one to the constant of a comparison, a minimum or a maximum.
    Bound,
    /// Changes an instruction of several lanes: a shuffle reads another lane, a vote returns another result,
    /// a matrix is transposed, a lane is missing, or a thread uses another thread index.
    Lanes,
    /// Replaces a source operand by another register of its kind: the register that was written last.
    Operand,
    /// Gives an operand of a product another place in shared memory, or another order.
    Descriptor,
    /// Makes a product overwrite its accumulators instead of adding to them, or the reverse.
    Accumulate,
    /// Changes the number of bytes that a phase of an mbarrier expects.
    TransactionCount,
    /// Makes a warp take or release another number of registers, or none.
    Registers,
}

/// A function that receives a mutant: its operator, and the text that replaces the instruction.
type Push<'p> = dyn FnMut(Operator, String) + 'p;

/// One bug that can be planted.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Mutant {
    /// The kind of change.
    pub operator: Operator,
    /// Number of the instruction's line, from 1.
    pub line: u32,
    /// Source lines of the instruction, innermost first, as in reports.
    pub source: Vec<SourceLine>,
    /// The change in words, with the instruction before and after it.
    pub description: String,
    /// The first and the last byte of the replaced text.
    pub span: (usize, usize),
    /// The text that replaces it.
    pub replacement: String,
}

impl Mutant {
    /// Returns `text` with the bug. Line numbers do not change.
    pub fn apply(&self, text: &str) -> String {
        let (start, end) = self.span;
        format!("{}{}{}", &text[..start], self.replacement, &text[end..])
    }

    /// Whether the bug can change a launch in which the original kernel had the coverage `coverage`. If not,
    /// every thread behaves as before, and no test needs to repeat the launch.
    pub fn differs(&self, coverage: &Coverage) -> bool {
        let met = coverage.at(self.span.0);
        match self.operator {
            Operator::DeleteGuard | Operator::AlwaysBranch => met.skipped,
            Operator::NeverBranch => met.executed,
            Operator::OffByOne => met.equal,
            Operator::ConstantSourceSize => met.short,
            _ => met.executed || met.skipped,
        }
    }

    /// Whether the bug changes the order of operations, so that its effect may depend on the schedule.
    pub fn orders(&self) -> bool {
        use Operator::*;
        matches!(
            self.operator,
            DeleteBarrier
                | DeleteWait
                | DeleteCommit
                | DeleteFence
                | DeleteArrive
                | DeleteInit
                | WeakenWait
                | BarrierNumber
                | BarrierCount
                | WrongPhase
                | SwapNeighbours
                | TransactionCount
        )
    }
}

/// Every mutant of `entry` and of its callees, in the order of the text. The mutants must be applied to the
/// same `text`.
///
/// # Errors
/// Returns an error if `text` is not PTX. An unknown entry has no mutants.
pub fn mutants(text: &str, entry: &str) -> Result<Vec<Mutant>, ParseError> {
    let module = Module::parse(text)?;
    let Some(index) = module.function(entry) else { return Ok(Vec::new()) };
    let used = crate::parse::reachable(&module, &module.functions[index]);
    let mut all = Vec::new();
    for function in module.functions.iter().filter(|function| used.contains(&function.name)) {
        for (at, instruction) in function.instructions.iter().enumerate() {
            let first = all.len();
            of_instruction(text, function, at, instruction, &mut all);
            for mutant in &mut all[first..] {
                mutant.source = debug::source(&module, function, at);
            }
        }
        for at in values::swaps(text, function) {
            all.extend(swapped(text, &module, function, at));
        }
    }
    all.sort_by_key(|mutant| mutant.span.0);
    Ok(all)
}

/// The mutant that swaps instruction `at` with the next one.
fn swapped(text: &str, module: &Module, function: &Function, at: usize) -> Option<Mutant> {
    let [first, second] = [at, at + 1].map(|at| &function.instructions[at]);
    let [a, b] = [first, second].map(|it| (it.span.0 as usize, it.span.1 as usize));
    let [one, between, two] = [text.get(a.0..a.1)?, text.get(a.1..b.0)?, text.get(b.0..b.1)?];
    Some(Mutant {
        operator: Operator::SwapNeighbours,
        line: first.line,
        source: debug::source(module, function, at),
        description: format!("`{}` and `{}` change places", module.written(first), module.written(second)),
        span: (a.0, b.1),
        replacement: format!("{two}{between}{one}"),
    })
}

fn of_instruction(
    text: &str,
    function: &Function,
    at: usize,
    instruction: &Instruction,
    all: &mut Vec<Mutant>,
) {
    let span = (instruction.span.0 as usize, instruction.span.1 as usize);
    let Some(old) = text.get(span.0..span.1) else { return };
    let mut push = |operator, new: String| {
        let line = instruction.line;
        let short = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let description = match new.is_empty() {
            true => format!("`{}` deleted", short(old)),
            false => format!("`{}` becomes `{}`", short(old), short(&new)),
        };
        // The replacement keeps the number of lines, so that line numbers stay valid.
        let lost = old.matches('\n').count().saturating_sub(new.matches('\n').count());
        let (source, replacement) = (Vec::new(), new + &"\n".repeat(lost));
        all.push(Mutant { operator, line, source, description, span, replacement });
    };
    let opcode = &*instruction.opcode;
    let base = cfg::base(opcode);
    let is = |prefix: &str| opcode.starts_with(prefix);
    if matches!(base, "bar" | "barrier") && !opcode.contains(".red") {
        push(Operator::DeleteBarrier, String::new());
        barrier_operands(old, opcode, instruction, &mut push);
    }
    if is("cp.async.wait") || is("cp.async.bulk.wait") || is("wgmma.wait_group") {
        push(Operator::DeleteWait, String::new());
        if let Some(Operand::Int(n)) = instruction.operands.first() {
            let guard = &old[..old.find(opcode).unwrap_or(0)];
            push(Operator::WeakenWait, format!("{guard}{opcode} {};", n + 1));
        }
    }
    if is("griddepcontrol.wait") {
        push(Operator::DeleteWait, String::new());
    }
    if opcode.ends_with("commit_group") || is("wgmma.commit_group") {
        push(Operator::DeleteCommit, String::new());
    }
    if matches!(base, "fence" | "membar") {
        push(Operator::DeleteFence, String::new());
    }
    if is("mbarrier.arrive") || is("cp.async.mbarrier.arrive") {
        push(Operator::DeleteArrive, String::new());
    }
    if is("mbarrier.init") {
        push(Operator::DeleteInit, String::new());
    }
    mbarrier_operands(old, opcode, instruction, &mut push);
    let bare = old.find(opcode).map_or(old, |at| &old[at..]);
    if let Some((_, negated)) = instruction.guard {
        let flipped = match negated {
            true => old.replacen('!', "", 1),
            false => old.replacen('@', "@!", 1),
        };
        match base {
            "ld" | "st" | "cp" | "atom" | "red" => {
                push(Operator::DeleteGuard, bare.to_string());
                push(Operator::NegateGuard, flipped);
            }
            "bra" => {
                push(Operator::NegateBranch, flipped);
                push(Operator::AlwaysBranch, bare.to_string());
                push(Operator::NeverBranch, String::new());
            }
            _ => {}
        }
    }
    if is("cp.async.c")
        && let [_, _, Operand::Int(bytes), Operand::Reg(register)] = instruction.operands.as_slice()
        && function.range(*register).is_some_and(|range| range.class != crate::ast::RegClass::Pred)
        && let Some(comma) = old.rfind(',')
    {
        push(Operator::ConstantSourceSize, format!("{}, {bytes};", &old[..comma]));
    }
    if base == "setp" {
        for (from, to) in [(".lt.", ".le."), (".le.", ".lt."), (".gt.", ".ge."), (".ge.", ".gt.")] {
            if opcode.contains(from) {
                push(Operator::OffByOne, old.replacen(from, to, 1));
            }
        }
    }
    hopper::of_instruction(old, instruction, &mut push);
    values::of_instruction(function, at, old, &mut push);
}

/// Mutants that give a barrier another number or another count.
fn barrier_operands(
    old: &str,
    opcode: &str,
    instruction: &Instruction,
    push: &mut impl FnMut(Operator, String),
) {
    if opcode.contains(".warp.") {
        return;
    }
    let Some(at) = old.find(opcode) else { return };
    let head = &old[..at + opcode.len()];
    match instruction.operands.as_slice() {
        [Operand::Int(id)] => push(Operator::BarrierNumber, format!("{head} {};", (id + 1) % 16)),
        [Operand::Int(id), Operand::Int(count)] => {
            push(Operator::BarrierNumber, format!("{head} {}, {count};", (id + 1) % 16));
            push(Operator::BarrierCount, format!("{head} {id}, {};", count + 32));
            push(Operator::BarrierCount, format!("{head} {id}, {};", count.saturating_sub(32)));
        }
        _ => {}
    }
}

/// Mutants of an mbarrier: one arrival more or less, a wait that is already over, and a wait for the other
/// phase. The operands are given as text.
fn mbarrier_operands(
    old: &str,
    opcode: &str,
    instruction: &Instruction,
    push: &mut impl FnMut(Operator, String),
) {
    if instruction.guard.is_some() || !opcode.starts_with("mbarrier.") {
        return;
    }
    let Some((head, last)) = old.trim_end_matches(';').rsplit_once(',') else { return };
    // The change uses a new register in its own scope.
    let changed =
        |change: &str| format!("{{ .reg .b32 mutant; {change} mutant, {last}, 1; {head}, mutant; }}");
    if opcode.starts_with("mbarrier.init") {
        push(Operator::BarrierCount, changed("add.u32"));
        push(Operator::BarrierCount, changed("sub.u32"));
    }
    let waits = opcode.contains("test_wait") || opcode.contains("try_wait");
    if waits && let Some((passed, _)) = head.split_once(',') {
        push(Operator::DeleteWait, format!("{}, 0, 0;", passed.replacen(opcode, "setp.eq.u32", 1)));
        if opcode.contains(".parity") {
            push(Operator::WrongPhase, changed("xor.b32"));
        }
    }
}
