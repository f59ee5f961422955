//! `cargo xtask test`: everything that must hold, in the order of cheapest first.
//!
//! Setup → house rules → rustfmt → clippy → release build → unit tests → end-to-end tests with
//! the release binary → VM. The first failure ends the run. `.ci/run` calls exactly this.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::Result;

use crate::command::run;
use crate::{build, images, setup, tidy, vm};

/// Runs every test. With `quick`, leaves out what needs root or a VM.
pub(crate) fn run_tests(workspace: &Path, quick: bool) -> Result<()> {
    let cargo = |args: &[&str]| {
        let mut command = Command::new("cargo");
        command.args(args).current_dir(workspace);
        command
    };
    if !quick {
        step("setup", || setup::run_setup(workspace))?;
    }
    step("house rules", || tidy::run(workspace))?;
    step("rustfmt", || run(&mut cargo(&["fmt", "--all", "--check"])))?;
    step("clippy", || {
        run(&mut cargo(&[
            "clippy",
            "--quiet",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]))
    })?;
    if quick {
        return step("unit tests", || {
            run(&mut cargo(&[
                "test",
                "--quiet",
                "--workspace",
                "--lib",
                "--bins",
            ]))
        });
    }
    let mut pintle = None;
    step("build", || {
        pintle = Some(build::run_build(workspace)?);
        Ok(())
    })?;
    let pintle = pintle.unwrap_or_default();
    step("images", || images::run(workspace).map(drop))?;
    step("unit tests", || {
        run(&mut cargo(&["test", "--workspace", "--exclude", "pintle"]))?;
        run(&mut cargo(&["test", "--package", "pintle", "--bins"]))
    })?;
    step("end-to-end tests", || {
        let mut tests = cargo(&[
            "test",
            "--package",
            "pintle",
            "--test",
            "privileged",
            "--test",
            "cluster",
            "--",
            "--test-threads=1",
        ]);
        run(tests.env("PINTLE_BIN", &pintle))
    })?;
    step("VM with Debian 12's kernel", || {
        vm::run_vm(workspace, &pintle)
    })
}

fn step(name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("\n=== {name}");
    let started = Instant::now();
    work()?;
    println!("=== {name}: {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}
