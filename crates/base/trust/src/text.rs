//! Texts of strangers, made fit for a terminal and a log.
//!
//! A name of a lock, a refusal and the cluster in a greeting are bytes that somebody else has chosen. A terminal obeys
//! control characters in them, a log believes their line ends, and a reader their order of writing.

/// The text, with every character that does not show itself written as an escape: control characters, line ends,
/// marks that change the direction of writing, and what Unicode has not assigned.
///
/// ```
/// assert_eq!(lockify_trust::printable("a\u{1b}[2Jb\n\u{202e}é"), "a\\u{1b}[2Jb\\n\\u{202e}é");
/// ```
pub fn printable(text: &str) -> String {
    escaped(text, |_| false)
}

/// As [`printable`], of a text that may have several lines, and tabs.
pub fn printable_lines(text: &str) -> String {
    escaped(text, |c| matches!(c, '\n' | '\t'))
}

/// JSON that means the same, with every character of its texts that does not show itself written as an escape.
pub fn printable_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        if shows_itself(c) {
            shown.push(c);
        } else {
            // As UTF-16, of which JSON's escapes are made.
            c.encode_utf16(&mut [0; 2]).iter().for_each(|half| shown += &format!("\\u{half:04x}"));
        }
    }
    shown
}

/// As [`printable`], of bytes that may be no UTF-8, and at most this many bytes of it: what is longer ends with a sign.
pub fn printable_start(bytes: &[u8], most: usize) -> String {
    let text = printable(&String::from_utf8_lossy(&bytes[..bytes.len().min(most)]));
    match cut(&text, most) {
        whole if whole.len() == text.len() && bytes.len() <= most => text,
        start => format!("{start}…"),
    }
}

/// The beginning of a text, at most this many bytes, and no part of a character.
pub fn cut(text: &str, most: usize) -> &str {
    let most = text.len().min(most);
    let end = (0..=most).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    &text[..end]
}

fn escaped(text: &str, stays: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if stays(c) || shows_itself(c) {
            shown.push(c);
        } else {
            shown.extend(c.escape_debug());
        }
    }
    shown
}

fn shows_itself(c: char) -> bool {
    // Quotes are escaped in a literal for another reason.
    matches!(c, '\'' | '"' | '\\') || c.escape_debug().len() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_shown_instead() {
        for (text, shown) in [
            ("backup 7 \"x\" \\ 'é' 名", "backup 7 \"x\" \\ 'é' 名"),
            ("\u{1b}]0;owned\u{7}", "\\u{1b}]0;owned\\u{7}"),
            ("one\r\ntwo\0", "one\\r\\ntwo\\0"),
            // C1 controls, which terminals take for the beginning of a sequence.
            ("\u{9b}2J\u{7f}", "\\u{9b}2J\\u{7f}"),
            // Isolates, overrides and marks of direction; line and paragraph separators.
            ("\u{202a}\u{202e}\u{2066}\u{2069}", "\\u{202a}\\u{202e}\\u{2066}\\u{2069}"),
            ("\u{200e}\u{200f}\u{61c}\u{2028}", "\\u{200e}\\u{200f}\\u{61c}\\u{2028}"),
        ] {
            assert_eq!(printable(text), shown);
        }
        assert_eq!(printable_lines("a\nb\r\u{1b}c"), "a\nb\\r\\u{1b}c");
    }

    #[test]
    fn json_means_what_it_meant() {
        assert_eq!(
            printable_json("{\"a é\":\"\\n\u{7f}\u{202e}\"}"),
            "{\"a é\":\"\\n\\u007f\\u202e\"}"
        );
        assert_eq!(printable_json("\"\u{e0001}\""), "\"\\udb40\\udc01\"");
    }

    #[test]
    fn long_and_broken_texts_are_cut_and_say_so() {
        assert_eq!(printable_start(b"short", 5), "short");
        assert_eq!(printable_start(b"longer", 4), "long…");
        assert_eq!(printable_start(b"a\xffb", 9), "a\u{fffd}b");
        // An escape is longer than what it stands for, and a character is not cut.
        assert_eq!(printable_start(&[27; 9], 9), "\\u{1b}\\u{…");
        assert_eq!(cut("é", 1), "");
    }
}
