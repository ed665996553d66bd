//! A copied warpgroup: each copy would wait for the other's products.
use misuse::Group;

fn twice(group: Group) -> [Group; 2] {
    [group, group]
}

fn main() {}
