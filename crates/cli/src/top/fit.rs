//! Tables on a terminal that may be too narrow for them: numbers are whole or absent, and a sign marks missing parts.

/// The sign for text that is left out.
pub const SIGN: &str = "…";

/// Between two columns.
const GAP: usize = 1;

/// A column of text is not made narrower than this, unless all of it is.
const LEAST_TEXT: usize = 6;

/// A table that fits.
#[derive(Debug, PartialEq, Eq)]
pub struct Fitted {
    pub widths: Vec<u16>,
    pub heading: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// The beginning of a text, with a sign if that is not all of it.
pub fn shorten(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    if width == 0 { String::new() } else { kept + SIGN }
}

/// Parts of a line, those of them that fit, with a sign if that is not all.
pub fn line(parts: &[&str], width: usize) -> String {
    let whole = |n: usize| {
        let sign = (n < parts.len()).then_some(SIGN);
        parts[..n].iter().copied().chain(sign).collect::<Vec<_>>().join("   ")
    };
    let fits = |text: &String| text.chars().count() <= width;
    (0..=parts.len()).rev().map(whole).find(fits).unwrap_or_default()
}

/// Makes a table fit: columns of `text` are shortened, and whole columns are left out from the right.
pub fn fit(heading: &[&str], rows: &[Vec<String>], text: &[usize], width: usize) -> Fitted {
    let natural: Vec<usize> = (0..heading.len())
        .map(|c| {
            let cells = rows.iter().filter_map(|row| row.get(c)).map(|cell| cell.chars().count());
            cells.chain([heading[c].chars().count()]).max().unwrap_or(0)
        })
        .collect();
    let least = |c: usize| if text.contains(&c) { natural[c].min(LEAST_TEXT) } else { natural[c] };
    let needed = |columns: usize| -> usize {
        let cells: usize = (0..columns).map(least).sum();
        // The sign is a column of its own.
        cells + GAP * columns.saturating_sub(1) + if columns < heading.len() { GAP + 1 } else { 0 }
    };
    let columns = (0..=heading.len()).rev().find(|&n| needed(n) <= width).unwrap_or(0);
    let mut widths: Vec<usize> = (0..columns).map(least).collect();
    let mut room = width.saturating_sub(needed(columns));
    for &c in text.iter().filter(|&&c| c < columns) {
        let more = room.min(natural[c] - widths[c]);
        widths[c] += more;
        room -= more;
    }
    let cells = |row: &[String]| {
        let mut cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| shorten(cell, *width)).collect();
        if columns < heading.len() {
            cells.push(SIGN.into());
        }
        cells
    };
    let names: Vec<String> = heading.iter().map(|h| (*h).to_owned()).collect();
    let (heading, rows) = (cells(&names), rows.iter().map(|row| cells(row)).collect());
    if columns < names.len() {
        widths.push(1);
    }
    // A terminal has fewer columns than that.
    let widths = widths.into_iter().map(|w| u16::try_from(w).unwrap_or(u16::MAX)).collect();
    Fitted { widths, heading, rows }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Vec<Vec<String>> {
        vec![vec![
            "a-long-name-of-a-lock".into(),
            "123456789012".into(),
            "18446744073709551615".into(),
        ]]
    }

    #[test]
    fn wide_columns_get_the_room_that_they_need() {
        let fitted = fit(&["NAME", "WAITERS", "KB/S"], &table(), &[0], 80);
        assert_eq!(fitted.widths, [21, 12, 20]);
        assert_eq!(fitted.rows, table());
    }

    /// At any width, a number is whole or absent, and a sign marks missing parts.
    #[test]
    fn no_number_is_cut_at_any_width() {
        for width in 0..80 {
            let fitted = fit(&["NAME", "WAITERS", "KB/S"], &table(), &[0], width);
            let used: usize = fitted.widths.iter().map(|w| usize::from(*w) + GAP).sum();
            assert!(used <= width + GAP || width == 0, "{width}: {fitted:?}");
            for (c, cell) in fitted.rows[0].iter().enumerate().skip(1) {
                assert!(*cell == table()[0][c] || cell == SIGN, "{width}: {fitted:?}");
            }
            let whole = fitted.rows == table();
            assert!(whole || fitted.rows[0].iter().any(|cell| cell.ends_with(SIGN)), "{width}");
        }
    }

    #[test]
    fn text_is_shortened_with_a_sign() {
        assert_eq!(shorten("waiting", 7), "waiting");
        assert_eq!(shorten("waiting", 4), "wai…");
        assert_eq!(shorten("waiting", 0), "");
    }
}
