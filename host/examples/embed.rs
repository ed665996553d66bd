//! Attention in a `cust` program, with the program's context, stream and buffers.
use cust::{memory::DeviceBuffer, prelude::*};
use ferroflash::driver::CustDriver;
use ferroflash::request::{AttentionRequest, Mask, TensorView};
use ferroflash::{Attention, DType};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let context = match cust::quick_init() {
        Ok(context) => context,
        Err(_) => return Err(CustDriver::new(0).err().map_or("no device".into(), Into::into)),
    };
    let attention = Attention::new(CustDriver::with_context(&context)?);
    let stream = attention.driver().adopt(Stream::new(StreamFlags::NON_BLOCKING, None)?);

    // One batch of 1000 positions, 8 query heads on 2 key heads, head dim 64. Every input is 1.0, so every
    // output is 1.0 too.
    let (shape, kv_shape) = ([1, 1000, 8, 64], [1, 1000, 2, 64]);
    const ONE: u16 = 0x3c00;
    let q = DeviceBuffer::from_slice(&vec![ONE; 1000 * 8 * 64])?;
    let k = DeviceBuffer::from_slice(&vec![ONE; 1000 * 2 * 64])?;
    let v = DeviceBuffer::from_slice(&vec![ONE; 1000 * 2 * 64])?;
    let o = DeviceBuffer::from_slice(&vec![0u16; 1000 * 8 * 64])?;
    let view = |buffer: &DeviceBuffer<u16>, shape| {
        TensorView::bshd(buffer.as_device_ptr().as_raw(), buffer.len() as u64, DType::F16, shape)
    };

    let forward =
        AttentionRequest::dense(view(&q, shape), view(&k, kv_shape), view(&v, kv_shape), view(&o, shape));
    let forward = forward.mask(Mask::Causal);
    let plan = attention.plan(&forward)?;
    println!("{} on {:?} blocks: {}", plan.contract().symbol, plan.grid(), plan.reason());
    // SAFETY: the buffers live until the stream has been waited for, and nothing else uses them.
    unsafe { attention.launch(&plan, &forward, &stream)? };
    stream.synchronize()?;
    assert!(o.as_host_vec()?.iter().all(|x| *x == ONE));
    println!("every output is 1.0");
    Ok(())
}
