//! `compute-sanitizer` around `ferroflash verify --quick`.
use super::{Console, Error, Finding, Row};
use crate::cli::device::Device;
use std::process::Command;

const TOOLS: [&str; 4] = ["memcheck", "racecheck", "synccheck", "initcheck"];
/// Begins every line of compute-sanitizer's.
const MARK: &str = "=========";

/// Runs every tool; returns the device in words and a row for each tool.
pub(super) fn check(config: Option<&str>, console: &Console) -> Result<(String, Vec<Row>), Error> {
    let device = Device::gpu()?.to_string();
    let own = std::env::current_exe().map_err(|e| Error::Device(format!("this program's own path: {e}")))?;
    let bar = console.progress("compute-sanitizer", TOOLS.len());
    let mut rows = vec![];
    for tool in TOOLS {
        bar.set_message(tool);
        let mut command = Command::new("compute-sanitizer");
        command.args(["--tool", tool, "--error-exitcode", "99"]).arg(&own);
        command.args(["verify", "--quick", "--device", "gpu"]);
        if let Some(name) = config {
            command.args(["--config", name]);
        }
        let output = command.output().map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => {
                Error::NoDevice("compute-sanitizer is not on PATH; it comes with the CUDA toolkit".into())
            }
            _ => Error::Device(format!("compute-sanitizer: {e}")),
        })?;
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let mut row = Row::new(tool);
        row.launches = 1;
        for finding in findings(tool, &text)? {
            row.add(finding);
        }
        if row.findings.is_empty() && !output.status.success() {
            row.add(Finding::new("wrong-result", tool, text.lines().last().unwrap_or("verify failed").trim()));
        }
        rows.push(row);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok((device, rows))
}

/// What compute-sanitizer printed: each block that is no summary, and the summary's own count where it shows no block.
fn findings(tool: &str, output: &str) -> Result<Vec<Finding>, Error> {
    let lines = output.lines().filter_map(|line| line.trim_start().strip_prefix(MARK));
    let (mut found, mut block, mut summary) = (vec![], Vec::<&str>::new(), None);
    let close = |block: &mut Vec<&str>, found: &mut Vec<Finding>| {
        if let [first, rest @ ..] = &block[..] {
            // Who and where; the rest is the host's call stack.
            let place: Vec<_> = rest.iter().take_while(|line| !line.contains("Host Frame")).copied().collect();
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
            Err(Error::Device(format!("compute-sanitizer --tool {tool} printed no summary; its last line: {last}")))
        }
        Some(count) if count > 0 && found.is_empty() => {
            Ok(vec![Finding::new(tool, tool, format_args!("{count} errors"))])
        }
        Some(_) => Ok(found),
    }
}

/// Whether a line begins a finding, rather than being one of the tool's own.
fn is_finding(line: &str) -> bool {
    let own = ["COMPUTE-SANITIZER", "Target application", "Internal", "This tool"];
    !own.iter().any(|start| line.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAN: &str = "========= COMPUTE-SANITIZER\nall pass: 6 cases\n========= ERROR SUMMARY: 0 errors\n";
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
    const HAZARDS: &str = "========= COMPUTE-SANITIZER\n\
        ========= Error: Race reported between Write access at k+0x70 in a.rs:3\n\
        =========     and Read access at k+0x90 in a.rs:5 [32 hazards]\n=========\n\
        ========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n";

    fn messages(text: &str) -> Vec<(String, String)> {
        let findings = findings("tool", text).map_err(|e| e.to_string());
        findings.expect("a summary").into_iter().map(|finding| (finding.message, finding.case)).collect()
    }

    #[test]
    fn every_block_is_a_finding() {
        assert_eq!(messages(CLEAN), []);
        let [(message, place)] = &messages(BAD)[..] else { panic!("one finding") };
        assert_eq!(message, "Invalid __global__ read of size 16 bytes");
        assert!(place.contains("store.rs:45; by thread (3,0,0)") && !place.contains("Host Frame"), "{place}");
        let [(message, place)] = &messages(HAZARDS)[..] else { panic!("one finding") };
        assert!(message.contains("a.rs:3") && place.contains("a.rs:5"));
    }

    #[test]
    fn a_count_without_blocks_and_no_summary_at_all() {
        assert_eq!(messages("========= ERROR SUMMARY: 7 errors\n")[0].0, "7 errors");
        let error = findings("memcheck", "========= COMPUTE-SANITIZER\nSegmentation fault\n").map(|_| ());
        assert!(error.expect_err("no summary").to_string().contains("Segmentation fault"));
    }
}
