//! The schemes of a shared array, by real processes.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use lockify_array::Scheme;
use lockify_bench::array::{Effort, Settings, Subject, goals, measure, page, rows, steps};
use lockify_report::Writer;
use lockify_report::crew::Program;

use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::output::print;
use crate::progress;

/// Measure a shared array: every scheme, next to no control and to bare files
///
/// Hosts and devices are processes of their own, on the loopback interface, over files. By numbers of hosts, contention
/// and shares of reads: throughput, latency, messages per operation and the share of operations that others delayed. Also
/// its block device, next to nbdkit's (if fio and nbdkit are installed). The schemes take turns in every round. Prints
/// the goals and results; speed never changes the exit code.
#[derive(clap::Args)]
pub struct Args {
    /// Fewer workloads, and fewer and shorter rounds: about two minutes
    #[arg(long)]
    quick: bool,
    /// One very short round of one workload, to see that everything works: within half a minute
    #[arg(long, conflicts_with = "quick")]
    smoke: bool,
    /// How often each is measured: the more, the less other programs disturb [default: 3 with --quick, 1 with --smoke, else 7]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Only these schemes; several as a list or by repeating. The ratio needs zero-overhead
    #[arg(long, value_name = "S", value_delimiter = ',', value_parser = scheme)]
    scheme: Vec<Scheme>,
    /// Have each write durable when it is answered: mostly the disk is measured then
    #[arg(long)]
    durable: bool,
    /// Read and write the files through the system's cache, for file systems that refuse to go past it
    #[arg(long)]
    buffered: bool,
    /// Where the files are, for the time of the run: about 700 MiB [default: the system's folder for temporary files]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Also write report.jsonl and report.html into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

fn scheme(name: &str) -> Result<Scheme, String> {
    name.parse().map_err(|e: lockify_array::UnknownScheme| e.to_string())
}

fn is_wanted(args: &Args, subject: Subject) -> bool {
    args.scheme.is_empty() || subject.scheme().is_some_and(|scheme| args.scheme.contains(&scheme))
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let (effort, rounds, millis, stripes) = match (args.smoke, args.quick) {
        (true, _) => (Effort::Smoke, 1, 100, 128),
        (_, true) => (Effort::Quick, 3, 500, 1024),
        _ => (Effort::Full, 7, 2000, 1024),
    };
    let settings = Settings {
        rounds: args.rounds.unwrap_or(rounds),
        duration: Duration::from_millis(millis),
        workloads: effort.workloads(),
        subjects: Subject::all().filter(|subject| is_wanted(args, *subject)).collect(),
        durable: args.durable,
        buffered: args.buffered,
        stripes,
        folder: args.folder.clone().unwrap_or_else(std::env::temp_dir),
    };
    let program = std::env::current_exe().or_fail(Code::Failed)?;
    let how = Program { program, args: vec!["array-worker".into()] };
    let bar = progress::bar(steps(&settings), "measurements");
    let results = measure(&settings, &how, || bar.inc(1)).or_fail(Code::Failed)?;
    bar.finish_and_clear();
    let (rows, goals) = (rows(&results), goals(&results));
    print(&lockify_report::table(&rows).to_string())?;
    let list: Vec<String> = goals.iter().map(|goal| format!("{goal}\n")).collect();
    print(&format!("\nGoals:\n{}", list.concat()))?;
    if let Some(program) = results.proxies.lacking {
        print(&format!(
            "\nNot measured: reads by NBD beside nbdkit's. {program} is not installed: apt-get install {program}\n"
        ))?;
    }
    if let Some(dir) = &args.out {
        let cannot = |e: &dyn std::fmt::Display| {
            let what = format!("cannot write into {}: {e}; give a folder with room", dir.display());
            Failure::new(Code::Failed, what)
        };
        std::fs::create_dir_all(dir).map_err(|e| cannot(&e))?;
        let mut writer = Writer::create(dir.join("report.jsonl")).map_err(|e| cannot(&e))?;
        rows.iter().try_for_each(|row| writer.write(row)).map_err(|e| cannot(&e))?;
        page(&results, &rows, &goals).write(dir.join("report.html")).map_err(|e| cannot(&e))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a worker, as this benchmark starts them.
pub fn worker() -> Ended {
    lockify_bench::array::worker::run().or_fail(Code::Failed)?;
    Ok(ExitCode::SUCCESS)
}
