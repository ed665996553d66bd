//! The parts of a workspace's manifest and lock file that can change the modules of a device crate. A new
//! member, or a new dependency of a host program, must not recompile every kernel.

use std::collections::BTreeSet;
use std::path::Path;

/// The blocks of a lock file for `package` and its dependencies. The result is the whole file if the file
/// does not contain the package.
pub(crate) fn locked(lock: &str, package: &str) -> String {
    let blocks: Vec<&str> = lock.split("[[package]]").skip(1).collect();
    let (mut found, mut next) = (BTreeSet::new(), vec![package]);
    while let Some(name) = next.pop() {
        if !found.insert(name) {
            continue;
        }
        for block in blocks.iter().filter(|block| name_of(block) == Some(name)) {
            next.extend(dependencies(block));
        }
    }
    if !blocks.iter().any(|block| name_of(block) == Some(package)) {
        return lock.to_owned();
    }
    blocks.into_iter().filter(|block| name_of(block).is_some_and(|name| found.contains(name))).collect()
}

fn name_of(block: &str) -> Option<&str> {
    block.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
}

/// The names in the list of dependencies of a block. In the list, a version may follow a name.
fn dependencies(block: &str) -> impl Iterator<Item = &str> {
    let list = block.split_once("dependencies = [").map_or("", |(_, list)| list);
    let list = list.split_once(']').map_or("", |(list, _)| list);
    list.split('"').skip(1).step_by(2).filter_map(|item| item.split(' ').next())
}

/// A workspace's manifest without its lists of members and without development profiles, because kernels use
/// another profile.
pub(crate) fn workspace(manifest: &str) -> String {
    let mut kept = String::new();
    let (mut in_list, mut in_profile) = (false, false);
    for line in manifest.lines() {
        if line.starts_with('[') {
            in_profile = line.starts_with("[profile.dev");
        }
        let list = ["members", "exclude"]
            .iter()
            .any(|name| line.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with('=')));
        in_list |= list;
        if !in_list && !in_profile {
            kept.push_str(line);
            kept.push('\n');
        }
        in_list &= !line.trim_end().ends_with(']');
    }
    kept
}

/// The manifest of a workspace that consists of one crate: the text of its old workspace's manifest, and of
/// the crate's without the dependencies of tests. Each text stands with the folder from which its paths
/// count.
pub(crate) fn alone((outer, root): (&str, &Path), (own, crate_root): (&str, &Path)) -> String {
    let is_left_out = |header: &str| {
        ["[workspace", "[dev-dependencies", "[[bin", "[[test", "[[example", "[[bench"]
            .iter()
            .any(|name| header.starts_with(name))
    };
    let (mut text, mut table) = (absolute(&workspace(outer), root, |_| true), "");
    let mut crates = String::new();
    for line in own.lines() {
        if line.starts_with('[') {
            table = line;
        }
        if !is_left_out(table) {
            let is_path = |_: &str| table.contains("dependencies");
            crates.push_str(&absolute(line, crate_root, is_path));
        }
    }
    text.push_str(&crates);
    text
}

/// A text whose relative paths in lines that `is_path` accepts count from `root`.
fn absolute(text: &str, root: &Path, is_path: impl Fn(&str) -> bool) -> String {
    let mut whole = String::new();
    for line in text.lines() {
        match line.split_once("path = \"") {
            Some((before, after)) if is_path(line) && !after.starts_with('/') => {
                whole.push_str(&format!("{before}path = \"{}/{after}", root.display()));
            }
            _ => whole.push_str(line),
        }
        whole.push('\n');
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_package_depends_on_is_locked() {
        let block = |name: &str, version: &str, dependencies: &str| {
            format!(
                "[[package]]\nname = \"{name}\"\nversion = \"{version}\"\ndependencies = [{dependencies}]\n"
            )
        };
        let lock = |tile: &str, clap: &str| {
            let blocks = [
                block("kernels", "1", "\n \"spec\",\n \"tile 2\",\n"),
                block("spec", "1", ""),
                block("tile", tile, "\n \"spec\",\n"),
                block("program", "1", "\n \"clap\",\n \"kernels\",\n"),
                block("clap", clap, ""),
            ];
            format!("version = 4\n\n{}", blocks.join("\n"))
        };
        let of = |tile, clap| locked(&lock(tile, clap), "kernels");
        assert_eq!(of("2", "4.0"), of("2", "4.1"));
        assert_ne!(of("2", "4.0"), of("3", "4.0"));
        assert!(!of("2", "4.0").contains("program"));
        assert_eq!(locked(&lock("2", "4.0"), "absent"), lock("2", "4.0"));
    }

    #[test]
    fn a_crate_alone_has_its_workspace_and_no_tests() {
        let outer = "[workspace]\nmembers = [\n \"a\",\n]\n[workspace.package]\nversion = \"1\"\n\
                     [workspace.dependencies]\nspec = { package = \"s\", path = \"k/spec\" }\n";
        let own = "[package]\nname = \"k\"\nversion.workspace = true\n[lib]\npath = \"src/k.rs\"\n\
                   [dependencies]\nspec = { workspace = true }\nb = { path = \"../b\" }\n\
                   [dev-dependencies]\nserde = \"1\"\n[features]\nx = []\n";
        let text = alone((outer, Path::new("/c")), (own, Path::new("/c/k")));
        let expected = "[workspace]\n[workspace.package]\nversion = \"1\"\n[workspace.dependencies]\n\
                        spec = { package = \"s\", path = \"/c/k/spec\" }\n[package]\nname = \"k\"\n\
                        version.workspace = true\n[lib]\npath = \"src/k.rs\"\n[dependencies]\n\
                        spec = { workspace = true }\nb = { path = \"/c/k/../b\" }\n[features]\nx = []\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn members_and_profiles_of_development_say_nothing() {
        let of = |members: &str, dev: &str, release: &str, more: &str| {
            workspace(&format!(
                "[workspace]\nresolver = \"3\"\nmembers = [{members}]\n\
                 exclude = [\"c\"]\n[workspace.dependencies]\na = \"1\"{more}\n\
                 [profile.dev]\n{dev}\n[profile.release]\n{release}\n"
            ))
        };
        let plain = of("\"a\"", "", "", "");
        assert_eq!(
            plain,
            of("\n \"a\",\n \"b\",\n", "debug = 0\n[profile.dev.package.a]\nopt-level = 3", "", "")
        );
        assert_ne!(plain, of("\"a\"", "", "lto = true", ""));
        assert_ne!(plain, of("\"a\"", "", "", "\nb = \"1\""));
        assert!(plain.contains("resolver") && !plain.contains("exclude"), "{plain}");
    }
}
