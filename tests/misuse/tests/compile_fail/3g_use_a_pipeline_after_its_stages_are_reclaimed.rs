//! A pipeline used after `reclaim` gave its stages to something else.
use misuse::{K, Running};
use tile::Block;

fn end(mut kv: Running, mut block: Block<K>) {
    let _scratch = kv.reclaim(&mut block);
    kv.advance(&mut block, |_, _| {});
}

fn main() {}
