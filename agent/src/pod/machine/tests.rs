//! Table tests of the machine, one file per group of events.
