//! A warpgroup cannot be copied: two that issue would each wait for the other's products, too.
use misuse::Group;

fn twice(group: Group) -> [Group; 2] {
    [group, group]
}

fn main() {}
