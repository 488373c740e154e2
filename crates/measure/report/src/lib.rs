//! Benchmark results: one format for every benchmark, as rows of JSON, as a table on the terminal
//! and as a page of HTML with plots.
//!
//! A [`Row`] is one metric of one case; rows are kept in files that end in `.jsonl` ([`Writer`],
//! [`read`], and [`write_folder`] with a page). [`table`] shows them with one line per case; a [`Page`] holds plots and tables and
//! needs nothing but itself: no scripts, no fonts, no network. Benchmarks whose subjects are processes start them
//! with [`crew`].
//!
//! ```
//! use lockify_report::{Page, Plot, Row, metric};
//!
//! let rows: Vec<Row> = [1, 5]
//!     .into_iter()
//!     .map(|nodes| {
//!         Row::of("demo", &metric::CREATES_PER_S, &[900.0, 1000.0, 1100.0])
//!             .with("policy", "claim")
//!             .with("nodes", nodes)
//!     })
//!     .collect();
//! print!("{}", lockify_report::table(&rows));
//! let page = Page::new("Creating files")
//!     .plot(Plot::lines_of(&rows, &metric::CREATES_PER_S, "nodes", &["policy"]))
//!     .table(&rows);
//! assert!(page.html().contains("<svg"));
//! ```
#![forbid(unsafe_code)]

pub mod crew;
mod folder;
mod html;
mod jsonl;
pub mod metric;
mod plot;
mod row;
mod scale;
mod stats;
mod svg;
mod table;

pub use folder::write_folder;
pub use html::Page;
pub use jsonl::{ReadError, WriteError, Writer, read, read_file};
pub use metric::Metric;
pub use plot::{Form, Plot, Point, Series};
pub use row::{Case, Row, Value};
pub use scale::Scale;
pub use stats::{Spread, median, quantile};
pub use table::{Table, table};
