//! A captured step that is replayed after other steps.
use crate::tally::{furthest, Tally};
use candle::{DType, Device, Result, Tensor};
use ferroflash_candle::{Attend, KvCache, PagePool, Sequence, Step};

/// Captures a step's append and attention as a graph, and replays the graph for other steps with equal
/// numbers of sequences.
pub fn graph(device: &Device, tally: &mut Tally) -> Result<()> {
    use candle::cuda_backend::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
    let (page, sequences, [h, hk, d]) = (16, 3, [8, 2, 64]);
    let random = |shape: &[usize]| Tensor::randn(0f32, 1., shape, device)?.to_dtype(DType::F16);
    let mut cache = KvCache::new((600, page, hk, d), DType::F16, device)?;
    // Fills the cache as if earlier steps had filled it.
    let slots = Tensor::arange(0i64, 600 * page as i64, device)?;
    let [k, v] = [random(&[600 * page, hk, d])?, random(&[600 * page, hk, d])?];
    ferroflash_candle::append(&k, &v, cache.tensors()[0], cache.tensors()[1], &slots, None)?;
    let (q, new) = (random(&[sequences, h, d])?, random(&[sequences, hk, d])?);
    let (mut pool, mut step) =
        (PagePool::new(600, page), Step::new(sequences, sequences, 200, page, device)?);
    let mut all: Vec<_> = (0..sequences).map(|_| Sequence::new()).collect();
    let out = Tensor::zeros((sequences, h, d), DType::F16, device)?;
    let attend = Attend::causal(0.125);
    let stream = device.as_cuda_device()?.cuda_stream();
    let said = |e| candle::Error::Cuda(Box::new(e));
    let mut captured = None;
    for keys in [[2000, 30, 1], [2001, 700, 90], [3000, 701, 91]] {
        for (sequence, keys) in all.iter_mut().zip(keys) {
            let before = sequence.keys();
            pool.grow(sequence, keys - before + 1)?;
            sequence.advance(keys - before);
        }
        let now: Vec<_> = all.iter().map(|sequence| (sequence, 1)).collect();
        step.set(&now)?;
        cache.append(&new, &new, &step)?;
        let expected = cache.attend(&q, &step, &attend)?;
        if captured.is_none() {
            stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).map_err(said)?;
            let work = cache
                .append(&new, &new, &step)
                .and_then(|()| out.slice_set(&cache.attend(&q, &step, &attend)?, 0, 0));
            let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
            let graph = stream.end_capture(flags).map_err(said)?;
            work?;
            captured = graph;
        }
        let graph = captured.as_ref().ok_or_else(|| candle::Error::msg("nothing was captured"))?;
        graph.launch().map_err(said)?;
        tally.say(&format!("a graph on {keys:?} keys"), furthest(&out, &expected), 0.0);
    }
    Ok(())
}
