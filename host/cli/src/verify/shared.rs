//! Verification by several processes that share the kernels, with one report.
use super::{Args, Row, Rows};
use crate::console::Console;
use crate::device::Device;
use crate::error::Error;
use crate::{ended, workers};
use reference::Subject;
use serde::Deserialize;
use std::process::Output;

/// The fields of a process's report that this process reads.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Said {
    kernels: Vec<Row>,
    headline: Vec<Row>,
    error: Option<String>,
    exit_code: Option<u8>,
}

/// Verifies `subjects` in `jobs` concurrent processes. Also returns the reason if a process could not
/// continue.
pub(super) fn verify(
    args: &Args,
    subjects: &[&'static dyn Subject],
    device: &Device,
    jobs: usize,
    console: &Console,
) -> Result<(Rows, Result<(), Error>), Error> {
    let (own, common) = (workers::Own::new(console)?, common(args, device));
    let threads = (workers::cores() / jobs).max(1).to_string();
    let make = |part: &[&dyn Subject]| {
        let mut command = own.command(common.iter().map(String::as_str));
        command.args(part.iter().flat_map(|s| ["--config", s.contract().symbol]));
        // Limits the threads of the reference. By default, each process would have one thread per core.
        command.env("RAYON_NUM_THREADS", &threads);
        command
    };
    let bar = console.progress("verify, kernels", subjects.len());
    bar.set_message(format!("{jobs} processes"));
    let (mut rows, mut ran) = (Rows::default(), Ok(()));
    workers::run(&workers::parts(subjects, jobs), jobs, make, |part, output| {
        let said = output.map_err(|e| e.to_string()).and_then(|output| said(&output));
        let said = match said {
            Ok(said) => said,
            // A process that was asked to end before its first report leaves its kernels unverified.
            Err(_) if ended::asked() => return,
            Err(why) => lost(part, &why),
        };
        let skipped = said.kernels.iter().all(|row| row.skipped.is_some());
        rows.kernels.extend(said.kernels);
        rows.headline.extend(said.headline);
        let error = said.error.and_then(|text| broken(text, said.exit_code, skipped));
        if let (Ok(()), Some(error)) = (&ran, error) {
            ran = Err(error);
        }
        bar.inc(part.len() as u64);
        bar.set_message(format!("{} is verified", part[part.len() - 1].contract().symbol));
    });
    bar.finish_and_clear();
    let place = |name: &str| subjects.iter().position(|s| s.contract().symbol == name);
    for subject in subjects {
        let name = subject.contract().symbol;
        if !rows.kernels.iter().any(|row| row.name == name) {
            rows.kernels.push(Row { left: 1, ..Row::new(name, *subject, device.kernels("verify")?) });
        }
    }
    rows.kernels.sort_by_key(|row| place(&row.name));
    Ok((rows, ran))
}

/// Returns the command line of a process, without its kernels.
fn common(args: &Args, device: &Device) -> Vec<String> {
    let mut words = ["verify", "--json", "--jobs", "1"].map(str::to_owned).to_vec();
    words.extend(args.kernels.device.words(device.is_simulated()));
    let graphs = args.graphs.map(|graphs| ("--graphs", graphs as u64));
    let soak = (args.soak > 0).then_some(("--soak", args.soak as u64));
    for (option, number) in [Some(("--seed", args.kernels.seed)), graphs, soak].into_iter().flatten() {
        words.extend([option.to_owned(), number.to_string()]);
    }
    let flags = [("--quick", args.quick), ("--all-configs", args.all_configs)];
    words.extend(flags.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag.to_owned()));
    words
}

/// Returns the report of a process, or its error text.
fn said(output: &Output) -> Result<Said, String> {
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let last = stderr.lines().last().unwrap_or("it said nothing");
        format!("its process ended without a report ({}): {last}", output.status)
    })
}

/// Returns the rows of kernels whose process left no report. Each kernel counts as a failure, because each
/// may be the reason.
fn lost(part: &[&dyn Subject], why: &str) -> Said {
    let row = |subject: &&dyn Subject| Row::lost(*subject, why);
    Said { kernels: part.iter().map(row).collect(), ..Said::default() }
}

/// Returns the reason why a process could not do its work. Returns `None` if its rows contain the reason:
/// wrong results, a requested end, or that the process skipped all of its kernels.
fn broken(error: String, code: Option<u8>, skipped: bool) -> Option<Error> {
    match code {
        Some(1 | 5) => None,
        Some(2) if skipped => None,
        Some(2) => Some(Error::Invalid(error)),
        Some(3) => Some(Error::NoDevice(error)),
        _ => Some(Error::Device(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    fn output(code: i32, stdout: &str, stderr: &str) -> Output {
        use std::os::unix::process::ExitStatusExt;
        let status = std::process::ExitStatus::from_raw(code << 8);
        Output { status, stdout: stdout.into(), stderr: stderr.into() }
    }

    #[test]
    #[cfg(unix)]
    fn a_report_is_read_and_a_process_without_one_is_a_failure() {
        let report = r#"{"kernels": [{"name": "a", "family": "forward", "mask": "full", "cases": 3,
            "graphs": 0,
            "skipped": null, "worst_ratio": null, "worst_case": "x", "max_error": 0.5, "failures": ["off"]}],
            "headline": [], "error": "1 failures", "exit_code": 1}"#;
        let said = said(&output(1, report, "")).expect("a report");
        let row = &said.kernels[0];
        assert_eq!((row.cases, row.left, row.worst_ratio), (3, 0, f64::INFINITY));
        assert!(broken(said.error.expect("said"), said.exit_code, true).is_none());
        assert!(matches!(broken("lost".into(), Some(4), true), Some(Error::Device(_))));
        assert!(broken("no kernel ran".into(), Some(2), true).is_none());
        assert!(matches!(broken("a file".into(), Some(2), false), Some(Error::Invalid(_))));

        let why =
            super::said(&output(139, "", "note\nSegmentation fault")).map(|_| ()).expect_err("no report");
        assert!(why.ends_with("Segmentation fault"), "{why}");
        let subject = reference::subjects().next().expect("a kernel");
        let said = lost(&[subject], &why);
        assert_eq!(said.kernels[0].failures, [why]);
    }
}
