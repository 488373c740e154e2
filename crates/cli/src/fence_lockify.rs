//! `fence_lockify`: a fence agent for Pacemaker, by the conventions of ClusterLabs (the FenceAgentAPI page of fence-agents). It
//! is this program under another name.
//!
//! It is a fence agent for fabrics. It cuts a node's hosts off from the devices of one array, and does not touch the machine. A
//! process that is started on the node later is another host, and is let in. So `on` has nothing to do.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory as _, Parser};
use lockify_array::{ArrayState, NodeName};
use lockify_volume::ArrayFile;
use lockify_volume::status::ask;

use crate::array::{FAREWELL, FenceWhom as Whom, fence, list_of, open_within};
use crate::exit::{Code, Failure, OrFail as _};
use crate::output::{print, print_message};
use crate::secure::Secure;

/// The name of the agent.
const NAME: &str = "fence_lockify";
/// Bytes of parameters that are read from standard input.
const LONGEST: u64 = 64 * 1024;

/// Cut a node off from a shared array of Lockify: a fence agent for cluster managers
///
/// Without options it reads them from standard input, one NAME=VALUE on each line.
#[derive(Parser)]
#[command(name = NAME, version, disable_version_flag = true)]
struct Cli {
    /// on, off, reboot, status, monitor, list, list-status, validate-all or metadata
    #[arg(short = 'o', long, value_name = "ACTION", default_value = "off")]
    action: String,
    /// The node, as its hosts are called (`lockify array export --node-name`)
    #[arg(short = 'n', long, visible_alias = "port", alias = "nodename", value_name = "NODE")]
    plug: Option<NodeName>,
    /// Instead of a node: the number of a host
    #[arg(long, value_name = "N")]
    host: Option<u32>,
    /// A node of which no host has ever attached counts as off, instead of as an error
    #[arg(long)]
    missing_as_off: bool,
    /// Seconds until the array's devices have to answer
    #[arg(long, value_name = "SECONDS", default_value = "15", value_parser = seconds)]
    login_timeout: Duration,
    /// Seconds until all devices have to have recorded the fence
    #[arg(long, value_name = "SECONDS", default_value = "40", value_parser = seconds)]
    power_timeout: Duration,
    /// Seconds to wait before the node is cut off
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    delay: Duration,
    /// Between the columns of `list`
    #[arg(short = 'C', long, value_name = "CHAR", default_value = ",")]
    separator: String,
    /// Say more
    #[arg(short = 'v', long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Say nothing about failures
    #[arg(short = 'q', long)]
    quiet: bool,
    /// Display version information and exit
    #[arg(short = 'V', long)]
    version: bool,
    /// The array's file (`lockify array create`)
    #[arg(long, value_name = "ARRAY.toml")]
    array: Option<PathBuf>,
    #[command(flatten)]
    secure: Secure,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no number of seconds, as 40");
    let seconds: f64 = text.strip_suffix('s').unwrap_or(text).parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

/// The parameters that cluster managers give on standard input, and the options that they are.
const PARAMETERS: [(&str, &str); 19] = [
    ("action", "action"),
    ("option", "action"),
    ("nodename", "plug"),
    ("port", "plug"),
    ("plug", "plug"),
    ("host", "host"),
    ("array", "array"),
    ("missing_as_off", "missing-as-off"),
    ("login_timeout", "login-timeout"),
    ("power_timeout", "power-timeout"),
    ("delay", "delay"),
    ("separator", "separator"),
    ("verbose", "verbose"),
    ("quiet", "quiet"),
    ("cluster", "cluster"),
    ("node", "node"),
    ("ca", "ca"),
    ("identity", "identity"),
    ("cluster_key", "cluster-key"),
];
/// Those of them that are true or false.
const FLAGS: [&str; 3] = ["missing-as-off", "verbose", "quiet"];

/// Returns true if the program was called by the agent's name.
pub fn is_called(program: Option<&OsStr>) -> bool {
    program.is_some_and(|path| Path::new(path).file_name() == Some(OsStr::new(NAME)))
}

/// Runs the agent. It ends with 0, with 2 where a status is off, and else with 1: clap's 2 would pass for a status.
pub fn run(mut args: Vec<OsString>) -> ExitCode {
    if args.len() < 2 {
        match from_input() {
            Ok(read) => args.extend(read),
            Err(why) => return failed(&why, false),
        }
    }
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let is_help = !error.use_stderr();
            let _ = error.print();
            return if is_help { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
    };
    act(&cli).unwrap_or_else(|failure| failed(&failure.to_string(), cli.quiet))
}

fn failed(why: &str, quiet: bool) -> ExitCode {
    if !quiet {
        print_message(&format!("Failed: {}", lockify_trust::printable(why)));
    }
    ExitCode::FAILURE
}

fn from_input() -> Result<Vec<OsString>, String> {
    let mut text = String::new();
    let read = std::io::stdin().take(LONGEST + 1).read_to_string(&mut text);
    let length = read.map_err(|e| format!("cannot read parameters from standard input: {e}"))?;
    if length as u64 > LONGEST {
        return Err(format!("more than {LONGEST} bytes of parameters came from standard input"));
    }
    options(&text)
}

/// Options from lines NAME=VALUE. The last value of a parameter counts, and unknown ones are ignored, as the conventions say.
/// A plug is preferred to a name of a node.
fn options(text: &str) -> Result<Vec<OsString>, String> {
    let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    let mut given: Vec<(usize, &str)> = Vec::new();
    for line in lines {
        let (name, value) = line.split_once('=').ok_or_else(|| {
            format!("{:?} is no parameter: NAME=VALUE", line.chars().take(80).collect::<String>())
        })?;
        if let Some(place) = PARAMETERS.iter().position(|(known, _)| *known == name) {
            given.retain(|(other, _)| *other != place);
            given.push((place, value));
        }
    }
    given.sort_unstable();
    let mut options: Vec<(&str, &str)> = Vec::new();
    for (place, value) in given {
        let (_, option) = PARAMETERS[place];
        options.retain(|(other, _)| *other != option);
        options.push((option, value));
    }
    let text = |(option, value): (&str, &str)| {
        let is_flag = FLAGS.contains(&option);
        match is_flag {
            true => is_true(value).then(|| format!("--{option}")),
            false => Some(format!("--{option}={value}")),
        }
    };
    Ok(options.into_iter().filter_map(text).map(OsString::from).collect())
}

fn is_true(value: &str) -> bool {
    ["1", "yes", "on", "true"].contains(&value.to_ascii_lowercase().as_str())
}

fn act(cli: &Cli) -> Result<ExitCode, Failure> {
    if cli.version {
        print(&format!("{NAME} {}\n", env!("CARGO_PKG_VERSION")))?;
        return Ok(ExitCode::SUCCESS);
    }
    match cli.action.to_ascii_lowercase().as_str() {
        "metadata" | "meta-data" => print(&metadata())?,
        "off" => off(cli)?,
        "reboot" => {
            off(cli)?;
            on(cli)?;
        }
        "on" => on(cli)?,
        "status" => return status(cli),
        "monitor" => drop(state(cli)?),
        "list" => list(cli, false)?,
        "list-status" => list(cli, true)?,
        "validate-all" => {
            file(cli)?;
            cli.secure.identity()?;
        }
        other => {
            let what = format!(
                "there is no action {other:?}: on, off, reboot, status, monitor, list, list-status, validate-all, metadata"
            );
            return Err(Failure::new(Code::Unreadable, what));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn file(cli: &Cli) -> Result<ArrayFile, Failure> {
    let missing = || Failure::new(Code::Unreadable, "give the array's file: --array, or array=");
    let path = cli.array.as_ref().ok_or_else(missing)?;
    ArrayFile::read(path).or_fail(Code::Unreadable)
}

fn whom(cli: &Cli) -> Result<Whom, Failure> {
    match (cli.host, cli.plug) {
        (Some(host), _) => Ok(Whom::Host(host)),
        (None, Some(node)) => Ok(Whom::Node(node)),
        (None, None) => {
            let what = "give the node: --plug, or plug= (or the number of a host: --host)";
            Err(Failure::new(Code::Unreadable, what))
        }
    }
}

fn off(cli: &Cli) -> Result<(), Failure> {
    let (whom, file) = (whom(cli)?, file(cli)?);
    std::thread::sleep(cli.delay);
    let array = open_within(&file, cli.secure.identity()?, cli.login_timeout)?;
    let missing = |node| array.attached().is_none_or(|state| state.nodes.get(node).is_none());
    let fenced = match whom {
        Whom::Node(node) if cli.missing_as_off && missing(node) => Ok(Vec::new()),
        _ => fence(&array, whom, cli.power_timeout),
    };
    array.leave(FAREWELL);
    let hosts = fenced?;
    let cut = match hosts.is_empty() {
        true => "it had no host of the array".to_owned(),
        false => format!("cut off: host {}", list_of(&hosts)),
    };
    print(&format!("Success: OFF ({cut})\n"))
}

/// A process that is started on the node is let in without being asked for.
fn on(cli: &Cli) -> Result<(), Failure> {
    whom(cli)?;
    state(cli)?;
    print("Success: ON (hosts that are started from now on are let in)\n")
}

fn status(cli: &Cli) -> Result<ExitCode, Failure> {
    let whom = whom(cli)?;
    let state = state(cli)?;
    let is_on = match whom {
        Whom::Host(host) if host == 0 || u64::from(host) > state.hosts => {
            let what = format!("no host {host}: {} have attached so far", state.hosts);
            return Err(Failure::new(Code::Unreadable, what));
        }
        Whom::Host(host) => state.nodes.of_host(host).is_some(),
        Whom::Node(node) => match state.nodes.get(node) {
            Some(node) => node.hosts().next().is_some(),
            None if cli.missing_as_off => false,
            None => {
                let what = format!("no host of node {node} has attached to the array");
                return Err(Failure::new(Code::Unreadable, what));
            }
        },
    };
    print(if is_on { "Status: ON\n" } else { "Status: OFF\n" })?;
    Ok(ExitCode::from(if is_on { 0 } else { 2 }))
}

fn list(cli: &Cli, with_status: bool) -> Result<(), Failure> {
    let separator = &cli.separator;
    let line = |node: &lockify_array::Node| {
        let status = if node.hosts().next().is_some() { "ON" } else { "OFF" };
        match with_status {
            true => format!("{}{separator}{separator}{status}\n", node.name),
            false => format!("{}{separator}\n", node.name),
        }
    };
    print(&state(cli)?.nodes.iter().map(line).collect::<String>())
}

/// The array's state, by more than half of its devices and witnesses. Another majority cannot have gone on without them.
fn state(cli: &Cli) -> Result<ArrayState, Failure> {
    let file = file(cli)?;
    let answers = ask(&file, cli.secure.identity()?, cli.login_timeout).or_fail(Code::Failed)?;
    let (all, there) = (answers.voters.len(), answers.voters.iter().flatten().count());
    if there <= all / 2 {
        let why = (0..).zip(&answers.voters).filter_map(|(id, answer): (u16, _)| {
            Some(format!("device {id}: {}", answer.as_ref().err()?))
        });
        let why: Vec<String> = why.collect();
        let what = format!(
            "only {there} of the array's {all} devices and witnesses answer, and more than half have to: {}",
            why.join("; ")
        );
        return Err(Failure::new(Code::Failed, what));
    }
    let state = answers.newest().cloned();
    state.ok_or_else(|| Failure::new(Code::Failed, "no device knows the array's state"))
}

/// A parameter for [`metadata`].
struct Parameter {
    name: &'static str,
    option: &'static str,
    kind: &'static str,
    default: &'static str,
    required: bool,
    /// The parameter that it has replaced, or that has replaced it.
    relation: &'static str,
    what: &'static str,
}

const fn parameter(
    name: &'static str,
    option: &'static str,
    kind: &'static str,
    default: &'static str,
    what: &'static str,
) -> Parameter {
    Parameter { name, option, kind, default, required: false, relation: "", what }
}

const DESCRIBED: [Parameter; 19] = [
    Parameter {
        required: true,
        ..parameter("action", "-o, --action=[action]", "string", "off", "Fencing action")
    },
    Parameter {
        required: true,
        ..parameter(
            "array",
            "--array=[file]",
            "string",
            "",
            "The array's file (lockify array create)",
        )
    },
    Parameter {
        relation: r#" obsoletes="port""#,
        ..parameter(
            "plug",
            "-n, --plug=[node]",
            "string",
            "",
            "Name of the node, as in: lockify array export --node-name",
        )
    },
    Parameter {
        relation: r#" deprecated="1""#,
        ..parameter(
            "port",
            "-n, --plug=[node]",
            "string",
            "",
            "Name of the node, as in: lockify array export --node-name",
        )
    },
    parameter(
        "host",
        "--host=[number]",
        "integer",
        "",
        "Instead of a node: the number of a host of the array",
    ),
    parameter(
        "missing_as_off",
        "--missing-as-off",
        "boolean",
        "",
        "A node of which no host has ever attached counts as off, instead of as an error",
    ),
    parameter("cluster", "--cluster=[name]", "string", "lockify", "Name of Lockify's cluster"),
    parameter(
        "node",
        "--node=[number]",
        "integer",
        "",
        "Number of this machine's node in Lockify's cluster; with keys",
    ),
    parameter("ca", "--ca=[file]", "string", "", "Certificates of trusted authorities"),
    parameter("identity", "--identity=[file]", "string", "", "Certificate and key of this node"),
    parameter(
        "cluster_key",
        "--cluster-key=[file]",
        "string",
        "",
        "Instead of certificates: the key that all nodes share",
    ),
    parameter("quiet", "-q, --quiet", "boolean", "", "Say nothing about failures"),
    parameter("verbose", "-v, --verbose", "boolean", "", "Verbose mode"),
    parameter("version", "-V, --version", "boolean", "", "Display version information and exit"),
    parameter("help", "-h, --help", "boolean", "", "Display help and exit"),
    parameter(
        "separator",
        "-C, --separator=[char]",
        "string",
        ",",
        "Separator between the columns of list",
    ),
    parameter(
        "delay",
        "--delay=[seconds]",
        "second",
        "0",
        "Wait X seconds before fencing is started",
    ),
    parameter(
        "login_timeout",
        "--login-timeout=[seconds]",
        "second",
        "15",
        "Wait X seconds for the array's devices",
    ),
    parameter(
        "power_timeout",
        "--power-timeout=[seconds]",
        "second",
        "40",
        "Wait X seconds until all devices have recorded the fence",
    ),
];

const ACTIONS: &str = r#"<actions>
	<action name="on" automatic="0" />
	<action name="off" />
	<action name="reboot" />
	<action name="status" />
	<action name="monitor" />
	<action name="list" />
	<action name="list-status" />
	<action name="metadata" />
	<action name="validate-all" />
</actions>
"#;

const DESCRIPTION: &str = "fence_lockify is an I/O fencing agent for shared arrays of Lockify. It cuts all hosts of a node off \
    from the devices of an array, and does not touch the machine. It succeeds when all devices of the array have recorded that \
    durably: then no write of these hosts takes effect any more, and their unfinished writes are repaired. A host that is \
    started later on the node is another host, and is let in by itself. So the action on has nothing to do, a node needs no \
    unfencing, and reboot is the same as off.";

fn metadata() -> String {
    let about = |p: &Parameter| {
        let default = match p.default {
            "" => String::new(),
            value => format!(" default=\"{value}\""),
        };
        format!(
            "\t<parameter name=\"{}\" unique=\"0\" required=\"{}\"{}>\n\t\t<getopt mixed=\"{}\" />\n\t\t<content type=\"{}\"{default} \
             />\n\t\t<shortdesc lang=\"en\">{}</shortdesc>\n\t</parameter>\n",
            p.name,
            u8::from(p.required),
            p.relation,
            p.option,
            p.kind,
            p.what
        )
    };
    let parameters: String = DESCRIBED.iter().map(about).collect();
    format!(
        "<?xml version=\"1.0\" ?>\n<resource-agent name=\"{NAME}\" shortdesc=\"Fence agent for shared arrays of Lockify\" \
         >\n<longdesc>{DESCRIPTION}</longdesc>\n<vendor-url></vendor-url>\n<parameters>\n{parameters}</parameters>\n{ACTIONS}</resource-agent>\n"
    )
}

/// The agent's command line, for manual pages.
pub fn command() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<String> {
        options(text).unwrap().into_iter().map(|o| o.into_string().unwrap()).collect()
    }

    #[test]
    fn parameters_come_line_by_line() {
        let text = "# pacemaker\nagent=fence_lockify\n\n  action=reboot\naction=off\nnodename=a\nverbose=0\nquiet=1\n";
        assert_eq!(read(text), ["--action=off", "--plug=a", "--quiet"]);
        // A plug is preferred, in whatever order.
        assert_eq!(read("plug=b\nnodename=a\n"), ["--plug=b"]);
        assert_eq!(read("port=b=c\n"), ["--plug=b=c"]);
        assert_eq!(read("identity=\n"), ["--identity="]);
        assert!(options("action\n").unwrap_err().contains("NAME=VALUE"));
        Cli::command().debug_assert();
        for (name, option) in PARAMETERS {
            let value = if ["host", "node"].contains(&name) { "1" } else { "1s" };
            let ca = ["ca", "identity"]
                .contains(&name)
                .then_some("--ca=a --identity=b --node=1 --array=c");
            let key = (name == "cluster_key" || name == "cluster").then_some("--node=1 --array=c");
            let more = ca.or(key).unwrap_or("--array=c");
            let line = format!("{name}={value}\n");
            let args = std::iter::once("x".into()).chain(read(&line)).collect::<Vec<_>>();
            let more = more.split(' ').map(str::to_owned);
            let more = more.filter(|m| !m.starts_with(&format!("--{option}=")));
            let parsed = Cli::try_parse_from(args.into_iter().chain(more));
            assert!(parsed.is_ok(), "{name}: {}", parsed.err().unwrap());
        }
    }

    #[test]
    fn metadata_has_what_standard_input_has() {
        let known = PARAMETERS.iter().map(|(name, _)| *name);
        for name in known.filter(|name| !["option", "nodename"].contains(name)) {
            assert!(DESCRIBED.iter().any(|p| p.name == name), "{name}");
        }
    }

    #[test]
    fn it_is_called_by_its_name() {
        assert!(is_called(Some(OsStr::new("/usr/sbin/fence_lockify"))));
        assert!(!is_called(Some(OsStr::new("/usr/bin/lockify"))) && !is_called(None));
    }
}
