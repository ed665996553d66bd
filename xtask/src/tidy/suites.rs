//! Test files that no test program contains. A folder with a `suite.rs` has one program of all its files,
//! because a program per file would link the crate once per file. The manifest names other programs.

use std::collections::BTreeMap;

/// The test files that neither `suite.rs` nor the manifest names.
pub fn broken(sources: &[(&str, String)]) -> Vec<String> {
    let texts: BTreeMap<&str, &str> = sources.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let mut broken = Vec::new();
    for (suite, modules) in texts.iter().filter(|(name, _)| name.ends_with("/tests/suite.rs")) {
        let Some(folder) = suite.strip_suffix("suite.rs") else { continue };
        // The tests are in a package, or are a package.
        let package = folder.strip_suffix("tests/").unwrap_or(folder);
        let manifests = [package, folder].map(|place| texts.get(format!("{place}Cargo.toml").as_str()));
        let manifest: String = manifests.into_iter().flatten().copied().collect();
        for name in texts.keys() {
            let Some(test) = name.strip_prefix(folder).and_then(|file| file.strip_suffix(".rs")) else {
                continue;
            };
            let is_module = || modules.lines().any(|line| line == format!("mod {test};"));
            let is_program = || manifest.contains(&format!("[[test]]\nname = \"{test}\"\n"));
            if !test.contains('/') && !is_module() && !is_program() {
                broken.push(format!(
                    "{name}: no test program contains this file: add `mod {test};` to {suite}"
                ));
            }
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_no_program_contains_is_found() {
        let source = |name, text: &str| (name, text.to_owned());
        let sources = [
            source("a/Cargo.toml", "[[test]]\nname = \"suite\"\n\n[[test]]\nname = \"own\"\n"),
            source("a/tests/suite.rs", "//! X.\nmod one;\n"),
            source("a/tests/one.rs", ""),
            source("a/tests/own.rs", ""),
            source("a/tests/one/part.rs", ""),
            source("a/tests/lost.rs", ""),
            source("b/tests/lone.rs", ""),
            source("c/Cargo.toml", ""),
            source("c/tests/Cargo.toml", "[[test]]\nname = \"suite\"\n"),
            source("c/tests/suite.rs", "//! X.\n"),
        ];
        let found = broken(&sources);
        assert!(matches!(&found[..], [one] if one.starts_with("a/tests/lost.rs:")), "{found:?}");
    }
}
