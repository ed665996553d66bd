//! The tests that have run on the sample, and those of them that must run again on all kernels.
//!
//! A process with `FERROFLASH_TEST_KERNELS` does without the kernels outside of a folder. When a thread asks
//! for such a kernel, the process leaves a note with the thread's name, which is the name of its test. A test
//! without a note computes the same on all kernels, so it runs once. No list names these tests.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::queue::{self, Job};
use crate::process::{Result, stdout};
use crate::setup;

/// The environment variable with the folder of the notes.
const NOTES: &str = "FERROFLASH_TEST_NOTES";

/// For each test program that has passed on the sample, the names of the tests that must run again.
#[derive(Default)]
pub struct Sampled(HashMap<String, BTreeSet<String>>);

/// A test program on the sample.
struct Program {
    name: String,
    tests: BTreeSet<String>,
    /// The tests that do not run on the sample.
    later: BTreeSet<String>,
    notes: PathBuf,
}

impl Sampled {
    /// Runs the jobs on the kernels of the sample. Tests whose names contain one of `later` do not run.
    pub fn run(mut jobs: Vec<Job>, later: &[&str], folder: &Path) -> Result<Self> {
        let mut programs = Vec::new();
        for (number, job) in jobs.iter_mut().enumerate() {
            let tests = tests(job)?;
            let notes = setup::fresh_folder(&folder.join(number.to_string()))?;
            let is_later = |test: &&String| later.iter().any(|part| test.contains(part));
            let later: BTreeSet<_> = tests.iter().filter(is_later).cloned().collect();
            job.command.env(NOTES, &notes).arg("--exact").args(later.iter().flat_map(|it| ["--skip", it]));
            job.tests = Some(tests.len() - later.len());
            programs.push(Program { name: job.name.clone(), tests, later, notes });
        }
        let all = || programs.iter().flat_map(|program| &program.tests);
        if let Some(gone) = later.iter().find(|part| !all().any(|test| test.contains(*part))) {
            return Err(format!("no test has `{gone}` in its name; change LATER in xtask/src/test.rs").into());
        }
        queue::run(jobs)?;
        let again = programs.into_iter().map(|program| Ok((program.name.clone(), program.again()?)));
        again.collect::<Result<_>>().map(Self)
    }

    /// Keeps the jobs, and their tests, that have not run on the sample or must run again.
    pub fn leave(&self, jobs: &mut Vec<Job>) {
        jobs.retain(|job| self.0.get(&job.name).is_none_or(|again| !again.is_empty()));
        for job in jobs {
            if let Some(again) = self.0.get(&job.name) {
                job.command.arg("--exact").args(again);
                job.tests = Some(again.len());
            }
        }
    }

    /// Whether this program has passed on the sample.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}

impl Program {
    /// The tests that must run again: those that did not run, and those with a note. If another thread has
    /// left a note, it is unknown whose, so all tests must run again.
    fn again(self) -> Result<BTreeSet<String>> {
        let mut again = self.later;
        for note in fs::read_dir(self.notes)? {
            let name = note?.file_name().to_string_lossy().into_owned();
            if !self.tests.contains(&name) {
                return Ok(self.tests);
            }
            again.insert(name);
        }
        Ok(again)
    }
}

/// The names of a program's tests.
fn tests(job: &Job) -> Result<BTreeSet<String>> {
    let said = stdout(Command::new(job.command.get_program()).arg("--list"))?;
    Ok(said.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Returns the tests of `a`, `b` and `c` that must run again, if there are these notes. `c` runs later.
    fn again(folder: &str, notes: &[&str]) -> BTreeSet<String> {
        let folder = std::env::temp_dir().join(format!("ferroflash-{folder}-{}", std::process::id()));
        let kept = setup::fresh_folder(&folder).expect("a folder");
        notes.iter().for_each(|note| fs::write(kept.join(note), "").expect("a note"));
        let program = Program {
            name: "some".into(),
            tests: names(&["a", "b", "c"]),
            later: names(&["c"]),
            notes: kept,
        };
        let again = program.again().expect("readable notes");
        fs::remove_dir_all(folder).expect("a folder");
        again
    }

    #[test]
    fn no_test_is_lost() {
        assert_eq!(again("no-notes", &[]), names(&["c"]));
        assert_eq!(again("one-note", &["b"]), names(&["b", "c"]));
        assert_eq!(again("another-thread", &["b", "unnamed"]), names(&["a", "b", "c"]));
    }

    #[test]
    fn tests_that_need_not_run_again_are_left_out() {
        let sampled = [("some", names(&["b", "c"])), ("none", names(&[]))];
        let sampled = Sampled(sampled.map(|(name, again)| (name.to_owned(), again)).into());
        let job = |name: &str| Job::new(name.to_owned(), Command::new(name));
        let mut jobs = vec![job("some"), job("none"), job("other")];
        sampled.leave(&mut jobs);
        let left: Vec<_> =
            jobs.iter().map(|job| (&*job.name, job.tests, job.command.get_args().count())).collect();
        assert_eq!(left, [("some", Some(2), 3), ("other", None, 0)]);
        assert!(sampled.has("none") && !sampled.has("other"));
    }
}
