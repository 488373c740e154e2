//! `lockify locks`: the resources of a lockspace, page by page.

use std::io::{BufWriter, ErrorKind, Write};
use std::process::ExitCode;

use lockify_client::{Lockspace, Name, Which};
use serde_json::to_string;

use crate::connect::{Connection, Daemon, Missing, failed};
use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::inspect::{Lock, Resource, SCHEMA, View};
use crate::output::columns;

/// Resources that are asked for at a time.
const PAGE: u32 = 500;

/// List the locks of the cluster by name: holders and waiters
///
/// At most --limit resources; the output names the omitted part, and the --after of the next page.
/// A name that is locked all the while is listed once, even if others come and go.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// List at most so many resources; 0: all
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    limit: u64,
    /// List only names after this one
    #[arg(long, value_name = "NAME")]
    after: Option<String>,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let after = args.after.as_ref().map(Name::new).transpose().or_fail(Code::Unreadable)?;
    let space = args.connection.lockspace(Missing::Fail).map_err(failed)?;
    let limit = if args.limit == 0 { u64::MAX } else { args.limit };
    let mut list = List { space, limit, after, left: 0, omitted: 0, silent: Vec::new() };
    let mut out = BufWriter::new(std::io::stdout().lock());
    let printed = match args.json {
        true => list.print_json(&mut out, &args.connection.daemon()?)?,
        false => match write!(out, "{}", args.connection.headline()?) {
            Ok(()) => list.print_table(&mut out)?,
            refused => refused,
        },
    };
    match printed.and_then(|()| out.flush()) {
        // A reader that has closed its end (`| head`) has all that it wants.
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            let what = format!("cannot write the output: {e}; free space or print elsewhere");
            Err(Failure::new(Code::Failed, what))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Prints a page at a time and keeps none of it, for any number of resources.
struct List {
    space: Lockspace,
    /// How many resources may still be listed.
    limit: u64,
    /// Where the next page begins; at the end, the list.
    after: Option<Name>,
    /// Resources after the list.
    left: u64,
    omitted: u64,
    silent: Vec<u32>,
}

/// The success of printing.
type Printed = std::io::Result<()>;

impl List {
    /// The next page; `None` after the last one.
    fn page(&mut self) -> Result<Option<View>, Failure> {
        if self.limit == 0 {
            return Ok(None);
        }
        let most = u32::try_from(self.limit).map_or(PAGE, |limit| limit.min(PAGE));
        let page = self.space.page(Which::All, self.after, most).map_err(failed)?;
        let view = View::of(&page.view);
        self.limit -= self.limit.min(view.resources.len() as u64);
        if page.next.is_none() {
            self.limit = 0;
        }
        (self.after, self.left) = (page.next, page.more);
        self.omitted += view.omitted;
        self.silent.extend(&view.silent);
        self.silent.sort_unstable();
        self.silent.dedup();
        Ok(Some(view))
    }

    fn print_json(&mut self, out: &mut impl Write, daemon: &Daemon) -> Result<Printed, Failure> {
        let mut printed = write!(out, "{{\"schema\":{SCHEMA},\"resources\":[");
        let mut comma = "";
        while printed.is_ok()
            && let Some(view) = self.page()?
        {
            for resource in &view.resources {
                let text = to_string(resource).or_fail(Code::Failed)?;
                printed = printed.and_then(|()| write!(out, "{comma}{text}"));
                comma = ",";
            }
        }
        let next = self.after.filter(|_| self.is_cut()).map(|name| name.to_string());
        let next = to_string(&next).or_fail(Code::Failed)?;
        let silent = to_string(&self.silent).or_fail(Code::Failed)?;
        let daemon = to_string(daemon).or_fail(Code::Failed)?;
        let (omitted, more) = (self.omitted, self.left);
        Ok(printed.and_then(|()| {
            let rest = format!("\"omitted\":{omitted},\"silent\":{silent},\"more\":{more}");
            writeln!(out, "],{rest},\"next\":{next},\"daemon\":{daemon}}}")
        }))
    }

    /// Columns are as wide as a page needs.
    fn print_table(&mut self, out: &mut impl Write) -> Result<Printed, Failure> {
        let (mut printed, mut listed) = (Ok(()), 0);
        while printed.is_ok()
            && let Some(view) = self.page()?
        {
            let rows: Vec<Vec<String>> = view.resources.iter().flat_map(rows_of).collect();
            let text = match rows.is_empty() {
                true => String::new(),
                false => table(&rows, listed == 0),
            };
            listed += rows.len();
            printed = out.write_all(text.as_bytes());
        }
        let silent = View { silent: self.silent.clone(), ..View::of(&Default::default()) };
        let mut end = if listed == 0 { "no locks\n".to_owned() } else { String::new() };
        if self.omitted > 0 {
            end += &format!("{} locks are left out: ask `lockify who NAME`\n", self.omitted);
        }
        if let Some(name) = self.after.filter(|_| self.is_cut()) {
            end += &format!("… and {} more; --after {}\n", self.left, shown(&name));
        }
        end = silent.warning().unwrap_or_default() + &end;
        Ok(printed.and_then(|()| out.write_all(end.as_bytes())))
    }

    fn is_cut(&self) -> bool {
        self.after.is_some() && self.left > 0
    }
}

/// A name as a shell takes it, if it is text.
fn shown(name: &Name) -> String {
    match std::str::from_utf8(name.as_bytes()) {
        Ok(text) if text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./:".contains(c)) => {
            text.to_owned()
        }
        Ok(text) if !text.chars().any(char::is_control) => {
            format!("'{}'", text.replace('\'', "'\\''"))
        }
        _ => name.to_string(),
    }
}

fn table(rows: &[Vec<String>], first: bool) -> String {
    let text = columns(&["NAME", "MASTER", "STATE", "MODE", "WHO", "FOR"], rows);
    match text.split_once('\n') {
        Some((_, rows)) if !first => rows.to_owned(),
        _ => text,
    }
}

fn rows_of(r: &Resource) -> Vec<Vec<String>> {
    let master = r.master.map_or_else(|| "?".into(), |m| m.to_string());
    let row = |state: &str, mode: &Option<String>, lock: &Lock| {
        let mode = mode.clone().unwrap_or_default();
        vec![r.name.clone(), master.clone(), state.into(), mode, lock.whose(), lock.age()]
    };
    let holders = r.holders.iter().map(|l| row("holds", &l.granted, l));
    holders.chain(r.waiters.iter().map(|l| row("waits", &l.requested, l))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_shown_as_the_shell_takes_it() {
        for (name, text) in [("a/b-1", "a/b-1"), ("it's", "'it'\\''s'"), ("a b", "'a b'")] {
            assert_eq!(shown(&Name::new(name).unwrap()), text);
        }
        assert!(!shown(&Name::new([7, 200]).unwrap()).contains('\u{7}'));
    }

    #[test]
    fn only_the_first_page_has_a_heading() {
        let rows = [vec!["a".to_owned(); 6]];
        assert_eq!(table(&rows, true).lines().count(), 2);
        assert_eq!(table(&rows, false).lines().count(), 1);
    }
}
