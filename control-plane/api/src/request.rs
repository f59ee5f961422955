//! What a request asks: its path, its options, its body and the form of the answer.

pub mod body;
pub mod negotiate;
pub mod options;
pub mod path;
pub mod protobuf;
