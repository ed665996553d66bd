//! Finds wide global loads that wait for each other.

/// The largest number of consecutive 16-byte global loads to the same registers, without a label between.
/// Each of these loads waits until the words of the load before it have arrived and are copied, so the
/// latencies add up. ptxas writes such loads behind a shuffle that a warp may reach diverged: it makes two
/// paths of such a shuffle, and then copies the results of both paths into single registers.
pub(crate) fn longest(text: &str) -> u32 {
    let (mut longest, mut length, mut before) = (0, 0, "");
    for line in text.lines() {
        if line.starts_with(".L") {
            before = "";
        }
        let Some((_, operands)) = line.split_once(" LDG.E.128") else { continue };
        // Modifiers such as `.CONSTANT` stand before the first space.
        let target = operands.split_once(' ').and_then(|(_, o)| o.split(',').next()).unwrap_or_default();
        length = if target == before { length + 1 } else { 1 };
        (before, longest) = (target, longest.max(length));
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(targets: &[&str]) -> u32 {
        let line = |target: &&str| {
            format!(
                "  /*8cc0*/   @P5 LDG.E.128 {target}, desc[UR6][R22.64+-0xe00] ;  /* 0x1 */\n\
                 /* 0x2 */\n  /*8cd0*/   @P5 MOV R40, R14 ;\n"
            )
        };
        longest(&targets.iter().map(line).collect::<String>())
    }

    #[test]
    fn loads_to_the_same_registers_in_a_row() {
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&["R12", "R16", "R12", "R16"]), 1);
        assert_eq!(of(&["R12", "R16", "R16", "R16", "R12", "R12"]), 3);
        // Behind a label, the load may be on another path.
        assert_eq!(longest(" LDG.E.128 R4, desc\n.L_x_1:\n LDG.E.128 R4, desc\n"), 1);
        assert_eq!(longest(" LDG.E.128.CONSTANT R4, desc\n LDG.E.64 R4, desc\n LDG.E.128 R4, desc\n"), 2);
    }
}
