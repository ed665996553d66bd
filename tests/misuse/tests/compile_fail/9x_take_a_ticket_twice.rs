//! A ticket that a consumer takes from the counter: no other warp of the block would work on it.
use contract::TileSums;
use tile::tickets::TicketConsumer;

fn take(tickets: &mut TicketConsumer<u32>, sums: &TileSums) -> u32 {
    tickets.take(sums)
}

fn main() {}
