//! What the daemon tells its operator.

use std::fmt::{self, Write as _};
use std::io;
use std::sync::Arc;

use lockify_node::{Level, Notice};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer as _;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;

use crate::config::{LogFormat, Logging};

/// Where notices go.
#[derive(Clone)]
pub struct Log(Arc<dyn Fn(&Notice) + Send + Sync>);

impl Log {
    /// Gives every notice to `sink`, from any shard's thread.
    pub fn new(sink: impl Fn(&Notice) + Send + Sync + 'static) -> Log {
        Log(Arc::new(sink))
    }

    /// To standard error, as the configuration says; requests and all else that the process logs
    /// with `tracing` go there, too.
    ///
    /// # Errors
    /// The levels cannot be read, or the process logs somewhere else already.
    pub fn install(config: &Logging) -> Result<Log, String> {
        let subscriber = subscriber(config, io::stderr)?;
        tracing::subscriber::set_global_default(subscriber)
            .map_err(|_| "this process has a log already".to_owned())?;
        Ok(Log::new(|notice| match notice.level {
            Level::Info => tracing::info!(target: "lockify", "{notice}"),
            Level::Warning => tracing::warn!(target: "lockify", "{notice}"),
            Level::Error => tracing::error!(target: "lockify", "{notice}"),
        }))
    }

    pub(crate) fn notice(&self, notice: &Notice) {
        (self.0)(notice);
    }

    pub(crate) fn info(&self, text: impl Into<String>) {
        self.notice(&Notice { level: Level::Info, text: text.into() });
    }

    pub(crate) fn error(&self, text: impl Into<String>) {
        self.notice(&Notice { level: Level::Error, text: text.into() });
    }

    pub(crate) fn warning(&self, text: impl Into<String>) {
        self.notice(&Notice { level: Level::Warning, text: text.into() });
    }
}

/// Writes what the configuration wants to be logged.
fn subscriber<W>(config: &Logging, to: W) -> Result<Box<dyn Subscriber + Send + Sync>, String>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let targets = config.targets()?;
    // Whoever reads the log may be gone, and a line about that could not be written either.
    let layer = tracing_subscriber::fmt::layer().log_internal_errors(false);
    let layer = layer.with_ansi(false).with_writer(to);
    Ok(match config.format {
        LogFormat::Json => {
            let layer = layer.json().flatten_event(true).with_current_span(false);
            let layer = layer.with_span_list(false).with_filter(targets);
            Box::new(tracing_subscriber::registry().with(layer))
        }
        LogFormat::Human => {
            // Under systemd, standard error is a journal stream that understands levels.
            let journal = std::env::var_os("JOURNAL_STREAM").is_some();
            let layer = layer.event_format(Human { journal }).with_filter(targets);
            Box::new(tracing_subscriber::registry().with(layer))
        }
    })
}

/// A line for people: the text first, then the fields; as journald reads it (`<N>` is the syslog
/// level), or with a time, by which requests on several nodes can be put in order.
struct Human {
    journal: bool,
}

impl<S, N> FormatEvent<S, N> for Human
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let meta = event.metadata();
        let (priority, level) = match *meta.level() {
            tracing::Level::ERROR => (3, "error: "),
            tracing::Level::WARN => (4, "warning: "),
            tracing::Level::INFO => (6, ""),
            _ => (7, ""),
        };
        if self.journal {
            write!(to, "<{priority}>")?;
        } else {
            let now = humantime::format_rfc3339_micros(std::time::SystemTime::now());
            write!(to, "{now} lockify: {level}")?;
        }
        let mut text = Text::default();
        event.record(&mut text);
        writeln!(to, "{}{}", text.message, text.fields)
    }
}

/// An event's text and its other fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Logging;
    use std::sync::{Mutex, PoisonError};

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, level: &str) -> String {
        let memory = Memory::default();
        let to = memory.clone();
        let config = Logging { format, level: level.into() };
        let subscriber = subscriber(&config, move || to.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(target: "lockify", "look here");
            tracing::debug!(target: "lockify::request", lock = "1-2f", op = 3_u32, "request");
        });
        let bytes = memory.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn levels_are_chosen_by_part() {
        let only = logged(LogFormat::Human, "info");
        assert!(only.contains("warning: look here") && !only.contains("request"), "{only}");
        let all = logged(LogFormat::Human, "info,lockify::request=debug");
        assert!(all.contains("request lock=\"1-2f\" op=3"), "{all}");
        assert_eq!(logged(LogFormat::Human, "off"), "");
    }

    #[test]
    fn json_has_one_object_per_line() {
        let text = logged(LogFormat::Json, "debug");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines.iter().all(|l| l.starts_with('{') && l.ends_with('}')), "{text}");
        assert!(lines[1].contains("\"lock\":\"1-2f\"") && lines[1].contains("\"op\":3"), "{text}");
        assert!(lines[0].contains("\"message\":\"look here\""), "{text}");
    }

    #[test]
    fn levels_that_cannot_be_read_are_told() {
        let config = Logging { level: "loud".into(), ..Logging::default() };
        assert!(config.targets().unwrap_err().contains("loud"));
    }
}
