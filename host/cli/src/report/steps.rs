//! The steps of a report. Each step runs a command of this program in its own process.
use crate::console::Console;
use crate::error::Error;
use crate::{ended, workers};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Maximum share of the time for verification.
const VERIFYING: f64 = 0.3;
/// A step may exceed its time limit by this time. After the last step, this time is left for the page.
const SLACK: Duration = Duration::from_secs(20);
/// Time limit of the first call.
const FIRST_CALL: Duration = Duration::from_secs(60);

/// The common options of all steps.
pub(super) struct Steps<'a> {
    pub start: Instant,
    /// Time limit of all steps together.
    pub limit: Duration,
    /// The device options of the command line.
    pub device: Vec<String>,
    pub console: &'a Console,
}

/// The results of the steps.
pub(super) struct Taken {
    pub first_call: Option<Value>,
    pub verify: Option<Value>,
    pub bench: Option<Value>,
    pub plot: Option<String>,
    pub missing: Vec<String>,
    /// The first failure of a kernel or of the device, or the signal that ended the report.
    pub result: Result<(), Error>,
}

impl Steps<'_> {
    /// Runs all steps. If a step fails, the report names it, and the next step follows.
    pub(super) fn take(
        &self,
        kernels: &[&str],
        seed: u64,
        simulated: bool,
        folder: &Path,
    ) -> Result<Taken, Error> {
        let own = workers::Own::new(self.console)?;
        let command = |words: &[&str]| {
            let mut command = own.command(words.iter().copied());
            command.arg("--json").args(&self.device);
            command
        };
        let (mut missing, mut result) = (vec![], Ok(()));
        let (replaced, _) = self.console.replacement();
        if !replaced.is_empty() {
            missing.push(format!("kernels of this build, which --ptx-dir replaces: {}", replaced.join(", ")));
        }
        let no_times = |what: &str| format!("{what}: a simulator has no times");

        let first_call = if simulated {
            missing.push(no_times("first call"));
            None
        } else {
            // This step turns off the driver's cache of compiled kernels, so that it measures the
            // compilation.
            let mut command = command(&["bench", "--first-call"]);
            self.step("first call", command.env("CUDA_CACHE_DISABLE", "1"), FIRST_CALL, &mut missing)
        };

        let mut verify = command(&["verify", "--quick", "--seed", &seed.to_string()]);
        verify.args(kernels.iter().flat_map(|name| ["--config", name]));
        let verify = self.step("verify", &mut verify, self.limit.mul_f64(VERIFYING), &mut missing);
        if let Some(error) = verify.as_ref().and_then(failure) {
            if let Error::Ended(why) = &error {
                missing.push(format!("verify: {why}"));
            } else {
                result = Err(error);
            }
        }

        let plot = folder.join("bench.svg");
        let bench = if simulated {
            missing.push(no_times("bench"));
            None
        } else {
            let left = self.left();
            let mut bench = command(&["bench", "--seconds", &left.as_secs().max(1).to_string()]);
            bench.arg("--svg").arg(&plot);
            let bench = self.step("bench", &mut bench, left + SLACK, &mut missing);
            if let Some(error) = bench.as_ref().and_then(failure) {
                missing.push(format!("bench: {error}"));
            }
            bench.filter(|bench| bench["rows"].is_array())
        };
        for (key, what) in [("left_out", "no time for"), ("failed", "not measured:")] {
            let all = bench.as_ref().and_then(|bench| bench[key].as_array()).into_iter().flatten();
            missing.extend(all.filter_map(Value::as_str).map(|label| format!("{what} {label}")));
        }
        let drawn = std::fs::read_to_string(&plot).ok();
        // The file is no longer needed, because the page contains the plot.
        let _ = std::fs::remove_file(&plot);
        if ended::asked() && result.is_ok() && !missing.is_empty() {
            result = Err(ended::error("parts are missing"));
        }
        Ok(Taken { first_call, verify, bench, plot: drawn, missing, result })
    }

    /// Returns the time that remains for the last measurement.
    fn left(&self) -> Duration {
        self.limit.saturating_sub(self.start.elapsed()).saturating_sub(SLACK)
    }

    /// Runs one step and returns its report. Without a report, `missing` gets the reason.
    fn step(
        &self,
        name: &str,
        command: &mut Command,
        limit: Duration,
        missing: &mut Vec<String>,
    ) -> Option<Value> {
        if ended::asked() {
            missing.push(format!("{name}: the report ended before this step"));
            return None;
        }
        self.console.note(format_args!("report: {name}, at most {} s", limit.as_secs()));
        let output = workers::shown(command, limit);
        let report = output.map_err(|e| e.to_string()).and_then(|output| {
            serde_json::from_slice(&output.stdout)
                .map_err(|_| format!("its process left no report ({})", output.status))
        });
        report.map_err(|why| missing.push(format!("{name}: {why}"))).ok()
    }
}

/// Returns the error in a step's report, if any.
fn failure(report: &Value) -> Option<Error> {
    let text = report["error"].as_str()?.to_owned();
    Some(match report["exit_code"].as_u64() {
        Some(1) => Error::Wrong(text),
        Some(3) => Error::NoDevice(text),
        Some(4) => Error::Device(text),
        Some(5) => Error::Ended(text),
        _ => Error::Invalid(text),
    })
}
