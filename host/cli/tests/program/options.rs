//! Tests options, devices, exit codes and help.
use crate::common::{DEMO, Folder, check, check_error, ferroflash, report, text};
use ferroflash::kernels::{AttnInfo, Class, Isa, MaskKind, plain};
use ferroflash::plan::Problem;
use ferroflash::ptx::is_embedded;
use ferroflash::request::Mask;
use ferroflash::{DType, tuning};
use serde_json::Value;

#[test]
fn demo_verifies_its_result_and_says_where_it_ran() {
    // `cargo xtask demo` compiles this kernel for each card.
    for profile in ["l4", "a100", "h200"] {
        let report = report(&["demo", "--device", "sim", "--profile", profile]);
        let entry = report["kernel"].as_str().expect("a name");
        assert!(entry.starts_with("fwd_f16_d64_causal"), "{profile}: {entry}");
    }
    let report = report(&["demo"]);
    assert_eq!(report["check"]["passed"], true);
    assert!(report["check"]["max_error"].as_f64().expect("a number") > 0.0, "{report}");
    assert!(!report["device"].as_str().expect("in words").is_empty());
    let output = ferroflash(&["demo", "--device", "cpu"]).output().expect("starts");
    assert!(text(&output.stdout).contains("on the CPU (f64 reference)"));
    assert!(!text(&output.stdout).contains("within tolerance"), "the reference is not compared with itself");
}

#[test]
fn a_broken_tuning_file_is_an_error_on_any_machine() {
    let folder = Folder::new("tuning");
    let file = folder.write("tuning.json", "{\"devices\": 3}");
    for device in [&[][..], &["--device", "gpu"], &["--device", "sim"]] {
        let args = [&["run", "--input", DEMO], device].concat();
        let output = ferroflash(&args).env("FERROFLASH_TUNING", &file).output().expect("starts");
        check_error(&output, 2, "it must be a file that `ferroflash sweep` wrote");
    }
}

/// An empty environment variable counts as unset. A measured choice also applies to the simulated card.
#[test]
fn the_tuning_file_counts_in_the_simulator() {
    let folder = Folder::new("tuning-sim");
    let run = ["run", "--input", DEMO, "--causal", "--device", "sim", "--json"];
    let kernel = |variable: &str| {
        let mut command = ferroflash(&run);
        // The developer's machine may have a tuning file, which the test must not read.
        let output = command.env("FERROFLASH_TUNING", variable).env("XDG_CACHE_HOME", &folder.0).output();
        let output = output.expect("starts");
        assert!(output.status.success(), "{variable:?}: {}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
        report["kernel"].as_str().expect("a name").to_owned()
    };
    let own = kernel("");
    let fits = |e: &&AttnInfo| (e.dtype, e.head_dim, e.mask) == (DType::F16, 64, MaskKind::Causal);
    let mut others = plain(Isa::Sm80, Class::Dense).filter(fits).map(|e| e.contract.symbol);
    let other = others.find(|symbol| *symbol != own && is_embedded(symbol)).expect("another one is carried");
    let size = tuning::size(&Problem::new(DType::F16, 1, 128, 2, 64).mask(Mask::Causal));
    let tuned = serde_json::json!({ "entry": other, "microseconds": 1.0, "table_microseconds": null });
    let devices = serde_json::json!({ "NVIDIA L4": { size: tuned } });
    let file = serde_json::json!({ "version": 1, "devices": devices });
    assert_eq!(kernel(&folder.write("tuning.json", &file.to_string())), other);
}

#[test]
fn shells_complete_every_command() {
    let commands = commands();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = ferroflash(&["completions", shell]).output().expect("starts");
        assert!(output.status.success(), "{}", text(&output.stderr));
        let script = text(&output.stdout);
        let missing: Vec<_> = commands.iter().filter(|command| !script.contains(*command)).collect();
        assert!(missing.is_empty() && script.contains("profile"), "{shell} knows no {missing:?}");
        assert_eq!(report(&["completions", shell])["script"], script);
    }
    check(&["completions", "csh"], 2, "[possible values: bash, elvish, fish, powershell, zsh]");
}

/// Returns the names of all commands that the help lists: those of every user, then the others.
fn commands() -> Vec<String> {
    let help = ferroflash(&["--help"]).output().expect("starts");
    let help = text(&help.stdout);
    let listed = |title: &str| {
        let list = help.split_once(title).expect("a list of commands").1;
        let lines = list.lines().skip(1).take_while(|line| !line.is_empty());
        let names = lines.filter_map(|line| line.split_whitespace().next()).map(str::to_owned);
        names.filter(|name| name != "help").collect::<Vec<_>>()
    };
    let [first, more] = ["\nCommands:", "\nMore commands:"].map(listed);
    let users = ["run", "demo", "info", "kernels", "bench", "verify", "sanitize", "report", "completions"];
    assert_eq!((&first[..], more.len()), (&users.map(str::to_owned)[..], 5), "{help}");
    [first, more].concat()
}

#[test]
fn every_command_has_a_manual_page_and_help_in_words_of_the_field() {
    let said = |args: &[&str]| {
        let output = ferroflash(args).output().expect("starts");
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout).to_owned()
    };
    // roff writes a hyphen as `\-`.
    let page = said(&["man"]).replace('\\', "");
    assert!(page.contains(".TH ferroflash 1"), "{page}");
    for command in commands() {
        assert!(page.contains(&command), "{command} is missing in the program's page");
        let own = said(&["man", &command]).replace('\\', "");
        assert!(own.contains(&format!(".TH ferroflash-{command} 1")), "{own}");
        assert!(own.contains(".SH OPTIONS"), "{own}");
        let help = said(&[&command, "--help"]);
        assert!(!help.contains("lineage"), "{help}");
    }
    check(&["man", "paint"], 2, "no such command");
}

/// The commands that fail without a GPU, unless the user requests the simulator.
const NEED_GPU: [&str; 4] = ["bench", "sweep", "cross-check", "report"];

#[test]
fn help_says_which_commands_need_a_gpu() {
    for command in ["run", "verify", "soak", "fuzz", "info", "demo"].into_iter().chain(NEED_GPU) {
        let output = ferroflash(&[command, "--help"]).output().expect("starts");
        let help = text(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
        let needs = NEED_GPU.contains(&command);
        let fails = "On a machine without a GPU, the command fails with exit code 3";
        let falls_back = "auto: the GPU, or the simulator if the machine has no GPU";
        assert_eq!((help.contains(fails), help.contains(falls_back)), (needs, !needs), "{command}: {help}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn no_driver() {
    // This folder has files with the driver's names that are no libraries. The loader finds these files
    // before any driver of this machine.
    let folder = Folder::new("no-driver");
    for name in ["libcuda.so", "libcuda.so.1"] {
        folder.write(name, "");
    }
    let without =
        |args: &[&str]| ferroflash(args).env("LD_LIBRARY_PATH", &folder.0).output().expect("starts");
    check_error(&without(&["run", "--device", "gpu", "--input", DEMO]), 3, "no CUDA driver");
    check_error(&without(&["run", "--device", "gpu:1", "--input", DEMO]), 3, "no CUDA driver");
    check_error(
        &without(&["verify", "--quick", "--soak", "1000"]),
        2,
        "hours: this machine has no GPU; ask for fewer",
    );
    check_error(&without(&["soak"]), 2, "hours: this machine has no GPU");
    check_error(&without(&["bench", "--suite", "headline", "--suite", "paged"]), 3, "no CUDA driver");
    check_error(&without(&["bench", "--first-call"]), 3, "no CUDA driver");
    for command in NEED_GPU {
        check_error(&without(&[command]), 3, "no CUDA driver");
    }
    let remedy = "`cross-check` compares a GPU with the simulator; --device sim is a dry run without a GPU";
    check_error(&without(&["cross-check"]), 3, remedy);
    let output = without(&["run", "--device", "auto", "--input", DEMO, "--check", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).starts_with("no GPU ("), "it says that it uses something else");
    let info = without(&["info", "--json"]);
    let info: Value = serde_json::from_slice(&info.stdout).expect("one JSON document");
    assert_eq!(info["gpu"], Value::Null);
    assert!(info["no_gpu"].as_str().is_some_and(|reason| reason.contains("no CUDA driver")), "{info}");
    let named = without(&["info", "--profile", "h200"]);
    assert!(named.status.success() && !text(&named.stdout).contains("CUDA"), "{}", text(&named.stdout));
}

#[test]
fn a_reader_who_leaves_early_is_no_failure() -> std::io::Result<()> {
    for args in [&["kernels"][..], &["kernels", "--json"], &["--help"]] {
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let output = ferroflash(args).stdout(writer).output()?;
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{args:?}");
    }
    // An error with a closed pipe still has its exit code.
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    assert_eq!(ferroflash(&["kernels", "--head-dim", "600"]).stderr(writer).status()?.code(), Some(2));
    Ok(())
}

#[test]
fn help_teaches() {
    for command in [
        &["--help"][..],
        &["run", "--help"],
        &["verify", "--help"],
        &["sanitize", "--help"],
        &["agree", "--help"],
        &["soak", "--help"],
        &["fuzz", "--help"],
        &["sweep", "--help"],
        &["kernels", "--help"],
        &["info", "--help"],
        &["demo", "--help"],
        &["bench", "--help"],
    ] {
        let output = ferroflash(command).output().expect("starts");
        let help = text(&output.stdout);
        assert!(output.status.success() && output.stderr.is_empty());
        assert!(help.contains("  ferroflash "), "{command:?} shows examples");
        assert!(help.contains("--json"), "{command:?}");
    }
    let output = ferroflash(&[]).output().expect("starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("Start here:"));
    let help = ferroflash(&["--help"]).output().expect("starts");
    for code in 0..=4 {
        assert!(text(&help.stdout).contains(&format!("\n  {code}  ")), "exit code {code} is documented");
    }
}
