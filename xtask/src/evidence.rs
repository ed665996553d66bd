//! `cargo xtask evidence`: makes one page that shows a reader without a GPU that the kernels are right, and
//! how fast they are.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;
use serde_json::Value;

use crate::golden;
use crate::process::{Result, stdout};

/// The folder of the raw files, relative to the root. docs/evidence/README.md explains them.
const FOLDER: &str = "docs/evidence";
/// The folder of the page and its data, which git does not track.
const PAGE: &str = "target/evidence";
/// The file with machine, date and commands of a run, which lies beside the run's files.
const RUN: &str = "run.json";

const STYLE: &str = include_str!("evidence/style.css");
const SCRIPTS: [&str; 3] =
    [include_str!("evidence/page.js"), include_str!("evidence/front.js"), include_str!("evidence/parts.js")];

/// One file of evidence. The data of a plot is the SVG as text.
#[derive(Debug, Serialize)]
struct Piece {
    /// The path of the file, relative to docs/evidence.
    path: String,
    data: Value,
}

/// All collected evidence.
#[derive(Debug, Serialize)]
struct Pack {
    /// The commit from which this page was made.
    commit: String,
    /// For each folder, the machine, date, commit and commands of the folder's files.
    runs: BTreeMap<String, Value>,
    files: Vec<Piece>,
}

/// Gathers docs/evidence/** and the golden figures into target/evidence.
pub fn run(root: &Path) -> Result {
    let mut git = Command::new("git");
    let commit = stdout(git.args(["rev-parse", "--short=12", "HEAD"]).current_dir(root))?.trim().to_owned();
    let mut pack = gather(commit, &root.join(FOLDER))?;
    let golden = golden::read(root)?;
    let figures = serde_json::to_value(golden::figures(&golden).collect::<Vec<_>>())?;
    pack.files.push(Piece { path: "ptx-stats".to_owned(), data: figures });
    let page = html(&pack)?;
    let to = root.join(PAGE);
    fs::create_dir_all(&to)?;
    fs::write(to.join("evidence.json"), serde_json::to_string(&pack)? + "\n")?;
    fs::write(to.join("index.html"), &page)?;
    println!("{PAGE}/index.html: {} files, {} KiB", pack.files.len(), page.len() >> 10);
    Ok(())
}

/// Returns an error if a raw file is damaged. The step `kernels` compares the golden figures with the table.
pub fn check(root: &Path) -> Result {
    gather(String::new(), &root.join(FOLDER)).map(drop)
}

/// The page: style, data and scripts in one file. A script ends at the first `</script`, so the data has no
/// `</`.
fn html(pack: &Pack) -> Result<String> {
    let data = serde_json::to_string(pack)?.replace("</", "<\\/");
    let scripts = SCRIPTS.map(|script| format!("<script>{script}</script>\n")).concat();
    Ok(format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">\
         <title>FerroFlash: evidence</title><style>{STYLE}</style></head><body></body>\n{scripts}\
         <script>document.body.innerHTML = page({data})</script></html>\n"
    ))
}

fn gather(commit: String, folder: &Path) -> Result<Pack> {
    let mut pack = Pack { commit, runs: BTreeMap::new(), files: vec![] };
    let mut files = vec![];
    walk(folder, &mut files)?;
    files.sort();
    for file in files {
        let path = file.strip_prefix(folder)?.to_string_lossy().replace('\\', "/");
        match path.rsplit_once('/').unwrap_or(("", &path)) {
            (inner, RUN) => _ = pack.runs.insert(inner.to_owned(), read(&file)?),
            (_, name) if name.ends_with(".json") => pack.files.push(Piece { data: read(&file)?, path }),
            (_, name) if name.ends_with(".svg") => {
                pack.files.push(Piece { data: fs::read_to_string(&file)?.into(), path });
            }
            _ => {}
        }
    }
    Ok(pack)
}

/// The first document of a file. A failed command has printed its error as a second document.
fn read(path: &Path) -> Result<Value> {
    let text = fs::read(path)?;
    let first = serde_json::Deserializer::from_slice(&text).into_iter().next();
    let named = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    Ok(first.ok_or_else(|| named(&"it is empty"))?.map_err(|e| named(&e))?)
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

    #[test]
    fn a_page_has_every_file_and_needs_no_network() {
        let folder = std::env::temp_dir().join(format!("ferroflash-evidence-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        write("h200/soak.json", r#"{"note": "</script>"} {"error": "a second document"}"#);
        write("h200/run.json", r#"{"device": "H200"}"#);
        write("h200/plots/speed.svg", "<svg/>");
        write("README.md", "");
        let pack = gather("0123".into(), &folder);
        write("h200/empty.json", "");
        let error = gather(String::new(), &folder);
        fs::remove_dir_all(&folder).expect("removed");
        let pack = pack.expect("gathered");
        let paths: Vec<_> = pack.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["h200/plots/speed.svg", "h200/soak.json"]);
        assert_eq!(pack.runs["h200"]["device"], "H200");
        assert!(error.expect_err("empty").to_string().contains("empty.json: it is empty"));
        let html = html(&pack).expect("a page");
        assert_eq!(html.matches("</script>").count(), SCRIPTS.len() + 1, "the data ends no script");
        for outside in ["http://", "https://", "src=", "<link", "@import"] {
            assert!(!html.contains(outside), "{outside}");
        }
    }
}
