//! The dependencies of a Rust file: its paths, and the modules of its crate to which these paths lead.

use std::collections::{BTreeMap, BTreeSet};

/// A module, as the names of its path from the crate's root.
type Module = Vec<String>;

/// The files of one crate.
#[derive(Default)]
pub struct Crate {
    modules: BTreeMap<Module, File>,
}

/// The content of a file.
#[derive(Default)]
struct File {
    /// The paths of `use`, each with the name that it has in this file; the name `*` stands for all names.
    imports: Vec<(Vec<String>, String)>,
    /// All other paths.
    paths: Vec<Vec<String>>,
    /// The names of the items that the file defines.
    defined: BTreeSet<String>,
    /// All words in the file.
    words: BTreeSet<String>,
}

impl Crate {
    /// Adds a file of the crate. `path` is relative to `src`.
    pub fn add(&mut self, path: &str, text: &str) {
        let stem = path.strip_suffix(".rs").unwrap_or(path);
        let stem = stem.strip_suffix("/mod").unwrap_or(stem);
        let module = if ["lib", "main"].contains(&stem) { Vec::new() } else { names(stem.split('/')) };
        self.modules.insert(module, File::new(text));
    }

    /// For each file, the files on which it depends. The names of modules are joined by `::`. The root has no
    /// dependencies, because it only re-exports.
    pub fn edges(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut edges = BTreeMap::new();
        for (module, file) in self.modules.iter().filter(|(module, _)| !module.is_empty()) {
            let mut found = BTreeSet::new();
            for path in file.imports.iter().map(|(path, _)| path).chain(&file.paths) {
                match path.split_last() {
                    Some((last, before)) if last == "*" => {
                        let Some(target) = self.module(module, before) else { continue };
                        let taken = file.words.iter().filter_map(|word| self.owner(&target, word, 0));
                        found.extend(taken);
                    }
                    _ => found.extend(self.resolve(module, path, 0)),
                }
            }
            found.remove(module);
            let name =
                |module: &Module| if module.is_empty() { "crate".to_owned() } else { module.join("::") };
            edges.insert(name(module), found.iter().map(name).collect());
        }
        edges
    }

    /// The module whose file defines the item that `path` names in `from`, or `None` if the item belongs to
    /// another crate.
    fn resolve(&self, from: &Module, path: &[String], depth: usize) -> Option<Module> {
        let (mut at, rest) = self.start(from, path)?;
        for name in rest {
            let child = [&at[..], std::slice::from_ref(name)].concat();
            if self.modules.contains_key(&child) {
                at = child;
                continue;
            }
            // The last name belongs to an item, or to a re-export.
            return Some(self.owner(&at, name, depth).unwrap_or(at));
        }
        Some(at)
    }

    /// The module that a path of modules names.
    fn module(&self, from: &Module, path: &[String]) -> Option<Module> {
        let (at, rest) = self.start(from, path)?;
        let module = [at, rest.to_vec()].concat();
        self.modules.contains_key(&module).then_some(module)
    }

    /// The module at which a path begins, and the rest of the path.
    fn start<'p>(&self, from: &Module, path: &'p [String]) -> Option<(Module, &'p [String])> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Vec::new(),
            "self" => from.clone(),
            "super" => from.split_last()?.1.to_vec(),
            _ => {
                let child = [&from[..], std::slice::from_ref(first)].concat();
                return self.modules.contains_key(&child).then_some((child, rest));
            }
        };
        while rest.first().is_some_and(|name| name == "super") {
            at.pop()?;
            rest = &rest[1..];
        }
        Some((at, rest))
    }

    /// The module whose file defines `name`. The file of `at` may re-export this name.
    fn owner(&self, at: &Module, name: &str, depth: usize) -> Option<Module> {
        // The search has a depth limit, because imports may be circular.
        const DEEPEST: usize = 8;
        let file = self.modules.get(at)?;
        if file.defined.contains(name) {
            return Some(at.clone());
        }
        let next = |path: &Vec<String>| {
            if depth < DEEPEST { self.resolve(at, path, depth + 1) } else { None }
        };
        if let Some((path, _)) = file.imports.iter().find(|(_, own)| own == name) {
            return next(path);
        }
        let globs = file.imports.iter().filter(|(_, own)| own == "*");
        globs
            .filter_map(|(path, _)| self.module(at, &path[..path.len() - 1]))
            .filter(|module| module != at && depth < DEEPEST)
            .find_map(|module| self.owner(&module, name, depth + 1))
    }
}

impl File {
    fn new(text: &str) -> Self {
        let tokens = tokens(text);
        let mut file = File::default();
        let mut at = 0;
        while at < tokens.len() {
            let token = tokens[at].as_str();
            let before = at.checked_sub(1).map(|before| tokens[before].as_str());
            match token {
                // This condition excludes `use<..>`, which is part of a type.
                "use" if tokens.get(at + 1).is_some_and(|next| next != "<") => {
                    at = file.tree(&tokens, at + 1, &[]);
                    continue;
                }
                "struct" | "enum" | "trait" | "fn" | "type" | "const" | "static" | "union" => {
                    file.defined.extend(tokens.get(at + 1).filter(|name| is_name(name)).cloned());
                }
                _ if is_name(token)
                    && before != Some("::")
                    && tokens.get(at + 1).is_some_and(|t| t == "::") =>
                {
                    let path = tokens[at..].chunks(2).map_while(|pair| {
                        (is_name(&pair[0]) || pair[0] == "self").then(|| (pair[0].clone(), pair.get(1)))
                    });
                    let mut whole = Vec::new();
                    for (name, behind) in path {
                        whole.push(name);
                        if behind.is_none_or(|token| token != "::") {
                            break;
                        }
                    }
                    file.paths.push(whole);
                }
                _ => {}
            }
            if is_name(token) {
                file.words.insert(token.to_owned());
            }
            at += 1;
        }
        file
    }

    /// Parses a tree of `use` that begins at a token. Returns the position behind the tree.
    fn tree(&mut self, tokens: &[String], mut at: usize, prefix: &[String]) -> usize {
        let mut path = prefix.to_vec();
        while let Some(token) = tokens.get(at).map(String::as_str) {
            match token {
                "::" => {}
                "{" => {
                    at += 1;
                    while tokens.get(at).is_some_and(|token| token != "}" && token != ";") {
                        at = self.tree(tokens, at, &path);
                        at += usize::from(tokens.get(at).is_some_and(|token| token == ","));
                    }
                    return at + 1;
                }
                "as" => {
                    let own = tokens.get(at + 1).cloned().unwrap_or_default();
                    self.imports.push((path, own));
                    return at + 2;
                }
                "," | "}" | ";" => break,
                // `a::{self}` means `a`.
                "self" if !path.is_empty() => {}
                _ => path.push(token.to_owned()),
            }
            at += 1;
        }
        if let Some(own) = path.last().cloned() {
            self.imports.push((path, own));
        }
        at
    }
}

fn names<'n>(names: impl Iterator<Item = &'n str>) -> Vec<String> {
    names.map(str::to_owned).collect()
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// The names, the `::`, and the single characters of a file's code before its tests, without comments and
/// strings.
fn tokens(text: &str) -> Vec<String> {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text);
    let mut tokens: Vec<String> = Vec::new();
    for line in text.lines() {
        let mut rest = line;
        while let Some(c) = rest.chars().next() {
            let length = if rest.starts_with("//") {
                break;
            } else if rest.starts_with("::") {
                2
            } else if c == '"' {
                // Strings over several lines are rare. The words of such a string count as names.
                let end = rest[1..].replace("\\\\", "__").replace("\\\"", "__").find('"');
                rest = &rest[end.map_or(rest.len(), |end| end + 2)..];
                continue;
            } else if is_name(rest) {
                rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
            } else {
                c.len_utf8()
            };
            let (token, behind) = rest.split_at(length);
            if !token.trim().is_empty() {
                tokens.push(token.to_owned());
            }
            rest = behind;
        }
    }
    tokens
}
