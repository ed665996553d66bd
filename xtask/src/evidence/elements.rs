//! The elements of the page: tables, bars, and values as text.

use std::fmt::Write;

use serde_json::Value;

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
