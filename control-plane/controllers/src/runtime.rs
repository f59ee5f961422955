//! What every controller shares: a queue of keys, expectations about its own writes, a worker loop
//! and a clock. Watches nothing by itself; the controllers wire informers to queues.

pub(crate) mod clock;
pub(crate) mod expectations;
pub(crate) mod harness;
pub(crate) mod objects;
pub(crate) mod owner;
pub(crate) mod pods;
pub(crate) mod queue;
pub(crate) mod selector;
