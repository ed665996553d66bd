//! Runs `ferroflash verify --quick` under `compute-sanitizer`.
use super::{Checked, Console, Error, Finding, Row};
use crate::device::Device;
use crate::{campaign, ended, workers};
use reference::Subject;
use serde::Deserialize;
use std::process::{Command, Output};

/// The program, found on PATH.
const PROGRAM: &str = "compute-sanitizer";
const TOOLS: [&str; 4] = ["memcheck", "racecheck", "synccheck", "initcheck"];
/// The prefix of compute-sanitizer's lines. Other lines belong to the program that the tool runs.
const MARK: &str = "=========";

/// The fields of the report of `verify --json` that this command reads.
#[derive(Deserialize)]
struct Verified {
    /// The rows. If the program failed before it ran a kernel, its report has no rows.
    #[serde(default)]
    kernels: Vec<Checked>,
    error: Option<String>,
    exit_code: Option<u8>,
}

/// Returns the GPU's name, if a GPU and compute-sanitizer are present.
pub(super) fn available() -> Result<String, Error> {
    let device = Device::untuned_gpu(0)?.to_string();
    output(Command::new(PROGRAM).arg("--version")).map(|_| device)
}

/// Kernels per process, because starting a process under a tool takes seconds.
const TOGETHER: usize = 6;

/// Runs every tool on every kernel, with one process per core. Returns the device's name and a row per tool.
pub(super) fn check(subjects: &[&dyn Subject], console: &Console) -> Result<(String, Vec<Row>), Error> {
    let device = available()?;
    let own = workers::Own::new(console)?;
    let names: Vec<_> = subjects.iter().map(|subject| subject.contract().symbol).collect();
    let jobs: Vec<_> =
        TOOLS.into_iter().flat_map(|tool| names.chunks(TOGETHER).map(move |names| (tool, names))).collect();
    let name = |(tool, names): &(&str, &[&str])| format!("{tool} {}", names.first().unwrap_or(&""));
    let check = |&(tool, names): &(&str, &[&str])| match ended::asked() {
        true => Ok(Row { left: Some(names.len()), ..Row::new(tool) }),
        false => under(tool, &own, names),
    };
    let done = campaign::each(console, PROGRAM, &jobs, name, check)?;
    let mut rows: Vec<Row> = TOOLS.map(Row::new).into();
    for row in done {
        if let Some(tool) = rows.iter_mut().find(|tool| tool.name == row.name) {
            tool.join(row);
        }
    }
    Ok((device, rows))
}

/// Returns the findings of `tool` in some kernels. A process that ended early is a finding too.
fn under(tool: &str, own: &workers::Own, names: &[&str]) -> Result<Row, Error> {
    let mut command = own.under(&[PROGRAM, "--tool", tool, "--error-exitcode", "99"]);
    command.args(["verify", "--quick", "--json", "--jobs", "1", "--device", "gpu"]);
    command.args(names.iter().flat_map(|name| ["--config", name]));
    let Output { stdout, stderr, .. } = output(&mut command)?;
    row(tool, &String::from_utf8_lossy(&stdout), &String::from_utf8_lossy(&stderr)).or_else(|error| {
        let mut row = Row::new(tool);
        match error {
            // The process was ended before it could report anything.
            _ if ended::asked() => row.leave(names.len()),
            Error::Device(why) => row.add(Finding::new("not-checked", names.join(", "), why)),
            other => return Err(other),
        }
        Ok(row)
    })
}

fn output(command: &mut Command) -> Result<Output, Error> {
    workers::output(command).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => {
            Error::NoDevice(format!("{PROGRAM} is not on PATH; it comes with the CUDA toolkit"))
        }
        _ => Error::Device(format!("{PROGRAM}: {e}")),
    })
}

/// Returns the findings of `tool`, by kernel, from the tool's output and from the output of `verify --json`.
fn row(tool: &str, stdout: &str, stderr: &str) -> Result<Row, Error> {
    let own = |line: &&str| !line.trim_start().starts_with(MARK);
    let document: String = stdout.lines().filter(own).flat_map(|line| [line, "\n"]).collect();
    let mut row = Row::new(tool);
    for finding in findings(tool, &[stdout, stderr].join("\n"))? {
        row.add(finding);
    }
    let verified = match serde_json::from_str::<Verified>(&document) {
        Ok(verified) => verified,
        // The error may have ended the program before its report.
        Err(_) if !row.findings.is_empty() => return Ok(row),
        Err(e) => {
            let last = stderr.lines().rfind(own).unwrap_or("it said nothing").trim();
            return Err(Error::Device(format!(
                "verify printed no report under {PROGRAM} --tool {tool} ({e}): {last}"
            )));
        }
    };
    row.launches = verified.kernels.iter().map(|kernel| kernel.cases).sum();
    row.kernels = verified.kernels;
    if let (Some(error), true) = (verified.error, row.findings.is_empty()) {
        match verified.exit_code {
            Some(1) => row.add(Finding::new("wrong-result", "verify --quick", error)),
            // The rows contain the progress of each kernel.
            Some(5) => row.left = Some(row.kernels.iter().filter(|kernel| kernel.left > 0).count()),
            // The GPU runs no kernel of this process, but perhaps those of others.
            Some(2) if !row.kernels.is_empty() => {}
            Some(2) => return Err(Error::Invalid(error)),
            Some(3) => return Err(Error::NoDevice(error)),
            _ => return Err(Error::Device(error)),
        }
    }
    Ok(row)
}

/// Parses compute-sanitizer's output: splits it into findings, and omits the summary. If there is no finding,
/// returns the number of errors in the summary.
fn findings(tool: &str, output: &str) -> Result<Vec<Finding>, Error> {
    let lines = output.lines().filter_map(|line| line.trim_start().strip_prefix(MARK));
    let (mut found, mut block, mut summary) = (vec![], Vec::<&str>::new(), None);
    let close = |block: &mut Vec<&str>, found: &mut Vec<Finding>| {
        if let [first, rest @ ..] = &block[..] {
            // Keeps only the lines with the thread and the place. The other lines are the host's call stack.
            let place: Vec<_> =
                rest.iter().take_while(|line| !line.contains("Host Frame")).copied().collect();
            found.push(Finding::new(tool, place.join("; "), first));
        }
        block.clear();
    };
    for line in lines {
        let text = line.trim();
        if let Some((_, count)) = text.split_once("SUMMARY: ") {
            let number = count.split_whitespace().next().and_then(|word| word.parse::<usize>().ok());
            summary = summary.max(number);
            close(&mut block, &mut found);
        } else if text.is_empty() {
            close(&mut block, &mut found);
        } else if !block.is_empty() || is_finding(text) {
            block.push(text);
        }
    }
    close(&mut block, &mut found);
    match summary {
        None => {
            let last = output.lines().last().unwrap_or("it printed nothing").trim();
            Err(Error::Device(format!(
                "compute-sanitizer --tool {tool} printed no summary; its last line: {last}"
            )))
        }
        Some(count) if count > 0 && found.is_empty() => {
            Ok(vec![Finding::new(tool, tool, format_args!("{count} errors"))])
        }
        Some(_) => Ok(found),
    }
}

/// Returns whether a line begins a finding, and is not a message about the tool.
fn is_finding(line: &str) -> bool {
    let own = ["COMPUTE-SANITIZER", "Target application", "Internal", "This tool"];
    !own.iter().any(|start| line.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAN: &str = "========= COMPUTE-SANITIZER
{
  \"device\": \"NVIDIA H200\",
=========
  \"kernels\": [
    { \"name\": \"fwd_a\", \"mask\": \"full\", \"cases\": 6, \"skipped\": null, \"worst_ratio\": 0.4, \
                         \"failures\": [] },
    { \"name\": \"fwd_b\", \"mask\": \"full\", \"cases\": 0, \"skipped\": \"needs more\", \"worst_ratio\": \
                         0.0, \"failures\": [] },
    { \"name\": \"fwd_c\", \"mask\": \"full\", \"cases\": 5, \"skipped\": null, \"worst_ratio\": 0.1, \
                         \"failures\": [] }
  ],
  \"headline\": []
}
========= ERROR SUMMARY: 0 errors
";
    const BAD: &str = "========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 16 bytes
=========     at fwd_f16_d64_full_128x32+0x1f0 in store.rs:45
=========     by thread (3,0,0) in block (1,0,0)
=========     Address 0x7f00 is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernel
=========
========= ERROR SUMMARY: 1 error
";
    const HAZARDS: &str = "========= COMPUTE-SANITIZER\n========= Error: Race reported between Write access \
                           at k+0x70 in a.rs:3\n=========     and Read access at k+0x90 in a.rs:5 [32 \
                           hazards]\n=========\n========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 \
                           warnings)\n";

    fn messages(text: &str) -> Vec<(String, String)> {
        let findings = findings("tool", text).map_err(|e| e.to_string());
        findings.expect("a summary").into_iter().map(|finding| (finding.message, finding.case)).collect()
    }

    #[test]
    fn every_block_is_a_finding() {
        assert_eq!(
            messages("========= COMPUTE-SANITIZER\nall pass\n========= ERROR SUMMARY: 0 errors\n"),
            []
        );
        let [(message, place)] = &messages(BAD)[..] else { panic!("one finding") };
        assert_eq!(message, "Invalid __global__ read of size 16 bytes");
        assert!(place.contains("store.rs:45; by thread (3,0,0)") && !place.contains("Host Frame"), "{place}");
        let [(message, place)] = &messages(HAZARDS)[..] else { panic!("one finding") };
        assert!(message.contains("a.rs:3") && place.contains("a.rs:5"));
    }

    #[test]
    fn a_row_says_what_ran() {
        let row = row("memcheck", CLEAN, "").expect("both reports");
        assert_eq!((row.launches, row.findings.len()), (11, 0));
        let ran: Vec<_> = row.kernels.iter().map(|k| (&k.name[..], k.cases, k.skipped.as_deref())).collect();
        assert_eq!(ran, [("fwd_a", 6, None), ("fwd_b", 0, Some("needs more")), ("fwd_c", 5, None)]);
    }

    #[test]
    fn what_verify_says_counts_too() {
        let of = |document: &str, stderr: &str| {
            let text =
                format!("========= COMPUTE-SANITIZER\n{document}\n========= ERROR SUMMARY: 0 errors\n");
            row("memcheck", &text, stderr)
        };
        let wrong =
            of(r#"{"kernels": [{"name": "a", "cases": 2}], "error": "off by 1", "exit_code": 1}"#, "");
        let wrong = wrong.expect("both reports");
        assert_eq!(
            (wrong.launches, &wrong.findings[0].kind[..], &wrong.findings[0].message[..]),
            (2, "wrong-result", "off by 1")
        );
        let skipped = r#"{"name": "a", "cases": 0, "skipped": "older"}"#;
        let none = format!(r#"{{"kernels": [{skipped}], "error": "no kernel ran", "exit_code": 2}}"#);
        assert_eq!(of(&none, "").expect("kernels of other processes may run").findings.len(), 0);
        for code in [2, 3, 4] {
            let failed = of(&format!(r#"{{"error": "no launch", "exit_code": {code}}}"#), "").map(|_| ());
            assert_eq!(failed.expect_err("nothing was checked").code(), code);
        }
        let none = of("", "note\nSegmentation fault").map(|_| ()).expect_err("no report").to_string();
        assert!(none.contains("--tool memcheck") && none.ends_with("Segmentation fault"), "{none}");
        // A finding without a report counts too.
        assert_eq!(row("memcheck", BAD, "").expect("a summary").findings.len(), 1);
    }

    #[test]
    fn a_count_without_blocks_and_no_summary_at_all() {
        assert_eq!(messages("========= ERROR SUMMARY: 7 errors\n")[0].0, "7 errors");
        let error = findings("memcheck", "========= COMPUTE-SANITIZER\nSegmentation fault\n").map(|_| ());
        assert!(error.expect_err("no summary").to_string().contains("Segmentation fault"));
    }
}
