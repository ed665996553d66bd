//! Masks and scores in safe code that describe memory themselves: on the device they do not compile.
#![forbid(unsafe_code)]

/// Descriptions that nobody made (feature `forged-made`).
#[cfg(feature = "forged-made")]
pub mod made {
    use kernels_gpu::prelude::*;
    use kernels_gpu::spec::{Head, SinkParams};

    /// Names an address.
    pub fn word() -> i32 {
        GlobalInts::new(&Integers { base: 0x7000_0000_0000, count: u32::MAX, reserved: 0 }).nearest(0)
    }

    /// Names an address of logits.
    pub fn logit(of: &Sequence) -> Sink {
        Sink::load(&SinkParams { base: 0x7000_0000_0000 }, of)
    }

    /// Names a head.
    pub fn head() -> Head {
        Head { sequence: 1 << 20, head: 1 << 20 }
    }
}

/// Descriptions that somebody changed (feature `forged-changed`).
#[cfg(feature = "forged-changed")]
pub mod changed {
    use kernels_gpu::prelude::*;
    use kernels_gpu::spec::{BiasParams, PerHead};

    /// Names a length.
    pub fn behind(mut table: Integers) -> i32 {
        table.count = u32::MAX;
        GlobalInts::new(&table).nearest(1 << 20)
    }

    /// Names a stride.
    pub fn far(mut slopes: PerHead) -> PerHead {
        slopes.head_bytes = 1 << 40;
        slopes
    }

    /// Names a number of rows.
    pub fn rows(mut bias: BiasParams, of: &Sequence) -> Bias<F32> {
        bias.rows = u32::MAX;
        Bias::load(&bias, of)
    }
}
