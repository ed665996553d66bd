//! The simulator knows every opcode, modifier and directive in the PTX of every shipped kernel. If a test
//! adds an unknown modifier to an instruction or an unknown word to a directive, the simulator refuses the
//! PTX and names the line.
use ferroflash::{ptx, spec};
use ptx_sim::Module;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A statement in a line of PTX, with its position in the line.
type Statement<'t> = (usize, &'t str);

/// The statements that begin in `line`, without guards, labels and braces.
fn statements(line: &str) -> impl Iterator<Item = Statement<'_>> {
    let code = line.split("//").next().unwrap_or("");
    let mut at = 0;
    code.split_inclusive(';').filter_map(move |statement| {
        let begin = at;
        at += statement.len();
        let mut rest = statement.trim_start_matches([' ', '\t', '{', '}', '(', ')']);
        if let Some((label, behind)) = rest.split_once(": ")
            && label.chars().all(|c| c.is_ascii_alphanumeric() || "$_".contains(c))
        {
            rest = behind.trim_start();
        }
        if rest.starts_with('@') {
            rest = rest.split_once(char::is_whitespace).map_or("", |(_, rest)| rest).trim_start();
        }
        Some((begin + statement.len() - rest.len(), rest)).filter(|(_, rest)| !rest.is_empty())
    })
}

fn opcode<'t>((_, text): &Statement<'t>) -> Option<&'t str> {
    let opcode = text.split([' ', '\t', ';']).next().unwrap_or("");
    opcode.starts_with(|c: char| c.is_ascii_lowercase()).then_some(opcode).filter(|_| text.contains(';'))
}

/// The lines of `entry` that the simulator refuses, with reasons.
fn refused(text: &str, entry: &str) -> Vec<(u32, String)> {
    match Module::parse(text) {
        Err(error) => vec![(error.line, error.message)],
        Ok(module) => module.unsupported(entry).into_iter().map(|it| (it.line, it.reason)).collect(),
    }
}

/// Inserts a word after each opcode of `text`. Returns the lines that it changed.
fn planted(text: &str) -> (String, BTreeSet<u32>) {
    let (mut changed, mut lines) = (String::with_capacity(2 * text.len()), BTreeSet::new());
    for (number, line) in (1..).zip(text.lines()) {
        let mut at = 0;
        for (begin, opcode) in statements(line).filter_map(|it| Some((it.0, opcode(&it)?))) {
            let end = begin + opcode.len();
            changed.push_str(&line[at..end]);
            changed.push_str(".rubbish");
            lines.insert(number);
            at = end;
        }
        changed.push_str(&line[at..]);
        changed.push('\n');
    }
    (changed, lines)
}

#[test]
fn every_instruction_of_every_kernel_is_known_and_takes_no_other_word() {
    let kernels: Vec<_> = spec::kernels().filter(|kernel| ptx::is_embedded(kernel.symbol)).collect();
    assert!(kernels.len() >= 8, "this build carries kernels");
    let texts: Vec<_> = kernels
        .par_iter()
        .map(|kernel| {
            let text = ptx::source(kernel.symbol).expect("embedded");
            assert_eq!(refused(&text, kernel.symbol), [], "{}", kernel.symbol);
            let opcodes: BTreeSet<_> =
                text.lines().flat_map(statements).filter_map(|it| opcode(&it)).collect();
            let opcodes: Vec<_> = opcodes.into_iter().map(str::to_owned).collect();
            (kernel.symbol, opcodes)
        })
        .collect();
    // One kernel per opcode.
    let mut of: BTreeMap<&str, &str> = BTreeMap::new();
    for (symbol, opcodes) in &texts {
        opcodes.iter().for_each(|opcode| {
            of.entry(opcode).or_insert(symbol);
        });
    }
    assert!(of.len() > 60, "{:?}", of.keys());
    let chosen: BTreeSet<_> = of.values().copied().collect();
    chosen.into_iter().for_each(|symbol| {
        let (text, lines) = planted(&ptx::source(symbol).expect("embedded"));
        let found = refused(&text, symbol);
        assert!(found.iter().all(|(_, reason)| reason.contains(".rubbish")), "{symbol}: {:?}", found.first());
        let found: BTreeSet<_> = found.into_iter().map(|(line, _)| line).collect();
        assert_eq!(found, lines, "{symbol}: lines with a word that is unknown");
    });
}

#[test]
fn no_directive_of_a_kernel_takes_another_word() {
    let symbols = ["f16_d64_causal", "hopper"].map(|part| {
        let mut all = spec::kernels().filter(|kernel| ptx::is_embedded(kernel.symbol));
        all.find(|kernel| kernel.symbol.contains(part)).expect("this build carries one").symbol
    });
    for symbol in symbols {
        let text = ptx::source(symbol).expect("embedded");
        let mut known = BTreeSet::new();
        let mut at = 0;
        for line in text.split_inclusive('\n') {
            let (begin, word) = (at + line.len() - line.trim_start().len(), line.trim_start());
            at += line.len();
            let word = word.split([' ', '\t', '\n']).next().unwrap_or("");
            if !word.starts_with('.') || !known.insert(word.to_owned()) {
                continue;
            }
            for planted in [" rubbish", " .rubbish"] {
                let end = begin + word.len();
                let changed = format!("{}{planted}{}", &text[..end], &text[end..]);
                assert!(!refused(&changed, symbol).is_empty(), "{symbol}: {word}{planted}");
            }
        }
        assert!(known.len() >= 8, "{symbol}: {known:?}");
    }
}
