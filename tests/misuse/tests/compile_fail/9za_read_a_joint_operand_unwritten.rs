//! An operand of all warpgroups, published before a step has written it.
use contract::F16;
use misuse::Group;
use tile::wgmma::JointA;

fn read(group: &mut Group, joint: &mut JointA<F16, 4, 8>) {
    joint.publish(group);
}

fn main() {}
