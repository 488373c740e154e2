//! Clients' questions, of a lockspace or to all nodes, and how their answers are told.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use lockify_core::{ClientId, Input, ResourceInfo};
use lockify_node::{NodeEngine, PageOf};
use lockify_session::protocol::{Answer, Event, KNOWS_RELOAD, Query, Refusal, TELLS_CERTIFICATES};

use super::{ClientHost, HostedClient, Outbox, Recipient};

const NO_CLUSTER: &str = "this node does not know the cluster yet, or its membership is corosync's";

/// How long the nodes of the cluster may take to answer a query.
const QUERY_PATIENCE: Duration = Duration::from_secs(2);

/// Locks in one part of an answer, so that it fits a frame.
const LOCKS_PER_PART: usize = 500;

/// Locks in one answer; more would fill the memory of a daemon with a busy client.
const LOCKS_PER_ANSWER: usize = 100_000;

/// Queries of one session, and of all sessions of one user, that may be unanswered.
const QUERIES: usize = 32;
/// Queries of all clients of a shard that may be.
const ALL_QUERIES: usize = 256;

/// A query of a client, which speaks this version.
pub(super) struct Questioned {
    pub(super) client: ClientId,
    /// The same for all clients of its user.
    user: Arc<AtomicU32>,
    id: u64,
    version: u16,
}

impl ClientHost {
    pub(super) fn query(
        &mut self,
        engine: &mut NodeEngine,
        asker: &HostedClient,
        id: u64,
        query: Query,
        out: &mut Outbox,
    ) {
        let to = Recipient::Client(asker.id);
        let answer = match query {
            Query::Open(name) => self.open(name, asker),
            Query::Create { .. }
            | Query::CreateWithMode { .. }
            | Query::Release { .. }
            | Query::MayRelease(_) => match self.make_or_release(engine, asker, id, query, out) {
                Ok(None) => return,
                Ok(Some(answer)) => Ok(answer),
                Err(why) => Err(why),
            },
            Query::Cluster => match engine.cluster() {
                Some(state) => Ok(Answer::Cluster(Box::new(state.clone()))),
                None => Err(Refusal::Failed(NO_CLUSTER.into())),
            },
            Query::Change(_) if !asker.privileged => Err(Refusal::MayNotReload),
            Query::Change(request) => {
                let asked = engine.request(request);
                self.changes.insert(asked, (asker.id, id));
                return;
            }
            // A daemon does so itself.
            Query::Reload => Err(Refusal::Failed("there is no configuration file".into())),
            Query::Purge { space, node, clients } => {
                self.lockable(space, asker).map(|space| space.id).and_then(|id| {
                    let node = node.unwrap_or(self.node);
                    let purge = Input::Purge { node, clients };
                    self.call(engine, id, purge).map(|_| Answer::Done)
                })
            }
            cluster_wide => match self.ask(engine, asker, id, cluster_wide) {
                // The answer comes with an event.
                Ok(()) => return,
                Err(why) => Err(why),
            },
        };
        let answer = answer.unwrap_or_else(Answer::Refused);
        out.push((to, Event::Answer { id, answer, more: false }));
    }

    fn open(&self, wanted: String, client: &HostedClient) -> Result<Answer, Refusal> {
        match self.find(&wanted) {
            Some(i) if !client.rights(i, &self.spaces[i]).look => Err(Refusal::MayNotLook(wanted)),
            Some(i) => Ok(self.opened(i)),
            None => Err(self.no_such_space(wanted)),
        }
    }

    /// Asks all nodes.
    fn ask(
        &mut self,
        engine: &mut NodeEngine,
        client: &HostedClient,
        id: u64,
        query: Query,
    ) -> Result<(), Refusal> {
        use lockify_node::Query as Ask;
        let known = |space| {
            let found = self.visible(space, client)?;
            match self.external(found.id) {
                None => Ok(found.name.clone()),
                Some(_) => Err(Refusal::Failed(format!(
                    "the locks of lockspace {:?} are words in remote memory, and no daemon knows who holds them elsewhere",
                    found.name
                ))),
            }
        };
        let query = match query {
            Query::Status => Ask::Status,
            Query::Locks(space) => Ask::Locks { space: known(space)? },
            Query::Page { space, after, limit, waited } => {
                Ask::Page(PageOf { space: known(space)?, after, limit, waited })
            }
            Query::Who(space, name) => Ask::Who { space: known(space)?, name },
            // A daemon does that itself.
            Query::Restart
            | Query::Open(_)
            | Query::Create { .. }
            | Query::CreateWithMode { .. }
            | Query::Release { .. }
            | Query::MayRelease(_)
            | Query::Purge { .. }
            | Query::Reload
            | Query::Cluster
            | Query::Change(_) => {
                return Err(Refusal::Failed("this is no question to all nodes".into()));
            }
        };
        self.room_for_query(client)?;
        let query = engine.query(query, QUERY_PATIENCE);
        let (user, version) = (client.of_user(), client.version);
        self.queries.insert(query, Questioned { client: client.id, user, id, version });
        Ok(())
    }

    /// Looking is cheap for the cluster, but not free: nobody asks without end.
    fn room_for_query(&self, client: &HostedClient) -> Result<(), Refusal> {
        let user = client.of_user();
        let of_user = self.queries.values().filter(|asked| Arc::ptr_eq(&asked.user, &user)).count();
        let whose = match (of_user, self.queries.len()) {
            (QUERIES.., _) => format!("{QUERIES} queries of this user"),
            (_, ALL_QUERIES..) => format!("{ALL_QUERIES} queries of this node's clients"),
            _ => return Ok(()),
        };
        Err(Refusal::Failed(format!("{whose} wait already: try again when they are answered")))
    }
}

/// Sends a cluster's answer in parts that fit frames.
pub(super) fn answer_parts(asked: &Questioned, answer: lockify_node::Answer, out: &mut Outbox) {
    let (client, id) = (asked.client, asked.id);
    let mut part =
        |answer| out.push((Recipient::Client(client), Event::Answer { id, answer, more: true }));
    for mut status in answer.status {
        let (node, shard, software) = (status.node, status.shard, status.software.take());
        let certificates = std::mem::take(&mut status.certificates);
        part(Answer::Status(status.into()));
        if let Some(software) = software.filter(|_| asked.version >= KNOWS_RELOAD) {
            part(Answer::Software { node, shard, software });
        }
        if !certificates.is_empty() && asked.version >= TELLS_CERTIFICATES {
            part(Answer::Certificates { node, shard, certificates });
        }
    }
    let mut pieces = Vec::new();
    let (mut locks, mut room, mut omitted) = (0, LOCKS_PER_ANSWER, 0);
    for piece in answer.resources.into_iter().flat_map(pieces_of) {
        if room < piece.locks.len() {
            omitted += piece.locks.len() as u64;
            continue;
        }
        room -= piece.locks.len();
        // An empty resource takes room, too.
        locks += piece.locks.len() + 1;
        pieces.push(piece);
        if locks >= LOCKS_PER_PART {
            part(Answer::Resources(std::mem::take(&mut pieces)));
            locks = 0;
        }
    }
    if !pieces.is_empty() {
        part(Answer::Resources(pieces));
    }
    let pages = matches!(answer.query, lockify_node::Query::Page(_));
    omitted += answer.locks_left_out;
    if !pages {
        omitted += answer.more;
    }
    if omitted > 0 {
        part(Answer::Omitted(omitted));
    }
    if pages {
        part(Answer::Rest { more: answer.more, next: answer.next });
    }
    if !answer.silent.is_empty() {
        part(Answer::Silent(answer.silent));
    }
    out.push((Recipient::Client(client), Event::Answer { id, answer: Answer::Done, more: false }));
}

/// A resource as pieces of at most [`LOCKS_PER_PART`] locks.
fn pieces_of(mut resource: ResourceInfo) -> Vec<ResourceInfo> {
    let mut pieces = Vec::new();
    while resource.locks.len() > LOCKS_PER_PART {
        let rest = resource.locks.split_off(LOCKS_PER_PART);
        let piece = ResourceInfo { locks: rest, ..resource.clone() };
        pieces.push(std::mem::replace(&mut resource, piece));
    }
    pieces.push(resource);
    pieces
}
