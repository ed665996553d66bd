//! Functions of the device crates that read or write global memory, by their source text: a kernel's
//! capability is among their parameters, or they clamp each index. Masks and scores have no capability.
use std::path::{Path, PathBuf};

/// The crates that have `unsafe` code for global memory.
const CRATES: [&str; 2] = ["device/tile/src", "kernels-gpu/attention-tile/src"];

/// Capabilities, and what only a capability makes.
const CAPABILITIES: [&str; 9] =
    ["Capability", "ThreadGroup", "Block<", "Warp", "Producer<", "OwnPart", "OwnChunk", "Head", "HeadScales"];

/// Types whose values only a function with a capability makes.
const PROVEN: [&str; 4] = ["RowSlices", "FillInts", "GlobalPartials", "Position"];

/// Functions that clamp each index: masks and scores may call them.
const CLAMP: [&str; 5] =
    ["GlobalInts::nearest", "GlobalInts::nearest_f32", "GlobalInts::get", "load_bits", "load_bias"];

/// A function of a source text.
struct Function<'t> {
    /// The function's name, behind its type's name.
    name: String,
    /// The head of the `impl` or `trait` around it, and the signature.
    head: String,
    body: &'t str,
    is_public: bool,
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources").map(|entry| entry.expect("an entry"))
    {
        match entry.path() {
            path if path.is_dir() => sources(&path, found),
            path if path.extension().is_some_and(|extension| extension == "rs") => found.push(path),
            _ => {}
        }
    }
}

/// The functions of a formatted source text. A body ends at a brace as far left as its function.
fn functions(text: &str) -> Vec<Function<'_>> {
    let (mut found, mut around, mut at) = (vec![], "", 0);
    for line in text.split_inclusive('\n') {
        let (start, code) = (at, line.trim_start());
        at += line.len();
        let left = line.len() - code.len();
        if left == 0
            && ["impl", "unsafe impl", "pub trait", "pub unsafe trait"].iter().any(|w| code.starts_with(w))
        {
            around = text[start..].split_once('{').map_or("", |(head, _)| head);
        } else if left == 0 && code.starts_with('}') {
            around = "";
        }
        let words = code.split_once('(').map_or("", |(words, _)| words);
        let Some((before, name)) = words.split_once("fn ") else { continue };
        if before.contains("//")
            || before.contains('"')
            || !before.chars().all(|c| c.is_alphanumeric() || " ()_".contains(c))
        {
            continue;
        }
        let end = format!("\n{}}}", &line[..left]);
        let whole = &text[start..];
        let whole = whole.find(&end).map_or(whole, |end| &whole[..end]);
        let (signature, body) = whole.split_once("{\n").unwrap_or((whole, ""));
        let of = around.rsplit(" for ").next().unwrap_or("").trim_start_matches("impl").trim();
        let of = of.rsplit("> ").next().unwrap_or(of).split('<').next().unwrap_or("");
        let name = name.split('<').next().unwrap_or(name);
        found.push(Function {
            name: if of.is_empty() { name.into() } else { format!("{of}::{name}") },
            head: format!("{around} {signature}"),
            body,
            is_public: !before.contains("unsafe")
                && (before.starts_with("pub fn")
                    || before.starts_with("pub ") && !before.contains("pub(")
                    || around.contains(" for ")
                    || around.contains("trait ")),
        });
    }
    found
}

impl Function<'_> {
    fn is_capable(&self) -> bool {
        CAPABILITIES.iter().any(|capability| self.head.contains(capability))
    }

    fn of(&self) -> &str {
        self.name.split_once("::").map_or("", |(of, _)| of)
    }

    /// Whether the body contains a word of `words`.
    fn says(&self, words: &[String]) -> bool {
        words.iter().any(|word| self.body.contains(word))
    }

    fn makes_a_proof(&self) -> bool {
        PROVEN.contains(&self.of()) && self.head.contains("Self") && !self.head.contains("self")
    }
}

/// The names of the functions that have neither a capability nor a clamp, although they access global memory
/// or make a value that stands for a capability.
fn open(functions: &[Function<'_>]) -> Vec<String> {
    let mut words: Vec<String> =
        ["_global_", "atomic::", "E::load_bits(", "store_eight(at", "Integer::load("]
            .map(String::from)
            .into();
    // Functions inside of the crate access memory for the public functions that call them.
    loop {
        let inner = functions.iter().filter(|f| !f.is_public && !f.is_capable() && f.says(&words));
        let calls = inner.flat_map(|f| {
            let name = f.name.rsplit("::").next().unwrap_or(&f.name);
            if f.of().is_empty() { vec![format!(" {name}(")] } else { vec![format!("self.{name}(")] }
        });
        let new: Vec<_> = calls.filter(|call| !words.contains(call)).collect();
        if new.is_empty() {
            break;
        }
        words.extend(new);
    }
    let proven = |f: &Function<'_>| PROVEN.contains(&f.of()) && !f.makes_a_proof();
    let accesses =
        functions.iter().filter(|f| f.is_public && (f.says(&words) && !proven(f) || f.makes_a_proof()));
    let open = accesses.filter(|f| !f.is_capable() && !CLAMP.contains(&f.name.as_str()));
    open.map(|f| f.name.clone()).collect()
}

#[test]
fn functions_that_access_memory_take_a_capability() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for of in CRATES {
        let mut files = vec![];
        sources(&root.join(of), &mut files);
        let texts: Vec<_> =
            files.iter().map(|file| std::fs::read_to_string(file).expect("a source")).collect();
        let all: Vec<_> = texts.iter().flat_map(|text| functions(text)).collect();
        assert!(all.len() > 80, "{of}: {} functions", all.len());
        let open = open(&all);
        assert!(open.is_empty(), "{of}: {open:?} need a capability, a clamped index, or `unsafe`");
    }
}

#[test]
fn a_function_without_a_capability_is_found() {
    let text = "
pub struct Words(u64);
impl Words {
    pub fn new(at: u64) -> Self {
        Words(at)
    }
    fn at(&self, i: u32) -> u32 {
        unsafe { ld_global_b32(self.0 + i as u64) }
    }
    pub fn word(&self, i: u32) -> u32 {
        self.at(i)
    }
    pub fn word_of(&self, warp: Warp) -> u32 {
        self.at(warp.lane)
    }
}
impl RowSlices {
    pub fn new(partials: &Partials) -> Self {
        RowSlices
    }
}
pub unsafe fn load(at: u64) -> u32 {
    unsafe { ld_global_b32(at) }
}
";
    assert_eq!(open(&functions(text)), ["Words::word", "RowSlices::new"]);
}
