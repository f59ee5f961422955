//! The agent's only unsafe: kernel calls that no crate wraps safely.
//!
//! Owns no state. Each block says which preconditions hold and why.
#![expect(
    unsafe_code,
    reason = "kernel calls need it; nothing outside this module does"
)]

pub(crate) mod bpf;
pub(crate) mod netns;
mod terminal;
mod watched;

pub use terminal::Terminal;
pub use watched::watch;
