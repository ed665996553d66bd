//! Ways through the text of a kernel.
use ptx_sim::mutate::{Mutant, Operator};
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// Where a branch that is always or never taken leads: the text from there to the next branch.
pub(super) fn forced<'a>(mutant: &Mutant, text: &'a str) -> Option<&'a str> {
    let path = match mutant.operator {
        Operator::AlwaysBranch => &text[target(&text[mutant.span.0..mutant.span.1], text)?..],
        Operator::NeverBranch => &text[mutant.span.1..],
        _ => return None,
    };
    let next = |path: &'a str| path.split_inclusive("bra").next();
    // A path that begins with a branch is that branch's.
    match next(path)? {
        short if short.contains(';') => Some(short),
        short => next(&text[target(&path[short.len()..], text)?..]),
    }
}

/// What reads tiles in a kernel: in those for tensor cores, `ld.shared` reads only what `st.shared` wrote.
pub(super) fn tile_load(text: &str) -> &'static str {
    if text.contains("ldmatrix") { "ldmatrix" } else { "ld.shared" }
}

/// Whether a way from byte `start` of `text` waits for copies.
pub(super) fn waits(text: &str, start: usize) -> bool {
    let mut found = false;
    walk(text, start, (), |_, line, ()| {
        found |= line.contains(WAIT);
        (!found).then_some(())
    });
    found
}

/// Whether ways from byte `start` of `text` wait for copies, leaving at most `more` groups under way beside
/// those that are committed on the way, and then pass a barrier, and none reads a tile before it does.
pub(super) fn waits_before_reading(text: &str, start: usize, more: i64) -> bool {
    let (mut covered, mut read, load) = (false, false, tile_load(text));
    walk(text, start, (false, false, 0), |_, line, (waited, stored, commits)| {
        let has = |word: &str| line.contains(word);
        // Behind `st.shared` is the end of a kernel, which reads what it has stored.
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
/// No kernel has as many groups of copies under way.
const MANY: i64 = 16;

/// How many groups of copies the wait in `line` leaves under way.
pub(super) fn left(line: &str) -> Option<u32> {
    if line.contains("cp.async.wait_all") {
        return Some(0);
    }
    line.split_once(WAIT)?.1.trim_matches([' ', '\t', '\n', ';']).parse().ok()
}

/// Whether no way to byte `at` of `text` touches shared memory but by copies.
pub(super) fn nothing_but_copies_before(text: &str, at: usize) -> bool {
    let mut touched = false;
    walk(text, body(text, at), false, |place, line, before| {
        touched |= before && (place..place + line.len()).contains(&at);
        let touches = line.contains("ldmatrix") || line.contains(".shared") && !line.contains("cp.async.c");
        Some(before || touches)
    });
    !touched
}

/// Whether on all ways to the `bar.warp.sync` at byte `at` of `text`, the warp's lanes have done nothing
/// since the barrier before that they could do one before the other: no access but by instructions of the
/// whole warp, and no wait for copies.
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

/// Where the body begins of the function that byte `at` of `text` is in.
fn body(text: &str, at: usize) -> usize {
    text[..at].rfind("\n{").map_or(0, |brace| brace + 2)
}

/// Takes all ways from byte `start` of `text`, line by line. `visit` is told where a line is, and makes what
/// a way knows after it of what it knew before; `None` ends the way. It ends as well with the kernel, and
/// where another that knew the same has been.
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

/// Where the line of each label begins.
fn labels(text: &str) -> HashMap<&str, usize> {
    let begins = text.match_indices("\n$").map(|(at, _)| at + 1);
    begins.filter_map(|at| Some((text[at..].split_once(':')?.0, at))).collect()
}

/// Gives comparisons the source lines of the branch that they decide, after their own: where LLVM moves or
/// merges some, they have no line.
pub(super) fn name_comparisons(all: &mut [Mutant], text: &str) {
    let branches: HashMap<usize, _> = all
        .iter()
        .filter(|mutant| mutant.operator == Operator::NegateBranch)
        .map(|branch| (branch.span.0, branch.source.clone()))
        .collect();
    let compares = |mutant: &&mut Mutant| matches!(mutant.operator, Operator::OffByOne | Operator::Bound);
    for mutant in all.iter_mut().filter(compares) {
        let branch = decided(text, mutant.span).and_then(|at| branches.get(&at));
        mutant.source.extend(branch.into_iter().flatten().cloned());
    }
}

/// Where the branch stands that the comparison at `span` decides, alone or with others.
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

/// Opcode and operands; a guard before.
pub(super) fn words(instruction: &str) -> Vec<&str> {
    instruction.split([' ', '\t', ',', ';', '!', '@', '\n']).filter(|word| !word.is_empty()).collect()
}

/// The label that `branch` names first.
fn label(branch: &str) -> Option<&str> {
    branch.split([' ', '\t', ';', '\n']).find(|word| word.starts_with('$'))
}

/// Where the label stands that `branch` names first.
fn target(branch: &str, text: &str) -> Option<usize> {
    labels(text).get(label(branch)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ptx_sim::mutate::mutants;

    /// A kernel around `body`.
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
