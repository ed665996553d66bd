//! Parameters of two scores with four bytes between them.
use spec::{And, Plain};

fn main() {
    And { a: 1u32, b: 2u64 }.write(&mut [0; 16]);
}
