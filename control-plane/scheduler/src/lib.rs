//! Binds pods to nodes: a pure core and a thin loop.
