//! Backward problems on a device.
use super::{BIAS, GradientReference, NAMES, SINKS, TABLE, Upstream};
use crate::arithmetic::decode;
use crate::attention::exact;
use crate::case::{Backward, Case, Pages};
use crate::cycled;
use crate::device_lengths::DeviceLengths;
use crate::extras::BiasTensor;
use crate::inputs::Random;
use crate::memory::Memory;
use crate::place::{Layout, Place};
use crate::tensor::{HostTensor, TensorError};
use crate::tolerance::{Rule, Worst};
use crate::work::{
    Binder, GUARD, Judge, Judgement, LaunchOptions, POISON, Rows, Work, Written, guards, unguarded,
};
use ferroflash::DType;
use ferroflash::plan::AnyRequest;
use ferroflash::request::{AttentionBackward, AttentionRequest, LseView, Sinks, TableGradient};

/// A backward problem in host memory: the forward's inputs and outputs, and the gradients of its outputs.
#[derive(Clone, Debug)]
pub struct BackwardMemory {
    /// The forward, whose problem is on tensors.
    pub forward: Memory,
    /// O, in the place that the forward has for it.
    pub o: Vec<u16>,
    /// The LSE, `[batch, heads, rows]`.
    pub lse: Vec<f32>,
    /// The gradient of O, in O's place.
    pub d_o: Vec<u16>,
    /// The gradient of the LSE, if it has one.
    pub d_lse: Option<Vec<f32>>,
    /// The places of dQ, dK and dV, each in its own buffer.
    pub gradients: [Place; 3],
    /// The number of entries of the table whose gradient the request wants; 0 if it wants none.
    pub table: usize,
    /// Whether the request wants the gradient of the bias, which has the bias' rows in memory.
    pub dbias: bool,
    /// Whether the device computes O and LSE before the backward pass. `o` and `lse` are zeros until then.
    forward_runs: bool,
}

impl BackwardMemory {
    /// Draws the tensors of a case, and computes O and LSE.
    ///
    /// # Panics
    /// Panics if the case is not on tensors.
    pub fn new(case: &Case) -> Self {
        assert!(matches!(case.pages, Pages::Tensors(_)), "{case}: it must be on tensors");
        Self::on(case.memory(), case.seed, case.backward == Some(Backward { d_lse: true }))
    }

    /// Computes O and LSE of a forward, and draws their gradients.
    ///
    /// # Panics
    /// Panics if the forward's tensors are not valid.
    pub fn on(forward: Memory, seed: u64, d_lse: bool) -> Self {
        let outputs = exact(&forward.inputs().expect("a case has valid tensors"));
        let (o, lse) = (forward.place(&outputs), forward.place_rows(&outputs).lse.unwrap_or_default());
        let mut random = Random::new(!seed);
        let d_o = random.normals(forward.problem.dtype, o.len());
        let d_lse = d_lse.then(|| lse.iter().map(|_| random.normal() as f32).collect());
        let layout = if forward.o.strides[1] < forward.o.strides[2] { Layout::Bhsd } else { Layout::Packed };
        Self::of(forward, [o, d_o], lse, d_lse, layout)
    }

    /// Returns a problem of these outputs of a forward, `[O, dO]` in the forward's place of O, with gradients
    /// in `layout`, and with the gradient of a bias if the bias has a row for each query.
    pub fn of(
        forward: Memory,
        [o, d_o]: [Vec<u16>; 2],
        lse: Vec<f32>,
        d_lse: Option<Vec<f32>>,
        layout: Layout,
    ) -> Self {
        let [q, k, v, _] = forward.problem.shapes();
        let gradients = [q, k, v].map(|shape| Place::alone(0, layout, shape));
        let bias = forward.extras.bias.as_ref();
        let dbias = bias.is_some_and(|bias| bias.shape()[2] == forward.problem.seqlen_q);
        let (table, forward_runs) = (0, false);
        BackwardMemory { forward, o, lse, d_o, d_lse, gradients, table, dbias, forward_runs }
    }

    /// Returns inputs for a measurement of the backward pass of a forward with such inputs. The device
    /// computes O and LSE, because that is fast.
    pub fn to_measure(forward: Memory, layout: Layout) -> Self {
        let (dtype, elements) = (forward.problem.dtype, forward.o.span());
        let rows = forward.lse_shape().iter().product();
        let d_o = cycled::halves(dtype, forward.buffers.len(), elements);
        let memory = Self::of(forward, [vec![0; elements], d_o], vec![0.0; rows], None, layout);
        BackwardMemory { forward_runs: true, ..memory }
    }

    /// Returns the forward.
    fn forward(&self, binder: &mut Binder<'_>) -> AttentionRequest<'static> {
        let o = binder.input("o", || bytes!(self.o));
        let lse = binder.input("lse", || bytes!(self.lse));
        self.forward.request(binder, o, lse)
    }

    /// Returns the name of the first tensor of the inputs with an infinity or a NaN.
    pub fn not_finite(&self) -> Option<&'static str> {
        let (inputs, upstream) = (self.forward.inputs().ok()?, self.upstream());
        let tensors = [("q", inputs.q()), ("k", inputs.k()), ("v", inputs.v()), ("do", upstream.d_o)];
        let is_finite = |tensor: HostTensor<'_>| {
            let [batches, rows, heads, _] = tensor.shape();
            let all = (0..batches * rows * heads).map(|i| [i / heads / rows, i / heads % rows, i % heads]);
            all.flat_map(|[batch, row, head]| tensor.values(batch, row, head)).all(f32::is_finite)
        };
        let d_lse = upstream.d_lse.filter(|all| !all.iter().all(|x| x.is_finite())).map(|_| "dlse");
        tensors.into_iter().find(|(_, tensor)| !is_finite(*tensor)).map(|(name, _)| name).or(d_lse)
    }

    /// Returns the gradients of the outputs.
    ///
    /// # Panics
    /// Panics if `d_o` is shorter than its place.
    pub fn upstream(&self) -> Upstream<'_> {
        let d_o = self.tensor(&self.d_o, 0, self.forward.o).expect("dO has O's length");
        Upstream { d_o, d_lse: self.d_lse.as_deref() }
    }

    /// Returns the rows of each gradient that the kernels write. In a varlen batch, these are the first rows,
    /// up to the end of the last sequence.
    fn written(&self) -> [Place; 3] {
        let Some(sequences) = &self.forward.sequences else { return self.gradients };
        let [of_queries, of_keys] = [sequences.rows(), sequences.key_rows()];
        let rows = [of_queries, of_keys, of_keys].into_iter();
        let mut places = self.gradients;
        places.iter_mut().zip(rows).for_each(|(place, rows)| place.shape[1] = rows);
        places
    }

    /// Returns the bytes of a gradient in its place: of Q, K or V. Rows that no kernel writes are 0.
    pub fn gradient(&self, of: usize, written: &Written) -> Vec<u8> {
        let bytes = unguarded(&written.outputs[of]);
        let mut all = vec![0; bytes.len()];
        for at in self.written()[of].elements().map(|at| 2 * at..2 * at + 2) {
            all[at.clone()].copy_from_slice(&bytes[at]);
        }
        all
    }

    /// Returns the number of sinks.
    fn sinks(&self) -> usize {
        self.forward.extras.sinks.as_ref().map_or(0, Vec::len)
    }

    /// Returns the output with the gradient of sinks, which stands behind those of Q, K and V.
    pub fn dsinks<'w>(&self, written: &'w Written) -> Option<&'w Vec<u8>> {
        written.outputs.get(3).filter(|_| self.sinks() > 0)
    }

    /// Returns the output with the gradient of a table, which is the last one.
    fn dtable<'w>(&self, written: &'w Written) -> Option<&'w Vec<u8>> {
        written.outputs.last().filter(|_| self.table > 0)
    }

    /// Returns the bias whose gradient the request wants.
    fn trained_bias(&self) -> Option<&BiasTensor> {
        self.forward.extras.bias.as_ref().filter(|_| self.dbias)
    }

    /// Returns the gradient of the bias, contiguous, with its type and shape. It is the last output.
    pub fn dbias(&self, written: &Written) -> Option<(DType, [usize; 4], Vec<u8>)> {
        let bias = self.trained_bias()?;
        let [elements, _] = bias.of_rows(unguarded(written.outputs.last()?));
        Some((bias.dtype(), bias.shape(), elements))
    }

    fn tensor<'a>(
        &self,
        bits: &'a [u16],
        offset: usize,
        place: Place,
    ) -> Result<HostTensor<'a>, TensorError> {
        HostTensor::new(bits, offset, self.forward.problem.dtype, place.shape, place.strides)
    }

    /// Judges the gradients, and the elements around them.
    fn judge_written(&self, reference: &GradientReference, written: &Written) -> Judgement {
        let (outside, worst) = self.worst(reference, written);
        let of_bias = self.trained_bias().and_then(|bias| Some((bias, written.outputs.last()?)));
        let gaps = of_bias.iter().flat_map(|(bias, all)| {
            let [_, gaps] = bias.of_rows(unguarded(all));
            gaps
        });
        let outside = outside + gaps.filter(|byte| *byte != POISON).count();
        let of_bias = of_bias.map(|(_, all)| all);
        let others = [(SINKS, self.dsinks(written)), (TABLE, self.dtable(written)), (BIAS, of_bias)];
        let others = others.into_iter().filter_map(|(name, all)| Some((name, all?)));
        let outside =
            others.fold(Judgement::outside(outside), |outside, (name, all)| outside.and(guards(name, all)));
        worst.map_or_else(
            || Judgement::failed("a gradient has another shape"),
            |worst| outside.and(worst.into()),
        )
    }

    /// Returns the number of elements that were written outside of the gradients, and the element of each
    /// gradient that has elements with the largest error; `None` if a gradient has another shape.
    pub(crate) fn worst(
        &self,
        reference: &GradientReference,
        written: &Written,
    ) -> (usize, Option<Vec<Worst>>) {
        let all: Vec<Vec<u16>> = written.outputs.iter().map(|output| numbers!(u16, output)).collect();
        let places = self.written();
        let outside = self.strays(places, written);
        let tensors = [0, 1, 2].map(|of| {
            let has_rows = places[of].shape[1] > 0;
            has_rows.then(|| self.tensor(&all[of], GUARD / 2, places[of])).transpose()
        });
        match tensors {
            [Ok(dq), Ok(dk), Ok(dv)] => {
                let others = [self.dsinks(written), self.dtable(written)];
                let [dsinks, dtable] = others.map(|all| all.map(|all| numbers!(f32, unguarded(all))));
                let dbias = self.dbias(written).map(|(dtype, _, all)| BiasTensor::numbers(dtype, &all));
                let others = [dsinks.as_deref(), dtable.as_deref().or(dbias.as_deref())];
                (outside, Some(reference.judge([dq.as_ref(), dk.as_ref(), dv.as_ref()], others)))
            }
            _ => (outside, None),
        }
    }

    /// Returns the number of elements that were written outside of these places of the gradients.
    fn strays(&self, places: [Place; 3], written: &Written) -> usize {
        let all = written.outputs.iter().map(|output| numbers!(u16, output));
        all.zip(places).map(|(all, place)| place.strays(&all, u16::from_ne_bytes([POISON; 2]))).sum()
    }
}

impl Work for BackwardMemory {
    fn request<'a>(&'a self, binder: &mut Binder<'_>, options: LaunchOptions<'a>) -> AnyRequest<'a> {
        let (dtype, forward) = (self.forward.problem.dtype, self.forward(binder));
        let d_o = binder.input("d_o", || bytes!(self.d_o));
        let d_o = self.forward.o.view(d_o, self.d_o.len(), dtype);
        let [dq, dk, dv] = [0, 1, 2].map(|of| {
            let place = self.gradients[of];
            place.view(binder.guarded(NAMES[of], place.span() * 2), place.span(), dtype)
        });
        let mut backward = AttentionBackward::new(forward, d_o, dq, dk, dv).scratch(options.scratch);
        let (shape, sinks) = (self.forward.lse_shape(), self.sinks());
        backward.d_lse = self.d_lse.as_ref().map(|d_lse| {
            LseView::contiguous(binder.input("d_lse", || bytes!(d_lse)), d_lse.len() as u64, shape)
        });
        backward.dsinks =
            (sinks > 0).then(|| Sinks { address: binder.guarded(SINKS, sinks * 4), elements: sinks as u64 });
        let entries = self.table;
        backward.dtable = (entries > 0)
            .then(|| TableGradient { address: binder.guarded(TABLE, entries * 4), elements: entries as u64 });
        let bias = self.trained_bias();
        backward.dbias = bias.map(|bias| bias.view(binder.guarded(BIAS, bias.len())));
        AnyRequest::Backward(backward)
    }

    fn before<'a>(&'a self, binder: &mut Binder<'_>) -> Option<AnyRequest<'a>> {
        self.forward_runs.then(|| AnyRequest::Attention(self.forward(binder)))
    }

    fn rounds(&self) -> usize {
        self.forward.rounds()
    }

    fn rows(&self, written: &Written) -> Option<Rows> {
        let dtype = self.forward.problem.dtype;
        let places = self.written();
        let columns = places[0].shape[3].max(places[2].shape[3]);
        let gradient = |(output, place): (&Vec<u8>, Place)| {
            let all = numbers!(u16, output);
            let all: Vec<_> = place.elements().map(|at| decode(dtype, all[GUARD / 2 + at])).collect();
            // Narrower rows end in zeros.
            let row = |row: &[f32]| [row, &vec![0.0; columns - row.len()]].concat();
            all.chunks(place.shape[3]).flat_map(row).collect::<Vec<_>>()
        };
        let o = written.outputs.iter().zip(places).flat_map(gradient).collect();
        let reference = GradientReference::new(&self.forward.inputs().ok()?, &self.upstream());
        let rows = places.map(|place| place.shape[..3].iter().product());
        let tolerances = rows.into_iter().zip(reference.tolerances());
        let tolerances = tolerances.flat_map(|(rows, of)| std::iter::repeat_n(of, rows)).collect();
        Some(Rows { dtype, columns, o, lse: vec![], tolerances, is_of_e4m3: false })
    }

    fn judge(&self, _: Rule) -> Result<Judge<'_>, TensorError> {
        let reference = GradientReference::new(&self.forward.inputs()?, &self.upstream());
        // O and the LSE belong to the first launch's sequences.
        Ok(Box::new(move |round, written| match self.forward.device_lengths[round] {
            DeviceLengths::Filled => self.judge_written(&reference, written),
            _ => Judgement::outside(self.strays(self.gradients, written)),
        }))
    }
}
