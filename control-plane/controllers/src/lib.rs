//! Reconcile loops, one file per controller.
