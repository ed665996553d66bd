//! The page, as plain HTML and CSS in one file.

use std::fmt::Write;

use serde_json::Value;

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

/// A table under construction.
pub struct Table {
    columns: usize,
    html: String,
    rows: usize,
}

impl Table {
    /// A table with these columns.
    pub fn new(columns: &[&str]) -> Self {
        let heads: String = columns.iter().map(|column| format!("<th>{}</th>", escape(column))).collect();
        Table { columns: columns.len(), html: format!("<thead><tr>{heads}</tr></thead><tbody>"), rows: 0 }
    }

    /// Appends a row, in which numbers are right-aligned.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.columns);
        self.cells(&cells);
    }

    fn cells(&mut self, cells: &[String]) {
        let cell = |text: &String| {
            let class = if text.parse::<f64>().is_ok() { " class=\"number\"" } else { "" };
            format!("<td{class}>{}</td>", escape(text))
        };
        let _ = write!(self.html, "<tr>{}</tr>", cells.iter().map(cell).collect::<String>());
        self.rows += 1;
    }

    /// The table as HTML. On a narrow page, the table has its own scroll bar.
    pub fn html(self) -> String {
        match self.rows {
            0 => String::new(),
            _ => format!("<div class=\"scroll\" tabindex=\"0\"><table>{}</tbody></table></div>", self.html),
        }
    }

    /// The table as HTML, folded under a title.
    pub fn folded(self, title: &str) -> String {
        match self.rows {
            0 => String::new(),
            _ => format!("<details><summary>{}</summary>{}</details>", escape(title), self.html()),
        }
    }
}

/// A chart of bars `(name, value, more)` under a heading. The longest bar has the full width.
pub fn bars(heading: &str, unit: &str, values: &[(String, f64, String)]) -> String {
    let most = values.iter().map(|(_, value, _)| *value).fold(f64::MIN_POSITIVE, f64::max);
    let bar = |(name, value, more): &(String, f64, String)| {
        let own = if name == "ferroflash" { " class=\"own\"" } else { "" };
        format!(
            "<tr{own}><th>{}</th><td class=\"bar\"><i style=\"width:{:.1}%\"></i></td><td \
             class=\"number\">{value:.1} {unit}</td><td class=\"number\">{}</td></tr>",
            escape(name),
            value / most * 100.0,
            escape(more)
        )
    };
    let rows: String = values.iter().map(bar).collect();
    format!("<div class=\"chart\"><h4>{}</h4><table>{rows}</table></div>", escape(heading))
}

/// Converts any JSON to HTML: lists of objects become tables, and objects become lists of names and values.
pub fn generic(value: &Value) -> String {
    match value {
        Value::Array(items) if items.iter().all(Value::is_object) && !items.is_empty() => {
            let mut columns: Vec<&str> = vec![];
            for key in items.iter().filter_map(Value::as_object).flat_map(|object| object.keys()) {
                if !columns.contains(&key.as_str()) {
                    columns.push(key);
                }
            }
            let mut table = Table::new(&columns);
            for item in items {
                table.cells(&columns.iter().map(|column| text(&item[*column])).collect::<Vec<_>>());
            }
            if items.len() > 24 { table.folded(&format!("{} rows", items.len())) } else { table.html() }
        }
        Value::Object(object) => {
            let item = |(key, value): (&String, &Value)| {
                let nested =
                    value.is_object() || value.as_array().is_some_and(|a| a.iter().any(Value::is_object));
                let value = if nested { generic(value) } else { escape(&text(value)) };
                format!("<dt>{}</dt><dd>{value}</dd>", escape(key))
            };
            format!("<dl>{}</dl>", object.iter().map(item).collect::<String>())
        }
        other => format!("<p>{}</p>", escape(&text(other))),
    }
}

/// A value as the text of a cell.
pub fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Number(n) if n.is_f64() => number(value, 4),
        Value::Array(items) if !items.iter().any(|item| item.is_object() || item.is_array()) => {
            items.iter().map(text).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}

/// A number with `digits` digits after the point.
pub fn number(value: &Value, digits: usize) -> String {
    value.as_f64().map_or_else(String::new, |x| format!("{x:.digits$}"))
}

/// Escapes text for HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
