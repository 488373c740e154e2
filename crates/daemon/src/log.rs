//! What the daemon tells its operator.

use std::sync::Arc;

use lockify_node::{Level, Notice};

/// Where notices go.
#[derive(Clone)]
pub struct Log(Arc<dyn Fn(&Notice) + Send + Sync>);

impl Log {
    /// Gives every notice to `sink`, from any shard's thread.
    pub fn new(sink: impl Fn(&Notice) + Send + Sync + 'static) -> Log {
        Log(Arc::new(sink))
    }

    /// To standard error, a line each, as journald reads it (`<N>` is the syslog level).
    pub fn stderr() -> Log {
        Log::new(|notice| {
            let priority = match notice.level {
                Level::Info => 6,
                Level::Warning => 4,
                Level::Error => 3,
            };
            // Under systemd, standard error is a journal stream that understands the prefix.
            if std::env::var_os("JOURNAL_STREAM").is_some() {
                eprintln!("<{priority}>{notice}");
            } else {
                eprintln!("lockify: {notice}");
            }
        })
    }

    pub(crate) fn notice(&self, notice: &Notice) {
        (self.0)(notice);
    }

    pub(crate) fn info(&self, text: impl Into<String>) {
        self.notice(&Notice { level: Level::Info, text: text.into() });
    }

    pub(crate) fn warning(&self, text: impl Into<String>) {
        self.notice(&Notice { level: Level::Warning, text: text.into() });
    }
}
