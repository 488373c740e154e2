//! Fencing agents: programs that make sure that a machine does no more harm.
//!
//! An agent is run on a thread of its own, with a time limit; its exit status 0 is the proof. It is
//! run for a process of a node once, however many shards of this node ask.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockify_core::NodeId;
use lockify_trust::Mailbox;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::membership::FenceKind;
use crate::news::News;
use crate::notice::{Level, Notice};

/// How often a running agent is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// How nodes are fenced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FenceConfig {
    /// The proof that recoveries wait for.
    pub kind: FenceKind,
    /// With [`FenceKind::Command`]: the agent and its arguments, in which `{node}`, `{name}` and
    /// `{address}` stand for the node to be fenced. Exit status 0: it can write no more.
    pub command: Vec<String>,
    /// How long an agent may take; then it is killed, and has failed.
    pub time_limit: Duration,
    /// How long after its start a first view waits for nodes that have not come before it has
    /// them fenced.
    pub startup_wait: Duration,
}

impl Default for FenceConfig {
    fn default() -> FenceConfig {
        FenceConfig {
            kind: FenceKind::Lease,
            command: Vec::new(),
            time_limit: Duration::from_secs(60),
            startup_wait: Duration::from_secs(30),
        }
    }
}

/// The node to fence.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) node: NodeId,
    pub(crate) name: String,
    pub(crate) address: String,
    /// The life that must not go on, as this shard counts lives; 0 if not known.
    pub(crate) born: u64,
    /// The shard that asks. Each counts lives by itself.
    pub(crate) shard: u32,
}

/// Runs agents for all shards of a node.
#[derive(Debug)]
pub(crate) struct Fencer {
    config: Mutex<FenceConfig>,
    nodes: Mutex<BTreeMap<NodeId, Run>>,
}

/// The last run for a node.
#[derive(Debug, Default)]
struct Run {
    /// By shard, the last life that an agent has ended.
    done: BTreeMap<u32, u64>,
    /// The shards that wait for the agent's end: the shard, the life, and the mailbox for the
    /// result.
    waiting: Vec<(u32, u64, Mailbox<News>)>,
}

impl Fencer {
    pub(crate) fn new(config: FenceConfig) -> Arc<Fencer> {
        Arc::new(Fencer { config: Mutex::new(config), nodes: Mutex::default() })
    }

    fn config(&self) -> FenceConfig {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Uses another agent for those that are fenced from now on.
    pub(crate) fn set_agent(&self, command: &[String], time_limit: Duration) {
        let mut config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        (config.command, config.time_limit) = (command.to_vec(), time_limit);
    }

    /// Has the agent fence a node; [`News::Fenced`] tells how it went.
    pub(crate) fn fence(self: &Arc<Fencer>, target: Target, mailbox: Mailbox<News>) {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let run = nodes.entry(target.node).or_default();
        if run.waiting.is_empty()
            && run.done.get(&target.shard).is_some_and(|done| target.born <= *done)
        {
            return mailbox.post(News::Fenced { node: target.node, success: true });
        }
        run.waiting.push((target.shard, target.born, mailbox));
        if run.waiting.len() > 1 {
            return;
        }
        drop(nodes);
        let (fencer, node) = (self.clone(), target.node);
        let thread = std::thread::Builder::new().name(format!("lockify-fence-{node}"));
        let spawned = thread.spawn(move || {
            let node = target.node.to_string();
            let variables =
                [("node", &*node), ("name", &target.name), ("address", &target.address)];
            let FenceConfig { command, time_limit, .. } = fencer.config();
            let result = run_agent(&command, &variables, time_limit);
            fencer.ended(&target, result);
        });
        if let Err(e) = spawned {
            self.finish(node, false, format!("cannot start a thread for the agent: {e}"));
        }
    }

    fn ended(&self, target: &Target, result: Result<Duration, String>) {
        let node = target.node;
        match result {
            Ok(took) => {
                self.finish(node, true, format!("node {node} was fenced in {} ms", took.as_millis()));
            }
            Err(why) => self.finish(
                node,
                false,
                format!(
                    "node {node} was not fenced: {why}; its locks stay locked, and the agent is run \
                     again: if it cannot succeed, make it exit with 0 once you are sure that the \
                     node is off"
                ),
            ),
        }
    }

    fn finish(&self, node: NodeId, success: bool, text: String) {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(run) = nodes.get_mut(&node) else { return };
        let waiting = std::mem::take(&mut run.waiting);
        if success {
            run.done.extend(waiting.iter().map(|(shard, born, _)| (*shard, *born)));
        }
        drop(nodes);
        let level = if success { Level::Warning } else { Level::Error };
        for (i, (_, _, mailbox)) in waiting.iter().enumerate() {
            if i == 0 {
                mailbox.post(News::Notice(Notice { level, text: text.clone() }));
            }
            mailbox.post(News::Fenced { node, success });
        }
    }
}

/// Runs a program to its end, or to the end of its time; returns the duration. It finds `variables`
/// in its environment, and `{variable}` in its arguments replaced.
///
/// # Errors
/// The program cannot be run, failed, or took too long and was killed.
pub fn run_agent(
    command: &[String],
    variables: &[(&str, &str)],
    limit: Duration,
) -> Result<Duration, String> {
    let began = Instant::now();
    let Some((program, arguments)) = command.split_first() else {
        return Err("no command is configured".into());
    };
    let fill = |text: &String| {
        variables
            .iter()
            .fold(text.clone(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
    };
    let environment =
        variables.iter().map(|(name, value)| (format!("LOCKIFY_{}", name.to_uppercase()), value));
    let child = Command::new(program)
        .args(arguments.iter().map(fill))
        .envs(environment)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        // A group of its own, so that its children are killed with it.
        .process_group(0)
        .spawn();
    let mut child = child.map_err(|e| format!("{program} cannot be run: {e}"))?;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(began.elapsed()),
            Ok(Some(status)) => return Err(format!("{program} ended with {status}")),
            Ok(None) if began.elapsed() < limit => std::thread::sleep(LOOK),
            Ok(None) => {
                kill(&mut child);
                return Err(format!("{program} took more than {} ms", limit.as_millis()));
            }
            Err(e) => {
                kill(&mut child);
                return Err(format!("cannot wait for {program}: {e}"));
            }
        }
    }
}

fn kill(child: &mut Child) {
    if let Some(pid) = Pid::from_raw(child.id() as i32) {
        // Fails only if it has just ended by itself.
        let _ = kill_process_group(pid, Signal::KILL);
    }
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;
    use std::os::unix::fs::OpenOptionsExt as _;

    use super::*;

    fn fencer(command: &[&str], time_limit: Duration) -> Arc<Fencer> {
        let command = command.iter().map(|s| (*s).to_owned()).collect();
        let kind = FenceKind::Command;
        Fencer::new(FenceConfig { kind, command, time_limit, ..FenceConfig::default() })
    }

    fn target(born: u64) -> Target {
        Target { node: NodeId(7), name: "n7".into(), address: "192.0.2.7".into(), born, shard: 0 }
    }

    /// Everything that was posted up to the agent's end.
    fn news(fencer: &Arc<Fencer>, born: u64) -> (bool, String) {
        let poll = mio::Poll::new().unwrap();
        let waker = mio::Waker::new(poll.registry(), mio::Token(0)).unwrap();
        let mailbox = Mailbox::new(Arc::new(waker));
        fencer.fence(target(born), mailbox.clone());
        let mut text = String::new();
        let end = Instant::now() + LONG;
        loop {
            assert!(Instant::now() < end, "in vain waited for the agent's end");
            for news in mailbox.take() {
                match news {
                    News::Notice(notice) => text = notice.text,
                    News::Fenced { node, success } => {
                        assert_eq!(node, NodeId(7));
                        return (success, text);
                    }
                    other => unreachable!("an agent does not say {other:?}"),
                }
            }
            std::thread::sleep(LOOK);
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_agent_is_told_whom_and_its_status_counts() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let script =
            format!("echo \"$LOCKIFY_NODE $LOCKIFY_NAME $LOCKIFY_ADDRESS $0\" >>{}", out.display());
        let fencer = fencer(&["sh", "-c", &script, "{node}/{name}/{address}"], LONG);
        assert!(news(&fencer, 5).0);
        // Another shard asks for the same process: that has been done.
        assert!(news(&fencer, 5).0);
        let told = std::fs::read_to_string(&out).unwrap();
        assert_eq!(told, "7 n7 192.0.2.7 7/n7/192.0.2.7\n");
        // A later process of the node is another matter.
        assert!(news(&fencer, 6).0);
        assert_eq!(std::fs::read_to_string(&out).unwrap().lines().count(), 2);
    }

    #[test]
    fn a_failing_agent_is_no_proof_and_can_be_run_again() {
        let fencer = fencer(&["sh", "-c", "exit 3"], LONG);
        let (success, text) = news(&fencer, 5);
        assert!(!success && text.contains("exit status: 3"), "{text}");
        assert!(!news(&fencer, 5).0);
    }

    #[test]
    fn an_agent_that_hangs_is_killed_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("alive");
        // The child holds the write end of a pipe: its end is this reader's end of file.
        let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        let script = format!("sleep 1000 >{} & wait", fifo.display());
        // Does not wait for the child, which may be killed before it has opened the pipe.
        let unblocked = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let mut reader = File::options().read(true).custom_flags(unblocked).open(&fifo).unwrap();
        let fencer = fencer(&["sh", "-c", &script], Duration::from_millis(300));
        let (success, text) = news(&fencer, 5);
        assert!(!success && text.contains("took more than 300 ms"), "{text}");
        let end = Instant::now() + LONG;
        while reader.read(&mut [0]).is_err() {
            assert!(Instant::now() < end, "the agent's child lives");
            std::thread::sleep(LOOK);
        }
    }

    #[test]
    fn an_agent_that_is_not_there_is_named() {
        let fencer = fencer(&["/nowhere/agent"], LONG);
        let (success, text) = news(&fencer, 5);
        assert!(!success && text.contains("/nowhere/agent cannot be run"), "{text}");
    }
}
