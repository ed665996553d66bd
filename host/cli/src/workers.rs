//! Runs a command over many kernels in several processes of this program. In one process, a driver compiles
//! one kernel at a time, and compilation takes most of the time.
use super::console::Console;
use super::ended;
use super::error::Error;
use std::ffi::OsString;
use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Number of parts of the work per process. With small parts, all processes end at almost the same time.
const TURNS: usize = 4;
/// The time within which a process that was asked to end must report.
const PATIENCE: Duration = Duration::from_secs(15);

/// Cuts the work into parts for `jobs` concurrent processes.
pub(super) fn parts<T>(all: &[T], jobs: usize) -> Vec<&[T]> {
    all.chunks(all.len().div_ceil(jobs.max(1) * TURNS).max(1)).collect()
}

/// Returns the default number of concurrent processes: one per core.
pub(super) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// The command line of this program with the same kernels, for child processes.
pub(super) struct Own(Vec<OsString>);

impl Own {
    /// Returns the program of this process.
    ///
    /// # Errors
    /// Returns [`Error::Device`] if the system does not give its path.
    pub(super) fn new(console: &Console) -> Result<Self, Error> {
        let path = std::env::current_exe();
        let path = path.map_err(|e| Error::Device(format!("this program's own path: {e}")))?;
        let (_, option) = console.replacement();
        Ok(Own(std::iter::once(path.into()).chain(option.map(OsString::from)).collect()))
    }

    /// Returns a command that runs this program with these arguments.
    pub(super) fn command<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = self.under(&[]);
        command.args(args);
        command
    }

    /// Returns the command line of this program as arguments of another program.
    pub(super) fn under(&self, program: &[&str]) -> Command {
        let mut words = program.iter().map(OsString::from).chain(self.0.iter().cloned());
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        command
    }
}

/// Runs the command that `make` makes for each part, with `jobs` commands at a time. Calls `done` for each
/// part when its command ends. After the program was asked to end, it starts no further command.
pub(super) fn run<T: Sync>(
    parts: &[&[T]],
    jobs: usize,
    make: impl Fn(&[T]) -> Command + Sync,
    mut done: impl FnMut(&[T], io::Result<Output>),
) {
    let (next, (tell, told)) = (AtomicUsize::new(0), mpsc::channel());
    thread::scope(|scope| {
        for _ in 0..jobs.min(parts.len()) {
            let (next, tell, make) = (&next, tell.clone(), &make);
            scope.spawn(move || {
                while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if ended::asked() || tell.send((*part, output(&mut make(part)))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(tell);
        told.into_iter().for_each(|(part, output)| done(part, output));
    });
}

/// Returns the output of a command. If this program is asked to end, this function asks the command to end.
pub(super) fn output(command: &mut Command) -> io::Result<Output> {
    collect(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?, None)
}

/// Like `output`, with two differences: the command's standard error goes to this program's standard error,
/// and after `limit`, this function asks the command to end.
pub(super) fn shown(command: &mut Command, limit: Duration) -> io::Result<Output> {
    collect(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?, Some(limit))
}

fn collect(mut child: Child, limit: Option<Duration>) -> io::Result<Output> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (mut out, mut err) = (vec![], vec![]);
    let status = thread::scope(|scope| {
        let reading = [
            scope.spawn(|| stdout.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut out))),
            scope.spawn(|| stderr.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut err))),
        ];
        let status = wait(&mut child, limit);
        for read in reading {
            read.join().expect("reading does not panic")?;
        }
        status
    })?;
    Ok(Output { status, stdout: out, stderr: err })
}

/// Waits for a process. Asks the process to end if this program is asked to end, or after `limit`.
fn wait(child: &mut Child, limit: Option<Duration>) -> io::Result<ExitStatus> {
    let (begin, mut asked) = (Instant::now(), None);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if ended::asked() || limit.is_some_and(|limit| begin.elapsed() > limit) {
            let since: &mut Instant = asked.get_or_insert_with(|| {
                terminate(child);
                Instant::now()
            });
            if since.elapsed() > PATIENCE {
                child.kill()?;
            }
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Asks a process to end.
#[cfg(unix)]
fn terminate(child: &Child) {
    // SAFETY: the call takes two numbers and touches no memory. Nothing has waited for the process yet, so
    // its id is still valid.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
}

#[cfg(not(unix))]
fn terminate(_: &Child) {}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_run_once() {
        let all: Vec<_> = (0..23).collect();
        let parts = parts(&all, 2);
        assert!(parts.len() >= 2 * TURNS && parts.concat() == all);
        let echo = |part: &[usize]| {
            let mut command = Command::new("echo");
            command.args(part.iter().map(usize::to_string));
            command
        };
        let mut said = vec![];
        run(&parts, 2, echo, |part, output| {
            let text = String::from_utf8(output.expect("echo runs").stdout).expect("UTF-8");
            let numbers: Vec<usize> = text.split_whitespace().map(|n| n.parse().expect("a number")).collect();
            assert_eq!(numbers, part);
            said.extend(numbers);
        });
        said.sort_unstable();
        assert_eq!(said, all);
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        assert!(output(&mut Command::new("/no/such/program")).is_err());
    }
}
