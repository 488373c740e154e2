//! What is repaired, and how (section 3).

pub(crate) mod column;
#[cfg(test)]
mod tests;
