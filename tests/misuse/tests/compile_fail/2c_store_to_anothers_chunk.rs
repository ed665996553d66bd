//! A thread writes another thread's chunk of a row. A thread can name only its own chunk.
use contract::F16;
use tile::global::{GlobalRows, OwnChunk};

fn store(out: &GlobalRows<F16, 4>) {
    out.store_own(&OwnChunk { head: 0, row: 0, chunk: 0 }, [1.0; 8]);
}

fn main() {}
