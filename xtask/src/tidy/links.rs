//! Links of Markdown files whose file or heading does not exist.

use std::collections::{BTreeMap, BTreeSet};

/// The links from one file of the repository to another whose target does not exist.
pub fn broken(sources: &[(&str, String)]) -> Vec<String> {
    let texts: BTreeMap<&str, &str> = sources.iter().map(|(name, text)| (*name, text.as_str())).collect();
    // A link may lead to a folder, and to a file that is not text.
    let exists = |path: &str| {
        texts.contains_key(path) || texts.keys().any(|name| name.starts_with(&format!("{path}/")))
    };
    let mut broken = Vec::new();
    for (name, text) in texts.iter().filter(|(name, _)| name.ends_with(".md")) {
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") || link.contains([' ', '`']) {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let path = if file.is_empty() { (*name).to_owned() } else { joined(name, file) };
            let has = |text: &&str| heading.is_empty() || headings(text).contains(heading);
            if !exists(&path) || !texts.get(path.as_str()).is_none_or(has) {
                broken.push(format!("{name}: the link `{link}` leads nowhere"));
            }
        }
    }
    broken
}

/// The path of a link, seen from the repository's root.
fn joined(from: &str, link: &str) -> String {
    let mut path: Vec<&str> = from.split('/').collect();
    path.pop();
    for part in link.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            path.pop();
        } else {
            path.push(part);
        }
    }
    path.join("/")
}

/// The anchors that GitHub gives to a file's headings.
fn headings(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in text.lines().filter(|line| line.starts_with('#')) {
        let kept = line.trim_start_matches('#').trim().chars();
        let kept = kept.filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        found.insert(kept.collect::<String>().to_lowercase().replace(' ', "-"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let source = |name, text: &str| (name, text.to_owned());
        let mut sources =
            vec![source("a.md", "# Its `name`, A\n"), source("b/c.md", "# C\n"), source("b/d.rs", "")];
        for (link, is_broken) in [
            ("../a.md#its-name-a", false),
            ("#c", false),
            ("d.rs", false),
            ("../b", false),
            ("https://example.org/x", false),
            ("a.md", true),
            ("../a.md#name", true),
            ("#d", true),
        ] {
            sources[1].1 = format!("# C\n[a link]({link})\n");
            assert_eq!(broken(&sources).len(), usize::from(is_broken), "{link}");
        }
    }
}
