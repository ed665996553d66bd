//! Products of a warpgroup. This file finds operands in shared memory, and computes products.

use crate::{
    MmaMode, Swizzle,
    decode::float::{from_bf16, from_e4m3, from_f16},
    mma::{add_hopper_e4m3, dot_add_hopper},
    op::{Element, WgmmaElement},
};

/// Number of rows of A and of the accumulators.
pub(crate) const ROWS: usize = 64;
/// The depth of one product of 16-bit elements.
const DEPTH: usize = 16;
/// Number of 16-bit elements in 16 bytes.
const CHUNK: usize = 8;

/// A matrix in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    start: u32,
    leading: u32,
    stride: u32,
    swizzle: Swizzle,
}

impl Descriptor {
    /// Decodes the 64 bits of a descriptor, for an operand of `extent` rows (of A) or columns (of B).
    ///
    /// # Errors
    /// Returns the reason if the bits are not valid for any operand.
    pub fn decode(bits: u64, extent: usize, across: bool) -> Result<Descriptor, String> {
        let bytes = |at: u32| (bits >> at & 0x3fff) as u32 * 16;
        let swizzle = match bits >> 62 {
            0 => Swizzle::None,
            1 => Swizzle::B128,
            2 => Swizzle::B64,
            _ => Swizzle::B32,
        };
        if bits & 0x3fff_c000_c000_c000 & !(7 << 49) != 0 {
            return Err(format!("descriptor {bits:#018x} has bits set that must be 0"));
        }
        if bits >> 49 & 7 != 0 {
            return Err(format!("descriptor {bits:#018x} has a base offset, which is not simulated"));
        }
        let found = Descriptor { start: bytes(0), leading: bytes(16), stride: bytes(32), swizzle };
        let span = swizzle.span();
        if swizzle != Swizzle::None && found.start & (8 * span - 1) & !(span - 1) != 0 {
            return Err(format!(
                "descriptor {bits:#018x} begins {:#x} bytes into its {} bytes of swizzle: an operand begins \
                 at a multiple of them, or within their first row",
                found.start & (8 * span - 1),
                8 * span
            ));
        }
        let row = if across { (2 * extent as u32).min(span) } else { 32 };
        if swizzle != Swizzle::None && found.start % span + row > span {
            return Err(format!(
                "descriptor {bits:#018x} leaves its row of {span} bytes: it begins at byte {} of it",
                found.start % span
            ));
        }
        Ok(found)
    }

    /// The addresses of the operand's chunks of 16 bytes. The chunks are ordered by row, and within a row by
    /// depth. If `across` is true, the chunks are ordered by depth, and within a depth by row: only elements
    /// of 16 bits may have this order.
    pub fn chunks(self, extent: usize, across: bool) -> Vec<u32> {
        let Descriptor { start, leading, stride, swizzle } = self;
        let span = swizzle.span();
        let per = span / 16;
        let mut found = Vec::with_capacity(2 * extent);
        let mut push = |offset: u32| found.push(swizzle.apply(start.wrapping_add(offset) & 0x3_ffff));
        if across {
            for k in 0..DEPTH as u32 {
                for c in 0..(extent / CHUNK) as u32 {
                    push(match swizzle {
                        Swizzle::None => c * stride + k % 8 * 16 + k / 8 * leading,
                        _ => c % per * 16 + c / per * leading + k % 8 * span + k / 8 * stride,
                    });
                }
            }
        } else {
            for row in 0..extent as u32 {
                for half in 0..2 {
                    push(match swizzle {
                        Swizzle::None => row / 8 * stride + row % 8 * 16 + half * leading,
                        _ => row / 8 * stride + row % 8 * span + half * 16,
                    });
                }
            }
        }
        found
    }
}

#[inline(always)]
fn widen(element: Element, bits: u16) -> f32 {
    match element {
        Element::F16 => from_f16(bits),
        Element::Bf16 => from_bf16(bits),
    }
}

/// Reads an operand of `extent` rows or columns from the chunks at these offsets, as `out[k][i]`.
pub(crate) fn fetch(
    element: WgmmaElement,
    shared: &[u8],
    chunks: &[usize],
    of: (usize, bool),
    out: &mut Vec<f32>,
) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the feature that the function needs.
        return unsafe { fetch_wide(element, shared, chunks, of, out) };
    }
    fetch_any(element, shared, chunks, of, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn fetch_wide(element: WgmmaElement, shared: &[u8], chunks: &[usize], of: (usize, bool), out: &mut Vec<f32>) {
    fetch_any(element, shared, chunks, of, out);
}

#[inline(always)]
fn fetch_any(
    element: WgmmaElement,
    shared: &[u8],
    chunks: &[usize],
    (extent, across): (usize, bool),
    out: &mut Vec<f32>,
) {
    out.clear();
    out.resize(element.depth() * extent, 0.0);
    let element = match element {
        WgmmaElement::Half(element) => element,
        WgmmaElement::E4m3 => {
            let of_rows = chunks.as_chunks::<2>().0.iter();
            for (row, chunks) in of_rows.enumerate() {
                for (half, &chunk) in chunks.iter().enumerate() {
                    let to = out.iter_mut().skip(half * 16 * extent + row).step_by(extent);
                    to.zip(&shared[chunk..chunk + 16]).for_each(|(value, byte)| *value = from_e4m3(*byte));
                }
            }
            return;
        }
    };
    let mut values = [0.0; CHUNK];
    for (at, &chunk) in chunks.iter().enumerate() {
        for (value, bytes) in values.iter_mut().zip(shared[chunk..chunk + 16].as_chunks().0) {
            *value = widen(element, u16::from_le_bytes(*bytes));
        }
        if across {
            out[CHUNK * at..CHUNK * (at + 1)].copy_from_slice(&values);
        } else {
            for (k, value) in values.iter().enumerate() {
                out[(at % 2 * CHUNK + k) * extent + at / 2] = *value;
            }
        }
    }
}

/// Copies the registers of one warp's 16 rows of A, lane by lane, to `out[k][row]`.
pub(crate) fn fetch_registers(element: WgmmaElement, warp: usize, rows: [&[u32; 32]; 4], out: &mut [f32]) {
    for (r, values) in rows.into_iter().enumerate() {
        // The registers of a fragment first go down by 8 rows, then right by 16 bytes.
        let (row, column) = (16 * warp + r % 2 * 8, r / 2 * element.chunk());
        for (lane, &value) in values.iter().enumerate() {
            let at = (column + lane % 4 * (element.chunk() / 4)) * ROWS + row + lane / 4;
            match element {
                WgmmaElement::Half(element) => {
                    out[at] = widen(element, value as u16);
                    out[at + ROWS] = widen(element, (value >> 16) as u16);
                }
                WgmmaElement::E4m3 => {
                    let bytes = value.to_le_bytes().into_iter().enumerate();
                    bytes.for_each(|(i, byte)| out[at + i * ROWS] = from_e4m3(byte));
                }
            }
        }
    }
}

/// Computes `c += a b`, with `a[k][row]`, `b[k][column]` and `c[row][column]`.
pub(crate) fn accumulate(element: WgmmaElement, a: &[f32], b: &[f32], c: &mut [f32], mode: MmaMode) {
    match (mode, element) {
        (MmaMode::Fast, WgmmaElement::Half(_)) => each_row::<DEPTH>(a, b, c, |a, c| fast(a, b, c)),
        (MmaMode::Fast, WgmmaElement::E4m3) => each_row::<32>(a, b, c, |a, c| fast(a, b, c)),
        (MmaMode::F64, WgmmaElement::Half(_)) => each_row::<DEPTH>(a, b, c, |a, c| wide(a, b, c)),
        (MmaMode::F64, WgmmaElement::E4m3) => each_row::<32>(a, b, c, |a, c| wide(a, b, c)),
        (MmaMode::Exact(_), WgmmaElement::Half(_)) => each_row::<DEPTH>(a, b, c, |a, c| exact(a, b, c)),
        (MmaMode::Exact(_), WgmmaElement::E4m3) => add_hopper_e4m3(a, b, c),
    }
}

/// Calls `f` with each row of A, and of the accumulators, of a product of depth `K`.
fn each_row<const K: usize>(a: &[f32], b: &[f32], c: &mut [f32], f: impl Fn(&[f32; K], &mut [f32])) {
    for (row, c) in c.chunks_exact_mut(b.len() / K).enumerate() {
        f(&std::array::from_fn(|k| a[k * ROWS + row]), c);
    }
}

/// Computes the sums in f64.
fn wide<const K: usize>(a: &[f32; K], b: &[f32], c: &mut [f32]) {
    let columns = c.len();
    for (column, value) in c.iter_mut().enumerate() {
        let product = |k: usize| f64::from(a[k]) * f64::from(b[k * columns + column]);
        *value = (0..K).fold(f64::from(*value), |sum, k| sum + product(k)) as f32;
    }
}

/// Computes the sums as the hardware rounds them.
fn exact(a: &[f32; DEPTH], b: &[f32], c: &mut [f32]) {
    let columns = c.len();
    for (column, value) in c.iter_mut().enumerate() {
        let terms: [_; DEPTH] = std::array::from_fn(|k| (a[k], b[k * columns + column]));
        *value = dot_add_hopper(terms.into_iter(), *value);
    }
}

/// Computes a chain of f32 additions, in order of depth.
fn fast<const K: usize>(a: &[f32; K], b: &[f32], c: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the feature that the function needs.
        return unsafe { fast_wide(a, b, c) };
    }
    fast_any(a, b, c);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn fast_wide<const K: usize>(a: &[f32; K], b: &[f32], c: &mut [f32]) {
    fast_any(a, b, c);
}

/// Computes four steps in each pass over the accumulators.
#[inline(always)]
fn fast_any<const K: usize>(a: &[f32; K], b: &[f32], c: &mut [f32]) {
    let columns = c.len();
    for (a, b) in a.as_chunks::<4>().0.iter().zip(b.chunks_exact(4 * columns)) {
        let (b0, rest) = b.split_at(columns);
        let (b1, rest) = rest.split_at(columns);
        let (b2, b3) = rest.split_at(columns);
        for ((((c, b0), b1), b2), b3) in c.iter_mut().zip(b0).zip(b1).zip(b2).zip(b3) {
            *c = (((*c + a[0] * b0) + a[1] * b1) + a[2] * b2) + a[3] * b3;
        }
    }
}

/// The row and the column of accumulator register `r` of lane `lane`, within the warp's 16 rows.
pub(crate) fn place(r: usize, lane: usize) -> (usize, usize) {
    (r / 2 % 2 * 8 + lane / 4, r / 4 * 8 + lane % 4 * 2 + r % 2)
}
