//! Binds a plan to other memory without validation and without lowering. Two requests that differ only in
//! addresses have equal sizes and strides, which planning has checked. Alignments and overlaps are left.
use super::sealed::{Request, Subject};
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
    /// A binding keeps the remainders of addresses by this number.
    alignment: u64,
    sites: Sites,
}

/// Planning moves each part by an odd multiple of this distance, to find the words that move with it. The
/// difference of two addresses moves by an even multiple.
const STEP: u64 = 1 << 20;

impl<S: Subject> Moves<S> {
    /// Returns the moves of a valid request, or `None` if its parts cannot move by themselves.
    pub fn new(subject: S, chosen: &Choice<S::Kernel>) -> Option<Self> {
        let Parts { bytes, written: [first, end], alignment } = subject.parts()?;
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
        Some(Moves { subject, launch, parts, count, alignment, sites })
    }

    /// Returns how far the parts of an unchecked request have moved, or `None` if validation must decide.
    #[inline]
    pub fn distances(&self, request: &impl Request<Subject = S>) -> Option<[u64; PARTS]> {
        let (parts, mut all) = (&self.parts[..self.count], [0; PARTS]);
        let is_moved = request.is_moved(&self.subject, |mut places| {
            for ((place, part), address) in places.iter_mut().flatten().zip(parts).zip(&mut all) {
                *address = std::mem::replace(place, part.address);
            }
        });
        let addresses = &mut all[..self.count];
        let is_valid = is_moved && self.are_alike(addresses) && are_apart(parts, addresses);
        let of_parts = addresses.iter_mut().zip(parts);
        of_parts.for_each(|(address, part)| *address = address.wrapping_sub(part.address));
        is_valid.then_some(all)
    }

    /// Returns the launch of parts that have moved so far, in `to`.
    pub fn launch<'a>(&self, distances: &[u64; PARTS], to: &'a mut Option<Launch>) -> &'a Launch {
        let launch = to.insert(self.launch);
        launch.move_by(&self.sites, distances);
        launch
    }

    /// Returns whether addresses are aligned like the planned addresses, and parts that share their memory
    /// still do. The values of a cache lie in its keys, which come before them, if the planned ones do.
    fn are_alike(&self, addresses: &[u64]) -> bool {
        let mut last = [0; 2];
        self.parts.iter().zip(addresses).all(|(part, &asked)| {
            let [before, planned] = std::mem::replace(&mut last, [asked, part.address]);
            (asked ^ part.address) & (self.alignment - 1) == 0
                && asked != 0
                && asked == addresses[usize::from(part.twin)]
                && (asked == before) == (part.address == planned)
        })
    }
}

/// Returns whether the ranges of written parts lie apart from all other ranges.
fn are_apart(parts: &[Part], addresses: &[u64]) -> bool {
    // A part without bytes is apart from all others.
    let mut ranges = [[0; 2]; PARTS];
    let ranges = &mut ranges[..parts.len()];
    for ((range, part), &address) in ranges.iter_mut().zip(parts).zip(addresses) {
        let Some(end) = address.checked_add(part.bytes) else { return false };
        if part.bytes > 0 {
            *range = [address, end];
        }
    }
    let written = parts.iter().zip(&*ranges).filter(|(part, _)| part.is_written);
    // Only the part itself may have bytes in its range.
    written
        .map(|(_, [start, end])| ranges.iter().filter(move |[from, to]| end > from && to > start))
        .all(|shared| shared.count() <= 1)
}
