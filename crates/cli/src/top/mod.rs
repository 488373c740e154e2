//! `lockify top`: the contended locks, and the nodes' load.

mod fit;
mod sample;
mod screen;
mod terminal;

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::Duration;

use lockify_client::{Client, Error, Lockspace};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use crate::connect::{Connection, Missing, failed};
use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::output::print;
use sample::{Sample, Top};
use screen::Screen;
use terminal::Terminal;

/// Watch the cluster: contended locks, waiters and their times, and rates of all nodes
///
/// Keys: q ends, up and down scroll the list of locks.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
    /// How long to wait between looks: rates are over the time from one to the next
    #[arg(long, value_name = "D", value_parser = interval, default_value = "2s")]
    interval: Duration,
    /// Look twice, print text, and end
    #[arg(long)]
    once: bool,
    /// With --once: print one JSON object instead of text
    #[arg(long, requires = "once")]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let bounds = Duration::from_millis(50)..=Duration::from_secs(3600);
    let interval = humantime::parse_duration(text).map_err(|e| e.to_string())?;
    if bounds.contains(&interval) { Ok(interval) } else { Err("use 50ms to 1h".into()) }
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let alone = !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal();
    if alone && !args.once {
        let what = "top needs a terminal for its input and output: --once prints what it shows";
        return Err(Failure::new(Code::Unreadable, what));
    }
    let client = args.connection.client(Missing::Fail).map_err(failed)?;
    let space = client.lockspace(&args.connection.space).map_err(failed)?;
    if !args.once {
        return watch(looks(client, space, args.interval), args.connection.headline()?);
    }
    let before = Sample::take(&client, &space).map_err(failed)?;
    thread::sleep(args.interval);
    let now = Sample::take(&client, &space).map_err(failed)?;
    let top = Top::between(&before, &now);
    if args.json {
        args.connection.print_json(&top)?
    } else {
        print(&(args.connection.headline()? + &top.text()))?
    }
    Ok(ExitCode::SUCCESS)
}

/// Looks again and again, on a thread of its own: nodes that do not answer make a look take
/// seconds, and keys are heard meanwhile. Ends with the first error.
fn looks(client: Client, space: Lockspace, interval: Duration) -> Receiver<Result<Sample, Error>> {
    let (sender, looks) = mpsc::sync_channel(1);
    thread::spawn(move || {
        loop {
            let look = Sample::take(&client, &space);
            let over = look.is_err();
            if sender.send(look).is_err() || over {
                return;
            }
            thread::sleep(interval);
        }
    });
    looks
}

/// Shows it until somebody has seen enough. Whatever ends it, the terminal is as it was before.
fn watch(looks: Receiver<Result<Sample, Error>>, daemon: String) -> Ended {
    let mut before = looks.recv().or_fail(Code::Failed)?.map_err(failed)?;
    let mut top = Top::between(&before, &before);
    let mut terminal = Terminal::take()?;
    let mut screen = Screen::of(daemon);
    let mut changed = true;
    loop {
        if changed {
            terminal.draw(|frame| screen.draw(frame, &top))?;
        }
        let key = key()?;
        changed = key.is_some();
        match key {
            Some(Key::End) => return Ok(ExitCode::SUCCESS),
            Some(Key::Scroll(by)) => screen.scroll(by),
            Some(Key::Other) | None => {}
        }
        match looks.try_recv() {
            Ok(now) => {
                let now = now.map_err(failed)?;
                top = Top::between(&before, &now);
                (before, changed) = (now, true);
            }
            Err(TryRecvError::Empty) => {}
            Err(e) => return Err(Failure::new(Code::Failed, e)),
        }
    }
}

enum Key {
    End,
    Scroll(isize),
    /// Or a new size of the terminal: the screen is to be drawn again.
    Other,
}

/// A key, if one is pressed soon: then it is time to see whether there is a new look.
fn key() -> Result<Option<Key>, Failure> {
    if !event::poll(Duration::from_millis(100)).map_err(terminal::failed)? {
        return Ok(None);
    }
    let Event::Key(key) = event::read().map_err(terminal::failed)? else {
        return Ok(Some(Key::Other));
    };
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    Ok(Some(match key.code {
        _ if key.kind == KeyEventKind::Release => Key::Other,
        KeyCode::Char('q') | KeyCode::Esc => Key::End,
        KeyCode::Char('c') if control => Key::End,
        KeyCode::Down | KeyCode::Char('j') => Key::Scroll(1),
        KeyCode::Up | KeyCode::Char('k') => Key::Scroll(-1),
        KeyCode::PageDown => Key::Scroll(10),
        KeyCode::PageUp => Key::Scroll(-10),
        _ => Key::Other,
    }))
}
