//! A tensor in two distributions: some positions of all heads, and all positions of some heads.
use crate::chunks::{Chunks, Segment};
use crate::comm::{Comm, Memory, receive, send};
use crate::shard;
use crate::transport::{Transfer, Transport};
use ferroflash::Error;
use ferroflash::driver::Driver;
#[cfg(feature = "training")]
use ferroflash::request::Sum;
use ferroflash::request::{LseView, TensorView};
use std::ops::Range;

/// The heads of each rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads {
    /// Heads of a rank.
    count: usize,
    /// Consecutive ranks that have equal heads.
    copies: usize,
}

impl Heads {
    /// Returns the heads of queries and of keys.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the ranks cannot have equally many heads.
    pub fn new([queries, keys]: [usize; 2], ranks: usize) -> Result<[Self; 2], Error> {
        if !queries.is_multiple_of(ranks) {
            let feature = format_args!("an all-to-all of {queries} query heads on {ranks} ranks");
            return Err(Error::unsupported(feature, "take a multiple of the ranks, or a ring"));
        }
        let keys = if keys.is_multiple_of(ranks) {
            Heads { count: keys / ranks, copies: 1 }
        } else if ranks.is_multiple_of(keys) {
            Heads { count: 1, copies: ranks / keys }
        } else {
            let feature = format_args!("an all-to-all of {keys} key heads on {ranks} ranks");
            return Err(Error::unsupported(feature, "take a multiple or a divisor of the ranks, or a ring"));
        };
        Ok([Heads { count: queries / ranks, copies: 1 }, keys])
    }

    /// Returns the heads of a rank.
    pub const fn of(self, rank: usize) -> Range<usize> {
        let first = rank / self.copies * self.count;
        first..first + self.count
    }
}

/// The positions of each rank, as segments.
#[derive(Debug)]
pub(crate) struct Places {
    pub rank: usize,
    pub of_ranks: Vec<Vec<Segment>>,
    pub positions: usize,
}

impl Places {
    pub fn new(chunks: &Chunks, rank: usize) -> Self {
        let of_ranks = (0..chunks.ranks()).map(|rank| chunks.segments(rank)).collect();
        Places { rank, of_ranks, positions: chunks.positions() }
    }

    /// Returns each segment of the rank itself, once for each rank.
    fn own(&self) -> impl Iterator<Item = (usize, &Segment)> {
        let own = &self.of_ranks[self.rank];
        (0..self.of_ranks.len()).flat_map(move |other| own.iter().map(move |segment| (other, segment)))
    }

    /// Returns the segments of all ranks.
    fn all(&self) -> impl Iterator<Item = (usize, &Segment)> {
        let all = self.of_ranks.iter().enumerate();
        all.flat_map(|(other, segments)| segments.iter().map(move |segment| (other, segment)))
    }
}

/// A tensor of a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    /// The rank's positions of all heads: the caller's tensor.
    home: TensorView,
    /// The rank's positions of the heads of each rank, one behind the other.
    parts: TensorView,
    /// All positions of the rank's heads.
    pub whole: TensorView,
    heads: Heads,
}

impl Spread {
    /// Takes memory for a tensor.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the heads of a row are not contiguous.
    pub fn new(
        name: &'static str,
        home: TensorView,
        heads: Heads,
        places: &Places,
        memory: &mut Memory,
    ) -> Result<Self, Error> {
        let [batch, rows, of_home, columns] = home.shape;
        if of_home > 1 && home.strides[2] != columns as i64 {
            let expected = "the heads of a row must be contiguous: an all-to-all copies them together";
            return Err(Error::invalid(name, format!("{:?}", home.strides), expected));
        }
        let like = TensorView { shape: [batch, rows, heads.count, columns], ..home };
        let parts = memory.tensor(&like, [places.of_ranks.len() * batch, rows]);
        Ok(Spread { home, parts, whole: memory.tensor(&like, [batch, places.positions]), heads })
    }

    /// Returns the number of elements of a part.
    fn part_elements(&self) -> usize {
        self.home.shape[0] * self.parts.shape[1..].iter().product::<usize>()
    }

    /// Returns the part of a rank's heads.
    fn part(&self, rank: usize) -> TensorView {
        let skipped = (rank * self.part_elements()) as u64;
        let [_, rows, heads, columns] = self.parts.shape;
        let address = self.parts.address.wrapping_add(skipped * self.parts.element_bytes());
        let elements = self.parts.elements.saturating_sub(skipped);
        TensorView::bshd(address, elements, self.parts.dtype, [self.home.shape[0], rows, heads, columns])
    }

    /// Returns some heads of the caller's tensor.
    fn at_home(&self, heads: &Range<usize>) -> TensorView {
        let mut view = self.home;
        let skipped = heads.start as u64 * view.strides[2] as u64;
        view.address = view.address.wrapping_add(skipped * view.element_bytes());
        view.elements = view.elements.saturating_sub(skipped);
        view.shape[2] = heads.len();
        view
    }

    /// Copies the caller's tensor to the parts.
    ///
    /// # Safety
    /// The requirements of [`Transport::copy`] for memory.
    pub unsafe fn pack<D: Driver, T: Transport<D>>(&self, comm: &Comm<'_, D, T>) -> Result<(), Error> {
        // SAFETY: the caller makes the promises.
        (0..comm.ranks())
            .try_for_each(|rank| unsafe { comm.copy(&self.at_home(&self.heads.of(rank)), &self.part(rank)) })
    }

    /// Copies the parts to the caller's tensor.
    ///
    /// # Safety
    /// The requirements of [`Transport::copy`] for memory.
    pub unsafe fn unpack<D: Driver, T: Transport<D>>(&self, comm: &Comm<'_, D, T>) -> Result<(), Error> {
        // SAFETY: the caller makes the promises.
        (0..comm.ranks())
            .try_for_each(|rank| unsafe { comm.copy(&self.part(rank), &self.at_home(&self.heads.of(rank))) })
    }

    /// Returns the sums of the parts of equal heads, which write the caller's contiguous tensor. A sum of one
    /// part is a copy.
    #[cfg(feature = "training")]
    pub fn sums(&self) -> impl Iterator<Item = Sum> {
        let Heads { copies, .. } = self.heads;
        let ranks = self.parts.shape[0] / self.home.shape[0].max(1);
        let has_rows = !self.home.shape.contains(&0);
        (0..if has_rows { ranks } else { 0 }).step_by(copies).map(move |rank| {
            // A sum takes contiguous rows. As batches of one row, rows may have any distance.
            let of_rows = |view: TensorView| {
                let [batch, rows, heads, columns] = view.shape;
                TensorView {
                    shape: [batch * rows, 1, heads, columns],
                    strides: [view.strides[1], view.strides[1], columns as i64, 1],
                    ..view
                }
            };
            let home = self.at_home(&self.heads.of(rank));
            Sum::new(of_rows(self.part(rank)), self.part_elements(), copies, of_rows(home))
        })
    }

    /// Returns the transfers that bring the rank all positions of its heads.
    pub fn to_heads(self, places: &Places) -> Vec<Transfer> {
        let sent = places.own().flat_map(|(to, of)| send(to, &shard::rows(&self.part(to), &of.rows)));
        let received =
            places.all().flat_map(|(from, of)| receive(from, &shard::rows(&self.whole, &of.positions)));
        sent.chain(received).collect()
    }

    /// Returns the transfers that bring the rank's positions home.
    pub fn to_home(self, places: &Places) -> Vec<Transfer> {
        let sent = places.all().flat_map(|(to, of)| send(to, &shard::rows(&self.whole, &of.positions)));
        let received =
            places.own().flat_map(|(from, of)| receive(from, &shard::rows(&self.part(from), &of.rows)));
        sent.chain(received).collect()
    }
}

/// The LSE of a rank, or its gradient. Each message has the rows of a segment of one head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpreadLse {
    home: LseView,
    pub whole: LseView,
    heads: Heads,
}

impl SpreadLse {
    /// Takes memory for an LSE.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the rows of a head are not contiguous.
    pub fn new(
        name: &'static str,
        home: LseView,
        heads: Heads,
        places: &Places,
        memory: &mut Memory,
    ) -> Result<Self, Error> {
        if home.row_stride != 1 {
            let expected = "the rows of a head must be contiguous: an all-to-all sends them together";
            return Err(Error::invalid(name, home.row_stride, expected));
        }
        let shape = [home.shape[0], heads.count, places.positions];
        let values = shape.iter().product::<usize>() as u64;
        Ok(SpreadLse { home, whole: LseView::contiguous(memory.take(values * 4), values, shape), heads })
    }

    /// Returns the transfers that bring the rank all positions of its heads.
    #[cfg(feature = "training")]
    pub fn to_heads(self, places: &Places) -> Vec<Transfer> {
        let whole = 0..self.heads.count;
        let send = |(to, of): (usize, &Segment)| {
            pieces(&self.home, &self.heads.of(to), &of.rows).map(move |[address, bytes]| Transfer::Send {
                to,
                address,
                bytes,
            })
        };
        let receive = |(from, of): (usize, &Segment)| {
            pieces(&self.whole, &whole, &of.positions).map(move |[address, bytes]| Transfer::Receive {
                from,
                address,
                bytes,
            })
        };
        places.own().flat_map(send).chain(places.all().flat_map(receive)).collect()
    }

    /// Returns the transfers that bring the rank's positions home.
    pub fn to_home(self, places: &Places) -> Vec<Transfer> {
        let whole = 0..self.heads.count;
        let send = |(to, of): (usize, &Segment)| {
            pieces(&self.whole, &whole, &of.positions).map(move |[address, bytes]| Transfer::Send {
                to,
                address,
                bytes,
            })
        };
        let receive = |(from, of): (usize, &Segment)| {
            pieces(&self.home, &self.heads.of(from), &of.rows)
                .map(move |[address, bytes]| Transfer::Receive { from, address, bytes })
        };
        places.all().flat_map(send).chain(places.own().flat_map(receive)).collect()
    }
}

/// Returns address and bytes of some rows of each of some heads.
fn pieces(
    view: &LseView,
    heads: &Range<usize>,
    rows: &Range<usize>,
) -> impl Iterator<Item = [u64; 2]> + use<> {
    let (view, heads, rows) = (*view, heads.clone(), rows.clone());
    (0..view.shape[0]).flat_map(move |batch| {
        let rows = rows.clone();
        heads.clone().map(move |head| {
            let skipped = batch as i64 * view.strides[0] + head as i64 * view.strides[1] + rows.start as i64;
            [view.address.wrapping_add_signed(skipped * 4), rows.len() as u64 * 4]
        })
    })
}
