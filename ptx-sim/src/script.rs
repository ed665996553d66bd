//! Launches that are described in text, for file tests and for PTX of users.
//!
//! Each statement has one line. A script file may also contain `#` comments. In a PTX file, statements stand
//! in `//` comments; an empty line or an empty `//` separates them from prose.
//!
//! ```text
//! buffer x f32 64 = 0.5 1.5 ...
//!     type and length; values (`...` repeats what came before), `zero`, `iota`, `random SEED`, or nothing
//! run reduce grid 2,1 block 64 shared 1024 args x sum+4 u32:64 f32:0.5
//!     above 48 KiB of dynamic shared memory the host must also opt in: `shared 65536 optin 65536`;
//!     `registers 168`: what ptxas says of a thread, to be compared with what the device has;
//!     `budget 1000000`, `patience 10000`: warp instructions that it may execute, and without a change
//! expect sum = 64 within 1e-6
//!     values of a buffer from its start, where nothing is reported; `within` is an absolute tolerance
//! report write-after-read
//!     the last run must produce a report of this kind, or of one of several, and none that no such line
//!     names; without such a line it must produce none
//! ```
//! Types: `u8 u16 u32 u64 s8 s16 s32 s64 f16 bf16 f32 f64`. Arguments are laid out like the fields of a C
//! struct.

mod fill;
mod lines;
mod run;
mod types;

use fill::Fill;
use lines::Statement;
pub use run::Ran;
use types::{Number, Type};

pub use crate::error::ScriptError;
use crate::{Kind, Launch};

#[derive(Clone, Debug)]
struct Buffer {
    line: usize,
    name: String,
    ty: Type,
    fill: Fill,
    len: usize,
}

#[derive(Clone, Debug)]
enum Argument {
    /// A buffer and a byte offset.
    Pointer(usize, u64),
    Bytes(Vec<u8>),
}

#[derive(Clone, Debug)]
struct Run {
    line: usize,
    entry: String,
    /// The launch without its parameters, which depend on the addresses of the buffers.
    launch: Launch<'static>,
    /// A budget that replaces the options' budget.
    budget: Option<u64>,
    patience: Option<u64>,
    args: Vec<Argument>,
    expects: Vec<Expect>,
    reports: Vec<Vec<Kind>>,
}

#[derive(Clone, Debug)]
struct Expect {
    line: usize,
    buffer: usize,
    /// The values, which are repeated over this number of elements.
    values: Vec<Number>,
    count: usize,
    tolerance: f64,
}

/// A parsed script.
#[derive(Clone, Debug, Default)]
pub struct Script {
    buffers: Vec<Buffer>,
    runs: Vec<Run>,
}

impl Script {
    /// Reads the statements in `text`: a PTX file with statements in comments, or a script file.
    ///
    /// # Errors
    /// Returns [`ScriptError::Syntax`], which names the line.
    pub fn parse(text: &str) -> Result<Script, ScriptError> {
        let mut script = Script::default();
        for statement in lines::statements(text)? {
            match statement.words[0] {
                "buffer" => script.buffer(&statement)?,
                "run" => script.run_statement(&statement)?,
                "expect" => script.expect(&statement)?,
                _ => script.report(&statement)?,
            }
        }
        match script.runs.iter().find(|run| !(run.expects.is_empty() || run.reports.is_empty())) {
            Some(Run { line, .. }) => {
                let message =
                    "buffers have no defined value after a run with a `report`: remove its `expect`".into();
                Err(ScriptError::Syntax { line: *line, message })
            }
            None => Ok(script),
        }
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.buffers.iter().position(|buffer| buffer.name == name)
    }

    fn buffer(&mut self, statement: &Statement<'_>) -> Result<(), ScriptError> {
        let ["buffer", name, ty, len, rest @ ..] = statement.words.as_slice() else {
            return statement.fail("expected `buffer NAME TYPE COUNT [= VALUES]`");
        };
        if self.index(name).is_some() {
            return statement.fail(format!("buffer `{name}` already exists"));
        }
        let Some(ty) = Type::parse(ty) else {
            return statement.fail(format!("`{ty}` is not an element type; valid are {}", Type::NAMES));
        };
        let Some(len) = len.parse::<usize>().ok().filter(|&len| len <= 1 << 28) else {
            return statement.fail(format!("`{len}` is not an element count (at most 2^28)"));
        };
        let fill = match rest {
            [] => Fill::Nothing,
            ["=", "zero"] => Fill::Zero,
            ["=", "iota"] => match ty.encode(&len.saturating_sub(1).to_string()) {
                None => return statement.fail(format!("{ty} cannot count to {len}")),
                Some(_) => Fill::Iota,
            },
            ["=", "random", seed] => match seed.parse() {
                Ok(seed) => Fill::Random(seed),
                Err(_) => return statement.fail("`random` takes a seed"),
            },
            ["=", values @ ..] => Fill::Values(self.values(statement, ty, len, values)?),
            _ => return statement.fail("expected `=` before the values"),
        };
        self.buffers.push(Buffer { line: statement.line, name: name.to_string(), ty, fill, len });
        Ok(())
    }

    /// The values as bytes, without repetitions.
    fn values(
        &self,
        statement: &Statement<'_>,
        ty: Type,
        len: usize,
        values: &[&str],
    ) -> Result<Vec<u8>, ScriptError> {
        let (repeat, values) = match values {
            [values @ .., "..."] => (true, values),
            values => (false, values),
        };
        if values.is_empty() || !repeat && values.len() != len {
            return statement.fail(format!("{} values for {len} elements", values.len()));
        }
        let mut bytes = Vec::with_capacity(values.len() * ty.bytes());
        for value in values.iter().take(len) {
            match ty.encode(value) {
                Some(value) => bytes.extend(value),
                None => return statement.fail(format!("`{value}` is not a {ty}")),
            }
        }
        Ok(bytes)
    }

    fn run_statement(&mut self, statement: &Statement<'_>) -> Result<(), ScriptError> {
        let ["run", entry, rest @ ..] = statement.words.as_slice() else {
            return statement.fail("`run` needs an entry");
        };
        let mut launch = Launch::new([1; 3], [32, 1, 1], &[]);
        let (mut budget, mut patience) = (None, None);
        let (mut args, mut given) = (Vec::new(), Vec::new());
        let dimensions = |text: &str| {
            let mut all = [1u32; 3];
            for (i, part) in text.split(',').enumerate() {
                *all.get_mut(i)? = part.parse().ok()?;
            }
            Some(all)
        };
        let mut words = rest.iter();
        while let Some(&word) = words.next() {
            if word == "args" {
                args = words.map(|word| self.argument(statement, word)).collect::<Result<_, _>>()?;
                break;
            }
            if given.contains(&word) {
                return statement.fail(format!("`{word}` is given twice"));
            }
            given.push(word);
            let value = words.next().copied().unwrap_or("");
            let ok = match word {
                "grid" => dimensions(value).map(|value| launch.grid = value),
                "block" => dimensions(value).map(|value| launch.block = value),
                "shared" => value.parse().ok().map(|value| launch.dynamic_smem = value),
                "optin" => value.parse().ok().map(|value| launch.smem_opt_in = value),
                "registers" => value.parse().ok().map(|value| launch.registers = Some(value)),
                "budget" => value.parse().ok().map(|value| budget = Some(value)),
                "patience" => value.parse().ok().map(|value| patience = Some(value)),
                _ => None,
            };
            if ok.is_none() {
                return statement.fail(format!(
                    "`{word} {value}`: expected `grid X,Y,Z`, `block X,Y,Z`, `shared BYTES`, `optin BYTES`, \
                     `registers COUNT`, `budget INSTRUCTIONS`, `patience INSTRUCTIONS` or `args ..`"
                ));
            }
        }
        let (line, entry, expects, reports) = (statement.line, entry.to_string(), Vec::new(), Vec::new());
        self.runs.push(Run { line, entry, launch, budget, patience, args, expects, reports });
        Ok(())
    }

    fn argument(&self, statement: &Statement<'_>, word: &str) -> Result<Argument, ScriptError> {
        if let Some((ty, value)) = word.split_once(':') {
            return match Type::parse(ty).and_then(|ty| ty.encode(value)) {
                Some(bytes) => Ok(Argument::Bytes(bytes)),
                None => statement.fail(format!("`{word}` is not TYPE:VALUE")),
            };
        }
        let (name, offset) = word.split_once('+').unwrap_or((word, "0"));
        let (Some(at), Ok(offset)) = (self.index(name), offset.parse::<u64>()) else {
            return statement.fail(format!("`{word}` is neither BUFFER, BUFFER+BYTES nor TYPE:VALUE"));
        };
        let bytes = self.buffers[at].len * self.buffers[at].ty.bytes();
        if offset > bytes as u64 {
            return statement.fail(format!("`{word}` is beyond the {bytes} bytes of `{name}`"));
        }
        Ok(Argument::Pointer(at, offset))
    }

    fn report(&mut self, statement: &Statement<'_>) -> Result<(), ScriptError> {
        let kinds = statement.words[1..].iter().map(|name| Kind::parse(name)).collect::<Result<Vec<_>, _>>();
        match (self.runs.last_mut(), kinds) {
            (_, Err(message)) => statement.fail(message),
            (Some(run), Ok(kinds)) if !kinds.is_empty() => {
                if let Some(twice) =
                    kinds.iter().find(|kind| run.reports.iter().flatten().any(|known| known == *kind))
                {
                    return statement.fail(format!("`report {}` is given twice", twice.name()));
                }
                run.reports.push(kinds);
                Ok(())
            }
            _ => statement.fail("`report KIND [KIND ..]` must follow a `run`"),
        }
    }

    fn expect(&mut self, statement: &Statement<'_>) -> Result<(), ScriptError> {
        let ["expect", name, "=", rest @ ..] = statement.words.as_slice() else {
            return statement.fail("expected `expect BUFFER = VALUES [within TOLERANCE]`");
        };
        let (values, tolerance) = match rest {
            [values @ .., "within", tolerance] => {
                (values, tolerance.parse().ok().filter(|limit: &f64| (0.0..f64::INFINITY).contains(limit)))
            }
            values => (values, Some(0.0)),
        };
        let Some(buffer) = self.index(name) else {
            let known: Vec<_> = self.buffers.iter().map(|buffer| buffer.name.as_str()).collect();
            return statement.fail(format!("no buffer `{name}`; the script has [{}]", known.join(", ")));
        };
        let Some(tolerance) = tolerance else {
            return statement.fail("`within` takes a finite number of 0 or more");
        };
        let Buffer { ty, len, .. } = self.buffers[buffer];
        if len == 0 {
            return statement.fail(format!("`{name}` is empty: nothing can be expected of it"));
        }
        let count = if values.last() == Some(&"...") { len } else { values.len().min(len) };
        let bytes = self.values(statement, ty, count, values)?;
        let values = bytes.chunks_exact(ty.bytes()).map(|bytes| ty.decode(bytes)).collect();
        let line = statement.line;
        match self.runs.last_mut() {
            Some(run) => run.expects.push(Expect { line, buffer, values, count, tolerance }),
            None => return statement.fail("`expect` must follow a `run`"),
        }
        Ok(())
    }
}
