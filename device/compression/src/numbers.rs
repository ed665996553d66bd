//! Numbers of a text as differences, which LZMA compresses better than the numbers.
//!
//! Neighbouring lines of PTX differ mainly in the numbers of virtual registers, which count up. [`encode`]
//! writes each decimal number as its difference from the last number at the same place. The place of a number
//! is the text to its left in its line, without digits:
//!
//! | text | encoded |
//! |---|---|
//! | `ld.param.b64 %rd62, [p+256];` | `ld.param.b+64 %rd+62, [p++256];` |
//! | `ld.param.b64 %rd61, [p+248];` | `ld.param.b+0 %rd-1, [p+-8];` |
//! | `ld.param.b64 %rd60, [p+240];` | `ld.param.b+0 %rd-1, [p+-8];` |
//!
//! Every text has an encoding, and no two texts share one. Every digit of the text belongs to a number. An
//! encoded text therefore has digits only after the sign of a difference, and no digit follows a sign of the
//! text. A number has no leading zero and at most nine digits: `007` is the numbers 0, 0 and 7.

use std::fmt::Write;

/// The source of this module. Other code may encode a text otherwise.
pub const SOURCE: &str = include_str!("numbers.rs");

/// Maximum number of digits of a number.
const DIGITS: usize = 9;

/// The smallest number with more digits.
const END: i32 = 10_i32.pow(DIGITS as u32);

/// Binary logarithm of the number of slots. Places whose hashes select the same slot share their last number.
/// The encoding remains exact, but compresses worse: by 4 % with 12 instead of 16, by 0.3 % with 14.
const SLOTS: u32 = 14;

/// The reason why a text is no output of [`encode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A digit does not follow the sign of a difference.
    #[error("byte {at}: a digit without a sign before it")]
    NoSign {
        /// The index of the digit.
        at: usize,
    },
    /// A difference leads to a number below 0, or of more than nine digits.
    #[error("byte {at}: a difference leads to a number below 0, or of more than 9 digits")]
    Range {
        /// The index of the sign.
        at: usize,
    },
}

/// Encodes the numbers of `text`. [`decode`] restores `text` byte for byte.
pub fn encode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut encoded = String::with_capacity(text.len());
    let mut places = Places::new();
    let (mut copied, mut at) = (0, 0);
    while let Some(byte) = bytes.get(at) {
        if !byte.is_ascii_digit() {
            places.pass(*byte);
            at += 1;
            continue;
        }
        encoded.push_str(&text[copied..at]);
        let end = at + if *byte == b'0' { 1 } else { digits(&bytes[at..], DIGITS) };
        let number = bytes[at..end].iter().fold(0, |number, digit| 10 * number + i32::from(digit - b'0'));
        let last = places.last();
        // Writing to a String cannot fail.
        let _ = write!(encoded, "{:+}", number - *last);
        *last = number;
        (copied, at) = (end, end);
    }
    encoded.push_str(&text[copied..]);
    encoded
}

/// Restores the text that [`encode`] has encoded.
///
/// # Errors
/// Returns an [`Error`] if `encoded` has a digit outside of a difference, or a difference that leads to no
/// number. Other damage gives another text.
pub fn decode(encoded: &str) -> Result<String, Error> {
    let bytes = encoded.as_bytes();
    let mut text = String::with_capacity(encoded.len());
    let mut places = Places::new();
    let (mut copied, mut at) = (0, 0);
    while let Some(byte) = bytes.get(at) {
        let digits = if matches!(byte, b'+' | b'-') { digits(&bytes[at + 1..], usize::MAX) } else { 0 };
        if digits == 0 {
            if byte.is_ascii_digit() {
                return Err(Error::NoSign { at });
            }
            places.pass(*byte);
            at += 1;
            continue;
        }
        text.push_str(&encoded[copied..at]);
        let end = at + 1 + digits;
        let last = places.last();
        let number = encoded[at..end].parse().ok().and_then(|difference| last.checked_add(difference));
        *last = number.filter(|number| (0..END).contains(number)).ok_or(Error::Range { at })?;
        let _ = write!(text, "{last}");
        (copied, at) = (end, end);
    }
    text.push_str(&encoded[copied..]);
    Ok(text)
}

/// The number of digits with which `bytes` begins, at most `most`.
fn digits(bytes: &[u8], most: usize) -> usize {
    bytes.iter().take(most).take_while(|byte| byte.is_ascii_digit()).count()
}

/// The last number at each place.
struct Places {
    /// The hash of the current line so far, without digits.
    line: u64,
    slots: Vec<i32>,
}

impl Places {
    fn new() -> Self {
        Self { line: 0, slots: vec![0; 1 << SLOTS] }
    }

    /// Moves over a byte that is no digit of a number.
    fn pass(&mut self, byte: u8) {
        // The multiplier is odd and has no pattern (2^64 divided by the golden ratio), so that each byte
        // changes the highest bits, which select the slot.
        const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
        self.line = match byte {
            b'\n' => 0,
            _ => (self.line ^ u64::from(byte)).wrapping_mul(MULTIPLIER),
        };
    }

    /// The last number at the current place; 0 if there was none.
    fn last(&mut self) -> &mut i32 {
        &mut self.slots[(self.line >> (u64::BITS - SLOTS)) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_differences() {
        let check = |text: &str, encoded: &str| {
            assert_eq!(encode(text), encoded, "{text}");
            assert_eq!(decode(encoded).as_deref(), Ok(text), "{encoded}");
        };
        check("", "");
        check("ld %rd62, [p+256];\nld %rd61, [p+248];\n", "ld %rd+62, [p++256];\nld %rd-1, [p+-8];\n");
        check("$L__BB0_7:\n$L__BB0_9:\r\n", "$L__BB+0_+7:\n$L__BB+0_+2:\r\n");
        check("%r+3 %r-3 %r~3", "%r++3 %r-+3 %r~+3");
        check("+-+5-", "+-++5-");
        check("007", "+0+0+7");
        // Numbers of one place: the second line begins with the last number of the first line.
        check("1234567890123\n5", "+123456789-123456789+123\n-118");
        check("999999999\n0\n18446744073709551616", "+999999999\n-999999999\n+184467440+552628076-737095500");
        check("\u{663} \u{e9}1\u{fffd}2\u{0}3", "\u{663} \u{e9}+1\u{fffd}+2\u{0}+3");
    }

    /// Calls `check` with every text of at most `most` of these pieces.
    fn every(pieces: &[&str], most: usize, text: &mut String, check: &mut impl FnMut(&str)) {
        check(text);
        if most > 0 {
            for piece in pieces {
                let len = text.len();
                text.push_str(piece);
                every(pieces, most - 1, text, check);
                text.truncate(len);
            }
        }
    }

    #[test]
    fn every_short_text_is_restored() {
        let mut texts = 0;
        every(&["+", "-", "0", "7", "99999999", "%r", "\n", "\u{e9}"], 5, &mut String::new(), &mut |text| {
            texts += 1;
            assert_eq!(decode(&encode(text)).as_deref(), Ok(text), "{text:?}");
        });
        assert_eq!(texts, (0..=5).map(|n| 8_u32.pow(n)).sum::<u32>());
    }

    #[test]
    fn damaged_text_is_an_error() {
        for (encoded, error) in [
            ("%r5", Error::NoSign { at: 2 }),
            ("+1 5", Error::NoSign { at: 3 }),
            ("-1", Error::Range { at: 0 }),
            ("+7\n-8", Error::Range { at: 3 }),
            ("+1000000000", Error::Range { at: 0 }),
            ("+999999999\n+1", Error::Range { at: 11 }),
            ("+2147483647", Error::Range { at: 0 }),
            ("-99999999999999999999", Error::Range { at: 0 }),
        ] {
            assert_eq!(decode(encoded), Err(error), "{encoded}");
        }
        // Every text of these pieces decodes to a text or to an error.
        let mut errors = 0;
        every(&["+", "-9", "999999999", "0", "a", "\n"], 5, &mut String::new(), &mut |encoded| {
            errors += u32::from(decode(encoded).is_err());
        });
        assert!(errors > 0);
    }
}
