//! The page, as plain HTML and CSS in one file.

use std::fmt::Write;

use serde_json::Value;

use super::elements::{escape, generic};
use super::parts::{OTHER, PARTS};
use super::{Pack, Piece, front};

const STYLE: &str = include_str!("style.css");

/// The complete page.
pub fn html(pack: &Pack) -> String {
    let mut body = String::new();
    let found = PARTS.iter().filter(|part| pack.parts.contains_key(part.name)).count();
    let contents = PARTS.iter().map(|part| {
        let missing = if pack.parts.contains_key(part.name) { "" } else { " <span>missing</span>" };
        format!("<li><a href=\"#{}\">{}</a>{missing}</li>", part.name, escape(part.title))
    });
    let contents: String = contents.collect();
    let _ = write!(
        body,
        "<header><h1>FerroFlash: evidence</h1><p>Fused attention for NVIDIA GPUs, every kernel written in \
         Rust. Made from commit <code>{}</code>; {found} of {} parts are here. The data is beside this page \
         in <code>evidence.json</code>.</p><nav><ul>{contents}</ul></nav></header><main>",
        escape(&pack.commit),
        PARTS.len()
    );
    body.push_str(&front::html(pack));
    for part in PARTS {
        let _ = write!(
            body,
            "<section id=\"{}\"><h2>{}</h2><p>{}</p>",
            part.name,
            escape(part.title),
            escape(part.about)
        );
        match pack.parts.get(part.name) {
            None => {
                let _ = write!(
                    body,
                    "<p class=\"missing\">Missing. It is made by <code>{}</code></p>",
                    escape(part.how)
                );
            }
            Some(pieces) => pieces.iter().for_each(|p| body.push_str(&piece(pack, p, &(part.show)(&p.data)))),
        }
        body.push_str("</section>");
    }
    if !pack.plots.is_empty() {
        body.push_str("<section id=\"plots\"><h2>Plots</h2>");
        for plot in &pack.plots {
            let svg = plot.data.as_str().unwrap_or_default();
            // This line removes the XML prolog, which must not occur inside a page.
            let svg = svg.find("<svg").map_or("", |at| &svg[at..]);
            body.push_str(&piece(pack, plot, &format!("<figure>{svg}</figure>")));
        }
        body.push_str("</section>");
    }
    if let Some(others) = pack.parts.get(OTHER) {
        body.push_str("<section id=\"other\"><h2>More</h2>");
        others.iter().for_each(|p| body.push_str(&piece(pack, p, &generic(&p.data))));
        body.push_str("</section>");
    }
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light \
         dark\"><title>FerroFlash: \
         evidence</title><style>{STYLE}</style></head><body>{body}</main></body></html>\n"
    )
}

/// The content of a file under the file's name, with its source.
fn piece(pack: &Pack, piece: &Piece, content: &str) -> String {
    let run = pack.run(piece);
    let device = [&piece.data["device"], &run["device"]].into_iter().find_map(Value::as_str);
    let commit = run["commit"].as_str();
    let date = run["date"].as_str();
    let source: Vec<_> = [device, commit, date].into_iter().flatten().map(escape).collect();
    let commands = run["commands"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let commands: String = commands.map(|command| escape(command) + "\n").collect();
    let commands = match commands.is_empty() {
        true => String::new(),
        false => format!("<details><summary>Commands</summary><pre>{commands}</pre></details>"),
    };
    let notes = [&piece.data["note"], &run["note"]].into_iter().filter_map(Value::as_str);
    let notes: String = notes.map(|note| format!("<p>{}</p>", escape(note))).collect();
    let (path, source) = (escape(&piece.path), source.join(", "));
    format!("<article><h3>{path}</h3><p class=\"source\">{source}</p>{notes}{content}{commands}</article>")
}
