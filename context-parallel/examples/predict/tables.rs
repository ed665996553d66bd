//! The tables of docs/several-gpus.md, from the model.
use crate::model::{Machine, Pass, Shape, decode, decode_pays_from, pays_from, share};
use context_parallel::Form;

const GROUPED: Shape = Shape { heads: [32.0, 8.0], columns: 128.0 };
const EQUAL: Shape = Shape { heads: [32.0, 32.0], columns: 128.0 };
const BOTH: [Pass; 2] = [Pass::Forward, Pass::Backward];
const FORWARD: [Pass; 1] = [Pass::Forward];

/// Links, with the bytes per second that a GPU sends.
const NVLINK: (&str, f64) = ("NVLink", 370e9);
const CARD: (&str, f64) = ("a network card of 400 Gb/s each", 45e9);
const PCIE: (&str, f64) = ("PCIe 5.0", 40e9);

/// Returns the tables with their names.
pub fn all() -> [(&'static str, String); 4] {
    [("hidden", hidden()), ("lengths", lengths()), ("shares", shares()), ("decode", of_decode())]
}

/// Two digits.
fn rounded(number: f64) -> String {
    let unit = 10f64.powf(number.log10().floor() - 1.0);
    format!("{:.0}", (number / unit).round() * unit)
}

fn machine(ranks: f64, link: f64) -> Machine {
    Machine { ranks, link, ..Machine::H200 }
}

/// The positions of a rank from which on a ring hides its link.
fn hidden() -> String {
    let mut lines = vec![
        "| link (assumed rate) | 32 heads on 8: forward, backward | 32 heads on 32: forward, backward |"
            .into(),
        "|---|---|---|".into(),
    ];
    for (name, link) in [NVLINK, CARD, PCIE] {
        let of = |shape: Shape| {
            let [queries, keys] = shape.heads;
            let [forward, backward] = Machine::H200.rates;
            // A backward pass has 2.5 times the FLOP, and twice the bytes.
            let both = [2.0 * forward, 1.6 * backward].map(|rate| rounded(rate * keys / (link * queries)));
            both.join(", ")
        };
        lines.push(format!("| {name} ({:.0} GB/s) | {} | {} |", link / 1e9, of(GROUPED), of(EQUAL)));
    }
    lines.join("\n")
}

/// The positions of a sequence from which on a form pays.
fn lengths() -> String {
    let mut lines = vec![
        "| GPUs and heads | ring, forward | ring, both passes | gather, forward | Ulysses, forward |".into(),
        "|---|---|---|---|---|".into(),
    ];
    let nodes =
        |name: &str, ranks: f64, link: (&str, f64)| (format!("{ranks:.0} {name} {}", link.0), ranks, link.1);
    for (heads, shape) in [("32 on 8", GROUPED), ("32 on 32", EQUAL)] {
        let machines = [
            nodes("with", 2.0, NVLINK),
            nodes("with", 8.0, NVLINK),
            nodes("with", 2.0, PCIE),
            nodes("with", 8.0, PCIE),
            nodes("on 2 nodes,", 16.0, CARD),
            nodes("on 8 nodes,", 64.0, CARD),
        ];
        for (name, ranks, link) in machines {
            let machine = machine(ranks, link);
            let of = |form, passes: &[Pass]| match pays_from(form, passes, &shape, &machine) {
                Some(positions) => rounded(positions),
                None => "refused: more ranks than heads".into(),
            };
            let ring = [of(Form::Ring, &FORWARD), of(Form::Ring, &BOTH)].join(" | ");
            let others = [of(Form::Gather, &FORWARD), of(Form::Ulysses, &FORWARD)].join(" | ");
            lines.push(format!("| {name}; {heads} | {ring} | {others} |"));
        }
    }
    lines.join("\n")
}

/// The shares of the ideal that `Measuring` measures.
fn shares() -> String {
    let of = |form: Form| match form {
        Form::Ring => "ring",
        Form::Gather => "gather",
        Form::Ulysses => "Ulysses",
    };
    let lengths: Vec<usize> = (14..20).map(|power| 1 << power).collect();
    let head: Vec<_> = lengths.iter().map(|length| format!("{}k", length >> 10)).collect();
    let mut lines = vec![
        format!("| GPUs with NVLink, 32 heads on 8: forward, both passes | {} |", head.join(" | ")),
        format!("|---|{}", "---|".repeat(lengths.len())),
    ];
    for (ranks, form) in [2.0, 8.0].into_iter().flat_map(|ranks| Form::ALL.map(|form| (ranks, form))) {
        let machine = machine(ranks, NVLINK.1);
        let of_length = |length: &usize| {
            let positions = *length as f64 / ranks;
            let percent = |passes: &[Pass]| {
                let share = share(form, passes, &GROUPED, &machine, positions);
                share.map_or_else(String::new, |share| format!("{:.0} %", 100.0 * share))
            };
            [percent(&FORWARD), percent(&BOTH)].join(", ")
        };
        let cells: Vec<_> = lengths.iter().map(of_length).collect();
        lines.push(format!("| {ranks:.0}, {} | {} |", of(form), cells.join(" | ")));
    }
    lines.join("\n")
}

fn of_decode() -> String {
    let mut lines = vec![
        "| GPUs, 8 key heads | pays from | 128k keys | 1M keys | 8M keys |".into(),
        "|---|---|---|---|---|".into(),
    ];
    for ranks in [2.0, 8.0] {
        let machine = machine(ranks, NVLINK.1);
        let of = |keys: u32| format!("{:.1} times one GPU", decode(&GROUPED, &machine, f64::from(keys)));
        let cells = [1 << 17, 1 << 20, 1 << 23].map(of).join(" | ");
        lines.push(format!(
            "| {ranks:.0} | {} keys | {cells} |",
            rounded(decode_pays_from(&GROUPED, &machine))
        ));
    }
    lines.join("\n")
}
