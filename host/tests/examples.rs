//! Runs the examples that need no GPU.
#[path = "../examples/decode.rs"]
mod decode;
#[path = "../examples/dense.rs"]
mod dense;
#[cfg(all(feature = "sim", feature = "kernels"))]
#[path = "../examples/simulator.rs"]
mod simulator;
#[path = "../examples/varlen.rs"]
mod varlen;

#[test]
fn examples_plan() {
    for (name, main) in
        [("dense", dense::main as fn() -> _), ("decode", decode::main), ("varlen", varlen::main)]
    {
        main().unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[cfg(all(feature = "sim", feature = "kernels"))]
#[test]
fn the_example_runs_in_the_simulator() {
    simulator::main().expect("the simulator");
}
