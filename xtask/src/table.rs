//! Plain tables.

/// Lays rows out in columns, the first row as the head.
pub(crate) fn format(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|c| rows.iter().filter_map(|row| row.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0))
        .collect();
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut out = String::new();
    for (at, row) in rows.iter().enumerate() {
        let cells = widths.iter().enumerate().map(|(c, width)| {
            let cell = row.get(c).map_or("", String::as_str);
            format!("{cell:<width$}")
        });
        out += &line(cells.collect());
        if at == 0 {
            out += &line(widths.iter().map(|&width| "-".repeat(width)).collect());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".to_owned(), "long".to_owned()], vec!["wide".to_owned(), "b".to_owned()]];
        assert_eq!(super::format(&rows), "| a    | long |\n| ---- | ---- |\n| wide | b    |\n");
    }
}
