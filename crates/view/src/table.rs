//! Tables for people.

/// Aligned columns with a heading; empty if there are no rows. The last column is omitted if it is empty.
pub fn columns<const N: usize>(heading: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let rows: Vec<[String; N]> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.fold(heading[column].len(), usize::max)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let shown = match rows.iter().all(|row| row[N - 1].is_empty()) {
        true => N - 1,
        false => N,
    };
    let line = |cells: [&str; N]| {
        let padded = cells.iter().zip(widths).take(shown).map(|(cell, width)| format!("{cell:width$}"));
        let line = padded.collect::<Vec<_>>().join("  ");
        format!("{}\n", line.trim_end())
    };
    let rows = rows.iter().map(|row| line(row.each_ref().map(String::as_str)));
    std::iter::once(line(heading)).chain(rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        let rows = |last: &str| [["a".to_owned(), last.to_owned()], ["long".to_owned(), String::new()]];
        assert_eq!(columns(["X", "WHY"], rows("it waits").into_iter()), "X     WHY\na     it waits\nlong\n");
        assert_eq!(columns(["X", "WHY"], rows("").into_iter()), "X\na\nlong\n");
        assert_eq!(columns(["X", "WHY"], std::iter::empty()), "");
    }
}
