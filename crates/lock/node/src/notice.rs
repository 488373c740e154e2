//! Notices for an operator.

/// Something that an operator should see, one line; the text says what happened and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notice {
    /// How bad it is.
    pub level: Level,
    /// The line.
    pub text: String,
}

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// Normal operation.
    Info,
    /// Something was refused or lost, and the node goes on.
    Warning,
    /// Something needs a person.
    Error,
}

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}
