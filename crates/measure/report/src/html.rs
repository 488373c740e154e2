//! Pages of HTML that need nothing but themselves.

use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

use crate::plot::Plot;
use crate::row::Row;
use crate::svg::{escape, svg};
use crate::table::{Table, table};

/// Light and dark follow the reader's choice; paper is always light.
const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1a1a1a; --ground: #fff; --line: #8884; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e4e4; --ground: #16181b; } }
@media print { :root { color-scheme: light; --ink: #000; --ground: #fff; } }
body { margin: 2rem auto; padding: 0 1rem; max-width: 64rem; color: var(--ink);
  background: var(--ground); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin: 0; }
figure { margin: 2rem 0; break-inside: avoid; } svg { width: 100%; height: auto; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: left;
  white-space: nowrap; }
.texts td { white-space: normal; vertical-align: top; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
";

enum Part {
    Text(String),
    Plot(Plot),
    Table(Table),
    Texts(Table),
}

/// A page: texts, plots and tables in the order in which they were added.
pub struct Page {
    title: String,
    parts: Vec<Part>,
}

impl Page {
    /// An empty page.
    pub fn new(title: impl Into<String>) -> Page {
        Page { title: title.into(), parts: Vec::new() }
    }

    /// The page, with a further paragraph.
    pub fn text(mut self, text: impl Into<String>) -> Page {
        self.parts.push(Part::Text(text.into()));
        self
    }

    /// The page, with a further plot.
    pub fn plot(mut self, plot: Plot) -> Page {
        self.parts.push(Part::Plot(plot));
        self
    }

    /// The page, with a table of these rows.
    pub fn table(mut self, rows: &[Row]) -> Page {
        self.parts.push(Part::Table(table(rows)));
        self
    }

    /// The page, with a table of texts, whose cells take as many lines as they need.
    pub fn texts(mut self, table: Table) -> Page {
        self.parts.push(Part::Texts(table));
        self
    }

    /// The page as HTML; it is well-formed XML too.
    pub fn html(&self) -> String {
        let title = escape(&self.title);
        let mut html = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
             <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        );
        for (number, part) in self.parts.iter().enumerate() {
            // Writing to a string cannot fail.
            let _ = match part {
                Part::Text(text) => writeln!(html, "<p>{}</p>", escape(text)),
                Part::Plot(plot) => writeln!(
                    html,
                    "<figure>\n<h2>{}</h2>\n{}</figure>",
                    escape(&plot.title),
                    svg(plot, number)
                ),
                Part::Table(table) => writeln!(html, "{}", table_html(table, "wide")),
                Part::Texts(table) => writeln!(html, "{}", table_html(table, "wide texts")),
            };
        }
        html + "</body>\n</html>\n"
    }

    /// Writes the page.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: impl AsRef<Path>) -> io::Result<()> {
        fs::write(path, self.html())
    }
}

fn table_html(table: &Table, class: &str) -> String {
    let line = |element: &str, cells: &[String]| {
        let mut html = String::from("<tr>");
        for (i, cell) in cells.iter().enumerate() {
            let class = if i < table.properties { "" } else { " class=\"number\"" };
            let _ = write!(html, "<{element}{class}>{}</{element}>", escape(cell));
        }
        html + "</tr>\n"
    };
    let lines: String = table.lines.iter().map(|cells| line("td", cells)).collect();
    let head = line("th", &table.headings);
    format!(
        "<div class=\"{class}\"><table>\n<thead>{head}</thead>\n<tbody>\n{lines}</tbody>\n</table></div>"
    )
}
