//! A model of attention on several GPUs: the time of its computation, and of its bytes on links and memory.
//! docs/several-gpus.md explains the formulas. A test compares its tables with this model.
use context_parallel::Form;

/// GPUs and their links. All rates are those of one GPU.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    pub ranks: f64,
    /// Bytes per second that a GPU sends.
    pub link: f64,
    /// FLOP per second of the forward pass, and of the backward pass.
    pub rates: [f64; 2],
    /// Bytes per second of the memory: of merges, sums and copies, and of decode.
    pub memory: [f64; 2],
    /// Seconds of an exchange of few bytes, with the merge behind it.
    pub exchange: f64,
}

impl Machine {
    /// H200s: rates that FerroFlash has on one of them (docs/performance-log.md).
    pub const H200: Self = Machine {
        ranks: 2.0,
        link: 370e9,
        rates: [600e12, 530e12],
        memory: [2.5e12, 4.4e12],
        exchange: 30e-6,
    };
}

/// Heads of queries and of keys, and the columns of a head, of 16 bits each.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub heads: [f64; 2],
    pub columns: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pass {
    Forward,
    Backward,
}

/// The share of the ideal that a length must have to pay.
pub const PAYS: f64 = 0.9;

/// Seconds of one GPU, divided by the ranks: a causal mask, `positions` in each rank.
pub fn ideal(pass: Pass, shape: &Shape, machine: &Machine, positions: f64) -> f64 {
    let flop = 2.0 * machine.ranks * positions * positions * shape.columns * shape.heads[0];
    match pass {
        Pass::Forward => flop / machine.rates[0],
        Pass::Backward => 2.5 * flop / machine.rates[1],
    }
}

/// Bytes that a rank sends at most, or `None` if the heads do not suffice.
pub fn sent(form: Form, pass: Pass, shape: &Shape, ranks: f64, positions: f64) -> Option<f64> {
    let ([queries, keys], row) = (shape.heads, 2.0 * positions * shape.columns);
    let forward = match form {
        Form::Ring | Form::Gather => (ranks - 1.0) * 2.0 * row * keys,
        // A key head of several ranks goes to each of them.
        Form::Ulysses if queries >= ranks => (ranks - 1.0) / ranks * 2.0 * row * (queries + keys.max(ranks)),
        Form::Ulysses => return None,
    };
    Some(if pass == Pass::Forward { forward } else { 2.0 * forward })
}

/// Seconds of a pass on all GPUs.
pub fn seconds(form: Form, pass: Pass, shape: &Shape, machine: &Machine, positions: f64) -> Option<f64> {
    let (ranks, [queries, keys]) = (machine.ranks, shape.heads);
    let (compute, row) = (ideal(pass, shape, machine, positions), 2.0 * positions * shape.columns);
    let link = sent(form, pass, shape, ranks, positions)? / machine.link;
    // A rank has at most as many partial results as there are ranks.
    let merged = |heads: f64| if ranks > 1.0 { (ranks + 1.0) * row * heads / machine.memory[0] } else { 0.0 };
    Some(match (form, pass) {
        (Form::Ring, _) => {
            let (others, step) = (ranks - 1.0, compute / ranks);
            let steps = step + if others > 0.0 { others * step.max(link / others) } else { 0.0 };
            match pass {
                Pass::Forward => steps + merged(queries),
                // The last dK and dV travel behind the last step.
                Pass::Backward => {
                    let last = if others > 0.0 { 2.0 * row * keys / machine.link } else { 0.0 };
                    steps + merged(queries + 2.0 * keys) + last
                }
            }
        }
        (Form::Gather, Pass::Forward) => compute + link,
        (Form::Gather, Pass::Backward) => compute + link + merged(2.0 * keys),
        // Copies read and write what the link sends, before and behind it.
        (Form::Ulysses, _) => compute + link + 2.0 * link * machine.link / machine.memory[0],
    })
}

/// Returns the ideal's time divided by the time, of one pass or of both.
pub fn share(form: Form, passes: &[Pass], shape: &Shape, machine: &Machine, positions: f64) -> Option<f64> {
    let (mut best, mut time) = (0.0, 0.0);
    for pass in passes {
        best += ideal(*pass, shape, machine, positions);
        time += seconds(form, *pass, shape, machine, positions)?;
    }
    Some(best / time)
}

/// Returns the positions of the whole sequence from which on a form pays. The share grows with the length.
pub fn pays_from(form: Form, passes: &[Pass], shape: &Shape, machine: &Machine) -> Option<f64> {
    let (mut low, mut high) = (1.0, 1e9);
    share(form, passes, shape, machine, high).filter(|share| *share >= PAYS)?;
    while high / low > 1.0001 {
        let middle = f64::sqrt(low * high);
        let pays = share(form, passes, shape, machine, middle).is_some_and(|share| share >= PAYS);
        if pays { high = middle } else { low = middle }
    }
    Some(high * machine.ranks)
}

/// Returns one GPU's time of decode of one sequence divided by that of all ranks.
pub fn decode(shape: &Shape, machine: &Machine, keys: f64) -> f64 {
    let alone = 4.0 * keys * shape.heads[1] * shape.columns / machine.memory[1];
    let exchange = if machine.ranks > 1.0 { machine.exchange } else { 0.0 };
    alone / (alone / machine.ranks + exchange)
}

/// Returns the keys from which on decode on several ranks is faster.
pub fn decode_pays_from(shape: &Shape, machine: &Machine) -> f64 {
    let of_key = 4.0 * shape.heads[1] * shape.columns / machine.memory[1];
    machine.exchange / (of_key * (1.0 - 1.0 / machine.ranks))
}
