//! Parses directives between a function's parameters and its body: block shapes, register limits, clusters.

use super::Parser;
use crate::{
    ParseError,
    ast::{Function, Refused},
    lex::Kind,
};

/// Largest number of registers per thread. ptxas ignores a larger `.maxnreg` with a warning.
pub(crate) const MAX_REGISTERS: u32 = 255;

/// Pragmas that have no effect on results: unrolling of loops, places of spilled registers, hints for
/// debuggers and profilers.
const PRAGMAS: [&str; 4] = ["nounroll", "used_bytes_mask", "enable_smem_spilling", "frequency"];

impl Parser<'_> {
    /// Reads the directives up to the body or the semicolon.
    ///
    /// # Errors
    /// Returns an error for an unknown directive, for a value that ptxas refuses or ignores, or for a
    /// directive that the simulator cannot follow.
    pub(super) fn performance_directives(&mut self, function: &mut Function) -> Result<(), ParseError> {
        while let Kind::Word(word) = self.kind()
            && word.starts_with('.')
        {
            self.directive(word, function)?;
        }
        Ok(())
    }

    fn directive(&mut self, word: &str, function: &mut Function) -> Result<(), ParseError> {
        match (word, function.entry) {
            (".reqntid" | ".maxntid", true) => {
                let [this, other] = match word {
                    ".reqntid" => [&mut function.reqntid, &mut function.maxntid],
                    _ => [&mut function.maxntid, &mut function.reqntid],
                };
                if other.is_some() {
                    return self.fail("`.reqntid` and `.maxntid` exclude each other");
                }
                *this = Some(self.dimensions(word)?);
            }
            (".minnctapersm", true) => {
                self.at += 1;
                function.minnctapersm = Some(self.positive(word, u32::MAX)?);
            }
            (".maxnreg", true) => {
                self.at += 1;
                function.maxnreg = Some(self.positive(word, MAX_REGISTERS)?);
            }
            // This is the largest cluster that a launch may ask for. Launches in the simulator ask for no
            // clusters.
            (".maxclusterrank", true) => {
                self.at += 1;
                self.positive(word, u32::MAX)?;
            }
            (".explicitcluster" | ".reqnctapercluster" | ".blocksareclusters", true) => {
                self.at += 1;
                let numbers = if word == ".reqnctapercluster" { 3 } else { 0 };
                for _ in 0..numbers {
                    self.int()?;
                    if !self.accept(',') {
                        break;
                    }
                }
                let (line, text) = (self.line(), word.into());
                let reason =
                    format!("`{word}` asks for clusters of blocks, which the simulator does not run").into();
                function.refused.push(Refused { line, text, reason });
            }
            (".maxnctapersm", true) => {
                return self
                    .fail("PTX has no `.maxnctapersm` since version 2.1; `.minnctapersm` took its place");
            }
            (".noreturn", false) => {
                self.at += 1;
                function.noreturn = true;
            }
            // The number of registers that a call preserves has no effect here, because every frame has
            // separate registers.
            (".abi_preserve" | ".abi_preserve_control", false) => {
                self.at += 1;
                self.positive(word, u32::MAX)?;
            }
            (".pragma", _) => {
                let unknown = self.pragma()?;
                function.refused.extend(unknown);
            }
            (_, entry) => {
                let kind = if entry { "an entry" } else { "a function" };
                return self.fail(format!("PTX has no directive `{word}` for {kind}"));
            }
        }
        Ok(())
    }

    /// Parses `.pragma "nounroll", "..";`. Returns the pragmas that the simulator does not know.
    pub(super) fn pragma(&mut self) -> Result<Vec<Refused>, ParseError> {
        self.at += 1;
        let mut unknown = Vec::new();
        loop {
            let line = self.line();
            let Kind::Text(text) = self.next() else {
                self.at -= 1;
                return self.expected("a quoted pragma");
            };
            let name = text.split_whitespace().next().unwrap_or("");
            if !PRAGMAS.contains(&name) {
                let reason = format!("the simulator knows the pragmas {}", PRAGMAS.join(", ")).into();
                unknown.push(Refused { line, text: format!(".pragma \"{text}\"").into(), reason });
            }
            if !self.accept(',') {
                self.expect(';')?;
                return Ok(unknown);
            }
        }
    }

    /// Parses an option behind the architecture in `.target`.
    pub(super) fn target_option(&mut self) -> Result<(), ParseError> {
        let line = self.line();
        let option = self.word("a target option")?;
        match option {
            // The simulator has no textures, and the option `debug` changes nothing.
            "texmode_unified" | "texmode_independent" | "debug" => {}
            "map_f64_to_f32" => {
                let reason = "arithmetic of f64 by f32 is not simulated".into();
                self.module.refused.push(Refused { line, text: option.into(), reason });
            }
            _ => {
                self.at -= 1;
                return self.expected("`texmode_unified`, `texmode_independent` or `debug`");
            }
        }
        Ok(())
    }

    /// Parses `name: .callprototype (.param .b32 _) _ (.param .b64 _) .noreturn;`, which describes the
    /// arguments of a call through a pointer. The operands of the call describe the arguments too.
    pub(super) fn prototype(&mut self) -> Result<(), ParseError> {
        self.at += 1;
        if self.kind() == Kind::Punct('(') {
            self.parameters()?;
        }
        if !self.accept_word("_") {
            return self.expected("`_` instead of a function's name");
        }
        if self.kind() == Kind::Punct('(') {
            self.parameters()?;
        }
        let mut function = Function::default();
        self.performance_directives(&mut function)?;
        self.expect(';')
    }

    /// Parses one to three extents. A missing extent is 1.
    fn dimensions(&mut self, word: &str) -> Result<[u32; 3], ParseError> {
        self.at += 1;
        let mut all = [1; 3];
        for value in &mut all {
            *value = self.positive(word, u32::MAX)?;
            if !self.accept(',') {
                break;
            }
        }
        Ok(all)
    }

    fn positive(&mut self, word: &str, limit: u32) -> Result<u32, ParseError> {
        let value = self.int()?;
        match u32::try_from(value) {
            Ok(value) if (1..=limit).contains(&value) => Ok(value),
            _ => {
                self.at -= 1;
                self.fail(format!("`{word}` takes 1 to {limit}, not {value}"))
            }
        }
    }
}
