//! Random products of tiles on tensor cores, without the rest of a kernel.
use crate::error::Error;
use ferroflash::DType;
use ferroflash::driver::Harness;
use ferroflash::kernels::Contract;
use reference::Random;
use serde::Serialize;
use std::fmt;

/// Each block is one warp, which computes D = A B + C on its lanes' fragments.
const PTX: &str = include_str!("products.ptx");

/// The kinds of inputs. Consecutive products take consecutive kinds.
const KINDS: [&str; 6] = ["normal", "any finite", "tiny", "huge", "cancelling", "infinities and NaN"];

/// Fragments of products, lane by lane.
pub(super) struct Products {
    dtype: DType,
    count: u32,
    a: Vec<u32>,
    b: Vec<u32>,
    c: Vec<u32>,
}

/// The number of products that are equal.
#[derive(Serialize)]
pub(super) struct Tally {
    dtype: &'static str,
    products: u32,
    elements: usize,
    /// Number of elements whose bits differ, by kind of inputs.
    differing: [usize; KINDS.len()],
    /// The first element whose bits differ: the kind of its inputs, the index of its product, its place in
    /// the fragments, and its bits in both results.
    first: Option<(&'static str, usize, usize, [String; 2])>,
}

impl Products {
    /// Returns `count` products of `dtype`.
    pub fn random(dtype: DType, count: u32, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (mut a, mut b, mut c) = (vec![], vec![], vec![]);
        for index in 0..count {
            let kind = index as usize % KINDS.len();
            let mut pair = || {
                u32::from(element(dtype, kind, &mut random)) << 16
                    | u32::from(element(dtype, kind, &mut random))
            };
            a.extend((0..32 * 4).map(|_| pair()));
            b.extend((0..32 * 2).map(|_| pair()));
            c.extend((0..32 * 4).map(|_| accumulator(kind, &mut random)));
        }
        Products { dtype, count, a, b, c }
    }

    /// Runs the products on a device, and returns the bits of D.
    pub fn run<D: Harness>(&self, driver: &D) -> Result<Vec<u32>, Error> {
        let ptx = PTX.replace("ELEMENT", self.dtype.name());
        let kernel = driver.load(&ptx, &Contract::new("product", 32))?;
        let upload = |name, words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let mut buffer = driver.allocate_named(name, bytes.len())?;
            driver.upload(&mut buffer, &bytes)?;
            Ok::<_, ferroflash::Error>(buffer)
        };
        let (a, b, c) = (upload("a", &self.a)?, upload("b", &self.b)?, upload("c", &self.c)?);
        let d = driver.allocate_named("d", self.c.len() * 4)?;
        let params: Vec<u8> =
            [&a, &b, &c, &d].iter().flat_map(|buffer| driver.address(buffer).to_ne_bytes()).collect();
        let stream = driver.stream()?;
        // SAFETY: the parameters are four addresses of this driver's buffers. The buffers have the size that
        // these blocks read and write, and live until the wait.
        unsafe { driver.launch(&kernel, [self.count, 1, 1], &params, &stream)? };
        driver.synchronize(&stream)?;
        let mut bytes = vec![0; self.c.len() * 4];
        driver.download(&d, &mut bytes)?;
        Ok(bytes.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    /// Compares two results bit by bit.
    pub fn compare(&self, left: &[u32], right: &[u32]) -> Tally {
        let mut tally = Tally {
            dtype: self.dtype.name(),
            products: self.count,
            elements: left.len(),
            differing: [0; KINDS.len()],
            first: None,
        };
        for (index, (a, b)) in left.iter().zip(right).enumerate().filter(|(_, (a, b))| a != b) {
            let (product, element) = (index / 128, index % 128);
            let kind = product % KINDS.len();
            tally.differing[kind] += 1;
            let bits = || [a, b].map(|bits| format!("{bits:#010x}"));
            tally.first.get_or_insert_with(|| (KINDS[kind], product, element, bits()));
        }
        tally
    }
}

/// Returns a number of A or B.
fn element(dtype: DType, kind: usize, random: &mut Random) -> u16 {
    // The stored exponent of infinities.
    let (mantissa, top) = (dtype.mantissa_bits(), (3 - 2 * dtype.min_exponent()) as u16);
    let bits = random.bits();
    let of = |exponent: u16| {
        (bits as u16 & 0x8000) | exponent << mantissa | ((bits >> 16) as u16 & ((1 << mantissa) - 1))
    };
    let between = |low: u16, high: u16| low + ((bits >> 32) % u64::from(high - low + 1)) as u16;
    let half = top / 2;
    match kind {
        0 => of(between(half - 4, half + 2)),
        1 => of(between(0, top - 1)),
        // The numbers include subnormals and zeros.
        2 if (bits >> 60) == 0 => bits as u16 & 0x8000,
        2 => of(between(0, 2)),
        3 => of(between(top - 3, top - 1)),
        // The numbers are ones and their neighbours, so sums have nearly equal terms with both signs.
        4 => of(half) & !((1 << (mantissa - 2)) - 1),
        _ if (bits >> 58) == 0 => of(top) & !((bits >> 57 & 1) as u16 * ((1 << mantissa) - 1)),
        _ => of(between(half - 4, half + 2)),
    }
}

/// Returns a number of C.
fn accumulator(kind: usize, random: &mut Random) -> u32 {
    let bits = random.bits();
    let of = |exponent: u32| (bits as u32 & 0x807f_ffff) | exponent << 23;
    let between = |low: u32, high: u32| low + ((bits >> 40) % u64::from(high - low + 1)) as u32;
    match kind {
        0 => of(between(120, 132)),
        1 => of(between(0, 254)),
        2 => of(between(0, 3)),
        3 => of(between(250, 254)),
        4 => of(between(100, 130)),
        _ if (bits >> 58) == 0 => of(255),
        _ => of(between(120, 132)),
    }
}

impl Tally {
    /// Returns the message for the first difference, if any.
    pub fn failure(&self) -> Option<String> {
        let (kind, product, element, [left, right]) = self.first.as_ref()?;
        let count: usize = self.differing.iter().sum();
        Some(format!(
            "{count} of {} elements of {} products differ, the first in product {product} ({kind}), element \
             {element}: {left}, simulated {right}",
            self.elements, self.dtype
        ))
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.failure() {
            Some(failure) => write!(f, "mma: DIFFERS {failure}"),
            None => write!(f, "mma: {} products of {}, equal in every bit", self.products, self.dtype),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::driver::SimDriver;
    use ptx_sim::{MmaArch, MmaMode, Options};

    #[test]
    fn other_arithmetic_is_noticed() {
        for dtype in [DType::F16, DType::Bf16] {
            let products = Products::random(dtype, 60, 7);
            let run = |mma| {
                let driver =
                    SimDriver::with_options("h200", Options { mma, ..Options::default() }).expect("a card");
                products.run(&driver).map_err(|e| e.to_string()).expect("runs")
            };
            let hopper = run(MmaMode::Exact(MmaArch::Hopper));
            assert!(products.compare(&hopper, &run(MmaMode::Exact(MmaArch::Hopper))).failure().is_none());
            for other in [MmaMode::Fast, MmaMode::Exact(MmaArch::Ampere)] {
                assert!(products.compare(&hopper, &run(other)).failure().is_some(), "{dtype:?} {other:?}");
            }
        }
    }

    #[test]
    fn inputs_are_of_every_kind() {
        let products = Products::random(DType::F16, 600, 1);
        let values: Vec<f32> = products
            .a
            .iter()
            .flat_map(|pair| [*pair as u16, (*pair >> 16) as u16])
            .map(|bits| half::f16::from_bits(bits).to_f32())
            .collect();
        let any = |test: fn(&f32) -> bool| values.iter().any(test);
        assert!(
            any(|x| x.is_nan()) && any(|x| x.is_infinite()) && any(|x| *x == 0.0) && any(|x| x.abs() > 6e4)
        );
        assert!(any(|x| *x != 0.0 && x.abs() < 6e-5), "subnormals");
        assert!(products.c.iter().any(|bits| f32::from_bits(*bits).is_subnormal()));
    }
}
