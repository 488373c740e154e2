//! Where in a configuration file something stands: whoever has to mend it should not have to look.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::ConfigError;

/// What does not fit, and at which key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Wrong {
    /// The key and the tables around it, as `limits.max_locks` or `nodes.1.address` (counted
    /// from 0). If it is not in the file, the place is that of the table which lacks it.
    key: String,
    /// What does not fit, and what to do.
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

    /// Whether the key is in this table.
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

    /// The error, with its place in this file.
    pub(crate) fn refuse(&self, wrong: Wrong) -> ConfigError {
        let place = match self.place(&wrong.key) {
            Some((line, column)) => format!("line {line}, column {column}: "),
            None => String::new(),
        };
        ConfigError::Meaning { path: self.path().to_owned(), what: format!("{place}{wrong}") }
    }

    /// The line that a key is in.
    pub(super) fn line(&self, key: &str) -> Option<usize> {
        self.place(key).map(|(line, _)| line)
    }

    /// Line and column, both counted from 1, of a key or of what is there of the way to it.
    fn place(&self, key: &str) -> Option<(usize, usize)> {
        let text = self.text();
        // What is parsed already parses again.
        let root = DeTable::parse(text).ok()?;
        let start = find(root.get_ref(), key)?.start;
        let before = text.get(..start)?;
        let line = before.rsplit('\n').next().unwrap_or_default();
        Some((before.matches('\n').count() + 1, line.chars().count() + 1))
    }
}

fn find(root: &DeTable<'_>, key: &str) -> Option<Range<usize>> {
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
    Some(found)
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
            // What is not there: the table that lacks it.
            ("limits.c", (3, 2)),
            ("nodes.0.address", (6, 1)),
            ("nodes.1.address", (8, 1)),
        ] {
            assert_eq!(source.place(key), Some(place), "{key}");
        }
        assert_eq!(source.place("b"), None);
    }
}
