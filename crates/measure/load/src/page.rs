//! Result rows as a table and as a page with plots.

use std::path::PathBuf;

use crate::Ended;
use crate::failure::{Failure, OnFile as _};
use lockify_report::{Metric, Page, Plot, Row, metric, read_file, table};

/// Print result rows as a table, and write them as a page with plots that needs nothing else.
#[derive(clap::Args)]
pub struct Args {
    /// Rows, in JSON lines.
    rows: PathBuf,
    /// The page to write.
    #[arg(long)]
    html: PathBuf,
    /// The page's title.
    #[arg(long, default_value = "Lockify in the Linux kernel: the paper's evaluation")]
    title: String,
    /// A paragraph for the top of the page; may be given several times.
    #[arg(long)]
    text: Vec<String>,
}

/// How long a creation waited for its locks.
const LOCK_WAIT: Metric =
    Metric { name: "lock_wait_us_per_create", unit: "us", title: "lock wait of a creation" };
/// Objects removed per second.
const REMOVES: Metric = Metric { name: "removes_per_s", unit: "1/s", title: "removals per second" };

/// The x axis of each figure's plots.
const FIGURES: &[(&str, &str, &str, &[Metric])] = &[
    ("7", "Creation, one active node (figures 2b, 5 and 7)", "nodes", &[metric::CREATES_PER_S]),
    ("7", "Against one node", "nodes", &[metric::RATIO_TO_ONE_NODE]),
    (
        "packets",
        "Packets, messages and round trips",
        "",
        &[metric::PACKETS_PER_CREATE, metric::MESSAGES_PER_CREATE, metric::ROUND_TRIPS_PER_CREATE],
    ),
    ("8", "Five active nodes, one parent (figure 8)", "", &[metric::CREATES_PER_S]),
    ("9", "Where a creation's time goes (figure 9)", "", &[metric::LOCK_WAIT_SHARE, LOCK_WAIT]),
    ("10", "Applications (figure 10)", "", &[metric::OPS_PER_S]),
    ("11", "Against a DLM without network latency (figure 11)", "", &[metric::RATIO_TO_ONE_NODE]),
    ("deletion", "Deletion", "", &[REMOVES]),
];

/// Prints the table and writes the page.
pub fn run(args: &Args) -> Ended {
    let read = read_file(&args.rows)
        .map_err(|e| Failure::Other(format!("{}: {e}", args.rows.display())))?;
    if read.is_empty() {
        return Err(Failure::Other(format!("{} holds no rows", args.rows.display())));
    }
    print!("{}", table(&read));
    let page = Page::new(&args.title);
    let page = args.text.iter().fold(page, |page, text| page.text(text));
    let page = FIGURES.iter().fold(page, |page, &(bench, title, x, metrics)| {
        let drawn = |row: &&Row| row.bench == bench && !is_unpatched(row);
        let rows: Vec<Row> = read.iter().filter(drawn).cloned().collect();
        plots(&rows, title, x, metrics).into_iter().fold(page, Page::plot)
    });
    page.table(&read).write(&args.html).on("write", &args.html)
}

/// A kernel without the claim would hide, in plots, under the one that has it switched off: the table has both.
fn is_unpatched(row: &Row) -> bool {
    row.case.get("kernel").is_some_and(|kernel| kernel.to_string() == "unpatched")
}

/// One plot for each metric; bars by configuration unless there is a quantity for the x axis.
fn plots(rows: &[Row], title: &str, x: &str, metrics: &[Metric]) -> Vec<Plot> {
    let measured = metrics.iter().filter(|m| rows.iter().any(|row| row.metric == m.name));
    let plot = |metric: &Metric| {
        let title = format!("{title}: {}", metric.title);
        let by = ["fs", "stack", "claim", "workload", "delay_us"];
        if x.is_empty() {
            Plot::bars_of(rows, metric, "workload", &["fs", "stack", "claim", "nodes", "delay_us"])
        } else {
            Plot::lines_of(rows, metric, x, &by)
        }
        .title(title)
    };
    measured.map(plot).collect()
}
