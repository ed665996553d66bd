//! Control flow: the instructions at which diverged lanes reconverge.

use crate::ast::{Function, Instruction, Operand};

/// Marks paths that never reconverge before the end of the function.
pub(crate) const NEVER: u32 = u32::MAX;

/// The first word of an opcode, such as `bra` of `bra.uni`.
pub(crate) fn base(opcode: &str) -> &str {
    opcode.split('.').next().unwrap_or("")
}

/// The instructions that may follow instruction `at`; `n`, the index behind the last instruction, is the end
/// of the function. Lanes that exit follow nothing, unless `exits` lead to the end.
fn successors(function: &Function, at: usize, exits: bool) -> Vec<usize> {
    let instruction = &function.instructions[at];
    let mut next = match base(&instruction.opcode) {
        "bra" => targets(&instruction.operands),
        "brx" => match instruction.operands.last() {
            Some(Operand::Label(table)) => function
                .instructions
                .get(*table as usize)
                .map_or(Vec::new(), |table| targets(&table.operands)),
            _ => Vec::new(),
        },
        "exit" | "trap" if !exits => Vec::new(),
        "ret" | "exit" | "trap" => vec![function.instructions.len()],
        _ => return vec![at + 1],
    };
    if instruction.guard.is_some() {
        next.push(at + 1);
    }
    next
}

fn targets(operands: &[Operand]) -> Vec<usize> {
    operands
        .iter()
        .filter_map(|operand| if let Operand::Label(at) = operand { Some(*at as usize) } else { None })
        .collect()
}

fn ends_block(instruction: &Instruction) -> bool {
    matches!(base(&instruction.opcode), "bra" | "brx" | "ret" | "exit" | "trap")
}

/// For every instruction, the start of the block that is its immediate post-dominator, or [`NEVER`]. Only the
/// values of branches are used.
///
/// Lanes that exit or trap leave their warp. The other lanes do not wait for them, so the paths of a panic do
/// not count. If all paths of a block exit, they count.
pub(crate) fn reconvergence(function: &Function) -> Vec<u32> {
    let n = function.instructions.len();
    let mut leader = vec![false; n + 1];
    leader[0] = true;
    leader[n] = true;
    for (at, instruction) in function.instructions.iter().enumerate() {
        if ends_block(instruction) {
            leader[at + 1] = true;
            successors(function, at, true).into_iter().for_each(|to| leader[to.min(n)] = true);
        }
    }
    let starts: Vec<usize> = (0..=n).filter(|&at| leader[at]).collect();
    let mut block_of = vec![0usize; n + 1];
    for (block, &start) in starts.iter().enumerate() {
        let end = starts.get(block + 1).copied().unwrap_or(n + 1);
        block_of[start..end].fill(block);
    }
    let exit = starts.len() - 1;
    let [returning, all] = [false, true].map(|exits| {
        let next = |block: usize| {
            let next = successors(function, starts[block + 1] - 1, exits).into_iter();
            next.map(|to| block_of[to.min(n)]).collect()
        };
        post_dominators(&(0..exit).map(next).collect::<Vec<_>>(), exit)
    });
    (0..n)
        .map(|at| match returning[block_of[at]].or(all[block_of[at]]) {
            Some(block) if block != exit => starts[block] as u32,
            _ => NEVER,
        })
        .collect()
}

/// The immediate post-dominators of blocks `0..=exit` (Cooper, Harvey and Kennedy, on the reversed graph).
fn post_dominators(next: &[Vec<usize>], exit: usize) -> Vec<Option<usize>> {
    let mut previous = vec![Vec::new(); exit + 1];
    for (block, next) in next.iter().enumerate() {
        next.iter().for_each(|&to| previous[to].push(block));
    }
    let mut order = Vec::new(); // post-order of the reversed graph
    let mut seen = vec![false; exit + 1];
    let mut stack = vec![(exit, 0)];
    seen[exit] = true;
    while let Some((block, child)) = stack.pop() {
        if let Some(&to) = previous[block].get(child) {
            stack.push((block, child + 1));
            if !seen[to] {
                seen[to] = true;
                stack.push((to, 0));
            }
        } else {
            order.push(block);
        }
    }
    let mut rank = vec![usize::MAX; exit + 1];
    order.iter().enumerate().for_each(|(at, &block)| rank[block] = at);
    let mut ipdom: Vec<Option<usize>> = vec![None; exit + 1];
    ipdom[exit] = Some(exit);
    let mut changed = true;
    while changed {
        changed = false;
        for &block in order.iter().rev().filter(|&&block| block != exit) {
            let mut new = None;
            for &to in &next[block] {
                if ipdom[to].is_some() {
                    new = Some(new.map_or(to, |other| meet(&ipdom, &rank, other, to)));
                }
            }
            if new.is_some() && ipdom[block] != new {
                ipdom[block] = new;
                changed = true;
            }
        }
    }
    ipdom[exit] = None;
    ipdom
}

fn meet(ipdom: &[Option<usize>], rank: &[usize], mut a: usize, mut b: usize) -> usize {
    while a != b {
        while rank[a] < rank[b] {
            let Some(up) = ipdom[a] else { return b };
            a = up;
        }
        while rank[b] < rank[a] {
            let Some(up) = ipdom[b] else { return a };
            b = up;
        }
    }
    a
}
