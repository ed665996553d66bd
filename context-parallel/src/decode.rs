//! Decode on a KV cache whose keys are spread over ranks.
use crate::comm::{Comm, Memory};
use crate::transport::{Transfer, Transport};
use ferroflash::Error;
use ferroflash::driver::Driver;
use ferroflash::request::{
    AttentionRequest, KeysValues, LseView, Mask, Merge, Queries, Region, Scratch, State, TensorView,
};

/// Computes decode attention of sequences whose keys are spread over ranks in any way: each rank's KV cache
/// has the keys of its own pages, perhaps none. Every rank calls this function with the same queries, one per
/// sequence, and gets O of all keys.
///
/// The request is an [`AttentionRequest::cached`], or an [`AttentionRequest::sparse`] whose lists name the
/// rank's own slots, with the scratch memory that its own plan states. `messages` is a workspace of
/// [`decode_workspace`] bytes.
///
/// A request without sequences does nothing, and sends nothing.
///
/// A rank computes O and the LSE of its own keys, and sends both to all others, in one message each. One
/// launch merges them in f32, in the order of the ranks: all ranks get identical bits. O of each rank is
/// rounded to the dtype of O, so an element has two roundings.
///
/// # Errors
/// Returns the errors of the library's launches and of the transport, or [`Error::Unsupported`], which names
/// what only one rank can do.
///
/// # Safety
/// - The requirements of [`Attention::enqueue`](ferroflash::Attention::enqueue) for the request and for
///   `messages`, on `comm`'s stream.
/// - All ranks call this function with equal queries, shapes and dtypes.
pub unsafe fn decode_attention<D: Driver, T: Transport<D>>(
    comm: &Comm<'_, D, T>,
    request: &AttentionRequest<'_>,
    messages: Region,
) -> Result<(), Error> {
    let Region { address, bytes } = messages;
    let (states, message) = states(comm, request, &Scratch::workspace(address, bytes))?;
    if request.q.shape[0] == 0 {
        return Ok(());
    }
    let (rank, mut part) = (comm.rank(), *request);
    (part.o, part.lse, part.scores.sinks) = (states[rank].o, Some(states[rank].lse), None);
    let others = (0..comm.ranks()).filter(|other| *other != rank);
    let place = |rank: usize| states[rank].o.address;
    let transfers: Vec<_> = others
        .flat_map(|other| {
            let sent = Transfer::Send { to: other, address: place(rank), bytes: message };
            [sent, Transfer::Receive { from: other, address: place(other), bytes: message }]
        })
        .collect();
    let mut merge = Merge::new(&states, request.o);
    (merge.lse, merge.sinks) = (request.lse, request.scores.sinks);
    // Whatever the checks find, no other rank has got anything.
    comm.check(&part)?;
    let ([batch, _, heads, columns], dtype) = (request.o.shape, request.o.dtype.name());
    comm.check(&merge)?;
    comm.begin(format_args!("decode of {batch} queries, {heads} heads of {columns} {dtype}"))?;
    // SAFETY: the launches and transfers use the request's tensors and disjoint messages.
    unsafe {
        comm.launch(&part)?;
        comm.start(&transfers)?;
        comm.finish()?;
        comm.launch(&merge)
    }
}

/// Returns the bytes of the messages of a [`decode_attention`].
///
/// # Errors
/// Returns the errors of [`decode_attention`] that do not depend on a device.
pub fn decode_workspace<D: Driver, T: Transport<D>>(
    comm: &Comm<'_, D, T>,
    request: &AttentionRequest<'_>,
) -> Result<u64, Error> {
    states(comm, request, &Scratch::Fastest)
        .map(|(states, message)| message.saturating_mul(states.len() as u64 + 1))
}

/// Returns O and LSE of each rank in the messages, and the bytes of a message, which begins with O.
fn states<D: Driver, T: Transport<D>>(
    comm: &Comm<'_, D, T>,
    request: &AttentionRequest<'_>,
    messages: &Scratch,
) -> Result<(Vec<State>, u64), Error> {
    let unsupported = |feature: String, remedy: &str| Err(Error::unsupported(feature, remedy));
    let (KeysValues::Cache(_) | KeysValues::Listed(_)) = request.kv else {
        return unsupported("keys as tensors in decode on several ranks".into(), "take a KV cache or lists");
    };
    if request.queries != Queries::Batched || request.q.shape[1] != 1 {
        let feature = format!("q.shape {:?} in decode on several ranks", request.q.shape);
        return unsupported(
            feature,
            "take one query per sequence: a rank does not know the positions of its keys",
        );
    }
    if request.o.shape[..2] != request.q.shape[..2] {
        let expected = format_args!("it must have the queries of q, {:?}", request.q.shape);
        return Err(Error::invalid("o.shape", format!("{:?}", request.o.shape), expected));
    }
    if !matches!(request.mask, Mask::Full | Mask::Causal) || request.scores.alibi.is_some() {
        let feature = format!("mask {} or slopes in decode on several ranks", request.mask);
        return unsupported(feature, "take a full mask without slopes: a rank does not know positions");
    }
    let others = [
        ("max_logits", request.max_logits.is_some()),
        ("max_logits_head", request.max_logits_head.is_some()),
        ("entropy", request.entropy.is_some()),
        ("variant", request.variant.is_some()),
    ];
    if let Some((name, _)) = others.iter().find(|(_, is_set)| *is_set) {
        let remedy = "leave it out: a rank knows its own keys alone; docs/several-gpus.md has the formulas";
        return unsupported(format!("{name} in decode on several ranks"), remedy);
    }
    let view = &request.o;
    let [batch, rows, heads, _] = view.shape;
    // Absurdly large shapes saturate. The checks of the launches refuse them.
    let product = |of: &[usize]| of.iter().fold(1, |all: u64, extent| all.saturating_mul(*extent as u64));
    let align = |bytes: u64| bytes.checked_next_multiple_of(256).unwrap_or(u64::MAX);
    let (elements, values) = (product(&view.shape), product(&[batch, rows, heads]));
    let o_bytes = align(elements.saturating_mul(view.element_bytes()));
    let message = align(o_bytes.saturating_add(values.saturating_mul(4)));
    let mut memory = Memory::new(messages);
    let states = (0..comm.ranks()).map(|_| {
        let address = memory.take(message);
        let o = TensorView::bshd(address, elements, view.dtype, view.shape);
        let lse = address.saturating_add(o_bytes);
        State::new(o, LseView::contiguous(lse, values, [batch, heads, rows]))
    });
    let states = states.collect();
    memory.rest(0)?;
    Ok((states, message))
}
