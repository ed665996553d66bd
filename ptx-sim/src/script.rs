//! Launches described in text: what a file test runs, and what someone gives for PTX of their own.
//!
//! One statement a line; in a PTX file they stand in `//` comments, in a file of their own the slashes may be left out.
//!
//! ```text
//! buffer x f32 64 = 0.5 1.5 ...        type and length; values (`...` repeats what came before), `zero`, `iota`, `random SEED`, or nothing
//! run reduce grid 2,1 block 64 shared 1024 args x sum+4 u32:64 f32:0.5
//!                                      above 48 KiB of dynamic shared memory the host must also opt in: `shared 65536 optin 65536`
//! expect sum = 64 within 1e-6          values of a buffer from its start, where nothing is reported; `within` is an absolute tolerance
//! report write-after-read              the last run must produce a report of this kind; without such a line it must produce none
//! ```
//! Types: `u8 u16 u32 u64 s8 s16 s32 s64 f16 bf16 f32 f64`. Arguments are laid out like the fields of a C struct.

pub use crate::error::ScriptError;
use crate::{Gpu, Launch, Module, Outcome};

/// Element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Unsigned(usize),
    Signed(usize),
    F16,
    Bf16,
    F32,
    F64,
}

impl Type {
    fn parse(name: &str) -> Option<Type> {
        let bits = |text: &str| matches!(text, "8" | "16" | "32" | "64").then(|| text.parse::<usize>().ok()).flatten();
        Some(match name {
            "f16" => Type::F16,
            "bf16" => Type::Bf16,
            "f32" => Type::F32,
            "f64" => Type::F64,
            _ => match name.split_at_checked(1)? {
                ("u", rest) => Type::Unsigned(bits(rest)? / 8),
                ("s", rest) => Type::Signed(bits(rest)? / 8),
                _ => return None,
            },
        })
    }

    fn bytes(self) -> usize {
        match self {
            Type::Unsigned(bytes) | Type::Signed(bytes) => bytes,
            Type::F16 | Type::Bf16 => 2,
            Type::F32 => 4,
            Type::F64 => 8,
        }
    }

    fn encode(self, text: &str) -> Option<Vec<u8>> {
        let integer = || match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse::<i64>().map(|value| value as u64).or_else(|_| text.parse()).ok(),
        };
        Some(match self {
            Type::Unsigned(bytes) | Type::Signed(bytes) => integer()?.to_le_bytes()[..bytes].to_vec(),
            Type::F16 => half::f16::from_f64(text.parse().ok()?).to_le_bytes().to_vec(),
            Type::Bf16 => half::bf16::from_f64(text.parse().ok()?).to_le_bytes().to_vec(),
            Type::F32 => text.parse::<f32>().ok()?.to_le_bytes().to_vec(),
            Type::F64 => text.parse::<f64>().ok()?.to_le_bytes().to_vec(),
        })
    }

    fn decode(self, bytes: &[u8]) -> f64 {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let raw = u64::from_le_bytes(wide);
        match self {
            Type::Unsigned(_) => raw as f64,
            Type::Signed(bytes) => {
                let shift = 64 - 8 * bytes as u32;
                ((raw << shift) as i64 >> shift) as f64
            }
            Type::F16 => half::f16::from_bits(raw as u16).to_f64(),
            Type::Bf16 => half::bf16::from_bits(raw as u16).to_f64(),
            Type::F32 => f64::from(f32::from_bits(raw as u32)),
            Type::F64 => f64::from_bits(raw),
        }
    }
}

#[derive(Clone, Debug)]
struct Buffer {
    name: String,
    ty: Type,
    bytes: Option<Vec<u8>>,
    len: usize,
}

#[derive(Clone, Debug)]
enum Argument {
    /// Buffer and byte offset.
    Pointer(usize, u64),
    Bytes(Vec<u8>),
}

#[derive(Clone, Debug)]
struct Run {
    line: usize,
    entry: String,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    optin: u32,
    args: Vec<Argument>,
    expects: Vec<Expect>,
    reports: Vec<String>,
}

#[derive(Clone, Debug)]
struct Expect {
    line: usize,
    buffer: usize,
    values: Vec<f64>,
    tolerance: f64,
}

/// A parsed script.
#[derive(Clone, Debug, Default)]
pub struct Script {
    buffers: Vec<Buffer>,
    runs: Vec<Run>,
}

/// Words of a statement with the line they came from.
struct Statement<'t> {
    line: usize,
    words: Vec<&'t str>,
}

impl Statement<'_> {
    fn fail<T>(&self, message: impl Into<String>) -> Result<T, ScriptError> {
        Err(ScriptError::Syntax { line: self.line, message: message.into() })
    }
}

impl Script {
    /// Reads the statements in `text`; lines that begin with none of the keywords are skipped.
    ///
    /// # Errors
    /// [`ScriptError::Syntax`] names the line.
    pub fn parse(text: &str) -> Result<Script, ScriptError> {
        let mut script = Script::default();
        for (at, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.trim().trim_start_matches('/').split_whitespace().collect();
            let statement = Statement { line: at + 1, words };
            match statement.words.first() {
                Some(&"buffer") => script.buffer(&statement)?,
                Some(&"run") => script.run_statement(&statement)?,
                Some(&"expect") => script.expect(&statement)?,
                Some(&"report") => match (script.runs.last_mut(), statement.words.get(1)) {
                    (Some(run), Some(kind)) => run.reports.push(kind.to_string()),
                    _ => return statement.fail("`report KIND` must follow a `run`"),
                },
                _ => {}
            }
        }
        Ok(script)
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.buffers.iter().position(|buffer| buffer.name == name)
    }

    fn buffer(&mut self, statement: &Statement<'_>) -> Result<(), ScriptError> {
        let ["buffer", name, ty, len, rest @ ..] = statement.words.as_slice() else {
            return statement.fail("expected `buffer NAME TYPE COUNT [= VALUES]`");
        };
        let Some(ty) = Type::parse(ty) else { return statement.fail(format!("`{ty}` is no element type")) };
        let Some(len) = len.parse::<usize>().ok().filter(|&len| len <= 1 << 28) else {
            return statement.fail(format!("`{len}` is no element count up to 2^28"));
        };
        let bytes = match rest {
            [] => None,
            ["=", "zero"] => Some(vec![0; len * ty.bytes()]),
            ["=", "iota"] => Some((0..len).flat_map(|i| ty.encode(&i.to_string()).unwrap_or_default()).collect()),
            ["=", "random", seed] => {
                let Ok(mut state) = seed.parse::<u64>() else { return statement.fail("`random` takes a seed") };
                let mut next = || {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 40) as f64 / f64::from(1 << 23) - 1.0
                };
                let integer = matches!(ty, Type::Unsigned(_) | Type::Signed(_));
                let text =
                    |value: f64| if integer { ((value.abs() * 100.0) as i64).to_string() } else { value.to_string() };
                Some((0..len).flat_map(|_| ty.encode(&text(next())).unwrap_or_default()).collect())
            }
            ["=", values @ ..] => Some(self.values(statement, ty, len, values)?),
            _ => return statement.fail("expected `=` before the values"),
        };
        self.buffers.push(Buffer { name: name.to_string(), ty, bytes, len });
        Ok(())
    }

    fn values(&self, statement: &Statement<'_>, ty: Type, len: usize, values: &[&str]) -> Result<Vec<u8>, ScriptError> {
        let (repeat, values) = match values {
            [values @ .., "..."] => (true, values),
            values => (false, values),
        };
        if values.is_empty() || !repeat && values.len() != len {
            return statement.fail(format!("{} values for {len} elements", values.len()));
        }
        let mut bytes = Vec::with_capacity(len * ty.bytes());
        for value in values.iter().cycle().take(len) {
            match ty.encode(value) {
                Some(value) => bytes.extend(value),
                None => return statement.fail(format!("`{value}` is no {ty:?}")),
            }
        }
        Ok(bytes)
    }

    fn run_statement(&mut self, statement: &Statement<'_>) -> Result<(), ScriptError> {
        let ["run", entry, rest @ ..] = statement.words.as_slice() else {
            return statement.fail("`run` needs an entry");
        };
        let (mut grid, mut block, mut shared, mut optin, mut args) = ([1; 3], [32, 1, 1], 0, 0, Vec::new());
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
            let value = words.next().copied().unwrap_or("");
            let ok = match word {
                "grid" => dimensions(value).map(|value| grid = value),
                "block" => dimensions(value).map(|value| block = value),
                "shared" => value.parse().ok().map(|value| shared = value),
                "optin" => value.parse().ok().map(|value| optin = value),
                _ => None,
            };
            if ok.is_none() {
                return statement.fail(format!(
                    "`{word} {value}`: expected `grid X,Y,Z`, `block X,Y,Z`, `shared BYTES`, `optin BYTES` or `args ..`"
                ));
            }
        }
        let (expects, reports) = (Vec::new(), Vec::new());
        self.runs.push(Run {
            line: statement.line,
            entry: entry.to_string(),
            grid,
            block,
            shared,
            optin,
            args,
            expects,
            reports,
        });
        Ok(())
    }

    fn argument(&self, statement: &Statement<'_>, word: &str) -> Result<Argument, ScriptError> {
        if let Some((ty, value)) = word.split_once(':') {
            return match Type::parse(ty).and_then(|ty| ty.encode(value)) {
                Some(bytes) => Ok(Argument::Bytes(bytes)),
                None => statement.fail(format!("`{word}` is no TYPE:VALUE")),
            };
        }
        let (name, offset) = word.split_once('+').unwrap_or((word, "0"));
        match (self.index(name), offset.parse()) {
            (Some(buffer), Ok(offset)) => Ok(Argument::Pointer(buffer, offset)),
            _ => statement.fail(format!("`{word}` is neither BUFFER, BUFFER+BYTES nor TYPE:VALUE")),
        }
    }

    fn expect(&mut self, statement: &Statement<'_>) -> Result<(), ScriptError> {
        let ["expect", name, "=", rest @ ..] = statement.words.as_slice() else {
            return statement.fail("expected `expect BUFFER = VALUES [within TOLERANCE]`");
        };
        let (values, tolerance) = match rest {
            [values @ .., "within", tolerance] => (values, tolerance.parse().ok()),
            values => (values, Some(0.0)),
        };
        let (Some(buffer), Some(tolerance)) = (self.index(name), tolerance) else {
            return statement.fail(format!("unknown buffer `{name}` or bad tolerance"));
        };
        let Buffer { ty, len, .. } = self.buffers[buffer];
        let count = if values.last() == Some(&"...") { len } else { values.len().min(len) };
        let bytes = self.values(statement, ty, count, values)?;
        let values = bytes.chunks_exact(ty.bytes()).map(|bytes| ty.decode(bytes)).collect();
        let line = statement.line;
        match self.runs.last_mut() {
            Some(run) => run.expects.push(Expect { line, buffer, values, tolerance }),
            None => return statement.fail("`expect` must follow a `run`"),
        }
        Ok(())
    }

    /// Allocates the buffers on `gpu` and executes every run.
    ///
    /// # Errors
    /// The first launch that is refused or value that is not as expected. Unexpected or missing reports are left to the caller: see
    /// [`Ran::as_expected`].
    pub fn run(&self, gpu: &mut Gpu, module: &Module) -> Result<Vec<Ran>, ScriptError> {
        let memory = |line| move |error| ScriptError::Memory { line, error };
        let mut addresses = Vec::new();
        for buffer in &self.buffers {
            let address = gpu.alloc(&buffer.name, buffer.len * buffer.ty.bytes(), 256).map_err(memory(0))?;
            if let Some(bytes) = &buffer.bytes {
                gpu.write(address, bytes).map_err(memory(0))?;
            }
            addresses.push(address);
        }
        let mut all = Vec::new();
        for run in &self.runs {
            let mut params = Vec::new();
            for argument in &run.args {
                let bytes = match argument {
                    Argument::Pointer(buffer, offset) => (addresses[*buffer] + offset).to_le_bytes().to_vec(),
                    Argument::Bytes(bytes) => bytes.clone(),
                };
                params.resize(params.len().next_multiple_of(bytes.len().max(1)), 0);
                params.extend(bytes);
            }
            if let Some(entry) = module.entry(&run.entry) {
                // Padding at the end of the last argument.
                params.resize(
                    params.len().next_multiple_of(entry.param_align.max(1)).min(entry.param_bytes.max(params.len())),
                    0,
                );
            }
            let Run { grid, block, shared, optin, .. } = *run;
            let launch =
                Launch { grid, block, dynamic_smem: shared, smem_opt_in: optin, registers: None, params: &params };
            let outcome = gpu
                .launch(module, &run.entry, &launch)
                .map_err(|error| ScriptError::Launch { line: run.line, error })?;
            // What a kernel with findings leaves behind says nothing.
            for expect in run.expects.iter().filter(|_| outcome.reports.is_empty()) {
                let Buffer { name, ty, .. } = &self.buffers[expect.buffer];
                let mut bytes = vec![0; expect.values.len() * ty.bytes()];
                gpu.read(addresses[expect.buffer], &mut bytes).map_err(memory(expect.line))?;
                let found = bytes.chunks_exact(ty.bytes()).map(|bytes| ty.decode(bytes));
                for (index, (found, &expected)) in found.zip(&expect.values).enumerate() {
                    let same = found == expected || found.is_nan() && expected.is_nan();
                    if !(same || (found - expected).abs() <= expect.tolerance) {
                        let (line, buffer) = (expect.line, name.clone());
                        return Err(ScriptError::Value { line, buffer, index, found, expected });
                    }
                }
            }
            all.push(Ran { entry: run.entry.clone(), expected_reports: run.reports.clone(), outcome });
        }
        Ok(all)
    }
}

/// One executed run.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Entry.
    pub entry: String,
    /// Kinds of reports that the script asks for.
    pub expected_reports: Vec<String>,
    /// What happened.
    pub outcome: Outcome,
}

impl Ran {
    /// Whether there are reports of every expected kind, or none where none is expected.
    pub fn as_expected(&self) -> bool {
        let reports = &self.outcome.reports;
        let has = |kind: &String| reports.iter().any(|report| report.kind.name() == kind);
        if self.expected_reports.is_empty() { reports.is_empty() } else { self.expected_reports.iter().all(has) }
    }
}
