//! `cargo xtask build-ptx --against FOLDER`: compares the kernels with the PTX files of a folder, without
//! line numbers.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::Path;

use cuda_builder::{Module, lines};

use crate::process::Result;

/// The result of comparing a module with the file in the folder.
#[derive(Debug, PartialEq, Eq)]
enum Verdict<'a> {
    /// The instructions, labels and registers are equal.
    Equal,
    /// The modules are equal except for the numbers of virtual registers, which do not matter.
    Renumbered,
    /// The folder has no such module.
    New,
    /// The first line that differs: its number (only lines of code count), its text in the module, and its
    /// text in the folder's file.
    Different(usize, &'a str, &'a str),
}

impl fmt::Display for Verdict<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Equal => f.write_str("equal"),
            Verdict::Renumbered => f.write_str("equal except for the numbers of virtual registers"),
            Verdict::New => f.write_str("new: the folder has no such module"),
            Verdict::Different(number, today, before) => {
                write!(f, "different from line {number} of code on: `{today}` now, `{before}` in the folder")
            }
        }
    }
}

/// Compares each module with the file of its symbol in `folder`. Prints one line per entry, and a count. An
/// entry counts as equal if only the numbers of virtual registers differ.
///
/// # Errors
/// Returns an error if a module is new or different, or if `folder` cannot be read.
pub fn against(folder: &Path, modules: &[Module]) -> Result {
    fs::read_dir(folder).map_err(|error| format!("--against {}: {error}", folder.display()))?;
    let (mut equal, mut renumbered) = (0, 0);
    for module in modules {
        let symbol = module.contract.symbol;
        let today = code(&module.text);
        let before = fs::read_to_string(folder.join(format!("{symbol}.ptx"))).map(|text| code(&text));
        let verdict = compare(&today, before.as_deref().ok());
        equal += usize::from(verdict == Verdict::Equal);
        renumbered += usize::from(verdict == Verdict::Renumbered);
        println!("{symbol}: {verdict}");
    }
    let different = modules.len() - equal - renumbered;
    let folder = folder.display();
    println!(
        "{equal} entries equal, {renumbered} except for numbers of registers, {different} different; {folder}"
    );
    if different > 0 { Err(format!("{different} entries differ from the folder").into()) } else { Ok(()) }
}

/// The lines of code, which are all lines except for `.loc`, `.file`, comments and blank lines. (The builder
/// numbers labels per module, and drops debug sections.)
fn code(ptx: &str) -> String {
    let (code, _) = lines::split(ptx);
    let bare = code.lines().map(|line| line.split("//").next().unwrap_or(line).trim_end());
    bare.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

fn compare<'a>(today: &'a str, before: Option<&'a str>) -> Verdict<'a> {
    let Some(before) = before else { return Verdict::New };
    if today != before && renumbered(today) == renumbered(before) {
        return Verdict::Renumbered;
    }
    let (mut today, mut before) = (today.lines(), before.lines());
    for number in 1.. {
        match (today.next(), before.next()) {
            (None, None) => break,
            (a, b) if a == b => {}
            (a, b) => return Verdict::Different(number, a.unwrap_or("end"), b.unwrap_or("end")),
        }
    }
    Verdict::Equal
}

/// Returns the code with new numbers for the virtual registers. In each class, the numbers follow the order
/// of first use.
fn renumbered(code: &str) -> String {
    let mut numbers: HashMap<(&str, &str), usize> = HashMap::new();
    let mut next: HashMap<&str, usize> = HashMap::new();
    let mut out = String::with_capacity(code.len());
    // This line drops the declarations of registers. A declaration only gives the number of registers, and
    // the instructions show all registers.
    for line in code.lines().filter(|line| !line.trim_start().starts_with(".reg")) {
        let mut rest = line;
        while let Some(at) = rest.find('%') {
            let name = &rest[at + 1..];
            let class = name.find(|c: char| !c.is_ascii_alphabetic()).map_or(name, |end| &name[..end]);
            let number = &name[class.len()..];
            let number = number.find(|c: char| !c.is_ascii_digit()).map_or(number, |end| &number[..end]);
            out.push_str(&rest[..=at]);
            out.push_str(class);
            if !number.is_empty() {
                let new = *numbers.entry((class, number)).or_insert_with(|| {
                    let next = next.entry(class).or_default();
                    *next += 1;
                    *next
                });
                out.push_str(&new.to_string());
            }
            rest = &name[class.len() + number.len()..];
        }
        out.push_str(rest);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: &str =
        "\t.loc\t1 27 0\n\tadd.s32 \t%r1, %r2, 3;\n$L__BB0_2:\n\tret;\n\t.file\t1 \"a.rs\"\n";

    #[test]
    fn only_code_counts() {
        let noise =
            "\n\t.loc\t2 9 1 // @1:4:5\n\tadd.s32 \t%r1, %r2, 3; // three\n\t// end\n$L__BB0_2:\n\tret;\n";
        let changed = MODULE.replace("%r2, 3", "%r2, 4");
        let renumbered = MODULE.replace("%r1", "%r7").replace("%r2", "%r1");
        let longer = format!("{MODULE}\tret;\n");
        let cases = [
            (Some(noise), Verdict::Equal),
            (None, Verdict::New),
            (Some(renumbered.as_str()), Verdict::Renumbered),
            (
                Some(changed.as_str()),
                Verdict::Different(1, "\tadd.s32 \t%r1, %r2, 3;", "\tadd.s32 \t%r1, %r2, 4;"),
            ),
            (Some(longer.as_str()), Verdict::Different(4, "end", "\tret;")),
            (Some(""), Verdict::Different(1, "\tadd.s32 \t%r1, %r2, 3;", "end")),
        ];
        for (before, expected) in cases {
            assert_eq!(compare(&code(MODULE), before.map(code).as_deref()), expected, "{before:?}");
        }
    }
}
