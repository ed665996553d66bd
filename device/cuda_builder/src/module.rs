//! Splits the PTX of a whole crate into one self-contained module per entry.
//!
//! The text of a module depends on its entry alone, because the splitter renumbers labels and source files. A
//! new kernel in the crate therefore changes neither golden figures of other entries nor keys of their cached
//! reports.
//!
//! LLVM's comments are longer than the code. The splitter keeps only the inlined calls of a `.loc`, in a
//! short form: `// @file:line:column@file:line:column`, innermost call first, with the file numbers of
//! `.file`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::scan::{self, Item, Kind};
use crate::{Error, convergence};

/// The PTX of a device crate, as rustc wrote it.
#[derive(Debug)]
pub struct Ptx<'a> {
    header: Vec<&'a str>,
    files: HashMap<u32, &'a str>,
    /// Numbers of files by the names that comments use, which are relative to a crate; `None` if several
    /// files have the name.
    relative: HashMap<&'a str, Option<&'a str>>,
    items: Vec<Item<'a>>,
}

impl<'a> Ptx<'a> {
    /// Reads the top level of a PTX text.
    ///
    /// # Errors
    /// - Returns [`Error::Ptx`] if the text is not rustc's output;
    /// - [`Error::Unguarded`] if a convergent instruction stands in a plain `asm!`.
    pub fn parse(text: &'a str) -> Result<Self, Error> {
        let mut ptx =
            Self { header: Vec::new(), files: HashMap::new(), relative: HashMap::new(), items: Vec::new() };
        for item in scan::items(text)? {
            match item.kind {
                Kind::Header => ptx.header.push(item.text),
                Kind::File(number) => {
                    let name = item
                        .text
                        .split_once('"')
                        .and_then(|(_, rest)| rest.rsplit_once('"'))
                        .map_or("", |r| r.0);
                    // Comments name the workspace's files without the leading `./`.
                    ptx.files.insert(number, name.strip_prefix("./").unwrap_or(name));
                }
                // The modules need no debug section: `.loc` and its comment stand alone, and the sections
                // refer to every function.
                Kind::Section => {}
                Kind::Entry | Kind::Function => {
                    if let Some(instruction) = convergence::unguarded(item.text) {
                        let (symbol, instruction) = (item.name.to_owned(), instruction.to_owned());
                        return Err(Error::Unguarded { symbol, instruction });
                    }
                    ptx.items.push(item);
                }
                Kind::Variable => ptx.items.push(item),
            }
        }
        // A comment repeats the position of its directive, and then has the inlined calls.
        let directives =
            ptx.items.iter().flat_map(|item| item.text.lines()).filter_map(|line| line.strip_prefix(LOC));
        for directive in directives {
            let number = directive.split(' ').next().and_then(|number| number.parse().ok());
            let own =
                directive.split_once("// ").and_then(|(_, comment)| place(comment.split(" @[").next()?));
            if let (Some(&file), Some((relative, ..))) = (number.and_then(|n: u32| ptx.files.get(&n)), own) {
                let known = ptx.relative.entry(relative).or_insert(Some(file));
                *known = known.filter(|&known| known == file);
            }
        }
        Ok(ptx)
    }

    /// The symbols of the entries, in the order of the text.
    pub fn entries(&self) -> impl Iterator<Item = &'a str> {
        self.items.iter().filter(|i| i.kind == Kind::Entry).map(|i| i.name)
    }

    /// The module of one entry: the header, all items that the entry refers to directly or through functions,
    /// the entry, and its source files. `directives` stand between the entry's parameters and its body.
    /// Returns `None` if the text has no such entry.
    pub fn module(&self, symbol: &str, directives: &str) -> Option<String> {
        let entry = self.items.iter().find(|i| i.kind == Kind::Entry && i.name == symbol)?;
        let needed = self.needed(entry);
        let mut numbers = Renumber { ptx: self, files: vec![], labels: HashMap::new(), next: HashMap::new() };
        let mut out = self.header.join("\n");
        out.push('\n');
        for item in self.items.iter().filter(|i| i.kind != Kind::Entry && needed.contains(i.name)) {
            out.push('\n');
            numbers.append(&mut out, item.text);
        }
        out.push('\n');
        let (signature, body) = entry.text.split_at(entry.body);
        numbers.append(&mut out, signature.trim_end());
        out.push_str(directives);
        numbers.append(&mut out, body);
        for (new, name) in numbers.files.iter().enumerate() {
            out.push_str(&format!("\t.file\t{} \"{name}\"\n", new + 1));
        }
        Some(out)
    }

    /// The names of all items to which `entry` refers, directly or indirectly.
    fn needed(&self, entry: &Item<'a>) -> BTreeSet<&'a str> {
        let mut by_name: BTreeMap<&str, Vec<&Item<'a>>> = BTreeMap::new();
        for item in &self.items {
            by_name.entry(item.name).or_default().push(item);
        }
        let mut needed = BTreeSet::new();
        let mut open = vec![entry];
        while let Some(item) = open.pop() {
            for word in scan::identifiers(item.text) {
                if word != item.name
                    && let Some(found) = by_name.get(word)
                    && needed.insert(found[0].name)
                {
                    open.extend(found);
                }
            }
        }
        needed
    }
}

/// The beginning of a `.loc` directive.
const LOC: &str = "\t.loc\t";

/// Returns file, line and column from a comment.
fn place(text: &str) -> Option<(&str, &str, &str)> {
    let mut parts = text.trim_matches(['[', ']', ' ']).rsplitn(3, ':');
    let (column, line, file) = (parts.next()?, parts.next()?, parts.next()?);
    Some((file, line, column))
}

/// The new numbers of labels and source files, in order of first use.
struct Renumber<'a> {
    ptx: &'a Ptx<'a>,
    /// The names of files. The new number of a file is its position, from 1.
    files: Vec<&'a str>,
    /// Maps a label's stem and old number to its new number.
    labels: HashMap<(String, u32), usize>,
    /// For each stem, the next new number.
    next: HashMap<String, usize>,
}

impl<'a> Renumber<'a> {
    fn append(&mut self, out: &mut String, text: &'a str) {
        let idle = convergence::idle_guards(text);
        for line in text.lines() {
            // This branch skips labels of debug sections, and guards that only LLVM needs.
            if line.starts_with("$L__tmp")
                || line.starts_with("$L__func_")
                || convergence::guarded(line).is_some_and(|register| idle.contains(register))
            {
                continue;
            }
            if let Some(location) = line.strip_prefix(LOC).and_then(|l| self.location(l)) {
                out.push_str(&format!("\t.loc\t{location}\n"));
                continue;
            }
            // LLVM separates its comments about blocks and loops by blanks. Comments after a tab belong to
            // the text.
            let code = line.split_once("  //").map_or(line, |(code, _)| code.trim_end());
            // If a line contains only a comment of LLVM, the code drops the line. A blank line would
            // otherwise remain.
            let is_blank = line.is_empty() || line.ends_with("// -- End function");
            if is_blank || !code.is_empty() && !code.starts_with("//") {
                self.append_labels(out, code);
                out.push('\n');
            }
        }
    }

    /// The arguments of `.loc`: file, line and column, then the inlined calls. LLVM writes them as `//
    /// src/c.rs:7:14 @[ src/b.rs:40:9 @[ src/a.rs:30:5 ] ]`.
    fn location(&mut self, arguments: &'a str) -> Option<String> {
        let (own, comment) = arguments.split_once("//").unwrap_or((arguments, ""));
        let mut words = own.split_whitespace();
        let (file, line, column) = (words.next()?, words.next()?, words.next()?);
        let mut location = format!("{} {line} {column}", self.file(file));
        let mut start = " // ";
        for call in comment.split('@').skip(1) {
            if let Some((file, line, column)) = place(call) {
                location.push_str(&format!("{start}@{}:{line}:{column}", self.file(file)));
                start = "";
            }
        }
        Some(location)
    }

    /// The new number of a file. `file` is the file's old number, or the name that comments use.
    fn file(&mut self, file: &'a str) -> usize {
        let name = match file.parse::<u32>() {
            Ok(number) => self.ptx.files.get(&number).copied().unwrap_or_default(),
            Err(_) => self.ptx.relative.get(file).copied().flatten().unwrap_or(file),
        };
        let known = self.files.iter().position(|&f| f == name);
        1 + known.unwrap_or_else(|| {
            self.files.push(name);
            self.files.len() - 1
        })
    }

    /// Copies a line and renumbers its labels. In `$L__BB12_3`, 12 is the number of a function in the crate,
    /// which this function replaces by a new number.
    fn append_labels(&mut self, out: &mut String, line: &str) {
        let mut rest = line;
        while let Some(at) = rest.find("$L__") {
            let label = &rest[at..];
            let stem = label.bytes().position(|b| b.is_ascii_digit()).unwrap_or(label.len());
            let digits = label[stem..].bytes().take_while(u8::is_ascii_digit).count();
            out.push_str(&rest[..at + stem]);
            if let Ok(old) = label[stem..stem + digits].parse() {
                out.push_str(&self.label(&label[..stem], old).to_string());
            }
            rest = &label[stem + digits..];
        }
        out.push_str(rest);
    }

    fn label(&mut self, stem: &str, old: u32) -> usize {
        *self.labels.entry((stem.to_owned(), old)).or_insert_with(|| {
            let next = self.next.entry(stem.to_owned()).or_default();
            *next += 1;
            *next - 1
        })
    }
}
