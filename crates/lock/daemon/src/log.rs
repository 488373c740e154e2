//! The daemon's messages to its operator.

use std::fmt::{self, Write as _};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockify_node::{Apology, Level, Lines, Notice, Pace, Weight};
use lockify_trust::{printable, printable_json};
use tracing::Metadata;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer as _;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;

use crate::config::{LogFormat, Logging};

/// How long the end of the daemon waits for the log's reader.
const FAREWELL: Duration = Duration::from_secs(1);

/// Lines in a second that local clients can cause.
const COMPLAINTS: u64 = 8;

/// Where notices go.
#[derive(Clone)]
pub struct Log {
    sink: Arc<dyn Fn(&Notice) + Send + Sync>,
    /// Where lines wait to be written, if they do.
    lines: Option<Lines>,
}

impl Log {
    /// Gives every notice to `sink`, from any shard's thread.
    pub fn new(sink: impl Fn(&Notice) + Send + Sync + 'static) -> Log {
        Log { sink: Arc::new(sink), lines: None }
    }

    /// To standard error, as the configuration says; requests and all else that the process logs
    /// with `tracing` go there, too, and so do the messages of panics. No thread waits for the
    /// writing.
    ///
    /// # Errors
    /// The levels cannot be read, the process logs somewhere else already, or the system gives no
    /// thread.
    pub fn install(config: &Logging) -> Result<Log, String> {
        let lines = crate::handover::without_signals(|| Lines::to_stderr(apology(config.format)));
        let lines = lines.map_err(|e| format!("cannot write a log to standard error: {e}"))?;
        let subscriber = subscriber(config, lines.clone())?;
        tracing::subscriber::set_global_default(subscriber)
            .map_err(|_| "this process has a log already".to_owned())?;
        std::panic::set_hook(Box::new(tell_panic));
        let sink = Arc::new(|notice: &Notice| match notice.level {
            Level::Info => tracing::info!(target: "lockify", "{notice}"),
            Level::Warning => tracing::warn!(target: "lockify", "{notice}"),
            Level::Error => tracing::error!(target: "lockify", "{notice}"),
        });
        Ok(Log { sink, lines: Some(lines) })
    }

    /// Waits until all is written that was said before, for a second at most.
    pub fn flush(&self) {
        self.flush_within(FAREWELL);
    }

    pub(crate) fn flush_within(&self, patience: Duration) {
        if let Some(lines) = &self.lines {
            lines.flush(patience);
        }
    }

    /// The last line of a program that ends, as it stands here.
    pub fn end_with(&self, line: &str) {
        let line = printable(line);
        match &self.lines {
            Some(lines) => lines.say(format!("{line}\n").into(), Weight::Notice),
            None => eprintln!("{line}"),
        }
        self.flush();
    }

    pub(crate) fn notice(&self, notice: &Notice) {
        (self.sink)(notice);
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

/// Logs a panic. Printing it could wait for ever.
fn tell_panic(panic: &std::panic::PanicHookInfo<'_>) {
    let text = panic.to_string().replace('\n', " ");
    tracing::error!(target: "lockify", "{text}");
    let trace = std::backtrace::Backtrace::capture();
    if trace.status() == std::backtrace::BacktraceStatus::Captured {
        trace.to_string().lines().for_each(|line| tracing::error!(target: "lockify", "{line}"));
    }
}

/// Warnings of what local clients have caused: so many that the log is not filled by them.
pub(crate) struct Complaints {
    log: Log,
    began: Instant,
    pace: Pace,
    left_out: u64,
}

impl Complaints {
    pub(crate) fn new(log: Log) -> Complaints {
        Complaints { log, began: Instant::now(), pace: Pace::per_second(COMPLAINTS), left_out: 0 }
    }

    pub(crate) fn warning(&mut self, text: impl Into<String>) {
        if !self.pace.admits(self.began.elapsed().as_nanos() as u64) {
            self.left_out += 1;
            return;
        }
        match std::mem::take(&mut self.left_out) {
            0 => {}
            n => {
                self.log.warning(format!("{n} earlier warnings about local clients were left out"))
            }
        }
        self.log.warning(text);
    }
}

/// Writes the log that the configuration demands.
fn subscriber(config: &Logging, lines: Lines) -> Result<Box<dyn Subscriber + Send + Sync>, String> {
    let targets = config.targets()?;
    let to = Outlet { lines, format: config.format };
    // The log's reader may be gone, and a line about that could not be written either.
    let layer = tracing_subscriber::fmt::layer().log_internal_errors(false);
    let layer = layer.with_ansi(false).with_writer(to);
    Ok(match config.format {
        LogFormat::Json => {
            let layer = layer.json().flatten_event(true).with_current_span(false);
            let layer = layer.with_span_list(false).with_filter(targets);
            Box::new(tracing_subscriber::registry().with(layer))
        }
        LogFormat::Human => {
            let layer = layer.event_format(Human { journal: is_journal() }).with_filter(targets);
            Box::new(tracing_subscriber::registry().with(layer))
        }
    })
}

/// Under systemd, standard error is a journal stream that understands levels.
fn is_journal() -> bool {
    std::env::var_os("JOURNAL_STREAM").is_some()
}

fn now() -> impl fmt::Display {
    humantime::format_rfc3339_micros(std::time::SystemTime::now())
}

/// How the log says that lines are missing.
fn apology(format: LogFormat) -> Apology {
    const WHY: &str = "lines were left out here, as the log was not read, or its disk was full";
    match format {
        LogFormat::Json => |n| {
            let (now, what) = (now(), format!("{n} {WHY}"));
            format!(
                "{{\"timestamp\":\"{now}\",\"level\":\"WARN\",\"message\":\"{what}\",\"target\":\"lockify\"}}\n"
            )
            .into()
        },
        LogFormat::Human if is_journal() => |n| format!("<4>{n} {WHY}\n").into(),
        LogFormat::Human => |n| format!("{} lockify: warning: {n} {WHY}\n", now()).into(),
    }
}

/// Where lines go, each whole, in one piece, and nothing in it but what shows itself.
struct Outlet {
    lines: Lines,
    format: LogFormat,
}

impl<'a> MakeWriter<'a> for Outlet {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { outlet: self, weight: Weight::Notice }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Line<'a> {
        // There may be very many of the others.
        let rare = *meta.level() <= tracing::Level::INFO;
        Line { outlet: self, weight: if rare { Weight::Notice } else { Weight::Detail } }
    }
}

struct Line<'a> {
    outlet: &'a Outlet,
    weight: Weight,
}

impl io::Write for Line<'_> {
    /// Gets one event's whole text, with its end.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let safe = match self.outlet.format {
            LogFormat::Json => printable_json(text),
            LogFormat::Human => printable(text),
        };
        self.outlet.lines.say(format!("{safe}\n").into(), self.weight);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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
            write!(to, "{} lockify: {level}", now())?;
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
        logged_by(format, level, || {
            tracing::warn!(target: "lockify", "look here");
            tracing::debug!(target: "lockify::request", lock = "1-2f", op = 3_u32, "request");
        })
    }

    fn logged_by(format: LogFormat, level: &str, act: impl FnOnce()) -> String {
        let memory = Memory::default();
        let lines = Lines::start(memory.clone(), apology(format)).unwrap();
        let config = Logging { format, level: level.into() };
        tracing::subscriber::with_default(subscriber(&config, lines.clone()).unwrap(), act);
        assert!(lines.flush(Duration::from_secs(60)));
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
    fn what_a_stranger_says_is_one_line_and_no_command_to_a_terminal() {
        let act = || {
            tracing::warn!(target: "lockify", "cluster \"\u{1b}[2J\u{202e}\nerror: x\" \u{9b}1m");
            tracing::warn!(target: "lockify", name = "\u{1b}c\r\n<0>", "taken");
        };
        for format in [LogFormat::Human, LogFormat::Json] {
            let text = logged_by(format, "info", act);
            assert_eq!(text.lines().count(), 2, "{text}");
            let bad = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
            assert!(!text.contains(bad), "{text:?}");
        }
    }

    #[test]
    fn what_is_missing_is_said_in_the_logs_own_format() {
        for (format, begins) in [(LogFormat::Json, "{\"timestamp\":\""), (LogFormat::Human, "")] {
            let line = String::from_utf8(apology(format)(7)).unwrap();
            assert!(line.starts_with(begins) && line.contains("7 lines were left out"), "{line}");
            assert!(line.ends_with('\n') && line.matches('\n').count() == 1, "{line}");
        }
    }

    #[test]
    fn levels_that_cannot_be_read_are_told() {
        let config = Logging { level: "loud".into(), ..Logging::default() };
        assert!(config.targets().unwrap_err().contains("loud"));
    }
}
