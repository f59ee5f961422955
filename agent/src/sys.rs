//! The agent's only unsafe: kernel calls that no crate wraps safely.

mod terminal;

pub use terminal::Terminal;
