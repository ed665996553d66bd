//! Mutants that change nothing that anybody can observe, and the reasons for this. `tests/harmless.txt` has
//! classes of such mutants; this file and its submodules have the conditions that a class cannot express.
use super::{Subject, flow, flow::words};
use ferroflash::kernels::MaskKind;
use ptx_sim::mutate::{Mutant, Operator};
use std::collections::BTreeSet;
use std::sync::{LazyLock, Mutex, PoisonError};

mod hopper;
mod lines;
mod on_cache;

use lines::{Source, has_source};

/// The classes, whose first lines explain the notation.
const ROWS: &str = include_str!("../../harmless.txt");

/// A class of harmless mutants.
#[derive(Default)]
struct Harmless {
    operators: Vec<Operator>,
    source: Option<Source>,
    instruction: String,
    /// The beginnings of the kernels' names, or words with `+` and `-`.
    kernels: Vec<String>,
    mask: Option<String>,
    idle: bool,
    reason: String,
}

/// Reads the classes of [`ROWS`].
fn classes(rows: &'static str) -> Vec<Harmless> {
    let mut names = vec![("CUT", CUT.to_owned())];
    let mut all: Vec<Harmless> = vec![];
    for line in rows.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let full =
            names.iter().fold(line.to_owned(), |line, (name, full)| line.replace(&format!("<{name}>"), full));
        if let Some((name, _)) = line.split_once(" = ").filter(|(name, _)| !name.contains(' ')) {
            names.push((name, full[name.len() + 3..].to_owned()));
        } else if let Some(text) = full.strip_prefix("  ") {
            let class = all.last_mut().expect("a class begins with its operators");
            match (line.strip_prefix("  at "), text.strip_prefix("with ")) {
                (Some(source), _) => {
                    class.source = source.split_once(':').map(|(file, code)| [file, code.trim_start()])
                }
                (_, Some(instruction)) => class.instruction = instruction.to_owned(),
                _ => class.reason = text.to_owned(),
            }
        } else {
            all.push(Harmless::of(&full));
        }
    }
    all
}

impl Harmless {
    /// Reads the first line of a class.
    fn of(line: &str) -> Self {
        let (operators, options) = line.split_once(", ").unwrap_or((line, ""));
        let operator =
            |name: &str| serde_json::from_value(name.into()).unwrap_or_else(|e| panic!("{line}: {e}"));
        let mut class =
            Harmless { operators: operators.split(' ').map(operator).collect(), ..Harmless::default() };
        for option in options.split(", ").filter(|option| !option.is_empty()) {
            match option.split_once(' ') {
                Some(("mask", mask)) => class.mask = Some(mask.to_owned()),
                Some(("kernels", words)) => class.kernels = words.split(' ').map(str::to_owned).collect(),
                _ if option == "idle" => class.idle = true,
                _ => panic!("{line}: {option} is no option of a class"),
            }
        }
        class
    }

    /// Whether the class applies to the kernel with this symbol.
    fn has_kernel(&self, symbol: &str) -> bool {
        let mut begins = self.kernels.iter().filter(|word| !word.starts_with(['+', '-'])).peekable();
        let is_any = begins.peek().is_none() || begins.any(|start| symbol.starts_with(start.as_str()));
        is_any
            && self.kernels.iter().all(|word| match word.split_at(1) {
                ("+", word) => symbol.contains(word),
                ("-", word) => !symbol.contains(word),
                _ => true,
            })
    }
}

/// Source lines whose mutants are harmless under conditions that a class cannot express.
#[cfg(test)]
const NAMED: [Source; 7] = [SLACK[0], SLACK[1], EDGES[0], EDGES[1], MODEST, FIRST_STEP, ADVANCE];
const SLACK: [Source; 2] = [["softmax.rs", "> SLACK"], ["softmax.rs", "> self.slack"]];
const EDGES: [Source; 2] = [["overlap.rs", "if edge {"], ["mainloop.rs", "if edge {"]];
const MODEST: Source = ["softcap.rs", "if scale_log2 <= MODEST"];
const FIRST_STEP: Source = ["kernels-gpu/src/variant/blocks.rs", "$step(n, true)"];
const ADVANCE: Source = ["forward.rs", "kv.advance(block"];

const OFTEN: &str = "The kernel may rescale sums to the new maximum more often than needed. The slack only \
                     decides when it pays.";
const SATURATING: &str =
    "A saturating addition of at least 1: sum and summand are never equal, and the added number is never 0.";
const CUT: &str = "The copy checks the rows of any block. Only the last block of keys can be cut, and all \
                   rows of this block exist.";
const IDLE: &str = "In every launch, each warp makes the accesses of the unbroken kernel, with equal values, \
                    between equal synchronisations.";
const TANGENTS: &str = "Tangents with this relative precision are correct under any cap. The other tangents \
                        only take less time.";
const THREADS: &str = "The comparison's bound exceeds the number of threads in the block.";

/// The reason why `mutant` of `subject`, whose PTX is `text`, does no harm, or `None` if no reason is known.
/// `differs` states whether a thread took another path in any launch.
pub(super) fn reason(subject: &Subject, mutant: &Mutant, text: &str, differs: bool) -> Option<&'static str> {
    if mutant.operator == Operator::OffByOne
        && !differs
        && let Some(reason) = comparison(subject, &text[mutant.span.0..mutant.span.1], text)
    {
        return Some(reason);
    }
    // The path that rescales sums is the path on which lanes exchange their maxima. A branch around this path
    // is harmful.
    let rescales = || flow::forced(mutant, text).is_some_and(|path| path.contains("shfl.sync"));
    let is_later = mutant.operator == Operator::OffByOne;
    if SLACK.into_iter().any(|line| has_source(mutant, line)) && (is_later || rescales()) {
        return Some(OFTEN);
    }
    // On the path that masks scores, scores become infinities. A branch around this path is harmful.
    let masks = || flow::forced(mutant, text).is_some_and(|path| path.contains("0fFF800000"));
    if EDGES.into_iter().any(|line| has_source(mutant, line)) && masks() {
        return Some("To mask a block that needs no mask changes nothing.");
    }
    // The series on the path with relative precision has the constant -17/315. A branch to the other path is
    // harmful.
    let relative = || flow::forced(mutant, text).is_some_and(|path| path.contains("0fBD5D0DD1"));
    if has_source(mutant, MODEST) && relative() {
        return Some(TANGENTS);
    }
    if !differs && mutant.operator == Operator::NeverBranch && beyond_threads(subject, mutant, text) {
        return Some(THREADS);
    }
    if let Some(reason) = on_cache::reason(subject, mutant, text).or_else(|| hopper::reason(mutant, text)) {
        return Some(reason);
    }
    if subject.forward().is_some_and(|entry| entry.stages == 1)
        && let Some(reason) = single_stage(subject, mutant, text, differs)
    {
        return Some(reason);
    }
    let applies = |class: &&Harmless| {
        class.operators.contains(&mutant.operator)
            && !(differs && class.idle)
            && class.mask.as_ref().is_none_or(|mask| subject.of.mask().is_some_and(|own| own.name() == mask))
            && mutant.description.contains(&class.instruction)
            && class.has_kernel(subject.kernel.symbol)
            && class.source.is_none_or(|source| has_source(mutant, source))
    };
    let idle = (!differs).then_some(IDLE);
    let found = CLASSES.iter().enumerate().find(|(_, class)| applies(class));
    found.map(|(number, class)| used(number, class)).or(idle)
}

static CLASSES: LazyLock<Vec<Harmless>> = LazyLock::new(|| classes(ROWS));

/// The indices of the classes that matched a mutant in this process.
static USED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

fn used(number: usize, class: &'static Harmless) -> &'static str {
    USED.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
    &class.reason
}

/// The classes that matched no mutant, each with its line and its reason.
pub(super) fn unused() -> Vec<String> {
    let used = USED.lock().unwrap_or_else(PoisonError::into_inner);
    let unused = CLASSES.iter().enumerate().filter(|(number, _)| !used.contains(number));
    unused
        .map(|(_, class)| format!("{}: {}", class.source.unwrap_or_default().join(": "), class.reason))
        .collect()
}

/// Like [`reason`], for kernels with a single stage. Such a kernel refills the stage in the step that reads
/// it.
fn single_stage(subject: &Subject, mutant: &Mutant, text: &str, differs: bool) -> Option<&'static str> {
    let first = subject.of.mask() == Some(MaskKind::Full) && has_source(mutant, FIRST_STEP);
    let of_step = has_source(mutant, ADVANCE);
    match mutant.operator {
        Operator::OffByOne if of_step && !differs => Some(CUT),
        Operator::DeleteBarrier
            if of_step && first && flow::waits_before_reading(text, mutant.span.1, i64::MAX) =>
        {
            Some(
                "In the first step, no thread has read the stage yet, and another barrier comes before the \
                 first read.",
            )
        }
        _ => None,
    }
}

/// The reason why equality never occurs in a comparison. The reason follows from the compared values, or from
/// the use of the result.
fn comparison(subject: &Subject, instruction: &str, text: &str) -> Option<&'static str> {
    let [_, predicate, ..] = words(instruction)[..] else { return None };
    let uses: Vec<&str> = text.lines().filter(|line| words(line).contains(&predicate)).collect();
    if uses.len() > 1 && uses.iter().all(|line| line.contains(instruction) || line.contains("xor.pred")) {
        return Some(SATURATING);
    }
    exceeds_threads(subject, instruction, text).then_some(THREADS)
}

/// Whether `instruction` compares a thread's index with a number that no thread has.
fn exceeds_threads(subject: &Subject, instruction: &str, text: &str) -> bool {
    let [_, _, a, b] = words(instruction)[..] else { return false };
    let thread = text.lines().any(|line| line.contains("%tid.x") && words(line).contains(&a));
    let last = subject.kernel.threads - 1;
    thread
        && b.parse::<u32>().is_ok_and(|limit| limit > last || limit == last && instruction.contains(".gt."))
}

/// Whether the guard of a branch is a comparison that [`exceeds_threads`] accepts.
fn beyond_threads(subject: &Subject, mutant: &Mutant, text: &str) -> bool {
    guard(mutant, text).is_some_and(|line| exceeds_threads(subject, line, text))
}

/// The comparison that computes the guard of a branch.
fn guard<'t>(mutant: &Mutant, text: &'t str) -> Option<&'t str> {
    let guard = words(&text[mutant.span.0..mutant.span.1]).first().copied()?;
    let sets = |line: &&str| line.contains("setp.") && words(line).get(1) == Some(&guard);
    text[..mutant.span.0].lines().rev().find(sets)
}
