//! Replicated, versioned, watchable key-value store.
