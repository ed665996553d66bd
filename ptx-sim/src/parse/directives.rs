//! What stands between a function's parameters and its body: block shapes, register limits, clusters.

use super::Parser;
use crate::{
    ParseError,
    ast::{Function, Refused},
    lex::Kind,
};

/// Registers that one thread can have; ptxas ignores a larger `.maxnreg` with a warning.
pub(crate) const MAX_REGISTERS: u32 = 255;

impl Parser<'_> {
    /// Reads the directives up to the body or the semicolon.
    ///
    /// # Errors
    /// Those that PTX does not have here, those with values that ptxas refuses or ignores, and those that the
    /// simulator could not honour.
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
            // The largest cluster that a launch may ask for; launches here ask for none.
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
            // How many registers a call preserves: of no meaning here, where every frame has registers of its
            // own.
            (".abi_preserve" | ".abi_preserve_control", false) => {
                self.at += 1;
                self.positive(word, u32::MAX)?;
            }
            // Hints by definition: what does not know one ignores it.
            (".pragma", _) => self.skip_past(';'),
            (_, entry) => {
                let kind = if entry { "an entry" } else { "a function" };
                return self.fail(format!("PTX has no directive `{word}` for {kind}"));
            }
        }
        Ok(())
    }

    /// One to three extents; those left out are 1.
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
