//! Runs test programs at the same time, and shows the progress.

use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use crate::process::{Result, bar};

/// A program that must run.
pub struct Job {
    /// The folder of the program, and its file below `tests`.
    pub name: String,
    pub command: Command,
    /// The number of tests that must run, if it is known. It is an error if another number runs.
    pub tests: Option<usize>,
}

impl Job {
    pub fn new(name: String, command: Command) -> Self {
        Self { name, command, tests: None }
    }
}

/// The name of the job with the documentation's examples, which rustdoc tests.
pub const DOCUMENTATION: &str = "documentation";

/// The results in a program's output.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said {
    passed: usize,
    /// The ignored tests, each with its reason.
    ignored: Vec<String>,
}

/// The result of a program that has ended.
struct End {
    name: String,
    said: Said,
    /// The program's output, if it failed.
    failure: Option<String>,
}

/// Test programs, and their purposes, if `cargo xtask test` omits them and only `--all` and `ci` run them.
///
/// The programs start in this order, before all others, so that no core waits for one of them at the end.
/// All but the last three take more than 20 seconds, the longest first: on all kernels, the first four take
/// six to ten minutes beside another program.
pub const KNOWN: [(&str, Option<&str>); 21] = [
    ("tests/tests/simulated", None),
    ("tests/tests/suite", None),
    ("tests/tests/template", Some("the crates in examples/your-own-attention and examples/attention-gym")),
    ("tests/tests/mutation", Some("mutation of kernels, which is `cargo xtask mutate`")),
    ("host/cli/tests/program/main", None),
    ("context-parallel/tests/ranks", Some("ranks that run backward kernels, of which the sample has none")),
    ("tests/tests/fuzz", None),
    ("tests/tests/own", Some("a caller's kernels in tests/own-kernels, which it compiles")),
    ("tests/tests/backward", Some("backward kernels, of which the sample has none")),
    ("tests/tests/block_masks", Some("block masks of a caller's kernels, which it compiles")),
    ("device/cuda_builder/tests/device", Some("compilations of a small device crate by the builder, 78 s")),
    (DOCUMENTATION, None),
    ("device/tile/tests/planted", None),
    ("tests/tests/debug", Some("a kernel compiled with its assertions")),
    ("tests/misuse/tests/compile_fail", None),
    ("tests/tests/hopper_backward", Some("Hopper's backward kernels, of which the sample has none")),
    ("device/tile/tests/planted_hopper", None),
    ("device/cuda_builder/tests/readme", Some("the program in device/cuda_builder/README.md")),
    ("device/cuda_builder/tests/std", Some("`cuda_std` without tensor cores, in kernels that it compiles")),
    ("context-parallel/tests/processes", Some("ranks that plan kernels of long sequences, as processes")),
    ("context-parallel/tests/decode", Some("ranks that run decode kernels, of which the sample has some")),
];

/// Whether `cargo xtask test` omits this program.
pub fn is_left_out(name: &str) -> bool {
    KNOWN.iter().any(|(known, purpose)| *known == name && purpose.is_some())
}

/// Runs all programs, one per core at a time, those of [`KNOWN`] first.
///
/// # Errors
/// Returns the names of the failed programs, after printing their output.
pub fn run(mut jobs: Vec<Job>) -> Result {
    jobs.sort_by_key(|job| KNOWN.iter().position(|(name, _)| *name == job.name).unwrap_or(KNOWN.len()));

    let progress = bar("testing", jobs.len());
    let cores = thread::available_parallelism().map_or(1, |n| n.get());
    let queue = Mutex::new(jobs.into_iter());
    let done = Mutex::new(Vec::new());
    let work = || {
        loop {
            // This call is not in the condition of a `while let`, because the lock would then be held during
            // the loop's body.
            let Some(job) = lock(&queue).next() else { return };
            let start = Instant::now();
            let end = end(job);
            if let Some(line) = line(&end, start.elapsed().as_secs_f64()) {
                progress.suspend(|| println!("{line}"));
            }
            progress.inc(1);
            lock(&done).push(end);
        }
    };
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(work);
        }
    });
    progress.finish_and_clear();
    let ends = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    for test in ends.iter().flat_map(|end| &end.said.ignored) {
        println!("ignored: {test}");
    }
    let passed: usize = ends.iter().map(|end| end.said.passed).sum();
    let failed: Vec<_> =
        ends.iter().filter(|end| end.failure.is_some()).map(|end| end.name.as_str()).collect();
    println!("{passed} tests passed");
    if failed.is_empty() { Ok(()) } else { Err(format!("tests failed: {}", failed.join(", ")).into()) }
}

/// The line about a program that has ended. A program without tests, such as that of a library whose tests
/// are all elsewhere, has no line.
fn line(End { name, said, failure }: &End, seconds: f64) -> Option<String> {
    match failure {
        Some(output) => Some(format!("FAILED {name}:\n{output}")),
        None if *said == Said::default() => None,
        None => Some(format!("  ok {name}: {} passed{}, {seconds:.1} s", said.passed, ignored(said))),
    }
}

fn ignored(said: &Said) -> String {
    if said.ignored.is_empty() { String::new() } else { format!(", {} ignored", said.ignored.len()) }
}

fn end(mut job: Job) -> End {
    let output = job.command.stdin(Stdio::null()).output();
    let (said, failure) = match output {
        Err(error) => (Said::default(), Some(error.to_string())),
        Ok(output) => {
            let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            let mut said = said(&text);
            let ran = said.passed + said.ignored.len();
            let failed = !output.status.success() || job.tests.is_some_and(|tests| tests != ran);
            let text =
                if let Some(tests) = job.tests { format!("{text}{ran} of {tests} tests ran") } else { text };
            if job.name == DOCUMENTATION {
                // The source marks examples that rustdoc does not run, so they are not listed.
                said.ignored.clear();
            }
            (said, failed.then_some(text))
        }
    };
    End { name: job.name, said, failure }
}

/// Parses the output of a test program.
fn said(output: &str) -> Said {
    let mut said = Said::default();
    for line in output.lines() {
        if let Some(counts) = line.strip_prefix("test result: ") {
            let passed = counts.split_once(" passed").and_then(|(before, _)| before.rsplit(' ').next());
            said.passed += passed.and_then(|count| count.parse::<usize>().ok()).unwrap_or_default();
        }
        let test = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ignored"));
        said.ignored.extend(test.map(|(name, reason)| format!("{name}{reason}")));
    }
    said
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_test_program_says_is_understood() {
        let output = "\nrunning 3 tests\ntest a::b ... ok\n\
                      test gpu ... ignored, needs a GPU: cargo xtask test --gpu\n\
                      test result: ok. 11 passed; 0 failed; 1 ignored; 0 measured; finished in 1s\n\
                      test result: ok. 2 passed; 0 failed; 0 ignored\n";
        let ignored = vec!["gpu, needs a GPU: cargo xtask test --gpu".to_owned()];
        assert_eq!(said(output), Said { passed: 13, ignored });
    }

    #[test]
    fn a_program_without_tests_has_no_line() {
        let end = |passed, failure| End {
            name: "tests".to_owned(),
            said: Said { passed, ignored: Vec::new() },
            failure,
        };
        assert_eq!(line(&end(0, None), 0.1), None);
        assert_eq!(line(&end(2, None), 0.1).as_deref(), Some("  ok tests: 2 passed, 0.1 s"));
        assert!(
            line(&end(0, Some("it crashed".to_owned())), 0.1).is_some_and(|line| line.contains("crashed"))
        );
    }

    #[test]
    fn programs_run_and_failures_are_named() {
        let job = |name: &str, script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Job::new(name.to_owned(), command)
        };
        assert!(run(vec![job("fine", "exit 0")]).is_ok());
        let failed = run(vec![job("bad", "exit 1"), job("fine", "exit 0"), job("worse", "exit 2")]);
        let failed = failed.expect_err("two fail").to_string();
        assert!(failed.contains("bad") && failed.contains("worse") && !failed.contains("fine"), "{failed}");
        let tests = |tests| Job { tests: Some(tests), ..job("ran", "echo test result: ok. 2 passed") };
        assert!(run(vec![tests(2)]).is_ok());
        assert!(run(vec![tests(3)]).is_err());
    }
}
