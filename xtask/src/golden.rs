//! The golden figures: registers, spills, shared memory and instructions of every entry on every target. They
//! reveal changes. Beside them, a seal per entry: ci does not assemble an entry whose seal is right.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use cuda_builder::report::{EntryReport, Reporter};
use cuda_builder::toolchain::DeviceCompiler;
use cuda_builder::{Module, gate};
use serde::Serialize;

use crate::kernels::{self, TARGETS, carried};
use crate::process::{Result, in_ci};
use crate::setup;

/// The file of golden figures, relative to the root.
pub const GOLDEN: &str = "tests/golden/ptx-stats.txt";

/// The file of seals: on each line an entry and its seal.
const SEALS: &str = "tests/golden/seals.txt";

/// The first half of `cargo xtask bless`: writes today's figures and seals to the golden files, and the
/// kernels that the checkout carries. The machine code of a kernel depends a little on the kernels that the
/// compiler gets with it, so all kernels are compiled.
pub fn bless(root: &Path) -> Result {
    let output = kernels::anew(root)?;
    let now = Now::of(root)?;
    let path = root.join(GOLDEN);
    let old = fs::read_to_string(&path).unwrap_or_default();
    let sealed = now.sealed(root, &output.modules, &old)?;
    let lines: Vec<_> = sealed.iter().flat_map(|(_, lines, _)| lines).map(String::as_str).collect();
    let seals: Vec<_> = sealed.iter().map(|(entry, _, seal)| format!("{entry} {seal}")).collect();
    fs::create_dir_all(path.parent().unwrap_or(root))?;
    fs::write(&path, [&now.tools, &lines.join("\n"), "\n"].concat())?;
    fs::write(root.join(SEALS), seals.join("\n") + "\n")?;
    println!("{GOLDEN}: {} lines; {SEALS}: {} lines", lines.len(), seals.len());
    carried::write(root, &output)
}

/// Checks the rules of all modules, and compares their figures with the golden figures. If the tools have
/// other versions, their figures would not show changes of the kernels, so the task compares only the names
/// of the kernels, and prints a note. In CI, the task fails if ptxas has another version, because setup
/// installs a fixed version. The compiler may come from any toolchain that has the sources of `core`.
pub fn hold(root: &Path, modules: &[Module]) -> Result {
    let now = Now::of(root)?;
    let old = read(root)?;
    let sealed = now.sealed(root, modules, &old)?;
    let (tools, old) = header(&old);
    let is_same = tools == now.tools;
    same_lines(old.lines(), sealed.iter().flat_map(|(_, lines, _)| lines).map(String::as_str), is_same)?;
    if is_same { Ok(()) } else { not_compared(tools, &now.tools, in_ci()) }
}

/// Compares lines of golden figures, or only the names of their entries.
fn same_lines<'l>(
    old: impl Iterator<Item = &'l str>,
    new: impl Iterator<Item = &'l str>,
    whole: bool,
) -> Result {
    let shown = |line: &'l str| if whole { line } else { entry(line) };
    let (old, new): (BTreeSet<_>, BTreeSet<_>) = (old.map(shown).collect(), new.map(shown).collect());
    let gone = old.difference(&new).map(|line| format!("- {line}\n"));
    let changes: String = gone.chain(new.difference(&old).map(|line| format!("+ {line}\n"))).collect();
    if changes.is_empty() {
        return Ok(());
    }
    Err(format!(
        "the kernels' figures differ from the golden figures; `cargo xtask bless` stores the new figures\n\
         {changes}"
    )
    .into())
}

/// The entry of a line of golden figures.
fn entry(line: &str) -> &str {
    line.split(' ').next().unwrap_or_default()
}

/// The tools of this machine, and their names in the golden file.
struct Now {
    reporter: Reporter,
    tools: String,
}

/// An entry, its lines of golden figures, and its seal.
type Sealed = (&'static str, Vec<String>, String);

impl Now {
    fn of(root: &Path) -> Result<Self> {
        setup::cuda_tools(root)?;
        let compiler = DeviceCompiler::locate(root)?;
        let reporter = Reporter::new(root, kernels::cache(root))?;
        let mut tools = format!("# {}\n", compiler.version.split(" (built").next().unwrap_or_default());
        for line in reporter.assembler().version().lines().filter(|line| line.contains("release")) {
            writeln!(tools, "# {line}")?;
        }
        Ok(Self { reporter, tools })
    }

    /// Checks the rules of all modules. An entry with the right seal is not assembled: bless has written the
    /// seal for equal PTX and for the entry's lines in `golden`, after the check of the rules.
    fn sealed(&self, root: &Path, modules: &[Module], golden: &str) -> Result<Vec<Sealed>> {
        let elsewhere = kernels::with_different_products(modules);
        let elsewhere: BTreeSet<_> = elsewhere.iter().map(|module| module.contract.symbol).collect();
        let is_elsewhere = |module: &Module| elsewhere.contains(module.contract.symbol);
        let seals = fs::read_to_string(root.join(SEALS)).unwrap_or_default();
        let seals: BTreeSet<_> = seals.lines().collect();
        let lines = lines_by_entry(golden);
        let known = |module: &Module| -> Option<Sealed> {
            let symbol = module.contract.symbol;
            let lines = lines.get(symbol)?;
            let seal = self.seal(module, is_elsewhere(module), lines);
            let is_right = seals.contains(format!("{symbol} {seal}").as_str());
            is_right.then(|| (symbol, lines.iter().map(|line| (*line).to_owned()).collect(), seal))
        };
        let known: Vec<_> = modules.iter().map(known).collect();
        let unknown = modules.iter().zip(&known).filter(|(_, known)| known.is_none());
        let unknown: Vec<_> = unknown.map(|(module, _)| module.clone()).collect();
        println!("assembling {} of {} kernels; the others have their seals", unknown.len(), modules.len());
        let reports = kernels::reports(root, &unknown, &TARGETS)?;
        gate::check(reports.iter().map(|(module, report)| (&module.contract, report)))?;
        let others: Vec<_> = unknown.iter().filter(|module| is_elsewhere(module)).cloned().collect();
        kernels::hold_descriptors(root, &others)?;
        let made = |module: &Module| {
            let symbol = module.contract.symbol;
            let of_it = reports.iter().filter(|(module, _)| module.contract.symbol == symbol);
            let lines: Vec<_> = of_it.map(|(module, report)| line(module, report)).collect();
            let seal = self.seal(module, is_elsewhere(module), &lines);
            (symbol, lines, seal)
        };
        let each = modules.iter().zip(known);
        Ok(each.map(|(module, known)| known.unwrap_or_else(|| made(module))).collect())
    }

    /// A digest of an entry's lines, and of everything that determines them and the verdict of the rules.
    /// `elsewhere` says whether the module must also keep the rules of descriptors with other versions of
    /// ptxas.
    fn seal(&self, module: &Module, elsewhere: bool, lines: &[impl AsRef<str>]) -> String {
        let mut hasher = DefaultHasher::new();
        for target in TARGETS.into_iter().filter(|target| module.arch.assembles_for(*target)) {
            (target.name(), gate::digest(&self.reporter, module, target)).hash(&mut hasher);
        }
        let lines: Vec<_> = lines.iter().map(AsRef::as_ref).collect();
        (&self.tools, elsewhere.then_some(setup::OTHER_ASSEMBLERS), lines).hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }
}

/// The lines of golden figures of each entry, in their order.
fn lines_by_entry(golden: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut lines = BTreeMap::<_, Vec<_>>::new();
    for line in header(golden).1.lines() {
        lines.entry(entry(line)).or_default().push(line);
    }
    lines
}

/// Prints clearly that the figures were not compared. In CI, returns an error, unless only the compiler
/// differs. The first line of `old_tools` and of `new_tools` names the compiler; the other lines name
/// NVIDIA's tools.
fn not_compared(old_tools: &str, new_tools: &str, in_ci: bool) -> Result {
    let assembler = |tools: &str| tools.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    let versions = format!("they belong to\n{old_tools}and this machine has\n{new_tools}");
    if in_ci && assembler(old_tools) != assembler(new_tools) {
        let cure = "unset PTXAS and NVDISASM, and remove other versions from PATH: `cargo xtask setup` \
                    fetches the right ones";
        return Err(format!("the golden figures cannot be compared: {versions}{cure}").into());
    }
    eprintln!(
        "NOTE: THE GOLDEN FIGURES WERE NOT COMPARED: {versions}A change of the kernels' figures does not \
         show here."
    );
    Ok(())
}

/// The golden figures of a report.
fn line(module: &Module, r: &EntryReport) -> String {
    let smem = r.static_smem + module.contract.smem_bytes;
    let mut line = format!(
        "{} {}: {} registers, {smem} bytes of shared memory, spills {}/{}, main loop {}:",
        r.entry,
        r.target,
        r.registers,
        r.spill_stores,
        r.spill_loads,
        r.sass.loop_length()
    );
    for (opcode, count) in &r.sass.main_loop {
        // Writing to a String cannot fail.
        let _ = write!(line, " {opcode} {count}");
    }
    line
}

/// The golden figures as text.
pub fn read(root: &Path) -> Result<String> {
    let text = fs::read_to_string(root.join(GOLDEN));
    Ok(text.map_err(|e| format!("{GOLDEN}: {e}; `cargo xtask bless` writes it"))?)
}

/// A line of the golden figures.
#[derive(Debug, PartialEq, Serialize)]
pub struct Figure<'a> {
    pub entry: &'a str,
    pub target: &'a str,
    pub registers: &'a str,
    pub smem_bytes: &'a str,
    /// Bytes of spill stores and spill loads, as `0/0`.
    pub spills: &'a str,
    /// The number of instructions of the main loop, then the number of each opcode.
    pub main_loop: &'a str,
}

/// The lines of the golden figures, as [`line()`] writes them.
pub fn figures(text: &str) -> impl Iterator<Item = Figure<'_>> {
    header(text).1.lines().filter_map(|line| {
        let (name, rest) = line.split_once(": ")?;
        let (entry, target) = name.split_once(' ')?;
        let (registers, rest) = rest.split_once(" registers, ")?;
        let (smem_bytes, rest) = rest.split_once(" bytes of shared memory, spills ")?;
        let (spills, main_loop) = rest.split_once(", main loop ")?;
        Some(Figure { entry, target, registers, smem_bytes, spills, main_loop })
    })
}

/// The lines that name the tools, and all other lines.
fn header(text: &str) -> (&str, &str) {
    let end = text.split_inclusive('\n').take_while(|line| line.starts_with('#')).map(str::len).sum();
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use cuda_builder::{Arch, Contract, Target};

    use super::*;

    #[test]
    fn a_golden_line_is_read_back() {
        let text = "# rustc\nfwd sm_80: 252 registers, 28672 bytes of shared memory, spills 4/8, main loop \
                    3: BAR 3\n";
        let figure = Figure {
            entry: "fwd",
            target: "sm_80",
            registers: "252",
            smem_bytes: "28672",
            spills: "4/8",
            main_loop: "3: BAR 3",
        };
        assert_eq!(figures(text).collect::<Vec<_>>(), [figure]);
    }

    #[test]
    fn lines_of_other_tools_are_compared_by_name() {
        let old = ["fwd sm_80: 1", "combine sm_80: 2"];
        for (new, whole, is_right) in [
            (["fwd sm_80: 1", "combine sm_80: 2"], true, true),
            (["fwd sm_80: 1", "combine sm_80: 3"], true, false),
            (["fwd sm_80: 1", "combine sm_80: 3"], false, true),
            (["fwd sm_80: 1", "merge sm_80: 2"], false, false),
        ] {
            assert_eq!(same_lines(old.into_iter(), new.into_iter(), whole).is_ok(), is_right, "{new:?}");
        }
    }

    #[test]
    fn a_seal_is_of_one_module_its_contract_and_its_figures() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let reporter = Reporter::new(root, kernels::cache(root)).unwrap();
        let now = Now { reporter, tools: "# ptxas 13.0\n".to_owned() };
        let module = |text: &str, threads| {
            let contract = Contract::new("a", threads).target(Target::From(90));
            Module { contract, arch: Arch::Sm90, text: text.to_owned(), path: "a.ptx".into() }
        };
        let text = ".version 8.0\n\t.loc\t1 2 3\n.entry a\n";
        let seal = |text, threads, elsewhere, line| now.seal(&module(text, threads), elsewhere, &[line]);
        let right = seal(text, 32, false, "a sm_90: 9 registers");
        let without_lines = ".version 8.0\n.entry a\n";
        assert_eq!(seal(without_lines, 32, false, "a sm_90: 9 registers"), right);
        for (text, threads, elsewhere, line) in [
            (".version 8.0\n.entry b\n", 32, false, "a sm_90: 9 registers"),
            (text, 64, false, "a sm_90: 9 registers"),
            (text, 32, true, "a sm_90: 9 registers"),
            (text, 32, false, "a sm_90: 8 registers"),
        ] {
            assert_ne!(seal(text, threads, elsewhere, line), right, "{text} {threads} {elsewhere} {line}");
        }
        let now = Now { tools: "# ptxas 13.1\n".to_owned(), ..now };
        assert_ne!(now.seal(&module(text, 32), false, &["a sm_90: 9 registers"]), right);
    }

    #[test]
    fn another_compiler_is_a_note_and_another_assembler_fails_in_ci() {
        let golden = "# rustc 1.96.0\n# ptxas 13.0\n# nvdisasm 13.2\n";
        let cases = [
            ("# rustc 1.95.0\n# ptxas 13.0\n# nvdisasm 13.2\n", true, true),
            ("# rustc 1.96.0\n# ptxas 13.1\n# nvdisasm 13.2\n", true, false),
            ("# rustc 1.96.0\n# ptxas 13.0\n# nvdisasm 13.1\n", true, false),
            ("# rustc 1.96.0\n# ptxas 13.1\n# nvdisasm 13.2\n", false, true),
        ];
        for (tools, in_ci, passes) in cases {
            let outcome = not_compared(golden, tools, in_ci);
            assert_eq!(outcome.is_ok(), passes, "{tools} {in_ci}");
            let named = |error: Box<dyn std::error::Error>| error.to_string().contains(tools);
            assert!(outcome.err().is_none_or(named), "{tools}");
        }
    }
}
