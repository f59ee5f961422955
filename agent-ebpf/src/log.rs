//! Lines from the programs to the agent's log, for who works on the programs.
//!
//! Only with the feature `log` (`PINTLE_BPF_LOG=1 cargo xtask build-ebpf`): without it
//! [`trace!`] is nothing, and no program carries a byte of it.

#[cfg(feature = "log")]
macro_rules! trace {
    ($ctx:expr, $($line:tt)+) => { aya_log_ebpf::debug!($ctx, $($line)+) };
}

#[cfg(not(feature = "log"))]
macro_rules! trace {
    ($ctx:expr, $($line:tt)+) => {};
}
