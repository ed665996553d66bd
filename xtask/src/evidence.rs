//! `cargo xtask evidence`: makes one page that shows a reader without a GPU that the kernels are right, and
//! how fast they are.

mod chart;
mod elements;
mod front;
mod page;
mod parts;
mod show;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use crate::kernels::{self, Build};
use crate::process::{Result, stdout};
use crate::stats;

/// The folder of the evidence, relative to the root. docs/evidence/README.md explains its files.
const FOLDER: &str = "docs/evidence";
/// The file with ptxas' figures, which this task computes.
const STATS: &str = "ptx-stats.json";
/// The file with machine, date and commands of a run, which lies beside the run's files.
const RUN: &str = "run.json";
/// The file with the page's data, which is not evidence.
const DATA: &str = "evidence.json";

/// What to collect
#[derive(Args)]
pub struct Evidence {
    /// Use ptxas's figures in docs/evidence instead of assembling the kernels
    #[arg(long)]
    as_is: bool,
}

/// One file of evidence.
#[derive(Debug, Serialize)]
pub struct Piece {
    /// The path of the file, relative to docs/evidence.
    pub path: String,
    /// The content of the file. The content of a plot is the SVG as text.
    pub data: Value,
}

/// All collected evidence.
#[derive(Debug, Serialize)]
pub struct Pack {
    /// The commit from which this page was made.
    pub commit: String,
    /// For each folder, the machine, date, commit and commands of the folder's files, as far as they are
    /// known.
    pub runs: BTreeMap<String, Value>,
    /// The pieces of each part. A part without pieces is missing.
    pub parts: BTreeMap<&'static str, Vec<Piece>>,
    /// The plots. Their data is also among the pieces.
    #[serde(skip)]
    pub plots: Vec<Piece>,
}

impl Pack {
    /// The run that made a piece, or null if the run is unknown.
    pub fn run(&self, piece: &Piece) -> &Value {
        self.runs.get(folder(&piece.path)).unwrap_or(&Value::Null)
    }
}

/// The folder of a path that is relative to docs/evidence.
fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// Gathers docs/evidence/** into docs/evidence/index.html and evidence.json.
pub fn run(root: &Path, evidence: &Evidence) -> Result {
    let folder = root.join(FOLDER);
    fs::create_dir_all(&folder)?;
    if !evidence.as_is {
        let output = kernels::ptx(root, &Build::all())?;
        let reports = kernels::reports(root, &output.modules, &kernels::TARGETS)?;
        fs::write(folder.join(STATS), stats::json(&reports)? + "\n")?;
    }
    let pack = gather(root, &folder)?;
    fs::write(folder.join(DATA), serde_json::to_string(&pack)? + "\n")?;
    let html = page::html(&pack);
    fs::write(folder.join("index.html"), &html)?;
    for part in parts::PARTS {
        match pack.parts.get(part.name).map_or(0, Vec::len) {
            0 => println!("{}: missing; {}", part.name, part.how),
            files => println!("{}: {files} files", part.name),
        }
    }
    println!("{FOLDER}/index.html: {} KiB", html.len() >> 10);
    Ok(())
}

/// Returns an error if ptxas' figures in docs/evidence do not belong to the kernels in the table.
pub fn check(root: &Path) -> Result {
    let rows = read(&root.join(FOLDER).join(STATS))?;
    let shown = rows.as_array().into_iter().flatten().filter_map(|row| row["entry"].as_str()).collect();
    // The evidence is of inference. `tests/golden` has the figures of the backward kernels.
    let table = spec::kernels().map(|kernel| kernel.symbol);
    same_kernels(&shown, &table.filter(|symbol| spec::feature_of(symbol) != Some("training")).collect())
}

fn same_kernels(shown: &BTreeSet<&str>, table: &BTreeSet<&str>) -> Result {
    let list = |names: BTreeSet<&str>| names.into_iter().collect::<Vec<_>>().join(", ");
    match (list(table - shown), list(shown - table)) {
        (missing, gone) if missing.is_empty() && gone.is_empty() => Ok(()),
        (missing, gone) => Err(format!(
            "{FOLDER}/{STATS} does not match the kernels of the table: run cargo xtask evidence\n  it lacks: \
             {missing}\n  it has too many: {gone}"
        )
        .into()),
    }
}

fn gather(root: &Path, folder: &Path) -> Result<Pack> {
    let mut git = Command::new("git");
    let commit = stdout(git.args(["rev-parse", "--short=12", "HEAD"]).current_dir(root))?.trim().to_owned();
    let mut pack = Pack { commit, runs: BTreeMap::new(), parts: BTreeMap::new(), plots: vec![] };
    let mut files = vec![];
    walk(folder, &mut files)?;
    files.sort();
    for file in files {
        let path = file.strip_prefix(folder)?.to_string_lossy().replace('\\', "/");
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name == RUN {
            pack.runs.insert(self::folder(&path).to_owned(), read(&file)?);
        } else if name.ends_with(".svg") {
            pack.plots.push(Piece { path, data: fs::read_to_string(&file)?.into() });
        } else if name.ends_with(".json") && path != DATA {
            let part =
                parts::PARTS.iter().find(|part| name.starts_with(part.name)).map_or(parts::OTHER, |p| p.name);
            pack.parts.entry(part).or_default().push(Piece { path, data: read(&file)? });
        }
    }
    Ok(pack)
}

/// The first document of a file. A failed command has printed its error as a second document.
fn read(path: &Path) -> Result<Value> {
    let text = fs::read(path)?;
    let first = serde_json::Deserializer::from_slice(&text).into_iter().next();
    let named = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    Ok(compact(first.ok_or_else(|| named(&"it is empty"))?.map_err(|e| named(&e))?))
}

/// The same value in fewer bytes: numbers get five digits, and null fields are omitted. Five digits are more
/// than the precision of any measurement.
fn compact(value: Value) -> Value {
    match value {
        Value::Array(values) => values.into_iter().map(compact).collect(),
        Value::Object(fields) => {
            let known = fields.into_iter().filter(|(_, value)| !value.is_null());
            known.map(|(name, value)| (name, compact(value))).collect()
        }
        Value::Number(number) if number.is_f64() => {
            let five = number.as_f64().and_then(|x| format!("{x:.4e}").parse::<f64>().ok());
            five.map_or(Value::Number(number), Value::from)
        }
        other => other,
    }
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> Result {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { walk(&path, files)? } else { files.push(path) }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(path: &str, data: &str) -> Piece {
        Piece { path: path.into(), data: serde_json::from_str(data).expect("JSON") }
    }

    #[test]
    fn a_page_names_what_is_there_and_what_is_missing_and_needs_no_network() {
        let verify = r#"{"device": "NVIDIA H200", "passed": true, "seconds": 3.5,
            "kernels": [{"name": "a<b", "cases": 7, "worst_ratio": 0.5}],
            "headline": [
                {"name": "v3/2", "mask": "full", "cases": 2, "max_error": 0.0004, "failures": []}]}"#;
        let odd = r#"{"weather": ["fine", {"deep": null}], "n": 3}"#;
        let run = serde_json::json!({
            "device": "NVIDIA <H200>", "commit": "abc", "commands": ["ferroflash verify"]
        });
        let program = r#"{"program": "gpu", "passed": true, "said": ["test huge ... ok <1>"]}"#;
        let shim = r#"{"passed": true, "cases": [{"name": "threads", "passed": false}]}"#;
        let base = r#"{"rows": [
            {"label": "B1", "timing": "hot", "suite": "x", "peer": "ferroflash", "us": 2.0, "ratio": 1.0},
            {"label": "B1", "timing": "hot", "suite": "x", "peer": "base", "us": 2.25, "ratio": 1.125}]}"#;
        let report = r#"{"device": "NVIDIA L4", "driver": "580.9", "limits": {"sms": 58}, "missing": ["b&c"],
            "clocks": ["SM 2040 MHz", "SM 1500 MHz"], "verify": {"passed": true, "kernels": []},
            "bench": {"rows": [{"shape": "s", "timing": "hot", "p50_us": 9, "predicted_us": [8.0, 9.5]}]}}"#;
        let parts = [
            ("report", piece("l4/report.json", report)),
            ("verify", piece("h200/verify.json", verify)),
            ("program", piece("h200/program-gpu.json", program)),
            ("shim", piece("h200/shim.json", shim)),
            ("base", piece("h200/base.json", base)),
            (parts::OTHER, piece("odd.json", odd)),
        ];
        let shown = parts.len() - 1;
        let pack = Pack {
            commit: "0123".into(),
            runs: ["h200", ""].into_iter().map(|folder| (folder.into(), run.clone())).collect(),
            parts: parts.into_iter().map(|(part, piece)| (part, vec![piece])).collect(),
            plots: vec![],
        };
        let html = page::html(&pack);
        let named = ["0123", "v3/2", "4.0e-4", "NVIDIA &lt;H200&gt;", "ferroflash verify", "weather", "fine"];
        let said =
            ["test huge ... ok &lt;1&gt;", "WRONG", "2.2", "1.125", "8.0 to 9.5", "SM 1500 MHz", "b&amp;c"];
        for words in named.into_iter().chain(said) {
            assert!(html.contains(words), "{words}");
        }
        assert_eq!(html.matches("class=\"missing\"").count(), parts::PARTS.len() - shown);
        for outside in ["http://", "https://", "src=", "<link", "@import", "<script", "a<b"] {
            assert!(!html.contains(outside), "{outside}");
        }
        assert!(html.contains("prefers-color-scheme: dark") && html.contains("width=device-width"));
    }

    #[test]
    fn evidence_of_other_kernels_is_stale() {
        let table = BTreeSet::from(["fwd", "combine"]);
        assert!(same_kernels(&table, &table).is_ok());
        for (shown, named) in
            [(BTreeSet::from(["fwd"]), "combine"), (BTreeSet::from(["fwd", "combine", "old"]), "old")]
        {
            let said = same_kernels(&shown, &table).expect_err("stale").to_string();
            assert!(said.contains(named) && said.contains("run cargo xtask evidence"), "{said}");
        }
    }

    #[test]
    fn files_are_told_by_name_in_any_folder() {
        let folder = std::env::temp_dir().join(format!("ferroflash-evidence-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        write("h200/soak.json", "{}");
        write("h200/run.json", r#"{"device": "H200"}"#);
        write("h200/plots/speed.svg", "<svg/>");
        write("simulator/mutation-d64.json", "[]");
        write("evidence.json", "{}");
        let pack = gather(Path::new(env!("CARGO_MANIFEST_DIR")), &folder).expect("gathered");
        fs::remove_dir_all(&folder).expect("removed");
        let paths = |part| {
            pack.parts.get(part).map(|p: &Vec<Piece>| p.iter().map(|p| p.path.as_str()).collect::<Vec<_>>())
        };
        assert_eq!(paths("soak"), Some(vec!["h200/soak.json"]));
        assert_eq!(paths("mutation"), Some(vec!["simulator/mutation-d64.json"]));
        assert_eq!(pack.run(&pack.parts["soak"][0])["device"], "H200");
        assert_eq!((pack.parts.len(), pack.plots.len()), (2, 1));
    }
}
