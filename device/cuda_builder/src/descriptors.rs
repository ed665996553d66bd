//! Finds `wgmma` descriptors of which ptxas has lost a part.

use std::collections::HashMap;

/// A set of uniform registers, one bit per register.
type Set = u64;

/// An instruction, reduced to the fields that this check needs.
#[derive(Default)]
struct Step {
    writes: Set,
    /// The uniform registers that the instruction reads as parts of descriptors.
    reads: Set,
    /// The index of the instruction to which the instruction branches.
    to: Option<usize>,
    /// Whether execution never continues with the next instruction.
    leaves: bool,
}

/// Number of uniform registers that contain parts of descriptors and that consumer warps may read before any
/// write. The code of consumer warps begins with the `setmaxnreg` that takes registers. A write under a
/// predicate counts as a write, because the predicate may also decide the path. If ptxas uses a lost register
/// for another value, the check does not detect the loss.
pub(crate) fn lost(text: &str) -> u32 {
    let steps = steps(text);
    // An unreachable instruction starts with all registers marked as written.
    let mut before = vec![Set::MAX; steps.len()];
    let mut ways: Vec<(usize, Set)> = vec![(0, 0)];
    while let Some((at, written)) = ways.pop() {
        let Some(step) = steps.get(at) else { continue };
        let fewer = before[at] & written;
        // The loop visits an instruction again, at most 64 times, if another path reaches it with fewer
        // written registers.
        if fewer == before[at] {
            continue;
        }
        before[at] = fewer;
        let after = fewer | step.writes;
        ways.extend(step.to.map(|to| (to, after)));
        if !step.leaves {
            ways.push((at + 1, after));
        }
    }
    let lost = steps.iter().zip(before).fold(0, |lost, (step, before)| lost | step.reads & !before);
    lost.count_ones()
}

/// The instructions of consumer warps.
fn steps(text: &str) -> Vec<Step> {
    let (mut steps, mut labels, mut jumps) = (Vec::new(), HashMap::new(), Vec::new());
    let computing =
        text.find("USETMAXREG.TRY").map_or(0, |at| text[..at].rfind('\n').map_or(0, |end| end + 1));
    for line in text[computing..].lines().map(str::trim) {
        if let Some(label) = line.strip_suffix(':').filter(|label| label.starts_with(".L")) {
            labels.insert(label, steps.len());
        } else if let Some((_, code)) = line.strip_prefix("/*").and_then(|line| line.split_once("*/")) {
            let code = code.split("/*").next().unwrap_or_default().trim().trim_end_matches(';').trim();
            if code.is_empty() {
                continue;
            }
            if let Some((_, label)) = code.split_once("`(") {
                jumps.push((steps.len(), label.trim_end_matches(')')));
            }
            steps.push(step(code));
        }
    }
    for (at, label) in jumps {
        steps[at].to = labels.get(label).copied();
    }
    steps
}

fn step(code: &str) -> Step {
    let guarded = code.starts_with('@');
    let code = if guarded { code.split_once(' ').map_or("", |(_, code)| code).trim() } else { code };
    let (opcode, operands) = code.split_once(' ').unwrap_or((code, ""));
    let stem = opcode.split('.').next().unwrap_or_default();
    // A branch with a uniform predicate has this predicate before its label.
    let always = stem == "BRA" && operands.trim().starts_with("`(") || matches!(stem, "EXIT" | "RET");
    let mut step = Step { leaves: always && !guarded, ..Step::default() };
    let is_predicate =
        |o: &&str| ["P", "UP"].iter().any(|p| o.strip_prefix(p).is_some_and(is_number_or_true));
    let target = operands.split(',').map(str::trim).find(|operand| !is_predicate(operand));
    if let Some(first) = target.and_then(|o| o.strip_prefix("UR")).and_then(|n| n.parse().ok()) {
        let pair = opcode.contains(".64") || opcode.contains(".WIDE");
        step.writes = registers(first, if pair { 2 } else { 1 });
    }
    let descriptor = operands.split_once("gdesc[UR").and_then(|(_, o)| o.split(']').next()?.parse().ok());
    if let Some(first) = descriptor {
        // The two descriptors are adjacent, and the second one is B's. If A is in registers, the instruction
        // does not read the first descriptor.
        let left_in_registers = operands.split(',').nth(1).is_some_and(|o| o.trim().starts_with('R'));
        step.reads = if left_in_registers { registers(first + 2, 2) } else { registers(first, 4) };
    }
    step
}

fn registers(first: u32, count: u32) -> Set {
    ((1 << count) - 1 as Set).checked_shl(first).unwrap_or_default()
}

fn is_number_or_true(text: &str) -> bool {
    text == "T" || !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of lost registers in a kernel that has these `lines`.
    fn of(lines: &[&str]) -> u32 {
        let before = ["UMOV UR21, UR4 ;", "USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xf0 ;"];
        let line = |(at, line): (usize, &&str)| match line.strip_suffix(':') {
            Some(_) => format!("{line}\n"),
            None => format!("        /*{at:04x}*/                   {line}   /* 0x000fe200000018ff */\n"),
        };
        lost(&before.iter().chain(lines).enumerate().map(line).collect::<String>())
    }

    const LOW: &str = "UIADD3 UR20, UP0, UR14, 0x2000002, URZ ;";
    const HIGH: &str = "UIADD3.X UR21, UR15, 0x40000040, URZ, UP0, !UPT ;";
    const OTHER: &str = "UIADD3.64 UR22, UR18, 0x2, URZ ;";
    const BOTH: &str = "HGMMA.64x96x16.F32 R24, gdesc[UR20], R24 ;";
    const RIGHT: &str = "HGMMA.64x192x16.F32 R24, R168, gdesc[UR8].tnspB, R24 ;";

    #[test]
    fn a_half_that_nobody_writes() {
        assert_eq!(of(&[LOW, OTHER, BOTH]), 1);
        assert_eq!(of(&[LOW, HIGH, OTHER, BOTH, "@P0 R2UR UR10, R3 ;", "UMOV UR11, 0x40000040 ;", RIGHT]), 0);
    }

    #[test]
    fn a_half_that_is_written_behind_its_product() {
        assert_eq!(of(&[LOW, OTHER, BOTH, HIGH, BOTH, "EXIT ;"]), 1);
    }

    #[test]
    fn a_half_that_is_written_on_one_way() {
        let ways = |skip| [LOW, OTHER, skip, HIGH, ".L_x_1:", BOTH, "EXIT ;"];
        assert_eq!(of(&ways("@P0 BRA `(.L_x_1) ;")), 1);
        assert_eq!(of(&ways("BRA UP0, `(.L_x_1) ;")), 1);
        assert_eq!(of(&ways("NOP ;")), 0);
    }

    #[test]
    fn rounds_of_a_loop() {
        assert_eq!(of(&[LOW, OTHER, ".L_x_1:", BOTH, HIGH, "@P0 BRA `(.L_x_1) ;", "EXIT ;"]), 1, "the first");
        assert_eq!(of(&[LOW, HIGH, ".L_x_1:", OTHER, BOTH, "@P0 BRA `(.L_x_1) ;", "EXIT ;"]), 0);
        // No thread reaches an instruction after `EXIT`.
        assert_eq!(of(&[LOW, HIGH, OTHER, BOTH, "EXIT ;", RIGHT]), 0);
        assert_eq!(of(&[LOW, HIGH, OTHER, BOTH, "@P0 EXIT ;", RIGHT]), 2);
    }
}
