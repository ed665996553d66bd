//! The minimum architecture and PTX version of each instruction.

use std::collections::HashSet;

use crate::{
    LaunchError,
    ast::{Instruction, Module, Operand},
};

/// The lowest `.target` and `.version` of instructions, and of words in their opcodes.
///
/// The columns: instruction or special register; further words of the opcode; lowest target; lowest PTX
/// version. The first column lists first words. The opcode must match every word of the second column: `a|b`
/// matches either word, `!a` matches an opcode without the word, `#3` matches three operands. A target with a
/// suffix means only that target. A target without a suffix means that target and all later ones.
type Row = (&'static str, &'static str, &'static str, (u32, u32));

/// Instructions that the simulator executes, or knows by name, with the targets and versions that ptxas 13.0
/// accepts. The lowest target of ptxas 13.0 is `sm_75`.
const ROWS: [Row; 60] = [
    // In any instruction, these words need the target of their row.
    ("*", "cluster|shared::cluster|multicast::cluster", "sm_90", (7, 8)),
    ("*", "shared::cta", "sm_70", (7, 8)),
    ("*", "L2::64B|L2::128B|L2::256B", "sm_75", (7, 4)),
    (
        "*",
        "L1::no_allocate|L1::evict_first|L1::evict_last|L1::evict_normal|L1::evict_unchanged",
        "sm_70",
        (7, 4),
    ),
    ("*", "L2::cache_hint", "sm_80", (7, 4)),
    ("%clusterid|%nclusterid|%cluster_ctaid|%cluster_nctaid", "", "sm_90", (7, 8)),
    ("%cluster_ctarank|%cluster_nctarank|%is_explicit_cluster", "", "sm_90", (7, 8)),
    ("%aggr_smem_size", "", "sm_90", (8, 1)),
    ("%reserved_smem_offset_begin|%reserved_smem_offset_end|%reserved_smem_offset_cap", "", "sm_80", (7, 6)),
    // Tensor cores, and copies of their matrices.
    ("ldmatrix", "", "sm_75", (6, 5)),
    ("stmatrix", "", "sm_90", (7, 8)),
    ("movmatrix", "", "sm_75", (7, 8)),
    ("mma", "m16n8k8", "sm_75", (6, 5)),
    ("mma", "m16n8k16|m16n8k32|bf16", "sm_80", (7, 0)),
    ("mma", "e4m3|e5m2", "sm_89", (8, 4)),
    ("wgmma", "", "sm_90a", (8, 0)),
    ("setmaxnreg", "", "sm_90a", (8, 0)),
    // Asynchronous copies.
    ("cp", "async", "sm_80", (7, 0)),
    ("cp", "async L2::64B|L2::128B|L2::256B", "sm_80", (7, 4)),
    ("cp", "async bulk", "sm_90", (8, 0)),
    ("prefetch", "tensormap", "sm_90", (8, 0)),
    ("discard|applypriority|createpolicy", "", "sm_80", (7, 4)),
    ("st|red", "async", "sm_90", (8, 1)),
    // Barriers, fences, and instructions of whole warps.
    ("bar", "cta", "sm_70", (7, 8)),
    ("mbarrier", "", "sm_80", (7, 0)),
    ("mbarrier", "parity", "sm_80", (7, 1)),
    ("mbarrier", "relaxed|acquire|release", "sm_80", (8, 0)),
    ("mbarrier", "arrive|arrive_drop #3 !noComplete", "sm_90", (7, 8)),
    ("mbarrier", "try_wait", "sm_90", (7, 8)),
    ("mbarrier", "expect_tx|complete_tx|shared::cluster", "sm_90", (8, 0)),
    ("barrier", "cluster relaxed|acquire|release", "sm_90", (8, 0)),
    ("fence", "alias", "sm_70", (7, 5)),
    ("fence", "proxy async", "sm_90", (8, 0)),
    ("fence", "tensormap::generic", "sm_90", (8, 3)),
    ("fence", "mbarrier_init", "sm_90", (8, 0)),
    ("elect", "", "sm_90", (8, 0)),
    ("redux", "", "sm_80", (7, 0)),
    ("redux", "f32", "sm_100a", (8, 6)),
    ("griddepcontrol|mapa|getctarank", "", "sm_90", (7, 8)),
    // Loads, stores and caches.
    ("ld|st", "v8", "sm_100", (8, 8)),
    ("ld|st", "v4 b64|u64|s64|f64", "sm_100", (8, 8)),
    ("ld|st", "mmio", "sm_70", (8, 2)),
    ("atom|red", "bf16|bf16x2", "sm_90", (7, 8)),
    ("atom|red", "v2|v4|v8", "sm_90", (8, 1)),
    ("isspacep|cvta", "param", "sm_70", (7, 7)),
    // Arithmetic.
    ("add|sub|mul|ex2|tanh|setp|set", "bf16|bf16x2", "sm_90", (7, 8)),
    ("min|max", "relu s32", "sm_90", (8, 0)),
    ("fma|neg|abs|min|max", "bf16|bf16x2", "sm_80", (7, 0)),
    ("ex2", "f16|f16x2", "sm_75", (7, 0)),
    ("tanh", "", "sm_75", (7, 0)),
    ("min|max", "f16|f16x2|NaN", "sm_80", (7, 0)),
    ("min|max", "f32 #4", "sm_100", (8, 8)),
    ("fma", "relu", "sm_80", (7, 0)),
    ("bmsk", "", "sm_70", (7, 6)),
    ("cvt", "relu|tf32|f16x2|bf16x2", "sm_80", (7, 0)),
    ("cvt", "bf16 f32", "sm_80", (7, 0)),
    ("cvt", "bf16 f32 !rn !rz", "sm_80", (7, 1)),
    ("cvt", "bf16 !f32", "sm_90", (7, 8)),
    // On sm_90, PTX has these instructions since version 7.8. A row cannot express this exception.
    ("cvt", "e4m3x2", "sm_89", (8, 1)),
    ("cvt", "tf32 !rna", "sm_90", (7, 8)),
];

/// Checks `instructions` against the target and the version of `module`. Like ptxas, it also checks
/// instructions that no thread reaches.
///
/// # Errors
/// Returns [`LaunchError::Needs`] for the first instruction that the module's `.target` or `.version` does
/// not have.
pub(crate) fn check<'m>(
    module: &'m Module,
    instructions: impl Iterator<Item = &'m Instruction>,
) -> Result<(), LaunchError> {
    let mut known = HashSet::new();
    for instruction in instructions {
        let texts =
            std::iter::once(&*instruction.opcode).chain(instruction.operands.iter().filter_map(special));
        for text in texts {
            let count = instruction.operands.len();
            if known.insert((text, count)) {
                ROWS.iter()
                    .filter(|row| concerns(row, text, count))
                    .try_for_each(|row| met(row, module, instruction))?;
            }
        }
    }
    Ok(())
}

fn special(operand: &Operand) -> Option<&str> {
    if let Operand::Special(name) = operand { Some(name) } else { None }
}

fn concerns(&(first, columns, ..): &Row, text: &str, count: usize) -> bool {
    let mut parts = text.split('.');
    let op = parts.next().unwrap_or("");
    (first == "*" || first.split('|').any(|name| name == op)) && has_words(columns, parts, count)
}

/// Whether the columns of a row match these words and this number of operands.
pub(super) fn has_words<'w>(
    columns: &str,
    words: impl Iterator<Item = &'w str> + Clone,
    count: usize,
) -> bool {
    let has = |word: &str| match word.strip_prefix('#') {
        Some(number) => number == count.to_string(),
        None => words.clone().any(|one| one == word),
    };
    let any = |column: &str| column.split('|').any(has);
    columns
        .split_whitespace()
        .all(|column| column.strip_prefix('!').map_or_else(|| any(column), |column| !any(column)))
}

fn met(
    &(_, _, target, version): &Row,
    module: &Module,
    instruction: &Instruction,
) -> Result<(), LaunchError> {
    let fail = |needs, says| {
        let text = module.written(instruction);
        Err(LaunchError::Needs { line: instruction.line, text, needs, says })
    };
    let (arch, exact) = architecture(target).unwrap_or_default();
    let enough = architecture(&module.target).is_some_and(|(has, _)| has >= arch);
    if !enough || exact && *module.target != *target {
        let later = if exact { "" } else { " or later" };
        return fail(format!("`.target {target}`{later}"), format!("`.target {}`", module.target));
    }
    if module.version < version {
        let say = |(major, minor)| format!("`.version {major}.{minor}`");
        return fail(say(version) + " or later", say(module.version));
    }
    Ok(())
}

/// The number of an architecture such as `sm_90`, and whether a suffix restricts the code to this
/// architecture.
pub(crate) fn architecture(target: &str) -> Option<(u32, bool)> {
    let name = target.strip_prefix("sm_")?;
    let number = name.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    Some((number.parse().ok()?, number.len() < name.len()))
}
