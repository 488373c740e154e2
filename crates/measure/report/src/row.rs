//! One result: a metric of a case.

use std::fmt;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::metric::Metric;
use crate::stats::Spread;

/// The properties that distinguish the cases of a benchmark, in the order in which a person names
/// it.
pub type Case = IndexMap<String, Value>;

/// A property of a case.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// A text.
    Text(String),
}

impl Value {
    /// The number, if it is one.
    pub fn number(&self) -> Option<f64> {
        match self {
            Value::Int(n) => Some(*n as f64),
            Value::Float(n) => Some(*n),
            Value::Bool(_) | Value::Text(_) => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bool(b) => b.fmt(f),
            Value::Int(n) => n.fmt(f),
            Value::Float(n) => n.fmt(f),
            Value::Text(text) => text.fmt(f),
        }
    }
}

impl From<bool> for Value {
    fn from(b: bool) -> Value {
        Value::Bool(b)
    }
}
impl From<i64> for Value {
    fn from(n: i64) -> Value {
        Value::Int(n)
    }
}
impl From<i32> for Value {
    fn from(n: i32) -> Value {
        Value::Int(n.into())
    }
}
impl From<u32> for Value {
    fn from(n: u32) -> Value {
        Value::Int(n.into())
    }
}
impl From<usize> for Value {
    fn from(n: usize) -> Value {
        i64::try_from(n).map_or(Value::Float(n as f64), Value::Int)
    }
}
impl From<f64> for Value {
    fn from(n: f64) -> Value {
        Value::Float(n)
    }
}
impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}
impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}

/// One metric of one case of one benchmark.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The benchmark.
    pub bench: String,
    /// The case.
    pub case: Case,
    /// The metric's name.
    pub metric: String,
    /// Its unit: 1/s, us, 1 (a ratio or a count) …
    pub unit: String,
    /// Its value: the median of the rounds, if there were several.
    pub value: f64,
    /// The value of each round, in their order.
    #[serde(default)]
    pub rounds: Vec<f64>,
    /// The published value for this case.
    pub published: Option<f64>,
}

impl Row {
    /// A row with the median of these rounds. Without rounds the value is 0.
    pub fn of(bench: &str, metric: &Metric, rounds: &[f64]) -> Row {
        Row {
            bench: bench.to_owned(),
            case: Case::new(),
            metric: metric.name.to_owned(),
            unit: metric.unit.to_owned(),
            value: Spread::of(rounds).map_or(0.0, |spread| spread.median),
            rounds: rounds.to_vec(),
            published: None,
        }
    }

    /// The row, with a further property of its case.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Row {
        self.case.insert(name.to_owned(), value.into());
        self
    }

    /// The row, for this case.
    pub fn case(self, case: Case) -> Row {
        Row { case, ..self }
    }

    /// The row, with the published value.
    pub fn published(self, value: f64) -> Row {
        Row { published: Some(value), ..self }
    }

    /// How the rounds spread; `None` without rounds.
    pub fn spread(&self) -> Option<Spread> {
        Spread::of(&self.rounds)
    }
}
