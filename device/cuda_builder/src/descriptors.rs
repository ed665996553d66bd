//! Finds `wgmma` descriptors of which ptxas has lost the upper half.
//!
//! The upper half of a descriptor is a constant: the layout of an operand. This check follows constants from
//! register to register, on all paths, to every product. A product whose upper halves are not proved to be a
//! layout may read wrong operands.

use std::collections::{BTreeMap, HashMap, HashSet};

/// Number of products that have an upper half of a descriptor which is not proved to be a layout.
pub(crate) fn lost(text: &str) -> u32 {
    let code = Code::parse(text);
    // The constants before each target of a branch. They only become fewer.
    let mut before: HashMap<usize, Constants> = HashMap::new();
    let mut products = BTreeMap::new();
    let mut ways = vec![(0, Constants::default())];
    while let Some((mut at, mut constants)) = ways.pop() {
        while let Some(instruction) = code.instructions.get(at) {
            if code.targets.contains(&at) {
                let Some(fewer) = merge(&mut before, at, constants) else { break };
                constants = fewer;
            }
            if instruction.stem() == "HGMMA" {
                // The last visit has the constants of all paths.
                products.insert(at, instruction.is_proved(&constants));
            }
            instruction.write(&mut constants);
            ways.extend(code.jumps(at).map(|to| (to, constants.clone())));
            if instruction.leaves() {
                break;
            }
            at += 1;
        }
    }
    u32::try_from(products.values().filter(|proved| !**proved).count()).unwrap_or(u32::MAX)
}

/// Removes the constants that another path to the branch target `at` does not have. Returns `None` if no
/// constant is removed.
fn merge(before: &mut HashMap<usize, Constants>, at: usize, constants: Constants) -> Option<Constants> {
    let Some(known) = before.get_mut(&at) else {
        before.insert(at, constants.clone());
        return Some(constants);
    };
    let count = known.0.len();
    known.0.retain(|place, value| constants.0.get(place) == Some(value));
    (known.0.len() < count).then(|| known.clone())
}

/// Whether `upper` is the upper half of a descriptor: a swizzle, and the distance of groups of 8 rows.
fn is_layout(upper: u32) -> bool {
    matches!((upper >> 30, upper & 0x3fff_ffff), (1, 64) | (2, 32) | (3, 16))
}

/// A word that an instruction can write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Place {
    Uniform(u32),
    Thread(u32),
    /// A word of the stack, by its offset.
    Stack(u32),
}

impl Place {
    /// The place of a register, without the marks of an operand.
    fn of(operand: &str) -> Option<Self> {
        let name = operand.split('.').next().unwrap_or_default();
        let uniform = name.strip_prefix("UR").map(|n| n.parse().map(Self::Uniform));
        uniform.or_else(|| name.strip_prefix('R').map(|n| n.parse().map(Self::Thread)))?.ok()
    }

    /// The place of a spilled register: `[R1]` or `[R1+0x8]`.
    fn of_spill(operand: &str) -> Option<Self> {
        let offset = operand.strip_prefix("[R1")?.strip_suffix(']')?;
        Some(Self::Stack(if offset.is_empty() { 0 } else { hexadecimal(offset.strip_prefix('+')?)? }))
    }

    /// The `n`-th word from this one on.
    fn plus(self, n: u32) -> Self {
        match self {
            Self::Uniform(first) => Self::Uniform(first + n),
            Self::Thread(first) => Self::Thread(first + n),
            Self::Stack(offset) => Self::Stack(offset + 4 * n),
        }
    }
}

fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// The places whose values are known.
#[derive(Clone, Default)]
struct Constants(BTreeMap<Place, u32>);

impl Constants {
    /// The value of an operand of 32 bits.
    fn value(&self, operand: &str) -> Option<u32> {
        let operand = operand.trim_end_matches(".reuse");
        if let Some(positive) = operand.strip_prefix('-') {
            return self.value(positive).map(u32::wrapping_neg);
        }
        match operand {
            "RZ" | "URZ" | "SRZ" => Some(0),
            _ => hexadecimal(operand).or_else(|| self.0.get(&Place::of(operand)?).copied()),
        }
    }

    /// The upper half of an operand of 64 bits. An immediate operand has 32 bits.
    fn upper(&self, operand: &str) -> Option<u32> {
        match Place::of(operand) {
            Some(place) => self.0.get(&place.plus(1)).copied(),
            None => self.value(operand).map(|_| 0),
        }
    }

    fn sum<'a>(&self, operands: impl IntoIterator<Item = &'a str>) -> Option<u32> {
        operands.into_iter().try_fold(0u32, |sum, operand| Some(sum.wrapping_add(self.value(operand)?)))
    }

    /// `a b + c`.
    fn multiply_add(&self, a: &str, b: &str, c: &str) -> Option<u32> {
        let product = match (self.value(a), self.value(b)) {
            (Some(0), _) | (_, Some(0)) => 0,
            (a, b) => a?.wrapping_mul(b?),
        };
        Some(product.wrapping_add(self.value(c)?))
    }

    /// The bits that the table of a `LOP3` selects.
    fn look_up(&self, [a, b, c, table]: [&str; 4]) -> Option<u32> {
        let (words, table) = ([self.value(a)?, self.value(b)?, self.value(c)?], hexadecimal(table)?);
        let bit = |n: u32| words.iter().fold(0, |index, word| index << 1 | word >> n & 1);
        Some((0..32).fold(0, |result, n| result | (table >> bit(n) & 1) << n))
    }
}

/// An instruction of a disassembly.
struct Instruction<'a> {
    /// Whether the instruction has a predicate.
    guarded: bool,
    opcode: &'a str,
    operands: Vec<&'a str>,
}

impl<'a> Instruction<'a> {
    fn parse(code: &'a str) -> Self {
        let guarded = code.starts_with('@');
        let code = if guarded { code.split_once(' ').map_or("", |(_, code)| code).trim() } else { code };
        let (opcode, operands) = code.split_once(' ').unwrap_or((code, ""));
        Self { guarded, opcode, operands: operands.split(',').map(str::trim).collect() }
    }

    fn stem(&self) -> &'a str {
        self.opcode.split('.').next().unwrap_or_default()
    }

    /// The label to which the instruction branches, or the function that it calls.
    fn label(&self) -> Option<&'a str> {
        let label = self.operands.last()?.split_once("`(")?.1.strip_suffix(')')?;
        matches!(self.stem(), "BRA" | "CALL").then_some(label)
    }

    /// Whether execution never continues with the next instruction.
    fn leaves(&self) -> bool {
        // A branch with a uniform predicate, or with a condition on the warp, has another operand before its
        // label.
        let always = self.operands.len() == 1 && !self.opcode.contains(".DIV");
        !self.guarded && (self.stem() == "BRA" && always || matches!(self.stem(), "EXIT" | "RET" | "CALL"))
    }

    /// Operands that are not predicates.
    fn words(&self) -> impl Iterator<Item = &'a str> {
        let is_predicate = |operand: &&str| {
            let name = operand.trim_start_matches(['!', 'U']);
            name.strip_prefix('P').is_some_and(|n| n == "T" || n.parse::<u32>().is_ok())
        };
        self.operands.iter().copied().filter(move |operand| !is_predicate(operand))
    }

    /// Whether the upper halves of a product's descriptors are layouts. The two descriptors are adjacent, and
    /// the second one is B's. If A is in registers, the instruction does not read the first descriptor.
    fn is_proved(&self, constants: &Constants) -> bool {
        let in_registers = self.operands.get(1).is_some_and(|operand| operand.starts_with('R'));
        let first = self.operands.iter().find_map(|operand| {
            Place::of(operand.strip_prefix("gdesc[")?.split(']').next().unwrap_or_default())
        });
        let is_layout = |n| {
            let upper = first.and_then(|first| constants.0.get(&first.plus(n)));
            upper.copied().is_some_and(is_layout)
        };
        is_layout(3) && (in_registers || is_layout(1))
    }

    /// Writes the instruction's results.
    fn write(&self, constants: &mut Constants) {
        let mut words = self.words();
        let Some(first) = words.next() else { return };
        let rest: Vec<_> = words.collect();
        let (target, values) = match (self.stem(), rest.as_slice()) {
            ("STL", [from]) => (Place::of_spill(first), self.copies(Place::of(from), constants)),
            ("LDL", [from]) => (Place::of(first), self.copies(Place::of_spill(from), constants)),
            (stem, _) if stem.ends_with("SETP") || stem.ends_with("PLOP3") => return,
            _ => (Place::of(first), self.values(&rest, constants)),
        };
        if self.stem() == "STL" && target.is_none() {
            constants.0.retain(|place, _| !matches!(place, Place::Stack(_)));
        }
        for (n, value) in (0..).zip(values) {
            let Some(place) = target.map(|target| target.plus(n)) else { return };
            // Under a predicate, the old value may remain.
            let old = constants.0.get(&place).copied();
            match value.filter(|value| !self.guarded || old == Some(*value)) {
                Some(value) => constants.0.insert(place, value),
                None => constants.0.remove(&place),
            };
        }
    }

    /// The words that a spill or its reload copies.
    fn copies(&self, from: Option<Place>, constants: &Constants) -> Vec<Option<u32>> {
        (0..self.width()).map(|n| constants.0.get(&from?.plus(n)).copied()).collect()
    }

    /// Number of registers that the instruction writes, or more.
    fn width(&self) -> u32 {
        let has = |text| self.opcode.contains(text);
        match self.stem() {
            // The shape `64xNx16` has N / 2 registers.
            "HGMMA" => {
                self.opcode.split('x').nth(1).and_then(|n| n.parse::<u32>().ok()).map_or(128, |n| n / 2)
            }
            "HMMA" | "QMMA" | "IMMA" => 4,
            // The type is that of the shifted pair, of which the instruction writes one word.
            "SHF" | "USHF" => 1,
            _ if has(".128") || has(".4") => 4,
            "CS2R" => 2,
            _ if has("64") || has(".WIDE") || has(".2") => 2,
            _ => 1,
        }
    }

    /// The values of the words that the instruction writes, as far as they are known. No sum of lower halves
    /// carries, because the fields of a lower half have 30 bits.
    fn values(&self, rest: &[&str], constants: &Constants) -> Vec<Option<u32>> {
        let (wide, word) = (self.opcode.contains(".WIDE"), |value| vec![value]);
        match (self.stem(), rest) {
            ("MOV" | "UMOV" | "R2UR", [from]) => word(constants.value(from)),
            ("CS2R", [from]) if !self.opcode.contains(".32") => vec![constants.value(from); 2],
            ("UIADD3", _) if self.opcode.contains(".64") => {
                let upper = |sum: u32, operand: &&str| Some(sum.wrapping_add(constants.upper(operand)?));
                vec![constants.sum(rest.iter().copied()), rest.iter().try_fold(0, upper)]
            }
            ("IADD3" | "UIADD3" | "VIADD", _) => word(constants.sum(rest.iter().copied())),
            ("IMAD" | "UIMAD", [a, b, c]) if wide => {
                // The factors are a stage's number and size, so the product has 32 bits.
                let upper = if b.starts_with('-') { None } else { constants.upper(c) };
                vec![constants.multiply_add(a, b, c), upper]
            }
            ("IMAD" | "UIMAD", [a, b, c]) if !self.opcode.contains(".HI") => {
                word(constants.multiply_add(a, b, c))
            }
            ("LOP3" | "ULOP3", &[a, b, c, table]) => word(constants.look_up([a, b, c, table])),
            ("SEL" | "USEL", [a, b]) => {
                word(constants.value(a).filter(|value| constants.value(b) == Some(*value)))
            }
            _ => vec![None; self.width() as usize],
        }
    }
}

/// The instructions of a kernel and of the functions that it calls.
struct Code<'a> {
    instructions: Vec<Instruction<'a>>,
    /// The position of each label.
    labels: HashMap<&'a str, usize>,
    /// The positions that a jump reaches.
    targets: HashSet<usize>,
    /// The positions behind calls, to which a `RET` may return.
    returns: Vec<usize>,
}

impl<'a> Code<'a> {
    fn parse(text: &'a str) -> Self {
        let (mut instructions, mut labels) = (Vec::new(), HashMap::new());
        for line in text.lines().map(str::trim) {
            if let Some(label) = line.strip_suffix(':').filter(|label| label.starts_with(['.', '$'])) {
                labels.insert(label, instructions.len());
            } else if let Some((_, code)) = line.strip_prefix("/*").and_then(|line| line.split_once("*/")) {
                let code = code.split("/*").next().unwrap_or_default().trim().trim_end_matches(';').trim();
                if !code.is_empty() {
                    instructions.push(Instruction::parse(code));
                }
            }
        }
        let calls = instructions.iter().enumerate().filter(|(_, instruction)| instruction.stem() == "CALL");
        let returns: Vec<_> = calls.map(|(at, _)| at + 1).collect();
        let mut code = Self { instructions, labels, targets: returns.iter().copied().collect(), returns };
        code.targets.extend(code.labels.values());
        code
    }

    /// The positions to which the instruction at `at` may jump.
    fn jumps(&self, at: usize) -> impl Iterator<Item = usize> {
        let instruction = &self.instructions[at];
        let to = instruction.label().and_then(|label| self.labels.get(label)).copied();
        let returns = if instruction.stem() == "RET" { self.returns.as_slice() } else { &[] };
        to.into_iter().chain(returns.iter().copied())
    }
}
