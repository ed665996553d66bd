//! Checks that no two files of a crate need each other. A reader can therefore read the files of a crate in
//! the order of their dependencies. A file and its own submodules may need each other: they are one unit.

use std::collections::{BTreeMap, BTreeSet};

use super::imports::Crate;

/// Folders whose files may need each other. Each folder is one unit, which has several files for readability.
const UNITS: [(&str, &str); 3] = [
    ("device/tile/src", "one unit of trust: it states which threads may access shared memory, and when"),
    ("ptx-sim/src/exec", "one interpreter: an impl of `Block` over files"),
    ("host/src/driver", "one trait and its drivers"),
];

/// The messages about dependency circles: one line per circle among the files of a crate, which names the
/// files. `files` are all files of the repository, with their texts.
pub fn broken(files: &[(&str, String)]) -> Vec<String> {
    let mut crates: BTreeMap<&str, Crate> = BTreeMap::new();
    for (name, text) in files.iter().filter(|(name, _)| name.ends_with(".rs")) {
        let Some((folder, path)) = name.split_once("/src/") else { continue };
        crates.entry(folder).or_default().add(path, text);
    }
    let mut broken = Vec::new();
    for (folder, files) in &crates {
        for circle in circles(&between_units(files.edges())) {
            let file = |module: &String| match module.as_str() {
                "crate" => format!("{folder}/src"),
                module => format!("{folder}/src/{}", module.replace("::", "/")),
            };
            let is_of = |unit: &str| circle.iter().all(|module| file(module).starts_with(unit));
            if !UNITS.iter().any(|(unit, _)| is_of(unit)) {
                let named = circle.iter().cloned().collect::<Vec<_>>().join(", ");
                broken.push(format!("{folder}: these files need each other: {named}"));
            }
        }
    }
    broken
}

/// Without the dependencies of a module on its ancestors, because a module is a part of them. If these
/// dependencies counted, every `use super::X` would close a circle through the parent, and a circle among
/// siblings would be a part of it.
fn between_units(mut edges: BTreeMap<String, BTreeSet<String>>) -> BTreeMap<String, BTreeSet<String>> {
    for (module, others) in &mut edges {
        others
            .retain(|other| !module.strip_prefix(other.as_str()).is_some_and(|rest| rest.starts_with("::")));
    }
    edges
}

/// Sets of modules in which each module needs every other module, directly or indirectly.
fn circles(edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<BTreeSet<String>> {
    let reached = |from: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(module) = next.pop() {
            for to in edges.get(module).into_iter().flatten() {
                if seen.insert(to.clone()) {
                    next.push(to);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<_, _> = edges.keys().map(|module| (module, reached(module))).collect();
    let mut circles: Vec<BTreeSet<String>> = Vec::new();
    for (module, others) in &reached {
        if circles.iter().any(|circle| circle.contains(*module)) || !others.contains(*module) {
            continue;
        }
        let back = |other: &&String| reached.get(other).is_some_and(|reached| reached.contains(*module));
        circles.push(others.iter().filter(back).cloned().collect());
    }
    circles
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages about a crate with these files.
    fn of(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files.iter().map(|(name, text)| (*name, (*text).to_owned())).collect();
        broken(&files)
    }

    #[test]
    fn files_that_need_each_other_are_found() {
        let a = ("x/src/a.rs", "//! A.\nuse crate::b::{self, B};\npub struct A(B);\n");
        let root = ("x/src/lib.rs", "//! X.\nmod a;\nmod b;\nmod c;\npub use a::A;\npub use c::*;\n");
        let c = ("x/src/c.rs", "//! C.\npub struct C;\n");
        let free = ("x/src/b.rs", "//! B.\nuse crate::C;\n// crate::a\npub struct B(C);\n");
        assert_eq!(of(&[root, a, free, c]), [""; 0]);
        // In these cases, the second dependency is a re-export of the root, a path in the middle of code, a
        // glob, or a path through a third file.
        let named = ("x/src/b.rs", "//! B.\nuse crate::A;\npub struct B;\nfn f(_: A) {}\n");
        let inline = ("x/src/b.rs", "//! B.\npub struct B;\nfn f(_: super::a::A) {}\n");
        let all = ("x/src/b.rs", "//! B.\nuse crate::*;\npub struct B;\nfn f(_: A) {}\n");
        for other in [named, inline, all] {
            assert_eq!(of(&[root, a, other, c]), ["x: these files need each other: a, b"], "{}", other.1);
        }
        let third = ("x/src/c.rs", "//! C.\nuse super::a::A;\npub struct C(A);\n");
        assert_eq!(of(&[root, a, free, third]), ["x: these files need each other: a, b, c"]);
        let tests =
            ("x/src/b.rs", "//! B.\npub struct B;\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n");
        assert_eq!(of(&[root, a, tests, c]), [""; 0]);
    }

    #[test]
    fn a_parent_excuses_no_circle_among_its_children() {
        let root = ("x/src/lib.rs", "//! X.\nmod p;\n");
        let parent = ("x/src/p.rs", "//! P.\nmod a;\nmod b;\nuse a::A;\npub struct P(A);\n");
        let a = ("x/src/p/a.rs", "//! A.\nuse super::P;\nuse super::b::B;\npub struct A(Box<P>, B);\n");
        let free = ("x/src/p/b.rs", "//! B.\nuse super::P;\npub struct B(Box<P>);\n");
        assert_eq!(of(&[root, parent, a, free]), [""; 0]);
        let back = ("x/src/p/b.rs", "//! B.\nuse super::{P, a};\npub struct B(Box<P>, Box<a::A>);\n");
        assert_eq!(of(&[root, parent, a, back]), ["x: these files need each other: p::a, p::b"]);
    }
}
