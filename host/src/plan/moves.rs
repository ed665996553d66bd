//! Binds a plan to other memory without validation and without lowering. Two requests that differ only in
//! addresses have equal sizes and strides, which planning has checked. Alignments and overlaps are left.
use super::sealed::Subject;
use crate::launch::{Launch, Sites};
use crate::request::{PARTS, Parts};
use crate::select::Choice;

/// A part of a valid request that is there.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Part {
    address: u64,
    bytes: u64,
    is_written: bool,
    /// The first part at the same address.
    twin: u8,
}

/// A valid request, its launch, and the places of its addresses in the launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Moves<S> {
    subject: S,
    launch: Launch,
    parts: [Part; PARTS],
    /// The number of `parts`.
    count: usize,
    sites: Sites,
}

/// All addresses are multiples of this number, or a binding keeps their remainders: validation asks for no
/// larger alignment.
const ALIGNMENT: u64 = 16;
/// Planning moves each part by an odd multiple of this distance, to find the words that move with it. The
/// difference of two addresses moves by an even multiple.
const STEP: u64 = 1 << 20;

impl<S: Subject> Moves<S> {
    /// Returns the moves of a valid request, or `None` if its parts cannot move by themselves.
    pub fn new(subject: S, chosen: &Choice<S::Kernel>) -> Option<Self> {
        let Parts { bytes, written: [first, end] } = subject.parts()?;
        let (mut moved, mut parts, mut steps) = (subject, [Part::default(); PARTS], [0; PARTS]);
        let mut count = 0;
        for (place, (i, bytes)) in moved.places().into_iter().zip(bytes.into_iter().enumerate()) {
            let Some(place) = place else { continue };
            let twin = parts[..count].iter().position(|other| other.address == *place).unwrap_or(count);
            let is_written = (first..end).contains(&i);
            parts[count] = Part { address: *place, bytes, is_written, twin: twin as u8 };
            steps[count] = (2 * twin as u64 + 1) * STEP;
            *place = place.wrapping_add(steps[count]);
            count += 1;
        }
        // A request whose planned parts overlap is moved by validation alone.
        let addresses = parts.map(|part| part.address);
        are_apart(&parts[..count], &addresses[..count]).then_some(())?;
        let mut launch = Launch::new(chosen.reason);
        subject.lower(&chosen.kernel, &mut launch).ok()?;
        let mut other = Launch::new(chosen.reason);
        moved.lower(&chosen.kernel, &mut other).ok()?;
        let sites = launch.sites(&other, &steps[..count])?;
        Some(Moves { subject, launch, parts, count, sites })
    }

    /// Returns the launch of an unchecked request, or `None` if validation must decide.
    #[inline]
    pub fn launch(&self, mut asked: S) -> Option<Launch> {
        let (parts, mut addresses) = (&self.parts[..self.count], [0; PARTS]);
        let places = asked.places().into_iter().flatten();
        for ((place, part), address) in places.zip(parts).zip(&mut addresses) {
            *address = std::mem::replace(place, part.address);
        }
        let addresses = &addresses[..self.count];
        if asked != self.subject || !are_alike(parts, addresses) || !are_apart(parts, addresses) {
            return None;
        }
        let mut launch = self.launch;
        launch.move_by(&self.sites, |part| addresses[part].wrapping_sub(parts[part].address));
        Some(launch)
    }
}

/// Returns whether addresses are aligned like the planned addresses, and parts that share their memory still
/// do. The values of a cache lie in its keys, which come before them, if the planned ones do.
fn are_alike(parts: &[Part], addresses: &[u64]) -> bool {
    let mut last = [0; 2];
    parts.iter().zip(addresses).all(|(part, &asked)| {
        let [before, planned] = std::mem::replace(&mut last, [asked, part.address]);
        (asked ^ part.address).is_multiple_of(ALIGNMENT)
            && asked != 0
            && asked == addresses[usize::from(part.twin)]
            && (asked == before) == (part.address == planned)
    })
}

/// Returns whether the ranges of written parts lie apart from all other ranges.
fn are_apart(parts: &[Part], addresses: &[u64]) -> bool {
    let mut ends = [0; PARTS];
    for ((end, part), address) in ends.iter_mut().zip(parts).zip(addresses) {
        let Some(sum) = address.checked_add(part.bytes) else { return false };
        *end = sum;
    }
    let ranges = || addresses.iter().zip(&ends).zip(parts).filter(|(_, part)| part.bytes > 0);
    ranges().filter(|(_, part)| part.is_written).all(|((start, end), own)| {
        ranges().all(|((from, to), part)| std::ptr::eq(part, own) || end <= from || to <= start)
    })
}
