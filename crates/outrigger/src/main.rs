//! Outrigger runs pods whose containers start, run and stop in the right order.

fn main() {}
