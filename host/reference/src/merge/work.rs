//! Merge cases in host memory.
use super::{Lie, MergeCase, merge};
use crate::arithmetic::{decode, encode, unit_roundoff};
use crate::cycled::Filling;
use crate::inputs::Random;
use crate::place::{Layout, Place};
use crate::tensor::TensorError;
use crate::tolerance::Rule;
use crate::work::{Binder, Judge, Judgement, LaunchOptions, Rows, Work, Written, guards, unguarded};
use ferroflash::DType;
use ferroflash::plan::{AnyRequest, OwnedMerge};
use ferroflash::request::{LseUnit, LseView, Merge, Sinks, State};

/// Value of the bytes between states.
const GAP: u8 = 0xa5;

/// A row of a state: O and natural LSE.
type Row = (Vec<f64>, f64);

/// A case in host memory.
#[derive(Clone, Debug)]
pub struct MergeMemory {
    case: MergeCase,
    /// Attention sinks, one per head.
    sinks: Vec<f32>,
    /// O and LSE of all states.
    filling: Filling,
}

impl MergeMemory {
    /// Draws a standard normal O. A tenth of each state's rows has seen no key, with every encoding of such a
    /// row. Every 13th row has seen no key in any state.
    pub fn new(case: &MergeCase) -> Self {
        let mut random = Random::new(case.seed);
        let states: Vec<_> = (0..case.states).map(|_| state(case, &mut random)).collect();
        let mut memory = Self::with_sinks(case, &mut random);
        memory.filling = Filling::Laid(memory.laid(&states));
        memory
    }

    /// Returns inputs for a measurement: elements repeat with a long period, because that is fast to
    /// generate.
    pub fn to_measure(case: &MergeCase) -> Self {
        Self::with_sinks(case, &mut Random::new(case.seed))
    }

    fn with_sinks(case: &MergeCase, random: &mut Random) -> Self {
        let sinks = (0..case.shape[2]).map(|head| random.normal() as f32 * 4.0 + head as f32).collect();
        let [values, lses] = elements(case);
        let filling = Filling::Cycled(vec![(case.dtypes[0], values), (DType::F32, lses)]);
        MergeMemory { case: *case, sinks, filling }
    }

    /// Returns the bytes of these states.
    fn laid(&self, states: &[Vec<Row>]) -> Vec<Vec<u8>> {
        let (factor, dtype, [values, lses]) =
            (factor(self.case.units[0]), self.case.dtypes[0], elements(&self.case));
        let mut bytes = vec![vec![GAP; values * dtype.bytes()], vec![GAP; lses * 4]];
        for (i, state) in states.iter().enumerate() {
            let [o, lse] = self.state(i);
            let numbers = o.elements().zip(state.iter().flat_map(|(o, _)| o));
            numbers.for_each(|(at, x)| put(&mut bytes[0], dtype, at, *x));
            let lses = lse.elements().zip(state);
            lses.for_each(|(at, (_, x))| put(&mut bytes[1], DType::F32, at, x * factor));
        }
        bytes
    }

    /// Returns each state's rows, head by head.
    fn states(&self) -> Vec<Vec<Row>> {
        let (bytes, MergeCase { dtypes: [dtype, _], units: [unit, _], .. }) =
            (self.filling.buffers(), self.case);
        let state = |i| {
            let [o, lse] = self.state(i);
            let values: Vec<_> = o.elements().map(|at| number(&bytes[0], dtype, at)).collect();
            let lses = lse.elements().map(|at| number(&bytes[1], DType::F32, at) / factor(unit));
            values.chunks(o.shape[3]).map(<[f64]>::to_vec).zip(lses).collect()
        };
        (0..self.case.states).map(state).collect()
    }

    /// Returns the places of a state's O and LSE, `[batch, seqlen, heads, head_dim or 1]`.
    fn state(&self, i: usize) -> [Place; 2] {
        let shape @ [batch, rows, heads, head_dim] = self.case.shape;
        let (first, side) = match self.case.lie {
            Lie::Apart => (i * batch * rows * heads, 1),
            Lie::SideBySide => (i * heads, self.case.states),
        };
        let lse = match self.case.lie {
            Lie::Apart => [heads * rows, 1, rows, 1],
            Lie::SideBySide => [side * rows * heads, side * heads, 1, 1],
        };
        let o = [side * rows * heads * head_dim, side * heads * head_dim, head_dim, 1];
        let place = |buffer, offset, shape, strides: [usize; 4]| Place {
            buffer,
            offset,
            shape,
            strides: strides.map(|elements| elements as i64),
        };
        [place(0, first * head_dim, shape, o), place(1, first, rows_of(shape), lse)]
    }

    /// Returns the states that the result's O and LSE overwrite.
    fn place_of(&self) -> [Option<usize>; 2] {
        let [states, output] = self.case.dtypes;
        [self.case.place_of.filter(|_| states == output), self.case.place_of]
    }

    /// Returns the places of the result's O and LSE in the [outputs](Self::output).
    fn result(&self) -> [Place; 2] {
        let shape @ [_, rows, heads, _] = self.case.shape;
        let strides = [heads * rows, 1, rows, 1].map(|elements| elements as i64);
        let lse = Place { buffer: 1, offset: 0, shape: rows_of(shape), strides };
        let own = [Place::alone(0, Layout::Bshd, shape), lse];
        [0, 1].map(|i| self.place_of()[i].map_or(own[i], |state| self.state(state)[i]))
    }

    /// Returns the bytes of O (0) or LSE (1), without guards.
    fn output<'w>(&self, written: &'w Written, i: usize) -> &'w [u8] {
        let all = &written.outputs[i];
        if self.place_of()[i].is_some() { all } else { unguarded(all) }
    }

    /// Compares a launch's result with the reference.
    fn compare(&self, states: &[Vec<Row>], right: &[Row], written: &Written) -> Judgement {
        let (case, [o, lse], mut all) = (&self.case, self.result(), Judgement::default());
        // The tolerance is the sum of half an ulp of the result's type and a few ulps of f32.
        let roundoff = unit_roundoff(case.dtypes[1]).max(2f64.powi(-24)) + 16.0 * 2f64.powi(-24);
        let (factor, columns) = (factor(case.units[1]), o.elements().collect::<Vec<_>>());
        for (row, at) in lse.elements().enumerate() {
            let (want, want_lse) = &right[row];
            let numbers = states.iter().flat_map(|state| &state[row].0);
            let largest = numbers.filter(|x| x.is_finite()).fold(0.0, |a: f64, x| a.max(x.abs()));
            for (column, (want, at)) in want.iter().zip(&columns[row * want.len()..]).enumerate() {
                let got = number(self.output(written, 0), case.dtypes[1], *at);
                let place = format_args!("o, row {row}, column {column}");
                all = all.and(compared(got, *want, roundoff * largest, place));
            }
            let (got, want) = (number(self.output(written, 1), DType::F32, at), want_lse * factor);
            let lse = compared(got, want, 1e-5 * want.abs().max(1.0), format_args!("lse, row {row}"));
            all = all.and(Judgement { max_error: 0.0, ..lse });
        }
        all.and(self.outside(written))
    }

    /// Judges writes outside the result.
    fn outside(&self, written: &Written) -> Judgement {
        let sizes = [self.case.dtypes[1].bytes(), 4];
        let mut all = Judgement::default();
        for (i, place) in self.result().into_iter().enumerate() {
            if self.place_of()[i].is_none() {
                all = all.and(guards(["o", "lse"][i], &written.outputs[i]));
                continue;
            }
            let before = &self.filling.buffers()[i];
            let mut own = vec![false; before.len() / sizes[i]];
            place.elements().for_each(|at| own[at] = true);
            let pairs = written.outputs[i].chunks(sizes[i]).zip(before.chunks(sizes[i])).zip(own);
            let others = pairs.filter(|((got, was), own)| !own && got != was).count();
            if others > 0 {
                all = all.and(Judgement::failed(format_args!("{others} numbers of other states changed")));
            }
        }
        all
    }
}

/// Returns the number of elements of all O, and the number of all log-sum-exps.
fn elements(case: &MergeCase) -> [usize; 2] {
    let values = case.states * rows_of(case.shape).iter().product::<usize>();
    [values * case.shape[3], values]
}

/// Returns the factor from a natural LSE to an LSE in `unit`.
fn factor(unit: LseUnit) -> f64 {
    if unit == LseUnit::Two { std::f64::consts::LOG2_E } else { 1.0 }
}

fn rows_of([batch, rows, heads, _]: [usize; 4]) -> [usize; 4] {
    [batch, rows, heads, 1]
}

fn compared(got: f64, want: f64, tolerance: f64, place: std::fmt::Arguments<'_>) -> Judgement {
    let error = if got == want { 0.0 } else { (got - want).abs() };
    let error = if error.is_nan() { f64::INFINITY } else { error };
    let worst_ratio = if error == 0.0 { 0.0 } else { error / tolerance };
    let wrong = || format!("{place} is {got}, should be {want}: off by {error:.3e}, allowed {tolerance:.3e}");
    let failures = if worst_ratio <= 1.0 { vec![] } else { vec![wrong()] };
    Judgement { max_error: error, worst_ratio, failures, ..Judgement::default() }
}

/// Writes a number to an element.
fn put(bytes: &mut [u8], dtype: DType, place: usize, x: f64) {
    match dtype {
        DType::F32 => bytes[place * 4..][..4].copy_from_slice(&(x as f32).to_ne_bytes()),
        sixteen => bytes[place * 2..][..2].copy_from_slice(&encode(sixteen, x).to_ne_bytes()),
    }
}

/// Reads an element.
fn number(bytes: &[u8], dtype: DType, place: usize) -> f64 {
    match bytes[place * dtype.bytes()..][..dtype.bytes()] {
        [a, b, c, d] => f64::from(f32::from_ne_bytes([a, b, c, d])),
        [a, b] => f64::from(decode(dtype, u16::from_ne_bytes([a, b]))),
        _ => f64::NAN,
    }
}

fn state(case: &MergeCase, random: &mut Random) -> Vec<Row> {
    let [batch, rows, heads, head_dim] = case.shape;
    let row = |i: usize| {
        let bits = random.bits();
        let empty = bits.is_multiple_of(10) || i % 13 == 5;
        let lse = match (empty, bits / 10 % 2) {
            (true, 0) => f64::NEG_INFINITY,
            (true, _) => f64::INFINITY,
            (false, _) => f64::from((random.normal() * 6.0) as f32),
        };
        let mut bytes = [0; 4];
        let mut number = |_| {
            put(&mut bytes, case.dtypes[0], 0, random.normal());
            if empty { f64::NAN } else { number(&bytes, case.dtypes[0], 0) }
        };
        ((0..head_dim).map(&mut number).collect(), lse)
    };
    (0..batch * rows * heads).map(row).collect()
}

impl Work for MergeMemory {
    fn request<'a>(&'a self, binder: &mut Binder<'_>, _: LaunchOptions<'a>) -> AnyRequest<'a> {
        let MergeCase { shape: [batch, rows, heads, _], dtypes, units, .. } = self.case;
        let (all, result) = (elements(&self.case), self.result());
        // The addresses of the states and of the result, and the size of the result's buffer in elements.
        let at = [("states", "o", dtypes[1]), ("lses", "lse", DType::F32)].map(|(states, own, dtype)| {
            let i = usize::from(own == "lse");
            let size = result[i].span();
            match self.place_of()[i] {
                Some(_) => ([binder.output(states, || self.filling.buffers()[i].to_vec()); 2], all[i]),
                None => {
                    let states = binder.add(|| self.filling.input(i, states));
                    ([states, binder.guarded(own, size * dtype.bytes())], size)
                }
            }
        });
        let [(o, o_size), (lse, lse_size)] = at;
        let lse_view = |at: u64, elements: usize, Place { offset, strides, .. }: Place, unit| {
            let (at, elements) = (at + offset as u64 * 4, (elements - offset) as u64);
            let view = LseView::new(at, elements, [batch, heads, rows], [strides[0], strides[2]]);
            view.row_stride(strides[1]).unit(unit)
        };
        let states = (0..self.case.states).map(|i| {
            let [of_o, of_lse] = self.state(i);
            State::new(of_o.view(o[0], all[0], dtypes[0]), lse_view(lse[0], all[1], of_lse, units[0]))
        });
        let mut merge = Merge::new(&[], result[0].view(o[1], o_size, dtypes[1]))
            .lse(lse_view(lse[1], lse_size, result[1], units[1]));
        if self.case.sinks {
            let address = binder.input("sinks", || bytes!(self.sinks));
            merge = merge.sinks(Sinks { address, elements: heads as u64 });
        }
        AnyRequest::Merge(OwnedMerge::new(states.collect(), merge))
    }

    fn rows(&self, written: &Written) -> Option<Rows> {
        let ([.., columns], dtype, places) = (self.case.shape, self.case.dtypes[1], self.result());
        let of = |which: usize, dtype| {
            let bytes = self.output(written, which);
            places[which].elements().map(|at| number(bytes, dtype, at) as f32).collect()
        };
        let (o, lse) = (of(0, dtype), of(1, DType::F32));
        Some(Rows { dtype, columns, o, lse, tolerances: vec![], is_of_e4m3: false })
    }

    fn judge(&self, _: Rule) -> Result<Judge<'_>, TensorError> {
        let (heads, states) = (self.case.shape[2], self.states());
        let row = |row: usize| {
            let own: Vec<_> = states.iter().map(|state| state[row].clone()).collect();
            merge(&own, self.case.sinks.then(|| f64::from(self.sinks[row % heads])))
        };
        let right: Vec<Row> = (0..rows_of(self.case.shape).iter().product()).map(row).collect();
        Ok(Box::new(move |_, written| self.compare(&states, &right, written)))
    }
}
