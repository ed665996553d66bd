//! Random requests of every kind, launched on every card. Kernels, grids, parameters, tensor maps and scratch
//! memory must equal `launches.txt`, byte for byte.
//!
//! After an intended change, run `cargo test -p ferroflash --test suite -- --ignored launches::print` in both
//! versions to print each launch, and `cargo xtask bless` to write the file.

use crate::drawn::{self, KINDS, Random, Request};
use crate::fake::{FakeDriver, Launch};
use crate::fake_ptx::with_ptx;
use ferroflash::*;
use std::fmt::Write as _;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/launches.txt");
/// Number of requests of each kind per card.
const COUNT: u64 = 200;

/// Returns the FNV-1a hash.
fn hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325u64;
    bytes.into_iter().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The result of one request: a line with all facts, and a line without reasons and bytes.
struct Line {
    whole: String,
    short: String,
}

/// Plans a request. Launches the plan with the request's tensors, with other tensors, and with tensors that
/// TMA does not accept.
fn line(attention: &Attention<FakeDriver>, name: &str, request: &Request) -> Line {
    let mut whole = format!("{name}: ");
    let mut short = whole.clone();
    match request.launch(attention) {
        Err(error) => {
            let kind = if matches!(error, Error::Invalid { .. }) { "invalid" } else { "unsupported" };
            short += kind;
            let _ = write!(whole, "{kind}: {error}");
        }
        Ok(outcome) => {
            let drawn::Outcome { symbol, grid, reason, workspace, counters, launches } = outcome;
            let planned = format!("{symbol} {grid:?} workspace {workspace} counters {counters}");
            short += &planned;
            let _ = write!(whole, "{planned} ({reason})");
            for launch in launches {
                match launch {
                    Ok(Launch { symbol, grid, params, .. }) => {
                        let count = params.len();
                        let _ = write!(short, "; {symbol} {grid:?} {count} {:x}", hash(params.clone()));
                        let _ = write!(whole, "\n    {symbol} {grid:?} {params:02x?}");
                    }
                    Err(error) => {
                        short += "; refused";
                        let _ = write!(whole, "\n    refused: {error}");
                    }
                }
            }
        }
    }
    Line { whole, short }
}

/// Returns the lines of each kind and card.
fn all() -> impl Iterator<Item = (String, Vec<Line>)> {
    with_ptx();
    Capabilities::PROFILES.iter().flat_map(|(card, _)| {
        let attention = Attention::new(FakeDriver::new(card));
        let group = |(place, (kind, draw)): (usize, &(&str, drawn::Draw))| {
            let lines = (0..COUNT).map(|seed| {
                let random = &mut Random::new(seed * 16 + place as u64);
                line(&attention, &format!("{kind} on {card}, {seed}"), &draw(random))
            });
            (format!("{kind} on {card}"), lines.collect())
        };
        let groups: Vec<_> = KINDS.iter().enumerate().map(group).collect();
        assert!(!attention.driver().loaded().is_empty(), "{card}: something is launched");
        groups
    })
}

/// Returns the first line of each group, and a hash of the group's other lines.
fn golden() -> String {
    let mut text = String::new();
    for (name, lines) in all() {
        let sum = hash(lines.iter().flat_map(|line| line.short.bytes()));
        let refused = lines.iter().filter(|line| line.short.ends_with("supported")).count();
        let _ = writeln!(text, "{name}: {} requests, {refused} unsupported, {sum:016x}", lines.len());
        for line in lines.iter().filter(|line| line.short.contains(" workspace ")).take(2) {
            let _ = writeln!(text, "    {}", line.short);
        }
    }
    text
}

#[test]
fn launches_are_what_they_were() {
    let (now, then) = (golden(), std::fs::read_to_string(FILE).expect("a file"));
    if std::env::var_os("BLESS").is_some() {
        return std::fs::write(FILE, now).expect("written");
    }
    let differ = now.lines().zip(then.lines()).find(|(now, then)| now != then);
    assert_eq!(differ, None, "the first line that differs, now and in {FILE}");
    assert_eq!(now.lines().count(), then.lines().count());
}

#[test]
#[ignore = "`cargo xtask test -p ferroflash --test suite -- --ignored launches::print` shows each launch"]
fn print() {
    for (_, lines) in all() {
        lines.iter().for_each(|line| println!("{}", line.whole));
    }
}
