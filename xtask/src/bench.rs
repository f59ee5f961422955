//! `cargo xtask bench NAME`: measures, prints a table, writes target/bench/NAME.json, ends with
//! one summary line, and fails when a figure misses what it must be.

mod memory;
pub(crate) mod store;
pub(crate) mod up;

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::json;

/// One measured figure beside its aim and its limit; smaller is better.
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    /// Every repetition.
    pub(crate) samples: Vec<f64>,
    pub(crate) aim: Option<f64>,
    pub(crate) must: Option<f64>,
}

impl Figure {
    pub(crate) fn median(&self) -> f64 {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }

    fn misses(&self) -> bool {
        self.must
            .is_some_and(|must| self.median().is_nan() || self.median() > must)
    }
}

/// Prints and stores the figures; an error names every missed "must".
pub(crate) fn report(workspace: &Path, name: &str, figures: &[Figure]) -> Result<()> {
    // A limit such as a third needs no sixteen digits.
    let bound = |value: Option<f64>| {
        value.map_or_else(
            || "-".to_owned(),
            |value| format!("{}", (value * 1000.0).round() / 1000.0),
        )
    };
    println!(
        "\n{:<44} {:>10} {:>10} {:>10} {:>8} {:>8}  unit",
        "figure", "median", "min", "max", "aim", "must"
    );
    for figure in figures {
        let min = figure.samples.iter().copied().fold(f64::INFINITY, f64::min);
        let max = figure
            .samples
            .iter()
            .copied()
            .fold(f64::NEG_INFINITY, f64::max);
        println!(
            "{:<44} {:>10.2} {:>10.2} {:>10.2} {:>8} {:>8}  {}{}",
            figure.name,
            figure.median(),
            min,
            max,
            bound(figure.aim),
            bound(figure.must),
            figure.unit,
            if figure.misses() { "  MISSED" } else { "" }
        );
    }
    let dir = crate::target_dir(workspace).join("bench");
    std::fs::create_dir_all(&dir)?;
    let path = dir.join(format!("{name}.json"));
    let rows: Vec<_> = figures
        .iter()
        .map(|figure| {
            json!({
                "name": figure.name, "unit": figure.unit, "median": figure.median(),
                "samples": figure.samples, "aim": figure.aim, "must": figure.must,
            })
        })
        .collect();
    std::fs::write(&path, serde_json::to_vec_pretty(&rows)?)
        .with_context(|| format!("writing {}", path.display()))?;
    let missed: Vec<_> = figures.iter().filter(|figure| figure.misses()).collect();
    let mut summary = format!("bench {name}:");
    for figure in figures.iter().filter(|figure| figure.must.is_some()) {
        // Ratios lie around one.
        let digits = if figure.unit == "×" { 2 } else { 0 };
        write!(
            summary,
            " {} {:.digits$} {};",
            figure.name,
            figure.median(),
            figure.unit
        )?;
    }
    println!(
        "\n{} {} of {} figures within their limits",
        summary,
        figures.len() - missed.len(),
        figures.len()
    );
    if !missed.is_empty() {
        let names: Vec<_> = missed.iter().map(|figure| figure.name.as_str()).collect();
        bail!("missed: {}", names.join(", "));
    }
    Ok(())
}
