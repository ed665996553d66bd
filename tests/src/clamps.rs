//! Kernels clamp integers from device memory, because the host cannot check them. The functions in this file
//! remove each clamp of a module: with garbage in device memory, a test must notice that the clamp is
//! missing.
use crate::mutation::Subject;
use ferroflash::driver::SimDriver;
use ferroflash::request::Mask;
use ferroflash::{Attention, Error, ptx};
use ptx_sim::Options;
use reference::{Case, Loaded, Memory, Pages};
use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// The source files that contain clamps.
pub const FILES: [&str; 2] = ["/lengths.rs", "/table.rs"];

/// A launch on a cache, with garbage in device memory.
#[derive(Clone, Debug)]
pub struct Garbage {
    /// The case that the host plans, with the contents of the cache.
    pub case: Case,
    /// The lengths of sequences in device memory.
    pub lengths: Vec<i32>,
    /// The starts of varlen sequences in device memory, if they differ from the starts in the case.
    pub starts: Option<Vec<i32>>,
}

impl Garbage {
    /// Returns the bits of all results in `memory`, which is the case's.
    fn run(
        &self,
        memory: &Memory,
        attention: &Attention<SimDriver>,
        config: &str,
    ) -> Result<Vec<u32>, Error> {
        let mut loaded = Loaded::new(attention, memory, Some(config))?;
        if let Some(starts) = &self.starts {
            loaded.start(starts)?;
        }
        let (_, outcome) = loaded.launch(None, &self.lengths)?;
        let sequences = (0..self.lengths.len()).map(|b| outcome.bits(b));
        let bits = sequences.flat_map(|(o, lse)| o.into_iter().map(u32::from).chain(lse));
        Ok(bits.chain([outcome.strays() as u32]).collect())
    }
}

/// Launches with invalid device data. If a paged kernel loses any one clamp, at least one of these launches
/// goes wrong. The data has lengths that are off by one, invalid lengths, starts behind all rows, a start
/// before its predecessor, and unused pages in every tile of a sequence. Some of the page sizes divide no
/// tile.
pub fn garbage_on_pages(odd: Pages) -> Vec<Garbage> {
    let most = 120;
    let filled: Vec<usize> = (0..6).map(|b| if b % 3 == 0 { most } else { 50 }).collect();
    let plain = Case { mask: Mask::Causal, max_k: most, ..Case::new(filled) };
    let varlen = plain.clone().varlen_queries([1, 20, 0, 33, 2, 17]);
    let with = |case: &Case, pages, lengths: [i32; 6], starts: Option<[i32; 7]>| Garbage {
        case: Case { pages, ..case.clone() },
        lengths: lengths.into(),
        starts: starts.map(Vec::from),
    };
    let right = [120, 50, 50, 120, 50, 50];
    let mut all = vec![
        with(&varlen, Pages::Dense, [121, -1, 50, 120, 0, 50], None),
        with(&varlen, odd, [i32::MAX, i32::MIN, 50, 121, -1, 50], None),
        with(&varlen, Pages::Nhd(16), right, Some([0, 1, 21, 21, 54, 56, i32::MAX])),
        with(&varlen, Pages::Nhd(16), right, Some([0, 1, 21, 21, 54, 53, 53])),
        with(&varlen, Pages::Nhd(16), right, Some([0, 1, 21, 21, 54, 80, 90])),
        with(&plain, Pages::Nhd(16), [121, -1, 50, 120, 0, 50], None),
    ];
    let case = Case { max_k: 400, pages: Pages::Nhd(16), ..Case::new([20]) }.varlen_queries([70]);
    all.push(Garbage { case: Case { mask: Mask::Causal, ..case }, lengths: vec![400], starts: None });
    all
}

/// A number of instructions that suffices for every launch. A kernel that takes garbage for a length of
/// billions exceeds this number, and ends.
const BUDGET: u64 = 20_000_000;

/// Returns the clamps of `subject` whose removal changes neither a bit nor a report of the simulator in any
/// of `launches`. Omits a clamp if the text of the clamp or of its replacement has all words of an entry of
/// `superfluous`.
///
/// # Panics
/// Panics if the unchanged kernel fails.
pub fn unnoticed(subject: &Subject, launches: &[Garbage], superfluous: &[&[&str]]) -> Vec<String> {
    let (kernel, config) = (subject.kernel, subject.of.contract().symbol);
    let launches: Vec<_> = launches.iter().map(|launch| (launch, launch.case.memory())).collect();
    let load = |text: &str| {
        let options = Options { budget: BUDGET, max_reports: 1, ..Options::default() };
        let attention = subject.simulator(options.clone());
        // Bits of one simulator are compared, which need no exact sums of Hopper's, and these are slow.
        attention.driver().set_options(options);
        // SAFETY: the simulator checks every access.
        unsafe { attention.load_from(kernel.symbol, text).expect("loads") };
        attention
    };
    let text = ptx::source(kernel.symbol).expect("this build carries every kernel");
    let attention = load(&text);
    let right = |(launch, memory): &(&Garbage, Memory)| {
        let right = launch.run(memory, &attention, config);
        right.unwrap_or_else(|error| panic!("{}: {launch:?}: {error}", kernel.symbol))
    };
    let right: Vec<_> = launches.iter().map(right).collect();
    let mut clamps = without_each_clamp(&text, &FILES);
    clamps.retain(|clamp| {
        let clamp = clamp.to_string();
        !superfluous.iter().any(|words| words.iter().all(|word| clamp.contains(word)))
    });
    assert!(!clamps.is_empty(), "{} has clamps", kernel.symbol);
    let mut results: Vec<_> = launches.iter().zip(&right).collect();
    let mut changes = |clamp: &WithoutClamp| {
        let attention = load(&clamp.text);
        let goes_wrong = |((launch, memory), right): &(&(&Garbage, Memory), &Vec<u32>)| {
            launch.run(memory, &attention, config).ok().as_ref() != Some(*right)
        };
        let noticed = results.iter().position(goes_wrong);
        // Neighbouring clamps are often missed by the same launch, which therefore runs first.
        if let Some(at) = noticed {
            results[..=at].rotate_right(1);
        }
        noticed.is_some()
    };
    let unnoticed = clamps.iter().filter(|clamp| !changes(clamp));
    unnoticed.map(|clamp| clamp.to_string()).collect()
}

/// A module from which one clamp was removed.
#[derive(Clone, Debug)]
pub struct WithoutClamp {
    /// The removed instruction, and the lines of Rust from which it comes.
    pub clamp: String,
    /// The number of the operand that replaces the instruction, 1 or 2.
    pub operand: usize,
    /// The text of the changed module.
    pub text: String,
}

impl fmt::Display for WithoutClamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} becomes operand {}", self.clamp, self.operand)
    }
}

/// All variants of a module in which one clamp is missing. In each variant, one operand replaces a minimum or
/// maximum that comes from one of `files`, according to the source lines in the module. Instructions from one
/// source line with one caller are one clamp, and are replaced together.
///
/// # Panics
/// Panics if the module has no source lines.
pub fn without_each_clamp(text: &str, files: &[&str]) -> Vec<WithoutClamp> {
    let is_clamp = |of: &Instruction<'_>| ["min.u32", "min.s32", "max.u32", "max.s32"].contains(&of.op);
    without_each(text, files, is_clamp, |operands, operand| {
        format!("mov.b32 {}, {};", operands[0], operands[operand])
    })
}

/// All variants of a module in which one comparison of one of `files` is always true (operand 1) or always
/// false (operand 2), as in [`without_each_clamp`].
///
/// # Panics
/// Panics if the module has no source lines.
pub fn without_each_comparison(text: &str, files: &[&str]) -> Vec<WithoutClamp> {
    let compares = |of: &Instruction<'_>| of.op.starts_with("setp.") && of.is_inner;
    without_each(text, files, compares, |operands, operand| {
        let [result, number, ..] = operands else { panic!("a comparison has operands: {operands:?}") };
        format!("setp.{}.u32 {result}, {number}, {number};", ["eq", "ne"][operand - 1])
    })
}

/// An instruction that comes from a source file.
struct Instruction<'a> {
    /// The number of its line in the module.
    at: usize,
    op: &'a str,
    operands: Vec<&'a str>,
    /// The lines of Rust from which it comes.
    source: String,
    /// Whether the file has the instruction itself, and not a function that it calls.
    is_inner: bool,
}

/// The instructions of a module that come from one of `files`.
fn instructions<'a>(text: &'a str, files: &[&str]) -> Vec<Instruction<'a>> {
    assert!(text.contains(".loc"), "the module has no source lines");
    let paths: HashMap<&str, &str> = text.lines().filter_map(file).collect();
    let is_theirs =
        |number: &str| paths.get(number).is_some_and(|path| files.iter().any(|file| path.ends_with(file)));
    let (mut source, mut is_inner, mut all) = (String::new(), false, vec![]);
    for (at, line) in text.lines().enumerate() {
        let instruction = line.trim();
        if let Some(place) = instruction.strip_prefix(".loc") {
            is_inner = frames(place).next().is_some_and(|(number, _)| is_theirs(number));
            let theirs = frames(place).skip_while(|(number, _)| !is_theirs(number)).take(2);
            let codes = theirs.filter_map(|(number, line)| Some(code(paths.get(number)?, line)));
            source = codes.collect::<Vec<_>>().join(" from ");
        }
        let Some((op, operands)) = instruction.split_once(char::is_whitespace) else { continue };
        if !source.is_empty() {
            let operands = operands.trim_end_matches(';').split(',').map(str::trim).collect();
            all.push(Instruction { at, op, operands, source: source.clone(), is_inner });
        }
    }
    all
}

/// All variants of a module in which `replaced` replaces the instructions of one source line with one caller.
/// `replaced` gets their operands, and 1 or 2.
fn without_each(
    text: &str,
    files: &[&str],
    is_one: impl Fn(&Instruction<'_>) -> bool,
    replaced: impl Fn(&[&str], usize) -> String,
) -> Vec<WithoutClamp> {
    let mut all = BTreeMap::<String, Vec<Instruction<'_>>>::new();
    for one in instructions(text, files).into_iter().filter(|one| is_one(one)) {
        all.entry(format!("{} of {}", one.op, one.source)).or_default().push(one);
    }
    let without = |(clamp, places): (&String, &Vec<Instruction<'_>>), operand: usize| {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        for place in places {
            lines[place.at] = replaced(&place.operands, operand);
        }
        WithoutClamp { clamp: clamp.clone(), operand, text: lines.join("\n") }
    };
    all.iter().flat_map(|clamp| [without(clamp, 1), without(clamp, 2)]).collect()
}

/// The number and the path in a `.file` directive.
fn file(line: &str) -> Option<(&str, &str)> {
    let (number, path) = line.trim().strip_prefix(".file")?.trim().split_once(char::is_whitespace)?;
    Some((number, path.trim().trim_matches('"')))
}

/// The file and line in a `.loc` directive, and of the inlined calls around it, innermost first.
fn frames(place: &str) -> impl Iterator<Item = (&str, &str)> {
    let (own, calls) = place.split_once("//").unwrap_or((place, ""));
    let mut own = own.split_whitespace();
    let own = own.next().zip(own.next());
    let calls = calls.trim().split('@').filter_map(|call| {
        let mut numbers = call.split(':');
        numbers.next().zip(numbers.next())
    });
    own.into_iter().chain(calls)
}

/// A source line of this repository, as `file.rs:line: code`.
fn code(path: &str, line: &str) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../");
    let text = std::fs::read_to_string(format!("{root}{path}")).unwrap_or_default();
    let code = line.parse::<usize>().ok().and_then(|line| text.lines().nth(line.checked_sub(1)?));
    format!("{path}:{line}: {}", code.unwrap_or_default().trim())
}
