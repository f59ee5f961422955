//! Errors in full, for Events and statuses.
//!
//! Watches and changes nothing. Errors of this crate do not repeat their source, so whoever
//! shows one to people says the whole chain.

use std::error::Error;

/// An error and everything behind it: `cannot create /x: permission denied`.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
