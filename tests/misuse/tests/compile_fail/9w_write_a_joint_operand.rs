//! An operand of all warpgroups, written while their products may read it.
use contract::F16;
use misuse::Group;
use tile::mma::AFrag;
use tile::wgmma::JointA;

fn write(group: &mut Group, joint: &mut JointA<F16, 4, 8>, ds: &AFrag<F16, 1, 4>) {
    joint.write(ds, group);
    joint.publish(group);
}

fn main() {}
