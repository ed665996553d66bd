//! The head of the page: eight numbers and six plots, for a reader with ten seconds.

use std::collections::BTreeMap;

use serde_json::Value;

use super::chart::{Line, lines};
use super::elements::{escape, text};
use super::{Pack, Piece, folder};

/// The peers: their names in files, and their names on the page.
const PEERS: [(&str, &str); 4] = [
    ("ferroflash", "FerroFlash"),
    ("fa2", "FlashAttention-2"),
    ("cudnn", "cuDNN"),
    ("fa4", "FlashAttention-4"),
];

/// One of the section's eight numbers.
struct Number {
    value: String,
    says: String,
}

/// The section as HTML, from the newest run of each kind.
pub fn html(pack: &Pack) -> String {
    let [compare, serving, candle] = ["compare", "serving", "candle"].map(|part| newest(pack, part));
    let prefilled = "prefill, f16, L2 cold, 2048 to 16384 positions";
    let numbers = [
        first(&compare, |file| ratio(file, "prefill", "fa2", prefilled)),
        first(&compare, |file| ratio(file, "prefill", "cudnn", prefilled)),
        first(&serving, |file| ratio(file, "decode", "cudnn", "decoding, f16, dense caches, L2 cold")),
        first(&serving, |file| ratio(file, "decode-fa2", "fa2", "decoding, f16, dense caches, L2 cold")),
        first(&serving, |file| ratio(file, "packed", "fa2 varlen", "varlen batches")),
        first(&candle, calls),
        first(&candle, |file| rate(file, "prefill", &|row| row["tokens"] == 4096)),
        first(&candle, |file| rate(file, "decode", &|row| row["context"] == 8192 && row["batch"] == 8)),
    ];
    let tile = |(Number { value, says }, file): (Number, &Piece)| {
        format!("<li><b>{value}</b> {}{}</li>", escape(&says), source(pack, file))
    };
    let tiles: String = numbers.into_iter().flatten().map(tile).collect();
    let has =
        |suite: &str| compare.iter().find(|file| rows(file, "rows").iter().any(|r| r["suite"] == suite));
    let curve = CURVES.iter().find_map(|suite| has(suite)).copied();
    let plot = |plot: String| Some(plot).filter(|plot| !plot.is_empty());
    let prefills = PREFILLS.map(|of| plot(prefill(&compare, of)).zip(curve));
    let others = [first(&serving, |file| plot(decoding(file))), first(&candle, |file| plot(tokens(file)))];
    let plots = prefills.into_iter().chain(others).flatten();
    let plots: String =
        plots.map(|(plot, file)| format!("<figure>{plot}{}</figure>", source(pack, file))).collect();
    if tiles.is_empty() && plots.is_empty() {
        return String::new();
    }
    format!(
        "<section id=\"front\"><h2>In ten seconds</h2><p>The other library's time divided by \
         FerroFlash's time: above 1, FerroFlash is faster.</p><ul class=\"numbers\">{tiles}</ul>\
         <div class=\"plots\">{plots}</div></section>"
    )
}

/// The files of a part in the folder of the newest file. A run may write several files.
fn newest<'p>(pack: &'p Pack, part: &str) -> Vec<&'p Piece> {
    let date = |piece: &&Piece| {
        [&piece.data["date"], &pack.run(piece)["date"]].into_iter().find_map(Value::as_str).map(str::to_owned)
    };
    let all = pack.parts.get(part).map_or(&[][..], Vec::as_slice);
    let last = all.iter().max_by_key(date).map(|newest| folder(&newest.path));
    all.iter().filter(|piece| Some(folder(&piece.path)) == last).collect()
}

/// The first file from which `make` makes something, and what it makes.
fn first<'p, T>(files: &[&'p Piece], make: impl Fn(&Piece) -> Option<T>) -> Option<(T, &'p Piece)> {
    files.iter().find_map(|file| Some((make(file)?, *file)))
}

/// The card, date, commit and command of a piece.
fn source(pack: &Pack, piece: &Piece) -> String {
    let run = pack.run(piece);
    let first = |key: &str| [&piece.data[key], &run[key]].into_iter().find_map(Value::as_str);
    let said: Vec<String> = ["device", "date", "commit"].into_iter().filter_map(first).map(escape).collect();
    let command = first("command").map(|command| format!("<code>{}</code>", escape(command)));
    format!("<small>{} {}</small>", said.join(", "), command.unwrap_or_default())
}

fn rows<'v>(piece: &'v Piece, key: &str) -> &'v [Value] {
    piece.data[key].as_array().map_or(&[], Vec::as_slice)
}

/// The time ratios of a suite to a peer in f16: geometric mean and lowest. Cold measurements are used if
/// there are any.
fn ratio(piece: &Piece, suite: &str, peer: &str, what: &str) -> Option<Number> {
    let f16 = |row: &&Value| !row["label"].as_str().is_some_and(|label| label.contains("bf16"));
    let all = rows(piece, "rows").iter().filter(f16);
    let all: Vec<_> = all.filter(|row| row["suite"] == suite && row["peer"] == peer).collect();
    let any_cold = all.iter().any(|row| row["timing"] == "cold");
    let all = all.into_iter().filter(|row| !any_cold || row["timing"] == "cold");
    let ratios: Vec<_> = all.filter_map(|row| row["ratio"].as_f64()).collect();
    let (_, name) = PEERS.into_iter().find(|(known, _)| peer.starts_with(known))?;
    let (geomean, lowest) = means(ratios.iter().copied())?;
    let count = ratios.len();
    let says = format!("against {name}: {what}; {count} problems, lowest ratio {lowest:.2}");
    Some(Number { value: format!("{geomean:.2}×"), says })
}

fn means(ratios: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let (mut logarithms, mut count, mut lowest) = (0.0, 0.0, f64::INFINITY);
    for ratio in ratios {
        (logarithms, count, lowest) = (logarithms + ratio.ln(), count + 1.0, ratio.min(lowest));
    }
    (count > 0.0).then(|| ((logarithms / count).exp(), lowest))
}

/// The comparison with candle-flash-attn, one call at a time.
fn calls(piece: &Piece) -> Option<Number> {
    let ratios = || {
        let times = |row: &Value| Some(row["theirs_us"].as_f64()? / row["ours_us"].as_f64()?);
        rows(piece, "calls").iter().filter_map(times)
    };
    let (geomean, lowest) = means(ratios())?;
    let count = ratios().count();
    let says = format!("against candle-flash-attn, per call: {count} problems, lowest ratio {lowest:.2}");
    Some(Number { value: format!("{geomean:.2}×"), says })
}

/// The tokens per second in a row, of FerroFlash or of candle-flash-attn.
fn tokens_per_second(row: &Value, side: &str) -> Option<f64> {
    let ms = row[format!("{side}_ms")].as_f64()?;
    let tokens = row["tokens"].as_f64().or_else(|| row["batch"].as_f64())?;
    Some(tokens / ms * 1e3)
}

fn rate(piece: &Piece, key: &str, which: &dyn Fn(&Value) -> bool) -> Option<Number> {
    let row = rows(piece, key).iter().find(|row| which(row))?;
    let ours = tokens_per_second(row, "ours")?;
    let what = match row["context"].as_u64() {
        Some(context) => format!("decoding, {} sequences of {context} tokens", text(&row["batch"])),
        None => format!("prefill of {} tokens", text(&row["tokens"])),
    };
    let others = [("theirs", "candle-flash-attn"), ("plain", "candle's plain path")];
    let others = others.into_iter().filter_map(|(side, name)| {
        Some(format!("{:.2} times the rate of {name}", ours / tokens_per_second(row, side)?))
    });
    let model = model(piece);
    let says = format!("tokens per second, {model}, {what}; {}", others.collect::<Vec<_>>().join(", "));
    Some(Number { value: format!("{ours:.0}"), says })
}

/// The name of the model in candle's file, which has one model or a list that contains one.
fn model(piece: &Piece) -> String {
    let of = &piece.data["model"];
    let of = of.as_array().and_then(|models| models.first()).unwrap_or(of);
    let billions =
        of["parameters"].as_f64().map_or_else(String::new, |n| format!(", {:.1}e9 parameters", n / 1e9));
    format!("{}{billions}", of["name"].as_str().unwrap_or("a model"))
}

/// The plots of prefill. Each line has the head dim, whether the mask is causal, and the number of heads.
const PREFILLS: [(u64, bool, u64); 4] = [(64, false, 32), (64, true, 32), (128, false, 16), (128, true, 16)];
/// The suites that have points of these plots. If several suites have the same point, the first of these
/// suites counts.
const CURVES: [&str; 3] = ["prefill-curve", "prefill", "hopper"];
/// Number of queries in all sequences of a point.
const TOKENS: u64 = 16_384;

/// A plot of TFLOP/s by length, with an equal number of tokens at every length, from the points of all files.
fn prefill(files: &[&Piece], (head_dim, causal, heads): (u64, bool, u64)) -> String {
    let wanted = |row: &&Value| {
        let [q, k] = [&row["heads_q"], &row["heads_k"]].map(|heads| heads.as_u64());
        let tokens =
            row["batch"].as_u64().zip(row["seqlen_q"].as_u64()).map(|(batch, length)| batch * length);
        let whole = row["seqlen_q"] == row["seqlen_k"] && tokens == Some(TOKENS) && row["window"].is_null();
        let shape = row["head_dim"] == head_dim && row["causal"] == causal && row["dtype"] == "f16";
        shape && whole && q == Some(heads) && k == q
    };
    let of = |peer: &str| {
        let mut points: BTreeMap<u64, f64> = BTreeMap::new();
        for suite in CURVES.iter().rev() {
            let all = files.iter().flat_map(|file| rows(file, "rows"));
            let own = all.filter(|row| row["suite"] == *suite && row["peer"] == peer);
            points.extend(
                own.filter(wanted)
                    .filter_map(|row| Some((row["seqlen_q"].as_u64()?, row["tflops"].as_f64()?))),
            );
        }
        points.into_iter().map(|(length, tflops)| (length as f64, tflops)).collect()
    };
    let sides =
        PEERS.map(|(peer, name)| Line { name: name.into(), points: of(peer), own: peer == "ferroflash" });
    let mask = if causal { "causal" } else { "full" };
    lines(&format!("Prefill: TFLOP/s by length (f16, {mask}, head dim {head_dim}, 16k tokens)"), &sides)
}

/// A plot of microseconds by context length.
fn decoding(piece: &Piece) -> String {
    let of = |suite: &str, kind: &str, key: &str| {
        let point = |row: &Value| {
            let label = row["label"].as_str()?;
            let (context, rest) = label.strip_prefix("B16 K")?.split_once(' ')?;
            let same = row["suite"] == suite && row["timing"] == "cold" && rest == kind;
            same.then_some((context.parse().ok()?, row[key].as_f64()?))
        };
        rows(piece, "rows").iter().filter_map(point).collect::<Vec<_>>()
    };
    let side = |name: &str, points, own| Line { name: name.into(), points, own };
    let sides = [
        side("FerroFlash", of("decode", "f16, dense", "us"), true),
        side("cuDNN", of("decode", "f16, dense", "peer_us"), false),
        side("FlashAttention-2", of("decode-fa2", "f16, dense", "peer_us"), false),
        side("FerroFlash, e4m3", of("e4m3", "f16, e4m3", "us"), true),
    ];
    lines("Decoding: microseconds by context (16 sequences, 32 heads on 8, L2 cold)", &sides)
}

/// A plot of tokens per second end to end, for the batch size that has the most context lengths.
fn tokens(piece: &Piece) -> String {
    let rows = rows(piece, "decode");
    let mut contexts: BTreeMap<u64, usize> = BTreeMap::new();
    for batch in rows.iter().filter_map(|row| row["batch"].as_u64()) {
        *contexts.entry(batch).or_default() += 1;
    }
    let Some((batch, _)) = contexts.into_iter().max_by_key(|(batch, count)| (*count, *batch)) else {
        return String::new();
    };
    let of = |side: &str| {
        let own = rows.iter().filter(|row| row["batch"] == batch);
        own.filter_map(|row| Some((row["context"].as_f64()?, tokens_per_second(row, side)?))).collect()
    };
    let side = |name: &str, key: &str| Line { name: name.into(), points: of(key), own: key == "ours" };
    let sides = [
        side("FerroFlash", "ours"),
        side("candle-flash-attn", "theirs"),
        side("candle's plain path", "plain"),
    ];
    let heading = format!("End to end: tokens per second by context ({}, batch {batch})", model(piece));
    lines(&heading, &sides)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_plots_are_of_the_newest_files() {
        let row = |peer: &str, timing: &str, ratio: f64| {
            serde_json::json!({"suite": "prefill", "peer": peer, "timing": timing, "label": "a",
                "ratio": ratio,
                "dtype": "f16", "head_dim": 128, "causal": true, "heads_q": 16, "heads_k": 16,
                "batch": 32, "seqlen_q": 512, "seqlen_k": 512, "tflops": 300.0})
        };
        let compare = |date: &str, ratio: f64| {
            serde_json::json!({"date": date, "command": "compare <1>",
            "rows": [row("ferroflash", "cold", 1.0), row("fa2", "hot", 9.0), row("fa2", "cold", ratio)]})
        };
        let candle = serde_json::json!({"model": [{"name": "Llama", "parameters": 1.5e9}],
            "calls": [{"ours_us": 1.0, "theirs_us": 2.0}, {"ours_us": 1.0, "theirs_us": 8.0}],
            "decode": [{"context": 8192, "batch": 8, "ours_ms": 4.0, "theirs_ms": 6.0, "plain_ms": null}]});
        let piece = |path: &str, data| Piece { path: path.into(), data };
        let mut pack =
            Pack { commit: String::new(), runs: BTreeMap::new(), parts: BTreeMap::new(), plots: vec![] };
        assert_eq!(html(&pack), "");
        let (old, new) = (compare("2026-11-20", 3.0), compare("2026-11-22", 2.0));
        // Another file of the newest run has one more length. This length occurs in two suites.
        let point = |suite: &str, tflops: f64| {
            let row = row("ferroflash", "cold", 1.0);
            let mut row = row.as_object().expect("an object").clone();
            let changes = serde_json::json!({"suite": suite, "batch": 16, "seqlen_q": 1024, "seqlen_k": 1024,
                "tflops": tflops, "label": "b"});
            row.extend(changes.as_object().expect("an object").clone());
            row
        };
        let rows = [point("prefill-curve", 410.0), point("hopper", 400.0)];
        let curve = serde_json::json!({"command": "curve <2>", "rows": rows});
        let files = [("b/compare.json", new), ("b/compare-curve.json", curve), ("a/compare.json", old)];
        pack.parts.insert("compare", files.map(|(path, data)| piece(path, data)).into());
        pack.parts.insert("candle", vec![piece("b/candle.json", candle)]);
        let shown = html(&pack);
        for said in [
            "<b>2.00×</b> against FlashAttention-2",
            "1 problems, lowest ratio 2.00",
            "lowest ratio 2.00<small>2026-11-22 <code>compare &lt;1&gt;</code></small>",
            "<small> <code>curve &lt;2&gt;</code></small></figure>",
            "<b>4.00×</b> against candle-flash-attn, per call: 2 problems, lowest ratio 2.00",
            "<b>2000</b> tokens per second, Llama, 1.5e9 parameters, decoding, 8 sequences of 8192 tokens; ",
            "8 sequences of 8192 tokens; 1.50 ",
            "TFLOP/s by length (f16, causal, head dim 128, 16k tokens)",
            "FerroFlash, 1k: 410",
            "FlashAttention-2, 512: 300",
            "batch 8",
        ] {
            assert!(shown.contains(said), "{said}: {shown}");
        }
        assert!(!shown.contains("2026-11-20") && !shown.contains("plain path</li>"));
    }
}
