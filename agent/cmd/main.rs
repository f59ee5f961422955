//! The `pintle` command.

fn main() {}
