//! A mask of one's own in a kernel that gives masks no `shift`: Hopper's, on caches of eight bits.
use contract::F16;
use kernels_gpu::entries::RunAs;
use kernels_gpu::prelude::*;
use spec::{E4m3, FwdHopperDequant, Native, Paged, Sm90a};

#[derive(Clone, Copy)]
struct Shifted(i32);

impl MaskMarker for Shifted {
    type Params = ();
}

impl MaskMod for Shifted {
    fn load(_: &(), of: &Sequence) -> Self {
        Shifted(of.shift)
    }
    fn sees(&self, p: i32, k: i32) -> bool {
        k <= p - self.0
    }
}

type Schedule = FwdHopperDequant<F16, Native<E4m3>, Shifted, 2, 8, 8, 2, true>;

fn main() {
    let _ = <Schedule as RunAs<Paged<Schedule>, Sm90a>>::run_as as fn(_, _, _);
}
