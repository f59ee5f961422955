//! Keys and values shared by the BPF programs and the agent.
#![no_std]
