//! What is handed from warp to warp are fragments: others would say how large they are themselves.
use tile::exchange::Registers;

struct Lie;

impl Registers for Lie {
    const COUNT: usize = 1;
    fn zero() -> Self {
        Lie
    }
    fn each_register(&mut self, mut f: impl FnMut(&mut f32)) {
        (0..10000).for_each(|_| f(&mut 1.0))
    }
}

fn main() {}
