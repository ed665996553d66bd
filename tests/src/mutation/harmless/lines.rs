//! The source lines that reasons for survival name.
use ptx_sim::mutate::Mutant;
use std::path::Path;

/// A source line: the end of its file's name, and a text in the line.
pub(super) type Source = [&'static str; 2];

/// Whether one of the source lines of `mutant` is in `file` and contains `code`.
pub(super) fn has_source(mutant: &Mutant, [file, code]: Source) -> bool {
    mutant
        .source
        .iter()
        .any(|line| line.file.ends_with(file) && code_at(&line.file, line.line).contains(code))
}

/// The text of a line of this repository, or an empty text for a line of other sources.
fn code_at(file: &str, line: u32) -> String {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
    text.lines().nth(line.saturating_sub(1) as usize).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::{CLASSES, NAMED, hopper, on_cache};
    use super::*;
    use std::fs;

    /// Every Rust file below these folders.
    fn sources(folders: &[&str]) -> Vec<(String, String)> {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let mut folders: Vec<_> = folders.iter().map(|folder| root.join(folder)).collect();
        let mut files = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("a folder").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|end| end == "rs") {
                    let text = fs::read_to_string(&path).expect("text");
                    files.push((path.to_str().expect("UTF-8").to_owned(), text));
                }
            }
        }
        files
    }

    #[test]
    fn every_excuse_is_of_a_line_that_is_there() {
        let files = sources(&[
            "kernels-gpu/src",
            "kernels-gpu/attention-tile/src",
            "kernels-gpu/spec/src",
            "device/tile/src",
            "device/cuda_std/src",
        ]);
        let of_classes = CLASSES.iter().filter_map(|class| class.source);
        let named = [&NAMED[..], &hopper::LINES, &on_cache::LINES].concat();
        let is_there = |[file, code]: &Source| {
            files
                .iter()
                .any(|(path, text)| path.ends_with(file) && text.lines().any(|line| line.contains(code)))
        };
        let gone: Vec<_> = of_classes.chain(named).filter(|source| !is_there(source)).collect();
        assert!(gone.is_empty(), "no source has these lines any more: {gone:#?}");
    }

    #[test]
    fn every_class_is_whole_and_of_a_kernel() {
        for class in CLASSES.iter() {
            let reason = &class.reason;
            assert!(!reason.is_empty() && !reason.contains('<'), "{:?}: {reason}", class.source);
            assert!(class.source.is_some() || !class.instruction.is_empty(), "{reason}");
            let is_some = ferroflash::spec::KERNELS.iter().any(|kernel| class.has_kernel(kernel.symbol));
            assert!(is_some, "{:?}: {reason}", class.source);
        }
    }
}
