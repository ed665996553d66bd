//! Variants of the caller: their tables, their parameters, and refusals.
use super::{launched, zeros};
use crate::fake_cuda::in_fake_cuda;
use cudarc::driver::CudaContext;
use ferroflash::Error;
use ferroflash::cudarc::{FlashAttention, Inputs, OwnVariant, ScratchMemory, Slice, Tensor};
use ferroflash::request::Mask;
use ferroflash::variant::{Variant, VariantKernel};
use half::f16;
use spec::{And, Causal, F16, Fwd, FwdParams, Scored, Sink, SinkParams, With};
use std::sync::Mutex;

type Sinks = Scored<Causal, Sink>;
type Kernel = With<Fwd<F16, Sinks, 8, 2, 1, 4, 4, 4, 2>>;

/// PTX of the kernel, as far as it is read.
const PTX: &str = ".visible .entry sinks_d64(\n\t.param .align 8 .b8 p[336]\n)";
const _: () = assert!(size_of::<FwdParams>() + size_of::<SinkParams>() == 336);

static SINKS: Variant<Sinks> = Variant::new("sinks", &[VariantKernel::new::<Kernel>("sinks_d64", PTX)]);

/// The addresses and lengths of the tables of all launches.
static TABLES: Mutex<Vec<(u64, u32)>> = Mutex::new(Vec::new());

#[test]
fn tables_are_the_slices_of_each_launch() {
    in_fake_cuda("cudarc_front::variant::tables_are_the_slices_of_each_launch", |cuda| {
        let (context, other) =
            (CudaContext::new(0).expect("a device"), CudaContext::new(1).expect("a device"));
        let stream = context.new_stream().expect("a stream");
        let attention = FlashAttention::new(&context).expect("a driver");
        // SAFETY: the fake driver runs nothing.
        let own = unsafe {
            OwnVariant::new(&SINKS, |tables, request| {
                TABLES.lock().expect("no panic").extend(tables.iter().map(|table| (table.base, table.count)));
                match tables {
                    [logits] if logits.count as usize >= request.q.shape[2] => {
                        Ok(And::new((), SinkParams { base: logits.base }))
                    }
                    _ => Err(Error::invalid("tables", tables.len(), "one table with a logit per query head")),
                }
            })
        };
        let (q, kv) = (zeros(&stream, 100 * 8 * 64), zeros(&stream, 100 * 2 * 64));
        let (q, kv) = (Tensor::of(&q, [1, 100, 8, 64]), Tensor::of(&kv, [1, 100, 2, 64]));
        let logits = stream.alloc_zeros::<f32>(16).expect("room");
        let (first, second) = (logits.slice(..8), logits.slice(8..));
        let mut scratch = ScratchMemory::new();
        let mut run = |inputs| attention.attend::<f16>(&stream, &inputs, &mut scratch).map(|_| ());
        cuda.calls();
        let both = [[Slice::new(&first)], [Slice::new(&second)]];
        for tables in &both {
            run(Inputs::of(q, kv, kv).own(&own, tables)).expect("valid");
        }
        assert_eq!(launched(cuda), ["sinks"; 2]);
        let mut tables = TABLES.lock().expect("no panic").clone();
        tables.dedup();
        let base = tables[0].0;
        assert_eq!(tables, [(base, 8), (base + 32, 8)], "a plan serves other tables");

        let elsewhere = other.new_stream().expect("a stream").alloc_zeros::<f32>(8).expect("room");
        let (own_table, their_table) = ([Slice::new(&first)], [Slice::new(&elsewhere)]);
        let many = [Slice::new(&first); 5];
        let (short, empty) = (logits.slice(..7), logits.slice(..0));
        let (short, empty) = ([Slice::new(&short)], [Slice::new(&empty)]);
        let full = Inputs::of(q, kv, kv);
        for (name, inputs) in [
            ("variant.table", full.own(&own, &their_table)),
            ("variant.tables", full.own(&own, &many)),
            ("variant.table", full.own(&own, &empty)),
            ("tables", full.own(&own, &short)),
            ("tables", full.own(&own, &[])),
            ("softcap", full.own(&own, &own_table).softcap(3.0)),
            ("mask", full.mask(Mask::Window { left: Some(3), right: None }).own(&own, &own_table)),
        ] {
            let error = run(inputs).expect_err(name).to_string();
            assert!(error.contains(&format!("invalid {name}: ")), "{name}: {error}");
        }
        assert!(launched(cuda).is_empty());
        cuda.faults();
    });
}
