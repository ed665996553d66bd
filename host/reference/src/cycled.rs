//! Inputs of measurements: normal numbers that repeat with a long period. The generation of a large cache
//! without repetition would take longer than the measurement.
use super::inputs::Random;
use super::work::{Binder, Input};
use ferroflash::DType;
use std::borrow::Cow;
use std::sync::OnceLock;

/// Number of elements of a period. The number is a prime, so that rows and heads never align with the period.
const PERIOD: usize = 1_000_003;
/// Distance in the period between the first elements of two consecutive tensors. Because of this distance,
/// tensors differ.
const APART: usize = 271_829;

/// Returns the bytes of a period in `dtype`.
fn period(dtype: DType) -> &'static [u8] {
    static PERIODS: [OnceLock<Vec<u8>>; 6] = [const { OnceLock::new() }; 6];
    PERIODS[dtype as usize].get_or_init(|| {
        let mut random = Random::new(1);
        if dtype == DType::F32 {
            return (0..PERIOD).flat_map(|_| (random.normal() as f32).to_ne_bytes()).collect();
        }
        let numbers = random.normals(dtype, PERIOD).into_iter();
        numbers.flat_map(|bits| bits.to_le_bytes().into_iter().take(dtype.bytes())).collect()
    })
}

/// Returns one period of tensor `number` of a problem.
fn tensor(dtype: DType, number: usize) -> Vec<u8> {
    let (before, first) = period(dtype).split_at(number * APART % PERIOD * dtype.bytes());
    [first, before].concat()
}

/// Returns the first `elements` elements of tensor `number`, in a 16-bit type.
pub(super) fn halves(dtype: DType, number: usize, elements: usize) -> Vec<u16> {
    let bytes = tensor(dtype, number);
    let period: Vec<u16> = bytes.as_chunks().0.iter().map(|b| u16::from_ne_bytes(*b)).collect();
    let mut all = Vec::with_capacity(elements);
    while all.len() < elements {
        all.extend_from_slice(&period[..PERIOD.min(elements - all.len())]);
    }
    all
}

/// Content of a problem's buffers.
#[derive(Clone, Debug)]
pub(super) enum Filling {
    /// The bytes of each buffer.
    Laid(Vec<Vec<u8>>),
    /// The type and number of elements of each buffer. The first buffer holds tensor 1 of the problem.
    Cycled(Vec<(DType, usize)>),
}

impl Filling {
    /// Adds the inputs with these names, and returns their addresses.
    pub(super) fn add<'n>(
        &self,
        names: impl IntoIterator<Item = &'n str>,
        binder: &mut Binder<'_>,
    ) -> Vec<u64> {
        let add = |(at, name)| binder.add(|| self.input(at, name));
        names.into_iter().enumerate().map(add).collect()
    }

    /// Returns an input.
    pub(super) fn input(&self, at: usize, name: &str) -> Input {
        match self {
            Filling::Laid(all) => Input::new(name, all[at].clone()),
            Filling::Cycled(all) => {
                let (dtype, elements) = all[at];
                Input { name: name.into(), bytes: elements * dtype.bytes(), period: tensor(dtype, at + 1) }
            }
        }
    }

    /// Returns the bytes of all buffers.
    pub(super) fn buffers(&self) -> Vec<Cow<'_, [u8]>> {
        match self {
            Filling::Laid(all) => all.iter().map(Cow::from).collect(),
            Filling::Cycled(all) => {
                let whole = |at| {
                    let Input { bytes, period, .. } = self.input(at, "");
                    period.into_iter().cycle().take(bytes).collect::<Vec<_>>().into()
                };
                (0..all.len()).map(whole).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_repeat_themselves_and_tensors_differ() {
        for dtype in [DType::F16, DType::Bf16, DType::E4m3, DType::Int8, DType::F32] {
            let size = dtype.bytes();
            let own = tensor(dtype, 3);
            assert_eq!(own.len(), PERIOD * size);
            assert_ne!(own[..10 * size], tensor(dtype, 4)[..10 * size]);
            // After the last number of the period, the numbers start again.
            assert_eq!(own[(PERIOD - 3 * APART) * size..][..10 * size], tensor(dtype, 0)[..10 * size]);
        }
        assert_eq!(halves(DType::F16, 0, 10), Random::new(1).normals(DType::F16, 10));
        let long = halves(DType::Bf16, 2, 2 * PERIOD + 10);
        assert_eq!(long.len(), 2 * PERIOD + 10);
        assert_eq!((&long[..10], &long[2 * PERIOD..]), (&long[PERIOD..][..10], &long[..10]));
    }

    #[test]
    fn inputs_are_what_buffers_hold() {
        let filling = Filling::Cycled(vec![(DType::F16, PERIOD + 3), (DType::F32, 5)]);
        let inputs = [filling.input(0, "a"), filling.input(1, "b")];
        let buffers = filling.buffers();
        for (input, buffer) in inputs.iter().zip(&buffers) {
            assert_eq!(input.bytes, buffer.len());
            let periods = buffer.chunks(input.period.len());
            assert!(periods.into_iter().all(|part| *part == input.period[..part.len()]), "{}", input.name);
        }
        assert_eq!([inputs.len(), buffers.len()], [2; 2]);
        let laid = Filling::Laid(vec![vec![1, 2, 3]]);
        assert_eq!(laid.input(0, "a"), Input::new("a", vec![1, 2, 3]));
    }
}
