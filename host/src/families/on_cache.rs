//! What a request on a cache launches: a decode kernel where a sequence has few rows for each key head, which
//! all read the same keys, else a paged one, in tiles of queries.
use super::{Kernels, One, decode, hopper_paged, paged};
use crate::table::ASKED;
use crate::table::hopper::{self, Answer};
use crate::{Boxes, Capabilities, Decode, Error, Splits};
use spec::{Contract, KERNELS, PagedParams, TensorMap};

/// The launches of a decode's plan.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "plans are `Copy`, and a launch allocates nothing")]
pub(crate) enum Launch {
    /// Sequences are cut by their keys.
    Few(decode::Launch),
    /// They are cut by their queries.
    Many(One<PagedParams>),
    /// The same, with tensors and pages by their maps.
    Hopper(hopper_paged::Launch),
}
use Launch::{Few, Hopper, Many};

impl Launch {
    /// That of a checked request, with so many bytes of workspace, and why its entry was chosen.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where no entry solves it on this device.
    pub fn plan(d: &Decode<'_>, on: &Capabilities, offered: u64) -> Result<(Self, &'static str), Error> {
        let paged = d.config.is_some_and(|name| paged::entries().any(|e| e.contract.symbol == name));
        if !paged && decode::takes(d) {
            return decode::Launch::plan(d, on, offered).map(|(launch, reason)| (Few(launch), reason));
        }
        has_no_part_of_decode(d)?;
        let reason = match d.config {
            Some(_) => ASKED,
            None if d.packed.is_some() => "any numbers of queries: tiles of a query head's, prompts or not",
            None if d.alibi.is_some() => {
                "slopes, which decode kernels have not: tiles of a query head's queries"
            }
            None => "more than 64 rows for each key head: tiles of a query head's queries",
        };
        let entry = paged::choose(d, on)?;
        if entry.has_maps() {
            return hopper_paged::Launch::new(entry, None, d, on).map(|launch| (Hopper(launch), reason));
        }
        let portable = paged::plan(d, entry, on)?;
        let answer = if d.config.is_none() { hopper::paged(d, entry, on) } else { Answer::Portable };
        Ok(match answer {
            Answer::Taken(entry, reason) => {
                (Hopper(hopper_paged::Launch::new(entry, Some(portable), d, on)?), reason)
            }
            Answer::Refused(reason) | Answer::Slower(reason) => (Many(portable), reason),
            Answer::Portable => (Many(portable), reason),
        })
    }

    /// The same for other tensors of the same shape.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where they come with what these kernels have not.
    pub fn bind(&self, d: &Decode<'_>) -> Result<Self, Error> {
        match self {
            Few(launch) => Ok(Few(launch.bind(d))),
            Many(launch) => has_no_part_of_decode(d).map(|()| Many(paged::bind(launch, d))),
            Hopper(launch) => has_no_part_of_decode(d).and_then(|()| launch.bind(d)),
        }
    }

    /// The contract of the kernel that computes attention.
    pub const fn contract(&self) -> &'static Contract {
        match self {
            Few(launch) => launch.contract(),
            Many(launch) => &KERNELS[launch.kernel],
            Hopper(launch) => &KERNELS[launch.kernel],
        }
    }

    /// Its blocks.
    pub const fn grid(&self) -> [u32; 3] {
        match self {
            Few(launch) => launch.grid(),
            Many(launch) => launch.grid,
            Hopper(launch) => launch.grid,
        }
    }

    /// Bytes of workspace.
    pub const fn workspace(&self) -> u64 {
        match self {
            Few(launch) => launch.workspace,
            Many(_) | Hopper(_) => 0,
        }
    }

    /// Bytes of counters, where there are some.
    pub const fn counters(&self) -> u64 {
        match self {
            Few(launch) => launch.counters,
            Many(_) | Hopper(_) => 0,
        }
    }
}

/// Checks that nothing is asked for that decode kernels alone have. Chunks they all keep: of sequences that
/// nobody cuts by their keys the bits are their own.
fn has_no_part_of_decode(d: &Decode<'_>) -> Result<(), Error> {
    const REASON: &str = "only decode kernels have them, for at most 64 rows (queries times the query heads \
                          of a key head), as many for each sequence, without ALiBi slopes";
    match d.splits {
        Splits::Exactly(2..) => Err(Error::unsupported(format_args!("{:?}", d.splits), REASON)),
        _ if d.sinks.is_some() => Err(Error::unsupported("sinks of many queries, or beside slopes", REASON)),
        _ => Ok(()),
    }
}

impl Kernels for Launch {
    fn each(
        &self,
        maps: impl FnMut(&Boxes) -> Result<TensorMap, Error>,
        launch: impl FnMut(usize, [u32; 3], &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match self {
            Few(few) => few.each(maps, launch),
            Many(many) => many.each(maps, launch),
            Hopper(many) => many.each(maps, launch),
        }
    }

    fn other(&self) -> Option<usize> {
        match self {
            Few(few) => few.other(),
            Many(many) => many.other(),
            Hopper(many) => many.other(),
        }
    }
}
