//! The control plane: store, API, controllers and scheduler wired together.
