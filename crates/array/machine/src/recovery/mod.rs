//! The targets and steps of repairs (docs/design/array.md 3).

pub(crate) mod column;
mod double;
pub(crate) mod records;
pub(crate) mod returned;
#[cfg(test)]
mod tests;
