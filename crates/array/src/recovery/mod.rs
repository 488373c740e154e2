//! What is repaired, and how (docs/design/array.md 3).

pub(crate) mod column;
#[cfg(test)]
mod tests;
