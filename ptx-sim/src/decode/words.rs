//! The words of opcodes. The simulator refuses an instruction that has an unknown word.

mod forms;

use std::collections::HashSet;

use forms::{CLASSES, FORMS, Form, REFUSED};

use super::{Unsupported, needs};
use crate::ast::{Instruction, Module};

/// The word that adds an operand, which is a cache policy.
pub(super) const HINT: &str = "L2::cache_hint";
/// The largest number of words that a message lists.
const SHOWN: usize = 12;

/// The instructions whose opcode, or whose number of operands, the simulator does not know.
pub(super) fn unknown<'m>(
    module: &'m Module,
    instructions: impl Iterator<Item = &'m Instruction>,
) -> Vec<Unsupported> {
    let mut known = HashSet::new();
    let mut found = Vec::new();
    for instruction in instructions {
        let key = (&*instruction.opcode, instruction.operands.len());
        if known.contains(&key) {
            continue;
        }
        match check(key.0, key.1) {
            Ok(()) => {
                known.insert(key);
            }
            Err(reason) => found.push(Unsupported {
                line: instruction.line,
                instruction: module.written(instruction),
                reason,
            }),
        }
    }
    found
}

/// Checks that the simulator executes `opcode` with this number of operands.
///
/// # Errors
/// Returns the unknown word, and the words that are valid in its place.
fn check(opcode: &str, operands: usize) -> Result<(), String> {
    let (name, words) = split(opcode);
    let hints = words.iter().filter(|word| **word == HINT).count();
    let forms = || FORMS.iter().filter(|form| form.0 == name);
    let mut met = Met::default();
    let fits: Vec<&Form> = forms().filter(|form| met.follow(form.1, &words, 0)).collect();
    let counted =
        |form: &&Form| (usize::from(form.2) + hints..=usize::from(form.3) + hints).contains(&operands);
    if fits.iter().any(counted) {
        return Ok(());
    }
    if let Some(form) = fits.first() {
        let (least, most) = (usize::from(form.2) + hints, usize::from(form.3) + hints);
        let takes = if least == most { least.to_string() } else { format!("{least} to {most}") };
        return Err(format!("`{opcode}` takes {takes} operands, this one has {operands}"));
    }
    let refused = REFUSED.iter().find(|(names, columns, _)| {
        names.split('|').any(|one| one == name) && needs::has_words(columns, words.iter().copied(), operands)
    });
    if let Some((.., reason)) = refused {
        return Err((*reason).into());
    }
    if forms().next().is_none() {
        return Err(format!("the simulator does not execute `{name}`"));
    }
    Err(met.missing(opcode, &words))
}

/// The name and the words of an opcode.
fn split(opcode: &str) -> (&str, Vec<&str>) {
    let mut parts = opcode.split('.');
    (parts.next().unwrap_or(""), parts.collect())
}

/// How far the words of an opcode match a form.
#[derive(Default)]
struct Met {
    /// The index of the first word that no form allows.
    at: usize,
    /// The words that the forms allow in the place of this word.
    expected: Vec<&'static str>,
}

impl Met {
    /// Whether the words from index `at` on match `form`.
    fn follow(&mut self, form: &'static str, words: &[&str], at: usize) -> bool {
        let form = form.trim_start();
        if form.is_empty() {
            if at < words.len() {
                self.note(at, Vec::new());
            }
            return at == words.len();
        }
        if let Some((group, rest)) = form.strip_prefix('[').and_then(|form| form.split_once(']')) {
            let slots = group.split_whitespace();
            let present = (at..).zip(slots.clone()).all(|(at, slot)| self.slot(slot, words, at));
            let behind = at + slots.count();
            return present && self.follow(rest, words, behind) || self.follow(rest, words, at);
        }
        let (slot, rest) = form.split_once(char::is_whitespace).unwrap_or((form, ""));
        self.slot(slot, words, at) && self.follow(rest, words, at + 1)
    }

    /// Whether word `at` is one of the words of `slot`.
    fn slot(&mut self, slot: &'static str, words: &[&str], at: usize) -> bool {
        let all = alternatives(slot);
        if words.get(at).is_some_and(|word| all.iter().any(|one| is(one, word))) {
            return true;
        }
        self.note(at, all);
        false
    }

    /// Records that word `at` is not among `expected`.
    fn note(&mut self, at: usize, expected: Vec<&'static str>) {
        if at > self.at {
            *self = Met { at, expected: Vec::new() };
        }
        if at == self.at {
            self.expected.extend(expected);
        }
    }

    /// The message that names the unknown or missing word, and the words that the forms allow there.
    fn missing(mut self, opcode: &str, words: &[&str]) -> String {
        self.expected.sort_unstable();
        self.expected.dedup();
        let shown: Vec<_> = self.expected.iter().take(SHOWN).map(|word| format!("`.{word}`")).collect();
        let more = if self.expected.len() > SHOWN { ", .." } else { "" };
        let known = match shown.is_empty() {
            true => "no word is valid there".into(),
            false => format!("it knows {}{more}", shown.join(", ")),
        };
        match words.get(self.at) {
            Some(word) => {
                format!("the simulator does not know the word `.{word}` in this place of `{opcode}`; {known}")
            }
            None => format!("`{opcode}` lacks a word at its end; {known}"),
        }
    }
}

/// The words that a slot allows.
fn alternatives(slot: &'static str) -> Vec<&'static str> {
    let class = |word: &'static str| {
        let name = word.strip_prefix('<').and_then(|word| word.strip_suffix('>'))?;
        CLASSES.iter().find(|(class, _)| *class == name).map(|(_, words)| *words)
    };
    slot.split('|').flat_map(|word| class(word).map_or_else(|| vec![word], alternatives)).collect()
}

/// Whether `word` matches `pattern`, in which `*` stands for any number.
fn is(pattern: &str, word: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else { return pattern == word };
    let number = word.strip_prefix(head).and_then(|word| word.strip_suffix(tail));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An opcode that a form allows, with the first word of each slot. The opcode has the optional words if
    /// `optional` is true.
    fn example(&(name, words, ..): &Form, optional: bool) -> String {
        let words = words.split(['[', ']']).enumerate().filter(|(at, _)| optional || at % 2 == 0);
        let words = words.flat_map(|(_, part)| part.split_whitespace());
        let one = |slot| alternatives(slot)[0].replace('*', "64");
        words.fold(name.to_owned(), |opcode, slot| format!("{opcode}.{}", one(slot)))
    }

    #[test]
    fn classes_are_known_and_used() {
        let used = FORMS.iter().map(|form| form.1).chain(CLASSES.iter().map(|class| class.1));
        let used: Vec<_> = used.flat_map(|words| words.split([' ', '|', '[', ']'])).collect();
        for word in &used {
            let class = word.strip_prefix('<').map(|word| word.trim_end_matches('>'));
            assert!(class.is_none_or(|name| CLASSES.iter().any(|class| class.0 == name)), "{word}");
        }
        for (name, _) in CLASSES {
            assert!(used.contains(&&*format!("<{name}>")), "<{name}>");
        }
    }

    #[test]
    fn no_word_of_any_form_can_be_added_or_replaced() {
        for form in FORMS {
            for optional in [false, true] {
                let opcode = example(form, optional);
                let hints = usize::from(opcode.contains(HINT));
                let operands = usize::from(form.2) + hints;
                assert_eq!(check(&opcode, operands), Ok(()), "{form:?}");
                let words: Vec<_> = opcode.split('.').collect();
                for at in 1..=words.len() {
                    let [mut added, mut replaced] = [words.clone(), words.clone()];
                    added.insert(at, "rubbish");
                    replaced.splice(at.min(words.len() - 1).., ["rubbish"]);
                    for planted in [added, replaced] {
                        let error = check(&planted.join("."), operands).expect_err(&planted.join("."));
                        assert!(error.contains("rubbish"), "{}: {error}", planted.join("."));
                    }
                }
                if form.3 < u8::MAX {
                    let error = check(&opcode, usize::from(form.3) + hints + 30).expect_err(&opcode);
                    assert!(error.contains("operands"), "{opcode}: {error}");
                }
            }
        }
    }

    #[test]
    fn words_stand_once_and_in_order() {
        for (opcode, operands, wrong) in [
            ("ld.shared.global.b32", 2, "`.global`"),
            ("ld.b32.shared", 2, "`.shared`"),
            ("ld.volatile.relaxed.gpu.b32", 2, "`.relaxed`"),
            ("add.rz.f32", 3, "it knows `.bf16`, `.bf16x2`, `.cc`, "),
            ("mbarrier.arrive.relaxed.shared::cta.b64", 2, "it knows `.cluster`, `.cta`"),
            ("wgmma.mma_async.sync.aligned.m64nk16.f32.f16.f16", 7, "`.m64nk16`"),
            ("ld.shared", 2, "lacks a word at its end"),
            ("ld.global.L2::cache_hint.b32", 2, "takes 3 operands"),
            ("frobnicate.b32", 2, "does not execute `frobnicate`"),
            ("tex.2d.v4.f32.f32", 2, "textures"),
            ("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes", 4, "clusters of one"),
        ] {
            let error = check(opcode, operands).expect_err(opcode);
            assert!(error.contains(wrong), "{opcode}: {error}");
        }
    }
}
