//! A new kind of register fragment for the exchange between warps, which chooses its size.
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
