//! The table `[log]`.

use serde::Deserialize;
use tracing_subscriber::filter::{LevelFilter, Targets};

/// The content and format of the log on standard error.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Logging {
    /// For people, or one JSON object per line.
    pub format: Format,
    /// The least serious level that is logged (`error`, `warn`, `info`, `debug`, `trace`, `off`);
    /// and, separated by commas, levels of parts: `info,lockify::request=debug` logs every request.
    pub level: String,
}

/// How lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// For people, and for journald.
    #[default]
    Human,
    /// One JSON object per line.
    Json,
}

impl Default for Logging {
    fn default() -> Logging {
        Logging { format: Format::Human, level: "info".into() }
    }
}

impl Logging {
    pub(super) fn check(&self) -> Result<(), String> {
        self.targets().map(drop)
    }

    /// Which events are logged.
    pub(crate) fn targets(&self) -> Result<Targets, String> {
        let wrong = |what: &dyn std::fmt::Display| {
            format!(
                "log: level = {:?}: {what}; write a level (error, warn, info, debug, trace, off) \
                 and, after commas, levels of parts, as \"info,lockify::request=debug\"",
                self.level
            )
        };
        // A word alone would be taken for a part, and all of it be logged.
        for word in self.level.split(',').filter(|part| !part.contains('=')) {
            if word.trim().parse::<LevelFilter>().is_err() {
                return Err(wrong(&format!("{word:?} is no level")));
            }
        }
        self.level.parse::<Targets>().map_err(|e| wrong(&e))
    }
}
