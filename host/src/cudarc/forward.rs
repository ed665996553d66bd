//! Attention of queries, keys and values in cudarc's slices, packed or not.
use super::memory::{Integers, PerHead, Taken};
use super::{Element, FlashAttention, MemoryMut, Room, Tensor, TensorMut, refused};
use crate::{AlibiSlopes, Alignment, Error, Forward, LseView, Mask, Packed, Workspace};
use ::cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut, sys};
use std::sync::Arc;

/// What is asked for: [`Forward`] on cudarc's slices.
#[derive(Clone, Copy)]
#[must_use]
pub struct Request<'a, T> {
    q: Tensor<'a, T>,
    k: Tensor<'a, T>,
    v: Tensor<'a, T>,
    mask: Mask,
    alignment: Alignment,
    scale: Option<f32>,
    softcap: Option<f32>,
    alibi: Option<PerHead<'a>>,
    packed: Option<Starts<'a>>,
}

/// Where packed sequences begin.
#[derive(Clone, Copy)]
struct Starts<'a> {
    q: Integers<'a>,
    k: Integers<'a>,
    used: Option<Integers<'a>>,
    max_q: usize,
    max_k: usize,
}

impl<'a, T: Element> Request<'a, T> {
    /// Full attention with a scale of `1 / sqrt(head_dim)`.
    pub fn new(q: Tensor<'a, T>, k: Tensor<'a, T>, v: Tensor<'a, T>) -> Self {
        let (mask, alignment) = (Mask::Full, Alignment::BottomRight);
        Request { q, k, v, mask, alignment, scale: None, softcap: None, alibi: None, packed: None }
    }

    /// As [`Forward::mask`].
    pub fn mask(self, mask: Mask) -> Self {
        Request { mask, ..self }
    }

    /// As [`Forward::align`].
    pub fn align(self, alignment: Alignment) -> Self {
        Request { alignment, ..self }
    }

    /// As [`Forward::scale`].
    pub fn scale(self, scale: f32) -> Self {
        Request { scale: Some(scale), ..self }
    }

    /// As [`Forward::softcap`]: 0 is none.
    pub fn softcap(self, softcap: f32) -> Self {
        Request { softcap: (softcap != 0.0).then_some(softcap), ..self }
    }

    /// As [`Forward::alibi`]: a slope for each query head, or for each sequence and query head.
    pub fn alibi(self, slopes: PerHead<'a>) -> Self {
        Request { alibi: Some(slopes), ..self }
    }

    /// Sequences of any lengths, one behind the other, as [`Packed`] has them: one fewer than there are
    /// numbers in each of `cu_seqlens_q` and `cu_seqlens_k`. Tensors are `[1, rows of all sequences, heads,
    /// head_dim]`.
    pub fn packed(
        self,
        cu_seqlens_q: impl Into<Integers<'a>>,
        cu_seqlens_k: impl Into<Integers<'a>>,
        max_seqlen_q: usize,
        max_seqlen_k: usize,
    ) -> Self {
        let (q, k) = (cu_seqlens_q.into(), cu_seqlens_k.into());
        let packed = Starts { q, k, used: None, max_q: max_seqlen_q, max_k: max_seqlen_k };
        Request { packed: Some(packed), ..self }
    }

    /// So many keys of each packed sequence, where that is less than its rows. Without
    /// [`Request::packed`], which comes first, there are none.
    pub fn used(mut self, seqused_k: impl Into<Integers<'a>>) -> Self {
        if let Some(packed) = &mut self.packed {
            packed.used = Some(seqused_k.into());
        }
        self
    }

    /// Its inputs in the order of a stream, with an output where no memory is.
    fn on(&self, taken: &mut Taken<'a>) -> Result<Forward<'static>, Error> {
        let (q, k, v) = (self.q.on(taken, "q")?, self.k.on(taken, "k")?, self.v.on(taken, "v")?);
        let mut forward = Forward::new(q, k, v, self.q.output()).mask(self.mask).align(self.alignment);
        (forward.scale, forward.softcap) = (self.scale, self.softcap);
        forward.alibi = self.alibi.map(|slopes| self::slopes(taken, slopes)).transpose()?;
        if let Some(Starts { q, k, used, max_q, max_k }) = self.packed {
            let q = taken.integers("packed.cu_seqlens_q", q)?;
            let k = taken.integers("packed.cu_seqlens_k", k)?;
            let mut packed = Packed::new(sequences(q.elements), q, k, max_q, max_k);
            packed.seqused_k = used.map(|used| taken.integers("packed.seqused_k", used)).transpose()?;
            forward.packed = Some(packed);
        }
        Ok(forward)
    }
}

/// Slopes in the order of a stream.
pub(super) fn slopes<'a>(
    taken: &mut Taken<'a>,
    PerHead { data, strides }: PerHead<'a>,
) -> Result<AlibiSlopes, Error> {
    let (address, elements) = taken.read("alibi", data)?;
    Ok(AlibiSlopes::new(address, elements).strides(strides))
}

/// Packed sequences that begin and end at so many numbers. Of none there is no sequence, which is refused.
pub(super) fn sequences(numbers: u64) -> usize {
    numbers.saturating_sub(1) as usize
}

/// The log-sum-exp of an output, contiguous, in the order of a stream.
pub(super) fn lse<'t, 'a: 't, const MOST: usize>(
    taken: &mut Taken<'t, MOST>,
    lse: Option<&'a mut (dyn MemoryMut<f32> + 'a)>,
    [batch, seqlen, heads, _]: [usize; 4],
) -> Result<Option<LseView>, Error> {
    let Some(lse) = lse else { return Ok(None) };
    let (address, elements) = taken.write("lse", lse)?;
    Ok(Some(LseView::contiguous(address, elements, [batch, heads, seqlen])))
}

impl FlashAttention {
    /// Attention on `stream`: O, contiguous and of `q`'s shape. What is refused keeps no memory. Rows of
    /// O that are no packed sequence's are 0.
    ///
    /// # Errors
    /// [`Error::Invalid`] and [`Error::Unsupported`] name what is wrong, [`Error::Driver`] what the driver
    /// refuses.
    pub fn forward<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        request: &Request<'_, T>,
    ) -> Result<CudaSlice<T>, Error> {
        let mut o = self.allocate(stream, request)?;
        self.forward_into(stream, request, TensorMut::new(&mut o, request.q.shape), None)?;
        Ok(o)
    }

    /// The same, and the log-sum-exp of each row: `[batch, heads, seqlen]`, contiguous, as in [`LseView`].
    /// Rows that are no packed sequence's have -inf, so that a merge gives them no weight.
    ///
    /// # Errors
    /// Those of [`FlashAttention::forward`].
    pub fn forward_with_lse<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        request: &Request<'_, T>,
    ) -> Result<(CudaSlice<T>, CudaSlice<f32>), Error> {
        let mut o = self.allocate(stream, request)?;
        let [batch, seqlen, heads, _] = request.q.shape;
        let mut lse = log_sum_exps(stream, batch * heads * seqlen, request.packed.is_some())?;
        self.forward_into(stream, request, TensorMut::new(&mut o, request.q.shape), Some(&mut lse))?;
        Ok((o, lse))
    }

    /// The same with the workspace, where one is wanted, in a room that is kept from call to call; and with
    /// the log-sum-exp where it is asked for.
    ///
    /// # Errors
    /// Those of [`FlashAttention::forward`].
    pub fn forward_in<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        request: &Request<'_, T>,
        room: &mut Room,
        with_lse: bool,
    ) -> Result<(CudaSlice<T>, Option<CudaSlice<f32>>), Error> {
        let mut o = self.allocate(stream, request)?;
        let [batch, seqlen, heads, _] = request.q.shape;
        let values = batch * heads * seqlen;
        let mut lse = with_lse.then(|| log_sum_exps(stream, values, request.packed.is_some())).transpose()?;
        let sums = lse.as_mut().map(|lse| lse as &mut dyn MemoryMut<f32>);
        self.launch_forward(stream, request, TensorMut::new(&mut o, request.q.shape), sums, Some(room))?;
        Ok((o, lse))
    }

    /// The same into memory of the caller's: O, and where `lse` is given the log-sum-exp of each row,
    /// `[batch, heads, seqlen]`, contiguous. Rows that are no packed sequence's stay as they are, in both.
    /// Few queries on many keys, not packed, take a workspace, which is allocated and freed in the stream's
    /// order.
    ///
    /// # Errors
    /// Those of [`FlashAttention::forward`].
    pub fn forward_into<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        request: &Request<'_, T>,
        o: TensorMut<'_, T>,
        lse: Option<&mut dyn MemoryMut<f32>>,
    ) -> Result<(), Error> {
        self.launch_forward(stream, request, o, lse, None)
    }

    fn launch_forward<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        request: &Request<'_, T>,
        o: TensorMut<'_, T>,
        lse: Option<&mut dyn MemoryMut<f32>>,
        room: Option<&mut Room>,
    ) -> Result<(), Error> {
        let mut workspace;
        let mut taken = Taken::on(self, stream)?;
        let mut forward = request.on(&mut taken)?;
        forward.o = o.on(&mut taken, "o")?;
        forward.lse = self::lse(&mut taken, lse, request.q.shape)?;
        let plan = self.forwards.of(self, &forward)?;
        let bytes = plan.workspace_bytes();
        match room {
            _ if bytes == 0 => {}
            Some(room) => {
                room.grow(self, stream, taken.capturing, [bytes, 0])?;
                (forward.workspace, _) = room.on(&mut taken)?;
            }
            None => {
                // SAFETY: its contents mean nothing before the launch.
                workspace = unsafe { stream.alloc::<u8>(bytes as usize) }.map_err(refused("alloc"))?;
                let (address, bytes) = taken.write("workspace", &mut workspace)?;
                forward.workspace = Some(Workspace { address, bytes });
            }
        }
        // SAFETY: all that the request names was taken.
        unsafe { self.launch(&plan, &forward, stream) }
    }

    /// Memory for O, once it is known that the request is valid.
    fn allocate<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        request: &Request<'_, T>,
    ) -> Result<CudaSlice<T>, Error> {
        self.forwards.of(self, &request.on(&mut Taken::on(self, stream)?)?)?;
        output(stream, request.q.shape.iter().product(), request.packed.is_some())
    }
}

/// Memory for an output. Where kernels write only the rows of sequences it is zeros.
pub(super) fn output<T: super::Number>(
    stream: &Arc<CudaStream>,
    elements: usize,
    packed: bool,
) -> Result<CudaSlice<T>, Error> {
    let memory = match packed {
        true => stream.alloc_zeros(elements),
        // SAFETY: the kernel writes every element, in the stream's order before anybody else reads one.
        false => unsafe { stream.alloc(elements) },
    };
    memory.map_err(refused("alloc"))
}

/// Memory for log-sum-exps. Where kernels write only the rows of sequences, the others have -inf: they have
/// seen no key, and a merge gives them no weight.
pub(super) fn log_sum_exps(
    stream: &Arc<CudaStream>,
    rows: usize,
    packed: bool,
) -> Result<CudaSlice<f32>, Error> {
    // SAFETY: the kernel, or before it what follows here, writes every element, in the stream's order before
    // anybody else reads one.
    let mut memory = unsafe { stream.alloc::<f32>(rows) }.map_err(refused("alloc"))?;
    if packed {
        let (address, _used) = memory.device_ptr_mut(stream);
        // SAFETY: that many f32 of this memory, in the order of its stream, whose context `alloc` has bound.
        let filled = unsafe {
            sys::cuMemsetD32Async(address, f32::NEG_INFINITY.to_bits(), rows, stream.cu_stream()).result()
        };
        filled.map_err(refused("cuMemsetD32Async"))?;
    }
    Ok(memory)
}
