//! Follows the paths through the text of a kernel.
use ptx_sim::SourceLine;
use ptx_sim::mutate::{Mutant, Operator};
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// The path behind a branch that a mutant forces: the text from there to the next branch.
pub(super) fn forced<'a>(mutant: &Mutant, text: &'a str) -> Option<&'a str> {
    let path = match mutant.operator {
        Operator::AlwaysBranch => &text[target(&text[mutant.span.0..mutant.span.1], text)?..],
        Operator::NeverBranch => &text[mutant.span.1..],
        _ => return None,
    };
    let next = |path: &'a str| path.split_inclusive("bra").next();
    // A path that starts with a branch belongs to that branch.
    match next(path)? {
        short if short.contains(';') => Some(short),
        short => next(&text[target(&path[short.len()..], text)?..]),
    }
}

/// Whether a conditional branch only skips a warp barrier. One of its two paths then contains only the
/// barrier, and joins the other path.
pub(super) fn skips_a_meeting_alone(mutant: &Mutant, text: &str) -> bool {
    let Some(taken) = target(&text[mutant.span.0..mutant.span.1], text) else { return false };
    let code = |at: usize| {
        let lines = text[at..].lines().map(str::trim);
        lines.filter(|line| !(line.is_empty() || line.starts_with(".loc") || line.starts_with("//")))
    };
    // This function follows an unconditional jump.
    let next = |at: usize| match code(at).find(|line| !line.starts_with('$')) {
        Some(jump) if jump.starts_with("bra") => target(jump, text).unwrap_or(at),
        _ => at,
    };
    let [taken, passed] = [taken, mutant.span.1].map(next);
    let meets = |way: usize, other: usize| {
        let mut lines = code(way).filter(|line| !line.starts_with('$') && *line != ";");
        let meeting = lines.next().is_some_and(|line| line.starts_with("bar.warp.sync"));
        let joins = lines.next().filter(|line| line.starts_with("bra"));
        meeting && joins.and_then(|jump| target(jump, text)) == Some(other)
    };
    meets(taken, passed) || meets(passed, taken)
}

/// The opcode by which a kernel reads tiles. In kernels for tensor cores, `ld.shared` reads only values that
/// `st.shared` wrote.
pub(super) fn tile_load(text: &str) -> &'static str {
    if text.contains("ldmatrix") { "ldmatrix" } else { "ld.shared" }
}

/// Whether any path from byte `start` of `text` waits for copies.
pub(super) fn waits(text: &str, start: usize) -> bool {
    let mut found = false;
    walk(text, start, (), |_, line, ()| {
        found |= line.contains(WAIT);
        (!found).then_some(())
    });
    found
}

/// Whether every path from byte `start` of `text` waits for copies and then passes a barrier, without reading
/// a tile before. The wait may leave at most `more` groups in flight, in addition to groups that the path
/// itself commits.
pub(super) fn waits_before_reading(text: &str, start: usize, more: i64) -> bool {
    let (mut covered, mut read, load) = (false, false, tile_load(text));
    walk(text, start, (false, false, 0), |_, line, (waited, stored, commits)| {
        let has = |word: &str| line.contains(word);
        // A kernel reads data that it has stored only at its end, after `st.shared`.
        read |= has(load) && !stored;
        let commits = (commits + i64::from(has("cp.async.commit_group"))).min(MANY);
        let enough = |left: u32| i64::from(left) <= more.saturating_add(commits);
        let waited = waited || left(line).is_some_and(enough);
        let passed = waited && has("bar.sync");
        covered |= passed;
        (!passed).then_some((waited, stored || has("st.shared"), commits))
    });
    covered && !read
}

const WAIT: &str = "cp.async.wait_group";
/// A number of groups of copies that no kernel has in flight.
const MANY: i64 = 16;

/// Number of groups of copies that the wait in `line` leaves in flight.
pub(super) fn left(line: &str) -> Option<u32> {
    if line.contains("cp.async.wait_all") {
        return Some(0);
    }
    line.split_once(WAIT)?.1.trim_matches([' ', '\t', '\n', ';']).parse().ok()
}

/// Whether only copies access shared memory on every path to byte `at` of `text`.
pub(super) fn nothing_but_copies_before(text: &str, at: usize) -> bool {
    let mut touched = false;
    walk(text, body(text, at), false, |place, line, before| {
        touched |= before && (place..place + line.len()).contains(&at);
        let touches = line.contains("ldmatrix") || line.contains(".shared") && !line.contains("cp.async.c");
        Some(before || touches)
    });
    !touched
}

/// Whether all lanes stay together before the `bar.warp.sync` at byte `at` of `text`. On every path since the
/// previous barrier, only instructions of the whole warp may access memory, and no instruction may wait for
/// copies.
pub(super) fn nothing_of_single_lanes_before(text: &str, at: usize) -> bool {
    let mut alone = false;
    walk(text, body(text, at), (false, false), |place, line, (copies, lanes)| {
        let has = |word: &str| line.contains(word);
        alone |= lanes && (place..place + line.len()).contains(&at);
        let copies = copies || has("cp.async.c") && !has("commit_group");
        let opcode = line.split_whitespace().find(|word| !word.starts_with('@')).unwrap_or_default();
        let alike = opcode.starts_with("ld.param") || opcode.contains(".nc.");
        let access = ["ld.", "st.", "atom.", "red."].iter().any(|word| opcode.starts_with(word)) && !alike;
        let acts = access || copies && left(line).is_some();
        let copies = copies && left(line) != Some(0);
        Some((copies, (lanes || acts) && !has("bar.sync") && !has("bar.warp.sync")))
    });
    !alone
}

/// Whether the `wgmma.fence` at byte `at` of `text` is redundant: on every path since an earlier fence, no
/// instruction accesses registers that products between this fence and the next wait or fence use.
pub(super) fn is_fenced_before(text: &str, at: usize) -> bool {
    let mut used = HashSet::new();
    walk(text, at + "wgmma.fence".len(), (), |place, line, ()| {
        if line.contains("wgmma.mma_async") {
            used.extend(registers(&text[place..place + line.len()]));
        }
        (!line.contains("wgmma.fence") && !line.contains("wgmma.wait_group")).then_some(())
    });
    let mut open = false;
    walk(text, body(text, at), true, |place, line, touched| {
        open |= touched && (place..place + line.len()).contains(&at);
        let touches = || registers(line).any(|register| used.contains(register));
        Some(!line.contains("wgmma.fence") && (touched || touches()))
    });
    !open
}

/// Whether the wait for bulk stores at byte `at` of `text` is redundant. The wait is redundant if, on every
/// path, another wait behind the last store has waited until the store's source was read, and if the kernel
/// reads no device memory afterwards.
pub(super) fn has_left_before(text: &str, at: usize) -> bool {
    let (mut sent, mut read) = (false, false);
    walk(text, body(text, at), false, |place, line, sending| {
        let here = (place..place + line.len()).contains(&at);
        sent |= here && sending;
        let waits = line.contains("cp.async.bulk.wait_group") && line.trim_end().ends_with(" 0;");
        Some(line.contains("cp.async.bulk.commit_group") || sending && (here || !waits))
    });
    walk(text, at, (), |_, line, ()| {
        read |= line.contains("ld.global") || line.contains("cp.async.bulk.tensor");
        Some(())
    });
    !sent && !read
}

/// The 32-bit registers in `line`, which are accumulators and operands, but no descriptors.
fn registers(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split([' ', '\t', ',', ';', '{', '}', '[', ']', '\n', '+']);
    words.filter(|word| word.strip_prefix("%r").is_some_and(|n| n.starts_with(|c: char| c.is_ascii_digit())))
}

/// The byte at which the body of the function around byte `at` of `text` begins.
fn body(text: &str, at: usize) -> usize {
    text[..at].rfind("\n{").map_or(0, |brace| brace + 2)
}

/// Follows all paths from byte `start` of `text`, line by line. `visit` receives the position of a line, the
/// line, and the state of the path before the line. `visit` returns the state behind the line, or `None` to
/// end the path. A path also ends with the kernel, and at a line that another path has reached in this state.
fn walk<T: Copy + Eq + Hash>(
    text: &str,
    start: usize,
    known: T,
    mut visit: impl FnMut(usize, &str, T) -> Option<T>,
) {
    let labels = labels(text);
    let (mut ways, mut seen) = (vec![(start, known)], HashSet::new());
    while let Some((mut at, mut known)) = ways.pop() {
        while seen.insert((at, known)) && at < text.len() {
            let line = text[at..].split_inclusive('\n').next().unwrap_or_default();
            let place = at;
            at += line.len();
            let has = |word: &str| line.contains(word);
            match visit(place, line, known) {
                Some(more) if !has("ret;") && !has("exit;") => known = more,
                _ => break,
            }
            if has("bra") && has("$") {
                let to = label(line).and_then(|label| labels.get(label));
                ways.extend(to.map(|&to| (to, known)));
                if !has("@") {
                    break;
                }
            }
        }
    }
}

/// The byte at which the line of each label begins.
fn labels(text: &str) -> HashMap<&str, usize> {
    let begins = text.match_indices("\n$").map(|(at, _)| at + 1);
    begins.filter_map(|at| Some((text[at..].split_once(':')?.0, at))).collect()
}

/// The source lines of each branch, by the branch's position.
pub(super) fn branches(all: &[Mutant]) -> HashMap<usize, Vec<SourceLine>> {
    let branches = all.iter().filter(|mutant| mutant.operator == Operator::NegateBranch);
    branches.map(|branch| (branch.span.0, branch.source.clone())).collect()
}

/// Adds the source lines of a branch to the comparison that decides the branch. `branches` contains the
/// source lines of all branches. If LLVM moves or merges a comparison, the comparison has no line. This
/// function gives it the lines of the branch.
pub(super) fn name_comparisons(drawn: &mut [Mutant], branches: &HashMap<usize, Vec<SourceLine>>, text: &str) {
    let compares = |mutant: &&mut Mutant| matches!(mutant.operator, Operator::OffByOne | Operator::Bound);
    for mutant in drawn.iter_mut().filter(compares) {
        let branch = decided(text, mutant.span).and_then(|at| branches.get(&at));
        mutant.source.extend(branch.into_iter().flatten().cloned());
    }
}

/// The position of the branch that depends on the comparison at `span`, alone or with other comparisons.
fn decided(text: &str, (start, end): (usize, usize)) -> Option<usize> {
    let mut known = HashSet::from([*words(&text[start..end]).get(1)?]);
    let mut at = end;
    for line in text[end..].split_inclusive('\n') {
        let parts = words(line);
        if line.contains(".pred") && parts.iter().skip(2).any(|part| known.contains(part)) {
            known.insert(parts[1]);
        }
        if line.contains("bra") && parts.first().is_some_and(|guard| known.contains(guard)) {
            return line.find('@').map(|guard| at + guard);
        }
        at += line.len();
    }
    None
}

/// The opcode and operands of an instruction, without a guard.
pub(super) fn words(instruction: &str) -> Vec<&str> {
    instruction.split([' ', '\t', ',', ';', '!', '@', '\n']).filter(|word| !word.is_empty()).collect()
}

/// The first label that `branch` names.
fn label(branch: &str) -> Option<&str> {
    branch.split([' ', '\t', ';', '\n']).find(|word| word.starts_with('$'))
}

/// The position of the first label that `branch` names.
fn target(branch: &str, text: &str) -> Option<usize> {
    labels(text).get(label(branch)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ptx_sim::mutate::mutants;

    /// The text of a kernel with the body `body`.
    fn kernel(body: &str) -> String {
        format!(
            ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k()\n{{\n.reg .pred \
             %p<2>;\n{body}\nret;\n}}\n"
        )
    }

    #[test]
    fn a_wait_and_a_barrier_on_every_way() {
        let check = |body: &str| {
            let text = kernel(body);
            waits_before_reading(&text, text.find("START").expect("marked"), 0)
        };
        let loops =
            "// START\nbra $A;\n$B:\nldmatrix;\n$A:\ncp.async.wait_group 0;\nbar.sync 0;\n@%p1 bra $B;";
        assert!(check(loops));
        assert!(check(
            "// START\n@%p1 bra $A;\ncp.async.wait_group 0;\n$A:\ncp.async.wait_group 0;\nbar.sync \
             0;\nldmatrix;"
        ));
        assert!(
            !check("// START\n@%p1 bra $A;\ncp.async.wait_group 0;\nbar.sync 0;\n$A:\nldmatrix;"),
            "a way without"
        );
        assert!(!check("// START\nbar.sync 0;\nldmatrix;"), "a barrier without a wait");
        assert!(!check("// START\nst.shared;"), "nothing to cover");
        assert!(!check("// START\ncp.async.wait_group 1;\nbar.sync 0;\nldmatrix;"), "one is left under way");
        assert!(check("// START\ncp.async.commit_group;\ncp.async.wait_group 1;\nbar.sync 0;\nldmatrix;"));
        assert!(!check("// START\nld.shared.b32;\ncp.async.wait_group 0;\nbar.sync 0;"), "a read before");
    }

    #[test]
    fn what_a_warp_has_done_before_a_barrier() {
        let check = |body: &str, of: fn(&str, usize) -> bool| {
            let text = kernel(body);
            of(&text, text.find("bar.warp.sync 7").expect("marked"))
        };
        let alone = nothing_of_single_lanes_before;
        assert!(check("st.shared;\nbar.sync 0;\nldmatrix;\nbar.warp.sync 7;", alone));
        assert!(!check("bar.sync 0;\nldmatrix;\nst.shared;\nbar.warp.sync 7;", alone), "a store");
        assert!(!check("ld.global.u32;\n$A:\nbar.warp.sync 7;\nbra $A;", alone), "a load");
        let copy = "cp.async.cg.shared.global;";
        assert!(check(&format!("{copy}\nbar.warp.sync 7;"), alone), "under way");
        assert!(!check(&format!("{copy}\ncp.async.wait_all;\nbar.warp.sync 7;"), alone), "landed");
        assert!(check(
            &format!("{copy}\ncp.async.wait_all;\nbar.sync 0;\ncp.async.wait_all;\nbar.warp.sync 7;"),
            alone
        ));
        assert!(check(
            "cp.async.cg.shared.global;\n$A:\nbar.warp.sync 7;\n@%p1 bra $A;\nldmatrix;",
            nothing_but_copies_before
        ));
        assert!(
            !check("$A:\nbar.warp.sync 7;\nldmatrix;\n@%p1 bra $A;", nothing_but_copies_before),
            "in a loop"
        );
    }

    #[test]
    fn a_fence_whose_registers_nobody_touches_behind_another() {
        let check = |between: &str, back: &str| {
            let text = kernel(&format!(
                "mov.b32 %r1, 0;\nwgmma.fence;\n$A:\nwgmma.mma_async {{%r1, %r2}}, %rd1, %rd2, \
                 1;\n{between}\nwgmma.fence.START;\nwgmma.mma_async {{%r4, %r5}}, {{%r6}}, %rd4, \
                 1;\nwgmma.wait_group 0;\nmov.b32 %r5, 1;{back}"
            ));
            is_fenced_before(&text, text.find("wgmma.fence.START").expect("marked"))
        };
        assert!(check("mov.b32 %r3, %r7;\nadd.s64 %rd4, %rd4, 2;", ""));
        assert!(!check("mov.b32 %r6, %r7;", ""), "an operand");
        assert!(!check("add.f32 %r7, %r4, %r5;", ""), "an accumulator that is read");
        assert!(!check("@%p1 bra $B;\nmov.b32 %r4, 0;\n$B:", ""), "on one way");
        assert!(!check("", "\nbra $A;"), "in the round before");
    }

    #[test]
    fn bulk_stores_whose_source_was_read() {
        let check = |before: &str, behind: &str| {
            let text = kernel(&format!("$A:\n{before}\ncp.async.bulk.wait_group  0; // START\n{behind}"));
            has_left_before(&text, text.find("cp.async.bulk.wait_group  0").expect("marked"))
        };
        let (send, wait) = ("cp.async.bulk.commit_group;", "cp.async.bulk.wait_group.read 0;");
        assert!(check("", "") && check(&format!("{send}\n{wait}"), ""));
        assert!(!check(send, "") && !check(&format!("{wait}\n{send}"), ""), "under way");
        assert!(!check(&format!("{send}\ncp.async.bulk.wait_group.read 1;"), ""), "one is left");
        assert!(!check(&format!("{send}\n@%p1 bra $B;\n{wait}\n$B:"), ""), "on one way");
        assert!(!check("", "ld.global.u32 a;"), "a read");
    }

    #[test]
    fn a_wait_on_some_way() {
        let check = |body: &str| {
            let text = kernel(body);
            waits(&text, text.find("START").expect("marked"))
        };
        assert!(check("$A:\ncp.async.wait_group 0;\n// START\n@%p1 bra $A;"));
        assert!(!check("cp.async.wait_group 0;\n// START\n@%p1 bra $A;\nbar.sync 0;\n$A:"));
    }

    #[test]
    fn comparisons_are_known_by_what_they_decide() {
        let body = "setp.lt.u32 %p1, 1, 2;\nor.pred %p2, %p3, %p1;\n@%p3 bra $A;\n@!%p2 bra $A;\n$A:";
        let text = kernel(&body.replace("\n@!", "\n\t@!")).replace("%p<2>", "%p<4>");
        let all = mutants(&text, "k").expect("PTX");
        let comparison = all.iter().find(|mutant| mutant.operator == Operator::OffByOne).expect("one");
        let at = decided(&text, comparison.span).expect("a branch");
        assert!(text[at..].starts_with("@!%p2 bra"), "{}", &text[at..]);
        assert!(all.iter().any(|mutant| mutant.operator == Operator::NegateBranch && mutant.span.0 == at));
    }

    #[test]
    fn a_branch_around_a_meeting() {
        let check = |meeting: &str| {
            let text = kernel(&format!(
                "@%p1 bra $A;\nbra.uni $B;\n$A:\n.loc 1 2 3\nadd.u32 a;\nret;\n$B:\n{meeting}\nbra.uni $A;"
            ));
            let all = mutants(&text, "k").expect("PTX");
            let branch = |mutant: &&Mutant| mutant.operator == Operator::NegateBranch;
            skips_a_meeting_alone(all.iter().find(branch).expect("one branch"), &text)
        };
        assert!(check("bar.warp.sync -1;"));
        assert!(!check("bar.warp.sync -1;\nadd.u32 b;") && !check("sub.u32 b;") && !check("bar.sync 0;"));
    }

    #[test]
    fn where_forced_branches_lead() {
        let body = "@%p1 bra $A;\nbra.uni $B;\n$A:\nadd.u32 a;\n$B:\nsub.u32 b;";
        let text = kernel(body);
        let all = mutants(&text, "k").expect("PTX");
        let path = |operator| {
            let mutant = all.iter().find(|mutant| mutant.operator == operator).expect("one branch");
            forced(mutant, &text).map(|path| (path.contains("add.u32"), path.contains("sub.u32")))
        };
        assert_eq!(path(Operator::AlwaysBranch), Some((true, true)));
        assert_eq!(path(Operator::NeverBranch), Some((false, true)));
        assert_eq!(path(Operator::NegateBranch), None);
    }
}
