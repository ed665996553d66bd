//! Kernels that would begin before the kernel before them has ended, and that may end without a wait for it.
use contract::{Contract, Dependent, Kernel, Start};
use kernels_gpu::entries::Run;
use misuse::K;
use tile::{Block, Smem};

struct Mine;

impl Kernel for Mine {
    type Params = ();
    const START: Start<Self> = <Dependent<K> as Kernel>::START;
    const THREADS: u32 = 32;
    const SMEM_BYTES: usize = 0;
    fn grid((): &()) -> [u32; 3] {
        [1; 3]
    }
}

impl Run for Dependent<Mine> {
    fn run((): (), _: Block<Self>, _: Smem<Self>) {}
}

fn early(contract: &mut Contract) {
    contract.dependent = true;
}

fn main() {
    let _ = early as fn(&mut _);
}
