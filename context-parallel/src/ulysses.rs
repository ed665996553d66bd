//! Ulysses: an all-to-all gives each rank all positions of some heads, and a second one brings O home.
//!
//! Jacobs et al., DeepSpeed Ulysses (2023).
use crate::batches::{self, Offsets};
use crate::chunks::Chunks;
use crate::comm::{Comm, Memory};
use crate::sequences::Sequences;
use crate::shard::{self, Shard};
use crate::spread::{Heads, Places, Spread, SpreadLse};
use crate::tiles;
use crate::transport::{Transfer, Transport};
use ferroflash::Error;
use ferroflash::driver::Driver;
use ferroflash::request::AttentionRequest;
#[cfg(feature = "training")]
use ferroflash::request::{AttentionBackward, Scratch};
use std::fmt;
use std::ops::Range;

/// A forward pass.
#[derive(Debug)]
pub(crate) struct Forward {
    shard: Shard,
    places: Places,
    /// The positions of each launch.
    launches: Vec<Range<usize>>,
    /// The sequences of a varlen launch, which is then the only one.
    varlen: Option<Sequences>,
    offsets: Offsets,
    /// Q, K, V and O.
    spread: [Spread; 4],
    lse: SpreadLse,
    pub memory: Memory,
}

impl Forward {
    pub fn new<D: Driver, T: Transport<D>>(
        comm: &Comm<'_, D, T>,
        chunks: &Chunks,
        request: &AttentionRequest<'_>,
    ) -> Result<Self, Error> {
        let shard = Shard::new(comm, chunks, request)?;
        let [of_q, of_k] = Heads::new([shard.q.shape[2], shard.k.shape[2]], comm.ranks())?;
        let places = Places::new(chunks, comm.rank());
        let mut memory = Memory::new(&request.scratch);
        let mut spread = |name, view, heads| Spread::new(name, view, heads, &places, &mut memory);
        let all = [
            spread("q.strides", shard.q, of_q)?,
            spread("k.strides", shard.k, of_k)?,
            spread("v.strides", shard.v, of_k)?,
            spread("o.strides", shard.o, of_q)?,
        ];
        let lse = SpreadLse::new("lse.row_stride", shard.lse, of_q, &places, &mut memory)?;
        let sequences: Vec<_> = chunks.of_sequences().collect();
        let varlen = batches::whole(&sequences, shard.mask, shard.q.shape[0]);
        let offsets = Offsets::of_launches(varlen.iter(), &mut memory);
        let one = || std::iter::once(0..chunks.positions()).collect();
        let launches = if varlen.is_some() { one() } else { sequences };
        Ok(Forward { shard, places, launches, varlen, offsets, spread: all, lse, memory })
    }

    /// Enqueues the pass.
    ///
    /// # Safety
    /// The requirements of [`Form::attention`](crate::Form::attention).
    pub unsafe fn run<D: Driver, T: Transport<D>>(
        mut self,
        comm: &Comm<'_, D, T>,
        call: fmt::Arguments<'_>,
    ) -> Result<(), Error> {
        self.memory.rest(0)?;
        comm.begin(call)?;
        if self.shard.is_empty() {
            return Ok(());
        }
        let [q, k, v, o] = &self.spread;
        let mut home = o.to_home(&self.places);
        home.extend(self.lse.to_home(&self.places));
        // SAFETY: launches, copies and transfers use the request's tensors and disjoint parts of its
        // workspace.
        unsafe {
            self.offsets.write(comm)?;
            to_heads(comm, &[q, k, v], Vec::new(), &self.places)?;
            for request in self.requests()? {
                comm.launch(&request)?;
            }
            comm.start(&home)?;
            comm.finish()?;
            o.unpack(comm)
        }
    }

    /// Returns the launches.
    fn requests(&self) -> Result<Vec<AttentionRequest<'static>>, Error> {
        let mut all = Vec::new();
        for rows in &self.launches {
            let [q, k, v, o] = self.spread.map(|of| shard::rows(&of.whole, rows));
            let Some((_, mask, alignment)) = tiles::pair(rows, rows, self.shard.mask)? else { continue };
            let request = match &self.varlen {
                None => AttentionRequest::dense(q, k, v, o),
                Some(of) => self.offsets.request(of, [q, k, v, o]),
            };
            let request = request.mask(mask).alignment(alignment);
            all.push(request.scores(self.shard.scores).lse(shard::lse_rows(&self.lse.whole, rows)));
        }
        Ok(all)
    }
}

/// Brings a rank all positions of its heads: of tensors, and of `others`.
///
/// # Safety
/// The requirements of [`Transport::copy`] and [`Transport::start`] for memory.
unsafe fn to_heads<D: Driver, T: Transport<D>>(
    comm: &Comm<'_, D, T>,
    tensors: &[&Spread],
    others: Vec<Transfer>,
    places: &Places,
) -> Result<(), Error> {
    // SAFETY: the caller makes the promises.
    unsafe {
        tensors.iter().try_for_each(|tensor| tensor.pack(comm))?;
        let transfers: Vec<_> =
            tensors.iter().flat_map(|tensor| tensor.to_heads(places)).chain(others).collect();
        comm.start(&transfers)?;
    }
    comm.finish()
}

/// A backward pass.
#[cfg(feature = "training")]
#[derive(Debug)]
pub(crate) struct Backward {
    forward: Forward,
    d_o: Spread,
    d_lse: Option<SpreadLse>,
    /// dQ, dK and dV.
    gradients: [Spread; 3],
}

#[cfg(feature = "training")]
impl Backward {
    pub fn new<D: Driver, T: Transport<D>>(
        comm: &Comm<'_, D, T>,
        chunks: &Chunks,
        backward: &AttentionBackward<'_>,
    ) -> Result<Self, Error> {
        let mut forward = Forward::new(comm, chunks, &backward.forward.scratch(backward.scratch))?;
        let Forward { shard, places, memory, .. } = &mut forward;
        let [dq, dk, dv] = shard.gradients(comm, backward)?;
        let [of_q, of_k] = Heads::new([shard.q.shape[2], shard.k.shape[2]], comm.ranks())?;
        let d_o = Spread::new("d_o.strides", backward.d_o, of_q, places, memory)?;
        let d_lse = |view| SpreadLse::new("d_lse.row_stride", view, of_q, places, memory);
        let d_lse = backward.d_lse.map(d_lse).transpose()?;
        let mut spread = |name, view, heads| Spread::new(name, view, heads, places, memory);
        let gradients = [
            spread("dq.strides", dq, of_q)?,
            spread("dk.strides", dk, of_k)?,
            spread("dv.strides", dv, of_k)?,
        ];
        Ok(Backward { forward, d_o, d_lse, gradients })
    }

    /// Enqueues the pass.
    ///
    /// # Safety
    /// The requirements of [`Form::backward`](crate::Form::backward).
    pub unsafe fn run<D: Driver, T: Transport<D>>(
        mut self,
        comm: &Comm<'_, D, T>,
        call: fmt::Arguments<'_>,
    ) -> Result<(), Error> {
        let [address, bytes] = self.forward.memory.rest(1)?;
        comm.begin(call)?;
        if self.forward.shard.is_empty() {
            return Ok(());
        }
        let scratch = Scratch::workspace(address, bytes);
        let Forward { places, spread: [q, k, v, o], lse, .. } = &self.forward;
        let mut of_rows = lse.to_heads(places);
        of_rows.extend(self.d_lse.iter().flat_map(|d_lse| d_lse.to_heads(places)));
        let home: Vec<_> = self.gradients.iter().flat_map(|of| of.to_home(places)).collect();
        // SAFETY: launches, copies and transfers use the request's tensors and disjoint parts of its
        // workspace.
        unsafe {
            self.forward.offsets.write(comm)?;
            to_heads(comm, &[q, k, v, o, &self.d_o], of_rows, places)?;
            for request in self.requests()? {
                comm.launch(&request.scratch(scratch))?;
            }
            comm.start(&home)?;
            comm.finish()?;
            self.gradients.iter().flat_map(Spread::sums).try_for_each(|sum| comm.launch(&sum))
        }
    }

    /// Returns the bytes of workspace.
    pub fn workspace<D: Driver, T: Transport<D>>(&self, comm: &Comm<'_, D, T>) -> Result<u64, Error> {
        let mut launches = 1;
        for request in self.requests()? {
            launches = launches.max(comm.attention.plan(&request)?.scratch_bytes().workspace);
        }
        Ok(self.forward.memory.needed(launches))
    }

    /// Returns the launches.
    fn requests(&self) -> Result<Vec<AttentionBackward<'static>>, Error> {
        let forwards = self.forward.requests()?;
        let of = |(forward, rows): (AttentionRequest<'static>, &Range<usize>)| {
            let d_o = shard::rows(&self.d_o.whole, rows);
            let [dq, dk, dv] = self.gradients.map(|of| shard::rows(&of.whole, rows));
            let mut backward = AttentionBackward::new(forward, d_o, dq, dk, dv);
            backward.d_lse = self.d_lse.map(|view| shard::lse_rows(&view.whole, rows));
            backward
        };
        Ok(forwards.into_iter().zip(&self.forward.launches).map(of).collect())
    }
}
