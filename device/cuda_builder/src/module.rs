//! Splits the PTX of a whole crate into one self-contained module per entry.
//!
//! The text of an entry's module depends on that entry alone: labels and source files are numbered anew, so that a new kernel
//! beside it changes neither its golden figures nor the key of a cached report.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::Error;
use crate::scan::{self, Item, Kind};

/// The PTX of a device crate, as rustc wrote it.
#[derive(Debug)]
pub struct Ptx<'a> {
    header: Vec<&'a str>,
    files: HashMap<u32, &'a str>,
    items: Vec<Item<'a>>,
}

impl<'a> Ptx<'a> {
    /// Reads the top level of a PTX text.
    ///
    /// # Errors
    /// [`Error::Ptx`] where the text is not what rustc writes.
    pub fn parse(text: &'a str) -> Result<Self, Error> {
        let mut ptx = Self { header: Vec::new(), files: HashMap::new(), items: Vec::new() };
        for item in scan::items(text)? {
            match item.kind {
                Kind::Header => ptx.header.push(item.text),
                Kind::File(number) => {
                    let name =
                        item.text.split_once('"').and_then(|(_, rest)| rest.rsplit_once('"')).map_or("", |r| r.0);
                    ptx.files.insert(number, name);
                }
                // Debug sections refer to every function at once, and `.loc` needs none of them.
                Kind::Section => {}
                Kind::Entry | Kind::Function | Kind::Variable => ptx.items.push(item),
            }
        }
        Ok(ptx)
    }

    /// The symbols of its entries, in the order of the text.
    pub fn entries(&self) -> impl Iterator<Item = &'a str> {
        self.items.iter().filter(|i| i.kind == Kind::Entry).map(|i| i.name)
    }

    /// The module of one entry: header, what the entry refers to (directly or through functions), the entry, its source files.
    /// `directives` go between its parameters and its body. `None` if there is no such entry.
    pub fn module(&self, symbol: &str, directives: &str) -> Option<String> {
        let entry = self.items.iter().find(|i| i.kind == Kind::Entry && i.name == symbol)?;
        let needed = self.needed(entry);
        let mut names = Renumber::default();
        let mut out = self.header.join("\n");
        out.push('\n');
        for item in self.items.iter().filter(|i| i.kind != Kind::Entry && needed.contains(i.name)) {
            out.push('\n');
            names.append(&mut out, item.text);
        }
        out.push('\n');
        let (signature, body) = entry.text.split_at(entry.body);
        names.append(&mut out, signature.trim_end());
        out.push_str(directives);
        names.append(&mut out, body);
        for (new, old) in names.files.iter().enumerate() {
            let name = self.files.get(old).copied().unwrap_or_default();
            out.push_str(&format!("\t.file\t{} \"{name}\"\n", new + 1));
        }
        Some(out)
    }

    /// The names of all items that `entry` refers to, however indirectly.
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

/// PTX without line information: what ptxas sees of a module.
pub fn without_lines(ptx: &str) -> String {
    let is_line_info = |line: &&str| matches!(line.split_whitespace().next(), Some(".loc" | ".file"));
    ptx.lines().filter(|line| !is_line_info(line)).flat_map(|line| [line, "\n"]).collect()
}

/// New numbers for labels and source files, in the order of their first use.
#[derive(Default)]
struct Renumber {
    /// Old file numbers; the new number is the position, from 1.
    files: Vec<u32>,
    /// (label's stem, old number) to new number.
    labels: HashMap<(String, u32), usize>,
    /// New numbers given so far, by stem.
    next: HashMap<String, usize>,
}

impl Renumber {
    fn append(&mut self, out: &mut String, text: &str) {
        for line in text.lines() {
            // Marks for debug sections that are left out.
            if line.starts_with("$L__tmp") || line.starts_with("$L__func_") {
                continue;
            }
            match line.trim_start().strip_prefix(".loc").and_then(parse_loc) {
                Some((file, place)) => {
                    let number = self.files.iter().position(|&f| f == file).unwrap_or_else(|| {
                        self.files.push(file);
                        self.files.len() - 1
                    });
                    out.push_str(&format!("\t.loc\t{} {place}\n", number + 1));
                }
                None => {
                    self.append_labels(out, line);
                    out.push('\n');
                }
            }
        }
    }

    /// Copies a line; in `$L__BB12_3` the 12, which counts the crate's functions, becomes the new number.
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

/// The file number of a `.loc` line, and its line and column. Later LLVMs append the inlining site, which refers to a debug section: dropped.
fn parse_loc(arguments: &str) -> Option<(u32, String)> {
    let mut words = arguments.split([' ', '\t', ',']).filter(|w| !w.is_empty());
    let file = words.next()?.parse().ok()?;
    Some((file, format!("{} {}", words.next()?, words.next()?)))
}
