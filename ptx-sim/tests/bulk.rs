//! Compares bulk copies, with and without tensor maps, with plain loops.

use common::bulk::{BASE, LOAD, run, tensor};
use ptx_sim::{ElementType, Kind, Swizzle, TensorMap};

struct Case {
    element: ElementType,
    dims: &'static [u64],
    box_dims: &'static [u32],
    at: &'static [i32],
    swizzle: Swizzle,
    fill_nan: bool,
}

const CASES: [Case; 9] = {
    const BF16: Case = Case {
        element: ElementType::Bf16,
        dims: &[64, 20],
        box_dims: &[64, 16],
        at: &[0, 8],
        swizzle: Swizzle::B128,
        fill_nan: false,
    };
    [
        BF16,
        Case { dims: &[48, 20], box_dims: &[32, 16], swizzle: Swizzle::B64, at: &[24, -3], ..BF16 },
        Case { dims: &[40, 9], box_dims: &[16, 16], swizzle: Swizzle::B32, at: &[-5, 0], ..BF16 },
        Case {
            element: ElementType::U8,
            dims: &[64, 9, 3],
            box_dims: &[48, 4, 2],
            at: &[7, 6, 2],
            swizzle: Swizzle::None,
            fill_nan: false,
        },
        Case {
            element: ElementType::F32,
            dims: &[100],
            box_dims: &[128],
            at: &[-10],
            swizzle: Swizzle::None,
            fill_nan: true,
        },
        Case {
            dims: &[32, 5, 4, 3],
            box_dims: &[32, 4, 2, 3],
            at: &[0, 3, 1, -1],
            swizzle: Swizzle::B64,
            ..BF16
        },
        Case {
            dims: &[8, 3, 4, 3, 2],
            box_dims: &[8, 2, 3, 2, 2],
            at: &[0, 2, 2, 1, 1],
            swizzle: Swizzle::None,
            ..BF16
        },
        // This box lies outside of the tensor.
        Case { at: &[0, 20], ..BF16 },
        Case { at: &[64, 0], fill_nan: true, ..BF16 },
    ]
};

impl Case {
    fn strides(&self) -> Vec<u64> {
        let mut strides = Vec::new();
        let mut stride = (self.dims[0] * u64::from(self.element.bytes())).next_multiple_of(16);
        for dim in &self.dims[1..] {
            strides.push(stride);
            stride = (stride * dim).next_multiple_of(16);
        }
        strides
    }

    fn map(&self) -> [u64; 16] {
        let map = TensorMap {
            element: self.element,
            address: BASE,
            dims: self.dims,
            strides: &self.strides(),
            box_dims: self.box_dims,
            element_strides: &[1; 5][..self.dims.len()],
            swizzle: self.swizzle,
            fill_nan: self.fill_nan,
        };
        map.encode().unwrap()
    }

    /// Number of bytes of the box.
    fn bytes(&self) -> usize {
        self.box_dims.iter().map(|&n| n as usize).product::<usize>() * self.element.bytes() as usize
    }

    /// For each byte of the box: its position in shared memory, and its position in the tensor, if the tensor
    /// contains it.
    fn places(&self) -> Vec<(usize, Option<usize>)> {
        let element = self.element.bytes() as usize;
        let strides: Vec<_> = [element as u64].into_iter().chain(self.strides()).collect();
        let place = |byte: usize| {
            let (mut left, mut from, mut inside) = (byte / element, byte % element, true);
            let axes = self.at.iter().zip(self.box_dims).zip(self.dims.iter().zip(&strides));
            for ((&start, &extent), (&dim, &stride)) in axes {
                let index = i64::from(start) + (left % extent as usize) as i64;
                left /= extent as usize;
                inside &= (0..dim as i64).contains(&index);
                from = from.wrapping_add((index * stride as i64) as usize);
            }
            // Shared memory begins at a multiple of 1024.
            let exchange = match self.swizzle {
                Swizzle::None => 0,
                Swizzle::B32 => byte / 128 % 2,
                Swizzle::B64 => byte / 128 % 4,
                Swizzle::B128 => byte / 128 % 8,
            };
            (byte ^ (exchange << 4), inside.then_some(from))
        };
        (0..self.bytes()).map(place).collect()
    }

    fn coordinates(&self) -> String {
        self.at.iter().map(i32::to_string).collect::<Vec<_>>().join(", ")
    }
}

#[test]
fn boxes_come_with_what_lies_beyond_the_tensor() {
    for case in &CASES {
        let rank = case.dims.len();
        let load =
            format!("cp.async.bulk.tensor.{rank}d.{LOAD} [s], [map, {{{}}}], [bar];", case.coordinates());
        let (outcome, _, found) = run(&case.map(), &tensor(), &load, case.bytes() as u32);
        assert!(outcome.reports.is_empty(), "{}", outcome.reports[0]);
        let tensor = tensor();
        let nan = if case.element == ElementType::F32 { 0x7fff_ffffu32 } else { 0x7fff_7fff };
        for (at, (to, from)) in case.places().into_iter().enumerate() {
            let outside = if case.fill_nan { nan.to_le_bytes()[at % 4] } else { 0 };
            assert_eq!(found[to], from.map_or(outside, |from| tensor[from]), "{:?} byte {at}", case.dims);
        }
    }
}

#[test]
fn boxes_go_where_the_tensor_is() {
    for case in &CASES {
        let rank = case.dims.len();
        let store = format!(
            "cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group [map, {{{}}}], [s]; \
             cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;",
            case.coordinates()
        );
        let (outcome, found, image) = run(&case.map(), &tensor(), &store, 0);
        assert!(outcome.reports.is_empty(), "{}", outcome.reports[0]);
        let mut expected = tensor();
        for (from, to) in case.places() {
            to.into_iter().for_each(|to| expected[to] = image[from]);
        }
        assert_eq!(found, expected, "{:?}", case.dims);
    }
}

#[test]
fn plain_bytes() {
    let map = CASES[0].map();
    let both = format!(
        "cp.async.bulk.{LOAD} [s+16], [g+32], 48, [bar]; \
         cp.async.bulk.global.shared::cta.bulk_group [g+1024], [s+4096], 64; cp.async.bulk.commit_group; \
         cp.async.bulk.wait_group.read 0;"
    );
    let (outcome, found, image) = run(&map, &tensor(), &both, 48);
    assert!(outcome.reports.is_empty(), "{}", outcome.reports[0]);
    assert_eq!(image[16..64], tensor()[32..80]);
    assert_eq!(found[1024..1088], image[4096..4160]);
    let finds = |copy: &str, bytes: u32, kind: Kind| {
        let (outcome, ..) = run(&map, &tensor(), copy, bytes);
        let kinds: Vec<_> = outcome.reports.iter().map(|report| report.kind).collect();
        assert!(kinds.contains(&kind), "{copy}: {kinds:?}");
    };
    let load =
        |to: &str, from: &str, bytes: &str| format!("cp.async.bulk.{LOAD} [{to}], [{from}], {bytes}, [bar];");
    finds(&load("s+8", "g", "64"), 64, Kind::Misaligned);
    finds(&load("s", "g+8", "64"), 64, Kind::Misaligned);
    finds(&load("s", "g", "72"), 72, Kind::BulkCopy);
    finds(&load("s", "g+8176", "32"), 32, Kind::OutOfBounds);
    finds(&load("s+8192", "g", "64"), 64, Kind::OutOfBounds);
    // The copy overwrites the mbarrier itself while it is in flight.
    finds(&load("s+8192", "g", "16"), 16, Kind::Mbarrier);
}

/// Checks maps that the driver refuses.
#[test]
fn maps_are_checked_when_they_are_encoded() {
    let good = TensorMap {
        element: ElementType::F16,
        address: 4096,
        dims: &[64, 100],
        strides: &[128],
        box_dims: &[64, 128],
        element_strides: &[1, 1],
        swizzle: Swizzle::B128,
        fill_nan: false,
    };
    assert!(good.encode().is_ok());
    let bad: [TensorMap<'_>; 12] = [
        TensorMap { address: 4104, ..good },
        TensorMap { dims: &[64, 0], ..good },
        TensorMap { dims: &[64, (1 << 32) + 1], ..good },
        TensorMap { dims: &[64], ..good },
        TensorMap { strides: &[136], ..good },
        TensorMap { strides: &[1 << 40], ..good },
        TensorMap { box_dims: &[64, 257], ..good },
        TensorMap { box_dims: &[4, 8], ..good },
        TensorMap { box_dims: &[128, 8], ..good },
        TensorMap { element_strides: &[1, 2], ..good },
        TensorMap { element: ElementType::U8, fill_nan: true, ..good },
        TensorMap { dims: &[], strides: &[], box_dims: &[], element_strides: &[], ..good },
    ];
    for map in bad {
        let error = map.encode().unwrap_err().to_string();
        assert!(error.starts_with("tensor map: "), "{error}");
    }
}
