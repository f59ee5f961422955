//! Aligned columns for people.

use std::io::Write;

use anyhow::Result;

/// Prints rows with columns as wide as their widest cell, three spaces apart.
pub(crate) fn print<const N: usize>(rows: &[[String; N]]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for line in lines(rows) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn lines<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    rows.iter()
        .map(|row| {
            let cells: Vec<_> = row
                .iter()
                .zip(widths)
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            cells.join("   ").trim_end().to_owned()
        })
        .collect()
}

/// A size as people read it: `9.1MiB`.
pub(crate) fn bytes(size: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    #[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
    let mut value = size as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{size}B")
    } else {
        format!("{value:.1}{}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [
            ["NAME".to_owned(), "N".to_owned()],
            ["a".to_owned(), "10".to_owned()],
        ];
        assert_eq!(lines(&rows), ["NAME   N", "a      10"]);
    }

    #[test]
    fn sizes_are_readable() {
        assert_eq!(bytes(12), "12B");
        assert_eq!(bytes(9_514_496), "9.1MiB");
    }
}
