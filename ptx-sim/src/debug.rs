//! The source lines of an instruction.

use crate::{
    ast::{Function, Location, Module},
    report::SourceLine,
};

/// The folders of the standard library, as rustc and `cuda_builder` write them. Source lines in these folders
/// do not help the user, because they show only the code of iterators.
const LIBRARY: [&str; 2] = ["library/core/", "rust-src/"];

/// The source lines of instruction `at`, innermost first: the position in its `.loc`, then the inlined calls
/// around it, if the text has them.
pub(crate) fn source(module: &Module, function: &Function, at: usize) -> Vec<SourceLine> {
    let location = function.instructions.get(at).and_then(|at| module.locations.get(at.location as usize));
    let Some(own) = location.filter(|location| location.line != 0) else { return Vec::new() };
    let file = module.files.get(&own.file).map_or("?", |file| file);
    let mut lines = vec![SourceLine::new(file, own.line, own.column)];
    lines.extend(callers(module, own));
    let is_library = |line: &SourceLine| LIBRARY.iter().any(|folder| line.file.contains(folder));
    if !lines.iter().all(is_library) {
        lines.retain(|line| !is_library(line));
    }
    lines.dedup_by(|outer, inner| (&outer.file, outer.line) == (&inner.file, inner.line));
    lines
}

/// The inlined calls in the comment behind a `.loc`, innermost first. `cuda_builder` writes
/// `// @2:40:9@1:30:5`, with the file number first. LLVM (`-Zverbose-asm`, `-fverbose-asm`) writes
/// `// src/c.rs:7:14 @[ src/b.rs:40:9 @[ src/a.rs:30:5 ] ]`.
fn callers<'m>(module: &'m Module, location: &Location) -> impl Iterator<Item = SourceLine> + 'm {
    let directive =
        module.text.get(location.at as usize..).and_then(|text| text.lines().next()).unwrap_or_default();
    let comment = directive.split_once("//").map_or("", |(_, comment)| comment);
    comment.split('@').skip(1).filter_map(|call| {
        let mut parts = call.trim_matches(['[', ']', ' ']).rsplitn(3, ':');
        let (column, line, file) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?);
        let numbered = file.parse().ok().and_then(|number| module.files.get(&number));
        Some(SourceLine::new(numbered.map_or(file, |name| name), line, column))
    })
}
