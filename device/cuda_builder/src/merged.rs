//! Merges modules of one target into one PTX text. nvdisasm takes 0.2 s to start, which is most of its time
//! for one module.

use std::collections::HashMap;

use crate::Error;
use crate::scan::{self, Item, Kind};

/// A PTX text that has the entries of several modules.
#[derive(Default)]
pub(crate) struct Merged<'a> {
    text: String,
    /// The texts of each entry, function and variable, by name. A declaration and its definition share a
    /// name. The header has the empty name.
    items: HashMap<&'a str, Vec<&'a str>>,
}

impl<'a> Merged<'a> {
    /// The PTX of all modules.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Adds a module. Returns `false`, and adds nothing, if the module contradicts an earlier module: if its
    /// header differs, or if one name has two meanings.
    ///
    /// # Errors
    /// Returns [`Error::Ptx`] if `module` is not a PTX text.
    pub(crate) fn add(&mut self, module: &'a str) -> Result<bool, Error> {
        let items = scan::items(module)?;
        let name = |item: &Item<'a>| if item.kind == Kind::Header { "" } else { item.name };
        let mut added: HashMap<&str, Vec<&str>> = HashMap::new();
        for item in &items {
            added.entry(name(item)).or_default().push(item.text);
        }
        let contradicts = |(name, texts)| self.items.get(name).is_some_and(|known| known != texts);
        if added.iter().any(contradicts) {
            return Ok(false);
        }
        for item in items.iter().filter(|item| !self.items.contains_key(name(item))) {
            self.text.push_str(item.text);
            self.text.push('\n');
        }
        self.items.extend(added);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = ".version 7.8\n.target sm_80\n.extern .shared .b8 s[];\n.func f() { ret; }\n\
                     .entry a() { call f; }\n";

    #[test]
    fn each_item_stands_once() {
        let b = A.replace(".entry a", ".entry b");
        let mut merged = Merged::default();
        assert!(merged.add(A).expect("PTX") && merged.add(&b).expect("PTX"));
        for once in [".version", ".shared", ".func f", ".entry a", ".entry b"] {
            assert_eq!(merged.text().matches(once).count(), 1, "{once}");
        }
    }

    #[test]
    fn a_contradiction_adds_nothing() {
        for (from, to) in
            [("sm_80", "sm_90"), (".b8 s", ".b32 s"), ("f() { ret", "f() { trap"), ("call", "c")]
        {
            let b = A.replace(from, to);
            let mut merged = Merged::default();
            assert!(merged.add(A).expect("PTX"));
            let before = merged.text().to_owned();
            assert!(!merged.add(&b).expect("PTX"), "{from}");
            assert_eq!(merged.text(), before, "{from}");
        }
    }
}
