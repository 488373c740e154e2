//! The place of a key in a configuration file, so that its author need not search.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockify_trust::{printable, printable_start};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{ConfigError, forms};

/// The most bytes of a value that a message repeats.
const LONGEST_VALUE: usize = 128;

/// A mismatch, and its key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Wrong {
    /// The key and the tables around it, as `limits.max_locks` or `nodes.1.address` (counted
    /// from 0). If it is not in the file, the place is that of the table which lacks it.
    key: String,
    /// The mismatch, and its remedy.
    what: String,
}

impl Wrong {
    pub(crate) fn new(key: impl Into<String>, what: impl Into<String>) -> Wrong {
        Wrong { key: key.into(), what: what.into() }
    }

    /// Seen from outside of the table that the key is in.
    pub(super) fn within(mut self, table: &str) -> Wrong {
        self.key = format!("{table}.{}", self.key);
        self
    }

    /// Returns true if the key is in this table.
    pub(super) fn is_within(&self, table: &str) -> bool {
        self.key.strip_prefix(table).is_some_and(|rest| rest.starts_with('.'))
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// A file that has been read.
#[derive(Clone)]
pub(crate) struct Source(Arc<(PathBuf, String)>);

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Source").field(&self.path()).finish()
    }
}

impl Source {
    pub(super) fn new(path: &Path, text: &str) -> Source {
        Source(Arc::new((path.to_owned(), text.to_owned())))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0.0
    }

    pub(super) fn text(&self) -> &str {
        &self.0.1
    }

    /// The error, with its place in this file, the written value, and the permitted ones.
    pub(crate) fn refuse(&self, wrong: Wrong) -> ConfigError {
        let place = match self.place(&wrong.key) {
            Some((line, column)) => format!("line {line}, column {column}: "),
            None => String::new(),
        };
        let written = self.value(&wrong.key);
        let what = format!("{place}{wrong}{}", hint(&wrong.key, &wrong.what, written));
        ConfigError::Meaning { path: self.path().to_owned(), what }
    }

    /// The written value of a key, if it is no table.
    fn value(&self, key: &str) -> Option<String> {
        let root = DeTable::parse(self.text()).ok()?;
        let (_, value) = find(root.get_ref(), key)?;
        let text = self.text().get(value.span())?;
        let plain = !matches!(value.get_ref(), DeValue::Table(_) | DeValue::Array(_));
        plain.then(|| printable_start(text.as_bytes(), LONGEST_VALUE))
    }

    /// The parser's error, in words that give the place, the written value, and the permitted ones.
    pub(super) fn misread(&self, error: &toml::de::Error) -> ConfigError {
        let at = error.span().map(|span| span.start);
        let place = match at.and_then(|at| self.line_and_column(at)) {
            Some((line, column)) => format!("line {line}, column {column}: "),
            None => String::new(),
        };
        let what = match (DeTable::parse(self.text()), unknown(error.message())) {
            (Err(_), _) => format!("this is no TOML: {}", printable(error.message())),
            (Ok(_), Some((key, here))) => {
                let key = printable_start(key.as_bytes(), LONGEST_VALUE);
                format!("there is no key `{key}` here: {}", forms::meant(&key, &here))
            }
            (Ok(root), None) => self.mistyped(root.get_ref(), error),
        };
        let what = format!("{place}{what}; docs/configuration.md has every key");
        ConfigError::Meaning { path: self.path().to_owned(), what }
    }

    /// A value of another type, or a key that is missing.
    fn mistyped(&self, root: &DeTable<'_>, error: &toml::de::Error) -> String {
        let (span, message) = (error.span(), error.message());
        let key = span.as_ref().and_then(|span| key_at(root, span.start)).unwrap_or_default();
        if let Some(missing) = message.strip_prefix("missing field `") {
            let missing = missing.trim_end_matches('`');
            // The table is named by its heading, or by nothing at all.
            let mut full = forms::FORMS.iter().map(|form| form.key).filter(|full| {
                full.rsplit_once('.').is_some_and(|(table, name)| {
                    name == missing && (key.is_empty() || key == table)
                })
            });
            let full = full.next_back().unwrap_or(missing);
            return format!("{missing} is missing{}", hint(full, "", None));
        }
        // Rust's name of the type means nothing to the author of a file.
        let message = match message.rsplit_once(", expected ") {
            Some((found, _)) if found.starts_with("invalid ") && forms::of(&key).is_some() => found,
            _ => message,
        };
        let written = span.and_then(|span| self.text().get(span));
        let written = written.map(|text| printable_start(text.as_bytes(), LONGEST_VALUE));
        format!("{}{}", printable(message), hint(&key, message, written))
    }

    /// The line that a key is in.
    pub(super) fn line(&self, key: &str) -> Option<usize> {
        self.place(key).map(|(line, _)| line)
    }

    /// Line and column, both counted from 1, of a key or of the present part of its path.
    fn place(&self, key: &str) -> Option<(usize, usize)> {
        // A text that was parsed before parses again.
        let root = DeTable::parse(self.text()).ok()?;
        self.line_and_column(find(root.get_ref(), key)?.0.start)
    }

    fn line_and_column(&self, start: usize) -> Option<(usize, usize)> {
        let text = self.text();
        let before = text.get(..start)?;
        let line = before.rsplit('\n').next().unwrap_or_default();
        Some((before.matches('\n').count() + 1, line.chars().count() + 1))
    }
}

/// The written value of a key, unless the text has it already, and the permitted ones.
fn hint(key: &str, said: &str, written: Option<String>) -> String {
    let Some(form) = forms::of(key) else { return String::new() };
    let name = form.key.rsplit('.').next().unwrap_or(form.key);
    let written = written.filter(|value| !shows(said, value));
    let written = written.map(|value| format!("; here it is `{name} = {value}`"));
    format!(
        "{}; expected: {}, for example `{name} = {}`",
        written.unwrap_or_default(),
        form.form,
        form.example
    )
}

/// Returns true if a text names a value already.
fn shows(said: &str, value: &str) -> bool {
    let bare = value.trim_matches('"');
    let named = said.contains(&format!("= {value}")) || said.contains(&format!("`{value}`"));
    // Shorter ones are in many other words.
    named || bare.len() > 2 && said.contains(bare)
}

/// The unknown key of which the parser speaks, and those that it knows there.
fn unknown(message: &str) -> Option<(&str, Vec<&str>)> {
    let (key, known) = message.strip_prefix("unknown field `")?.split_once("`, expected ")?;
    Some((key, known.split('`').skip(1).step_by(2).collect()))
}

/// The key at this byte, or whose value is there, without the numbers of arrays.
fn key_at(table: &DeTable<'_>, at: usize) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let name = key.get_ref();
        if key.span().contains(&at) {
            return Some(name.to_string());
        }
        match inside(value, at)? {
            inner if inner.is_empty() => Some(name.to_string()),
            inner => Some(format!("{name}.{inner}")),
        }
    })
}

/// As [`key_at`], in a value: empty, if it is this one itself.
fn inside(value: &Spanned<DeValue<'_>>, at: usize) -> Option<String> {
    let here = value.span().contains(&at).then(String::new);
    match value.get_ref() {
        DeValue::Table(table) => key_at(table, at).or(here),
        DeValue::Array(array) => array.iter().find_map(|each| inside(each, at)).or(here),
        _ => here,
    }
}

/// The place of a key, or of the present part of its path, and its value.
fn find<'a, 'b>(root: &'a DeTable<'b>, key: &str) -> Option<Entry<'a, 'b>> {
    let mut steps = key.split('.');
    let (mut found, mut value) = entry(root, steps.next()?)?;
    for step in steps {
        let next = match value.get_ref() {
            DeValue::Table(table) => entry(table, step),
            DeValue::Array(array) => {
                step.parse().ok().and_then(|i: usize| array.get(i)).map(|v| (v.span(), v))
            }
            _ => None,
        };
        let Some(next) = next else { break };
        (found, value) = next;
    }
    Some((found, value))
}

type Entry<'a, 'b> = (Range<usize>, &'a Spanned<DeValue<'b>>);

fn entry<'a, 'b>(table: &'a DeTable<'b>, key: &str) -> Option<Entry<'a, 'b>> {
    table.iter().find(|(k, _)| k.get_ref() == key).map(|(k, v)| (k.span(), v))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "a = 1\n\n[limits]\n  b = 2\n\n[[nodes]]\nid = 1\n[[nodes]]\nid = 2\n\
                        list = [\"é\", { x = 3 }]\n";

    #[test]
    fn keys_are_found_where_they_stand() {
        let source = Source::new(Path::new("x"), TEXT);
        for (key, place) in [
            ("a", (1, 1)),
            ("limits", (3, 2)),
            ("limits.b", (4, 3)),
            ("nodes.1.id", (9, 1)),
            ("nodes.1.list.1.x", (10, 16)),
            // A missing key: the table that lacks it.
            ("limits.c", (3, 2)),
            ("nodes.0.address", (6, 1)),
            ("nodes.1.address", (8, 1)),
        ] {
            assert_eq!(source.place(key), Some(place), "{key}");
        }
        assert_eq!(source.place("b"), None);
    }
}
