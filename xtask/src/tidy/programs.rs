//! Tests that no program runs: with `autotests = false`, cargo ignores a file of tests that nobody names; with
//! `doctest = false`, it ignores examples.

/// The files beside a `tests/main.rs` that are neither its modules nor programs in the package's manifest.
pub fn forgotten(sources: &[(&str, String)]) -> Vec<String> {
    let text_of =
        |name: &str| sources.iter().find(|(other, _)| *other == name).map(|(_, text)| text.as_str());
    let programs = sources.iter().filter_map(|(name, text)| Some((name.strip_suffix("main.rs")?, text)));
    let mut broken = Vec::new();
    for (folder, main) in programs.filter(|(folder, _)| folder.ends_with("tests/")) {
        let manifests =
            [folder, folder.strip_suffix("tests/").unwrap_or_default()].map(|f| format!("{f}Cargo.toml"));
        let names = |program: &str| {
            let line = format!("name = \"{program}\"");
            manifests.iter().filter_map(|manifest| text_of(manifest)).any(|text| text.contains(&line))
        };
        let files = sources.iter().filter_map(|(name, _)| name.strip_prefix(folder)?.strip_suffix(".rs"));
        for file in files.filter(|file| *file != "main" && !file.contains('/')) {
            if !main.contains(&format!("mod {file};")) && !names(file) {
                broken.push(format!("{folder}{file}.rs: no program runs it; add `mod {file};` to main.rs"));
            }
        }
    }
    broken
}

/// The files with examples in crates whose manifest says that they have none.
pub fn untested_examples(sources: &[(&str, String)]) -> Vec<String> {
    let is_without = |text: &String| text.contains("\ndoctest = false\n");
    let manifests = sources.iter().filter(|(name, text)| name.ends_with("Cargo.toml") && is_without(text));
    let folders: Vec<_> = manifests.map(|(name, _)| name.replace("Cargo.toml", "src/")).collect();
    let is_example = |line: &str| {
        let words = line.trim_start().strip_prefix("//").unwrap_or_default();
        words.trim_start_matches(['/', '!']).trim_start().starts_with("```")
    };
    let untested = |(name, text): &&(&str, String)| {
        folders.iter().any(|folder| name.starts_with(folder.as_str())) && text.lines().any(is_example)
    };
    let files = sources.iter().filter(untested).map(|(name, _)| name);
    files.map(|name| format!("{name}: its example is not tested; remove `doctest = false`")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_nobody_names_is_found() {
        let file = |name, text: &str| (name, text.to_owned());
        let sources = [
            file("a/tests/main.rs", "mod one;\n"),
            file("a/tests/one.rs", ""),
            file("a/tests/two.rs", ""),
            file("a/tests/three.rs", ""),
            file("a/tests/common/mod.rs", ""),
            file("a/Cargo.toml", "[[test]]\nname = \"three\"\n"),
            file("b/tests/alone.rs", ""),
        ];
        assert_eq!(forgotten(&sources), ["a/tests/two.rs: no program runs it; add `mod two;` to main.rs"]);
    }

    #[test]
    fn an_example_that_is_not_tested_is_found() {
        let file = |name, text: &str| (name, text.to_owned());
        let example = "//! X.\n/// ```\n/// f();\n/// ```\nfn f() {}\n";
        let sources = [
            file("a/Cargo.toml", "[lib]\ndoctest = false\n"),
            file("a/src/b.rs", example),
            file("a/src/c.rs", "//! X.\nfn f() {}\n"),
            file("d/Cargo.toml", "[lib]\n"),
            file("d/src/b.rs", example),
        ];
        assert_eq!(
            untested_examples(&sources),
            ["a/src/b.rs: its example is not tested; remove `doctest = false`"]
        );
    }
}
