//! Plans and refusals as two tables of text: `tests/plans.txt` and `tests/refusals.txt`. The first lines of
//! `plans.txt` explain the notation. `BLESS=1` writes what today's planner says.
mod fields;
mod request;

use crate::fake::FakeDriver;
use crate::fake_ptx::with_ptx;
use ferroflash::{
    plan::{self, *},
    request::*,
    *,
};
use request::Request;
use spec::FwdParams;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The subject of a table.
#[derive(Clone, Copy, PartialEq)]
enum Table {
    Plans,
    Refusals,
}

/// A row: a device, a request to plan, and a request to bind if it is another one.
struct Row<'t> {
    on: Capabilities,
    planned: Vec<&'t str>,
    bound: Option<Vec<&'t str>>,
    /// The words of the definition with which the row begins.
    base: Option<Vec<&'t str>>,
}

type Definitions<'t> = BTreeMap<&'t str, Vec<&'t str>>;

impl<'t> Row<'t> {
    fn new(text: &'t str, definitions: &Definitions<'t>) -> Self {
        let mut words = text.split_whitespace();
        let name = words.next().expect("a device");
        let mut on = Capabilities::profile(name).unwrap_or_else(|| panic!("{name} is no device")).clone();
        let words: Vec<_> = words.collect();
        let base = words.first().and_then(|name| definitions.get(name)).cloned();
        let (card, words): (Vec<_>, Vec<_>) =
            expand(&words, definitions).into_iter().partition(|word| word.starts_with("card."));
        card.iter().for_each(|change| fields::assign(&mut on, &change["card.".len()..]));
        let mut parts = words.split(|word| *word == "bind");
        let planned = parts.next().unwrap_or_default().to_vec();
        let bound = parts.next().map(|words| [&planned, words].concat());
        Row { on, planned, bound, base }
    }

    /// Plans the request and launches the plan. Returns whether there is a launch, and the answer.
    fn answer(&self) -> (bool, String) {
        let other = self.bound.as_ref().map(|words| request::request(words));
        let mut more = String::new();
        let answer = match (request::request(&self.planned), other) {
            (Request::Attention(f), None) => {
                let answer = self.launch(&f, &f, in_memory);
                check_workspaces(&f, &self.on);
                more = self.without_tensors(&f, &answer);
                answer
            }
            (Request::Attention(f), Some(Request::Attention(other))) => self.launch(&f, &other, in_memory),
            (Request::Backward(backward), other) => {
                let bound = match &other {
                    Some(Request::Backward(other)) => other,
                    None => &backward,
                    Some(_) => panic!("a plan binds requests of its own kind"),
                };
                self.launch(&backward, bound, |backward, needs| {
                    let workspace = Scratch::workspace(20 << 44, needs.workspace);
                    let is_open = backward.scratch == Scratch::Fastest;
                    if is_open { backward.scratch(workspace) } else { *backward }
                })
            }
            (Request::Append(append), None) => self.launch(&append, &append, |append, _| *append),
            (Request::Append(append), Some(Request::Append(other))) => {
                self.launch(&append, &other, |append, _| *append)
            }
            (Request::Merge { states, o, lse, sinks }, None) => {
                let mut merge = Merge::new(&states, o);
                (merge.lse, merge.sinks) = (lse, sinks);
                self.launch(&merge, &merge, |merge, _| *merge)
            }
            _ => panic!("a plan binds requests of its own kind"),
        };
        (answer.is_ok(), answer.unwrap_or_else(|error| format!("    {error}\n")) + &more)
    }

    /// Returns the launched kernels with their grids, the scratch memory, the other loaded kernels, and the
    /// reason.
    fn launch<R: plan::Request + Copy>(
        &self,
        planned: &R,
        bound: &R,
        with: impl Fn(&R, ScratchBytes) -> R,
    ) -> Result<String, Error> {
        let driver = FakeDriver { capabilities: self.on.clone(), ..FakeDriver::new("l4") };
        let attention = Attention::new(driver);
        let plan = attention.plan(planned)?;
        let ScratchBytes { workspace, counters } = plan.scratch_bytes();
        let bound = with(bound, plan.scratch_bytes());
        let launch = plan.bind(&bound)?;
        attention.load(&plan)?;
        // SAFETY: the fake driver runs nothing.
        unsafe { attention.launch(&plan, &bound, &0)? };
        let launches = attention.driver().launches();
        let fits = |[x, y, z]: [u32; 3]| x.min(y).min(z) > 0 && x < 1 << 31 && y.max(z) < 1 << 16;
        assert!(launches.iter().all(|launch| fits(launch.grid)), "CUDA takes these grids: {launches:?}");
        let kernels = launches.iter().map(|launch| match launch.grid {
            [x, 1, 1] => format!("{} [{x}]", launch.symbol),
            grid => format!("{} {grid:?}", launch.symbol),
        });
        let kernels: Vec<_> = kernels.collect();
        let ran = if kernels.is_empty() { "nothing".to_owned() } else { kernels.join(" + ") };
        let mut answer = format!("    {ran}");
        for (name, bytes) in [("workspace", workspace), ("counters", counters)] {
            if bytes > 0 {
                let _ = write!(answer, ", {name} {bytes}");
            }
        }
        let first = launches.first();
        if let Some(group) = first.and_then(|launch| heads_at_a_time(&launch.symbol, &launch.params)) {
            let _ = write!(answer, ", {group} heads at a time");
        }
        let others = attention.driver().loaded();
        let others = others.iter().filter(|own| launches.iter().all(|launch| launch.symbol != **own));
        let others: Vec<_> = others.map(String::as_str).collect();
        if !others.is_empty() {
            let _ = write!(answer, "; loads {}", others.join(", "));
        }
        if self.bound.is_some() && launch == plan.bind(&with(planned, plan.scratch_bytes()))? {
            answer += "; the launch of the planned request";
        }
        Ok(format!("{answer}\n    {}\n", launch.reason()))
    }

    /// Returns what the planner says of the problem without its tensors, if the answer does not say it. The
    /// error of most refused requests is about tensors.
    fn without_tensors(&self, f: &AttentionRequest<'_>, answer: &Result<String, Error>) -> String {
        let said = match (answer, explain(&f.problem(), &self.on, f.scratch)) {
            _ if f.config.is_some() => return String::new(),
            (Ok(answer), Ok((kernel, reason))) => {
                let is_same =
                    answer.starts_with(&format!("    {} [", kernel.symbol)) && answer.contains(reason);
                if is_same { return String::new() } else { format!("{}: {reason}", kernel.symbol) }
            }
            (Err(_), Ok(_)) => return String::new(),
            (Err(error), Err(said)) if *error == said => "the same".to_owned(),
            (_, Err(error)) => error.to_string(),
        };
        format!("    without tensors: {said}\n")
    }
}

/// Replaces names of definitions by their words.
fn expand<'t>(words: &[&'t str], definitions: &Definitions<'t>) -> Vec<&'t str> {
    words.iter().flat_map(|word| definitions.get(word).cloned().unwrap_or(vec![*word])).collect()
}

/// Returns the request with the scratch memory that its plan states.
fn in_memory<'r>(f: &AttentionRequest<'r>, needs: ScratchBytes) -> AttentionRequest<'r> {
    let Scratch::Fastest = f.scratch else { return *f };
    f.scratch(needs.at(20 << 44, Some(21 << 44)))
}

/// Returns the number of heads that a portable kernel with work tiles takes at a time, if there are several.
fn heads_at_a_time(symbol: &str, params: &[u8]) -> Option<u32> {
    let has_tiles = ["fwd_", "paged_"].iter().any(|family| symbol.starts_with(family));
    if !has_tiles || params.len() < size_of::<FwdParams>() {
        return None;
    }
    // SAFETY: the parameters of these kernels begin with `FwdParams`, and a host writes every byte.
    let params = unsafe { params.as_ptr().cast::<FwdParams>().read_unaligned() };
    Some(params.order.group.get()).filter(|group| *group > 1)
}

/// The workspace that a plan with split-KV states changes nothing. A smaller one is as good as none.
fn check_workspaces(f: &AttentionRequest<'_>, on: &Capabilities) {
    let (Scratch::Fastest, Ok(fastest)) = (f.scratch, plan(f, on)) else { return };
    let bytes = fastest.scratch_bytes().workspace;
    let with = |bytes| plan(&f.scratch(Scratch::workspace(20 << 44, bytes)), on);
    let facts = |plan: &Plan| (plan.contract().symbol, plan.grid(), plan.scratch_bytes().workspace);
    if bytes > 0 && fastest.contract().symbol.ends_with("_split") {
        let exact = with(bytes).expect("the workspace that the plan states");
        assert_eq!(facts(&exact), facts(&fastest));
        if let (Ok(less), Ok(none)) = (with(bytes - 1), plan(&f.scratch(Scratch::None), on)) {
            assert_eq!(facts(&less), facts(&none), "an insufficient workspace is not used");
        }
    }
}

/// Returns a table with today's answers.
fn today(text: &str, table: Table) -> String {
    with_ptx();
    let (mut definitions, mut seen) = (Definitions::new(), BTreeSet::new());
    let (mut now, mut wrong) = (String::new(), Vec::new());
    for line in text.lines().filter(|line| !line.starts_with("    ")) {
        let _ = writeln!(now, "{line}");
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some((name, words)) = line.split_once(" = ") {
            let words: Vec<_> = words.split_whitespace().collect();
            definitions.insert(name, expand(&words, &definitions));
            continue;
        }
        assert!(seen.insert(line), "{line}: a second time");
        let answer = std::panic::catch_unwind(|| Row::new(line, &definitions).answer());
        match answer {
            Ok((is_plan, answer)) if is_plan == (table == Table::Plans) => now += &answer,
            Ok((_, answer)) => wrong.push(format!("{line}: belongs to the other table\n{answer}")),
            Err(_) => wrong.push(format!("{line}: panics, see above")),
        }
    }
    assert!(!seen.is_empty() && wrong.is_empty(), "{}", wrong.join("\n"));
    now
}

/// Compares a table with today's answers.
fn check(name: &str, table: Table) {
    let file = format!("{}/../tests/{name}", env!("CARGO_MANIFEST_DIR"));
    let then = std::fs::read_to_string(&file).expect("a table");
    let now = today(&then, table);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&file, &now).expect("written");
    } else if now != then {
        panic!("{}\nIf you intend this, run cargo xtask bless", differences(name, &now, &then).join("\n"));
    }
}

/// Returns the first rows of a table that have other answers than before, each with the fields that differ.
fn differences(name: &str, now: &str, then: &str) -> Vec<String> {
    let differs = |((.., now), (at, row, then)): (Answered<'_>, Answered<'_>)| {
        let [now, then] = [now, then].map(|lines| fields_of(&lines));
        let names: BTreeSet<_> = now.keys().chain(then.keys()).collect();
        let other = names.into_iter().filter(|field| now.get(*field) != then.get(*field));
        let other: String = other
            .map(|field| {
                let [now, then] = [&now, &then].map(|of| of.get(field).unwrap_or(&"nothing"));
                format!("  {field}: now {now}\n  {:>1$}: was {then}\n", "", field.len())
            })
            .collect();
        (!other.is_empty()).then(|| format!("{name}:{at}: {row}\n{other}"))
    };
    rows(now).into_iter().zip(rows(then)).filter_map(differs).take(5).collect()
}

/// The number of a row's line, the row, and the lines of its answer.
type Answered<'t> = (usize, &'t str, Vec<&'t str>);

fn rows(text: &str) -> Vec<Answered<'_>> {
    let mut rows: Vec<Answered<'_>> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        match (line.strip_prefix("    "), rows.last_mut()) {
            (Some(answer), Some((.., lines))) => lines.push(answer),
            _ => rows.push((at + 1, line, vec![])),
        }
    }
    rows
}

/// Returns the fields of an answer by name. An answer of one line is an error.
fn fields_of<'t>(lines: &[&'t str]) -> BTreeMap<&'static str, &'t str> {
    const TENSORLESS: &str = "without tensors: ";
    let named = |line: &&'t str| line.strip_prefix(TENSORLESS).map(|said| ("without tensors", said));
    let mut fields: BTreeMap<_, _> = lines.iter().filter_map(named).collect();
    let own: Vec<_> = lines.iter().copied().filter(|line| !line.starts_with(TENSORLESS)).collect();
    let (launch, reason) = match own[..] {
        [launch, reason, ..] => (launch, reason),
        [error] => return fields.into_iter().chain([("error", error)]).collect(),
        [] => return fields,
    };
    let mut parts = launch.split("; ");
    let first = parts.next().unwrap_or_default();
    let (kernels, memory) = first.split_at(first.rfind(']').map_or(first.len(), |at| at + 1));
    fields.extend([("kernels", kernels), ("reason", reason)]);
    for part in memory.split(", ").filter(|part| !part.is_empty()).chain(parts) {
        let name = match part.split(' ').next() {
            Some("workspace") => "workspace",
            Some("counters") => "counters",
            Some("loads") => "loaded kernels",
            Some("the") => "bound request",
            _ => "heads at a time",
        };
        fields.insert(name, part);
    }
    fields
}

#[test]
fn a_difference_names_the_row_and_the_fields() {
    let answer = "    a [4] + b [1, 2, 3], workspace 8, counters 4; loads c, d\n    few keys\n";
    let then = &format!("# a comment\nl4 f16 q 1x1x1x64\n{answer}");
    let check = |from: &str, to: &str, expected: &[&str]| {
        let [found] = &differences("plans.txt", &then.replace(from, to), then)[..] else { panic!("one row") };
        let row = "plans.txt:2: l4 f16 q 1x1x1x64\n";
        assert!(found.starts_with(row) && found.lines().count() == 1 + 2 * expected.len(), "{found}");
        assert!(expected.iter().all(|field| found.contains(field)), "{found}");
    };
    check("workspace 8, ", "", &["workspace: now nothing"]);
    check("[1, 2, 3]", "[1, 2, 4]", &["kernels: now a [4] + b [1, 2, 4]"]);
    check("loads c, d", "loads c", &["loaded kernels: now loads c\n"]);
    check(
        "few keys\n",
        "many keys\n    without tensors: z\n",
        &["reason: now many keys", "without tensors: now z"],
    );
    check(
        "; loads c, d\n    few keys",
        "",
        &["error: now", "kernels: now nothing", "reason", "loaded kernels", "workspace", "counters"],
    );
}

#[test]
fn plans_are_what_the_table_says() {
    check("plans.txt", Table::Plans);
}

#[test]
fn refusals_are_what_the_table_says() {
    check("refusals.txt", Table::Refusals);
}

/// A request that the rows of `refusals.txt` change is valid before it is changed.
#[test]
fn requests_are_valid_before_they_are_changed() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/refusals.txt"));
    let text = text.expect("a table");
    let mut definitions = Definitions::new();
    for line in text.lines().filter(|line| !line.starts_with([' ', '#']) && !line.is_empty()) {
        match line.split_once(" = ") {
            Some((name, words)) => {
                let words: Vec<_> = words.split_whitespace().collect();
                definitions.insert(name, expand(&words, &definitions));
            }
            None => {
                let row = Row::new(line, &definitions);
                let Some(base) = row.base else { continue };
                let device = line.split(' ').next().and_then(Capabilities::profile).expect("a device");
                let row = Row { on: device.clone(), planned: base, bound: None, base: None };
                let (is_plan, answer) = row.answer();
                assert!(is_plan, "{line}: its definition is refused: {answer}");
            }
        }
    }
}
