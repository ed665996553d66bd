//! Tests tensor maps of five dimensions: boxes that cross the end of each dimension, addresses that wrap, and
//! tensors that begin before their allocation.

use common::bulk::{BASE, IMAGE, LOAD, run, tensor};
use ptx_sim::{ElementType, Kind, Swizzle, TensorMap};

/// A bf16 tensor with rows of 16 elements, and its boxes.
#[derive(Clone, Copy)]
struct Map {
    address: u64,
    dims: [u64; 5],
    strides: [u64; 4],
    box_dims: [u32; 5],
}

/// A dense tensor in the first bytes of the allocation.
const DENSE: Map =
    Map { address: BASE, dims: [16, 3, 4, 3, 2], strides: [32, 96, 384, 1152], box_dims: [16, 2, 2, 2, 2] };

impl Map {
    fn encode(&self) -> [u64; 16] {
        let map = TensorMap {
            element: ElementType::Bf16,
            address: self.address,
            dims: &self.dims,
            strides: &self.strides,
            box_dims: &self.box_dims,
            element_strides: &[1; 5],
            swizzle: Swizzle::None,
            fill_nan: false,
        };
        map.encode().expect("a map")
    }

    fn bytes(&self) -> usize {
        self.box_dims.iter().product::<u32>() as usize * 2
    }

    /// For each byte of the box at `at`, its device address, if the tensor contains the byte.
    fn places(&self, at: [i64; 5]) -> Vec<Option<u64>> {
        let place = |byte: usize| {
            let (mut left, mut from, mut inside) = (byte / 2, self.address + byte as u64 % 2, true);
            let strides = [2].into_iter().chain(self.strides);
            for (((at, dim), extent), stride) in at.iter().zip(self.dims).zip(self.box_dims).zip(strides) {
                let index = at + (left % extent as usize) as i64;
                left /= extent as usize;
                inside &= (0..dim as i64).contains(&index);
                from = from.wrapping_add((index as u64).wrapping_mul(stride));
            }
            inside.then_some(from)
        };
        (0..self.bytes()).map(place).collect()
    }

    fn load(at: [i64; 5]) -> String {
        format!("cp.async.bulk.tensor.5d.{LOAD} [s], [map, {{{}}}], [bar];", coordinates(at))
    }

    fn store(at: [i64; 5]) -> String {
        format!(
            "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [map, {{{}}}], [s]; \
             cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;",
            coordinates(at)
        )
    }

    /// Checks that a load of the box reads zeros outside of the tensor. Checks that a store of the box writes
    /// only inside the tensor.
    #[track_caller]
    fn check(&self, at: [i64; 5]) {
        let (places, tensor) = (self.places(at), tensor());
        let within = |place: u64| (place - BASE) as usize;
        let (outcome, _, found) = run(&self.encode(), &tensor, &Self::load(at), self.bytes() as u32);
        assert!(outcome.reports.is_empty(), "{at:?}: {}", outcome.reports[0]);
        let expected: Vec<u8> = places.iter().map(|p| p.map_or(0, |p| tensor[within(p)])).collect();
        assert_eq!(found[..self.bytes()], expected, "{at:?}");

        let (outcome, found, image) = run(&self.encode(), &tensor, &Self::store(at), 0);
        assert!(outcome.reports.is_empty(), "{at:?}: {}", outcome.reports[0]);
        let mut expected = tensor;
        for (byte, place) in places.into_iter().enumerate() {
            place.into_iter().for_each(|place| expected[within(place)] = image[byte]);
        }
        assert_eq!(found, expected, "{at:?}");
    }

    /// The kinds of the reports about a copy that expects `bytes` bytes.
    fn kinds(&self, copy: &str, bytes: usize) -> Vec<Kind> {
        let (outcome, ..) = run(&self.encode(), &tensor(), copy, bytes as u32);
        outcome.reports.iter().map(|report| report.kind).collect()
    }
}

fn coordinates(at: [i64; 5]) -> String {
    at.map(|x| x.to_string()).join(", ")
}

#[test]
fn boxes_end_in_each_dimension() {
    let within = [0, 1, 1, 1, 0];
    DENSE.check(within);
    for axis in 0..5 {
        let dim = DENSE.dims[axis] as i64;
        // The box lies half before the tensor, or half behind it, or contains only the last element, or lies
        // entirely outside on either side.
        for start in [-1, dim - 1, -i64::from(DENSE.box_dims[axis]), dim] {
            let mut at = within;
            at[axis] = start;
            DENSE.check(at);
        }
    }
    DENSE.check([-3, -1, 3, 2, 1]);
    DENSE.check([7, 2, -1, -1, -1]);
}

#[test]
fn a_box_counts_with_what_lies_beyond_the_tensor() {
    for at in [[0, 0, 0, 0, 0], [9, 2, 3, 2, 1], [0, 3, 0, 0, 0]] {
        let kinds = |bytes| DENSE.kinds(&Map::load(at), bytes);
        assert_eq!(kinds(DENSE.bytes()), [], "{at:?}");
        assert_eq!(kinds(DENSE.bytes() + 16), [Kind::Deadlock], "{at:?}");
        assert_eq!(kinds(DENSE.bytes() - 16), [Kind::Deadlock], "{at:?}");
    }
    let four = "cp.async.bulk.tensor.4d.".to_string() + LOAD + " [s], [map, {0, 0, 0, 0}], [bar];";
    assert!(DENSE.kinds(&four, DENSE.bytes()).contains(&Kind::BulkCopy));
}

/// A map for the rows of sequences. The second dimension ends after `END` rows. The fourth dimension leads to
/// the end of a sequence, and the last one leads `END` rows back. Addresses pass 2^64 on the way.
#[test]
fn addresses_wrap() {
    const END: u64 = 1 << 30;
    const ROW: u64 = 64;
    let ragged = Map {
        address: BASE,
        dims: [16, END, 2, 100 + 1, END + 1],
        strides: [ROW, 32, ROW, (1 << 34) - ROW],
        box_dims: [16, 8, 1, 1, 1],
    };
    assert_eq!(END.wrapping_mul(ragged.strides[3]), (END * ROW).wrapping_neg());
    for (first, rows) in [(0, 100), (0, 3), (97, 3), (20, 17), (40, 0)] {
        for row in [0, 1, 8, 16, 95, 100] {
            for head in [-1, 0, 1, 2] {
                ragged.check([0, END as i64 - rows + row, head, first + rows, END as i64]);
            }
        }
    }
    // These rows lie behind the rows of all sequences.
    ragged.check([0, END as i64 - 8, 0, 101, END as i64]);
    ragged.check([0, END as i64 - 8, 0, 100, END as i64 + 1]);
}

#[test]
fn what_begins_before_its_memory_is_read_behind() {
    // The first three rows of its second dimension lie outside of the allocation.
    let early = Map { address: BASE - 3 * 96, dims: [16, 3, 7, 3, 2], ..DENSE };
    early.check([0, 0, 3, 0, 0]);
    early.check([0, 0, 5, 2, 1]);
    // Outside of the tensor, a load reads zeros at any address.
    early.check([0, -2, 0, 0, 0]);
    early.check([0, 0, -2, 0, 0]);
    for at in [[0, 0, 2, 0, 0], [0, 0, 0, 0, 0], [8, 2, 2, -1, -1]] {
        assert_eq!(early.kinds(&Map::load(at), early.bytes())[0], Kind::OutOfBounds, "{at:?}");
        assert_eq!(early.kinds(&Map::store(at), 0), [Kind::OutOfBounds], "{at:?}");
    }
    // This tensor extends past the end of the allocation.
    let late = Map { address: BASE + IMAGE as u64 - 384, dims: [16, 3, 7, 1, 1], ..DENSE };
    late.check([0, 0, 2, 0, 0]);
    assert_eq!(late.kinds(&Map::load([0, 0, 3, 0, 0]), late.bytes())[0], Kind::OutOfBounds);
}
