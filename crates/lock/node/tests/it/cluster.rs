//! Nodes on loopback: views, locks, deaths, quorum, delays, queries.

use std::time::{Duration, Instant};

use crate::common::*;
use lockify_core::{ClaimMode, Input, Mode, NodeId, Policy, Queue, Status};
use lockify_node::{CallError, HostEvent, NodeConfig, NodeEngine, PageOf, Query, SpaceConfig};

#[test]
fn an_engine_can_move_to_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<NodeEngine>();
}

#[test]
fn one_node_runs_alone_and_locks_at_once() {
    let mut engine = NodeEngine::new(NodeConfig::alone()).unwrap();
    let space = engine.join("s", SpaceConfig::new(Policy::Directory)).unwrap();
    assert!(engine.is_running(space));
    let mut events = Vec::new();
    engine.take_events(&mut events);
    assert!(events.iter().any(|e| matches!(e, HostEvent::Running { .. })));
    events.clear();
    let id = engine.handle(space, lock("r", Mode::EX)).unwrap().unwrap();
    engine.take_events(&mut events);
    let granted = |e: &HostEvent| {
        matches!(e, HostEvent::Completed { completion, .. }
            if completion.lock == id && completion.status == Status::Granted && completion.token > 0)
    };
    assert!(events.iter().any(granted));
}

#[test]
fn locks_exclude_each_other_across_nodes_under_every_policy() {
    let claim = Policy::Claim(ClaimMode::Optimistic);
    for policy in [Policy::Directory, claim, Policy::Broadcast, Policy::Home] {
        let mut c = Cluster::with(3, |c| c.policy = policy);
        let mut last = 0;
        for r in ["a", "b", "c", "d"] {
            for i in 0..3 {
                let (mine, token) = c.lock(i, r, Mode::EX);
                assert!(token > 0 && (r != "a" || token > last), "{token} after {last}");
                last = token;
                let other = (i + 1) % 3;
                let theirs = c.call(other, lock(r, Mode::PR)).unwrap();
                c.wait("a blocking notice", |c| {
                    c.saw(i, |e| matches!(e, HostEvent::Bast { lock, .. } if *lock == mine))
                });
                assert_eq!(c.completion(other, theirs), None);
                c.unlock(i, mine);
                c.wait("the other's grant", |c| c.completion(other, theirs).is_some());
                c.unlock(other, theirs);
                c.nodes.iter_mut().for_each(|n| n.events.clear());
            }
        }
    }
}

#[test]
fn a_killed_peer_is_recovered_and_what_it_held_is_free() {
    let mut c = Cluster::new(3);
    let held: Vec<_> = (0..8).map(|k| c.lock(2, &format!("r{k}"), Mode::EX).0).collect();
    let waiting = c.call(0, lock("r3", Mode::EX)).unwrap();
    c.wait("a blocking notice", |c| {
        c.saw(2, |e| matches!(e, HostEvent::Bast { lock, .. } if *lock == held[3]))
    });
    c.kill(2);
    c.wait("recovery", |c| c.runs_with(&[0, 1]));
    c.wait("the dead node's lock", |c| c.completion(0, waiting).is_some());
    for k in [0, 1, 2, 4, 5] {
        c.lock(1, &format!("r{k}"), Mode::EX);
    }
}

#[test]
fn a_restarted_peer_comes_back_and_goodbye_is_enough_to_leave() {
    let mut c = Cluster::new(3);
    c.kill(2);
    c.wait("a view of two", |c| c.runs_with(&[0, 1]));
    c.start(2, None);
    c.wait("a view of three", |c| c.runs_with(&[0, 1, 2]));
    c.lock(2, "again", Mode::EX);
    c.engine(0).goodbye();
    c.wait("a view without node 1", |c| c.runs_with(&[1, 2]));
    c.lock(1, "again too", Mode::EX);
}

#[test]
fn without_a_majority_every_lock_is_lost_at_once_and_calls_work_again_afterwards() {
    let mut c = Cluster::with(3, |c| c.lease = Duration::from_millis(300));
    let (kept, before) = c.lock(0, "r", Mode::EX);
    c.kill(1);
    c.kill(2);
    c.wait("the loss", |c| c.saw(0, |e| matches!(e, HostEvent::Halted { .. })));
    let lost = |e: &HostEvent| matches!(e, HostEvent::Lost { lock, .. } if *lock == kept);
    assert!(c.saw(0, lost));
    assert!(c.saw(0, |e| matches!(e, HostEvent::QuorumLost)));
    assert!(c.noticed(0, &["no majority", "every lock is lost"]));
    let space = c.nodes[0].space;
    let refused = c.engine(0).handle(space, lock("r", Mode::EX));
    assert_eq!(refused, Err(CallError::Lock(lockify_core::Error::NotMember)));
    c.start(1, None);
    c.wait("a view of two", |c| c.runs_with(&[0, 1]));
    c.nodes[0].events.clear();
    let (_, after) = c.lock(0, "r", Mode::EX);
    assert!(after > before, "{after} is not above {before}");
}

#[test]
fn leaving_in_order_gives_locks_back() {
    let mut c = Cluster::new(3);
    let (_, _) = c.lock(1, "r", Mode::EX);
    let space = c.nodes[1].space;
    c.engine(1).leave(space).unwrap();
    c.wait("the end", |c| c.saw(1, |e| matches!(e, HostEvent::Left { .. })));
    c.wait("a lockspace of two", |c| c.runs_with(&[0, 2]));
    c.lock(0, "r", Mode::EX);
    assert_eq!(c.engine(1).handle(space, lock("r", Mode::EX)), Err(CallError::NoSpace));
    let space = c.engine(1).join("s", SpaceConfig::new(Policy::Directory)).unwrap();
    c.nodes[1].space = space;
    c.wait("a lockspace of three", |c| c.runs_with(&[0, 1, 2]));
    c.lock(1, "q", Mode::EX);
}

#[test]
fn lockspaces_are_independent_and_a_node_may_join_only_some() {
    let mut c = Cluster::new(3);
    let other = [0, 2].map(|i| c.engine(i).join("t", SpaceConfig::new(Policy::Home)).unwrap());
    c.wait("the second lockspace", |c| {
        [0, 2].iter().zip(other).all(|(&i, s)| c.nodes[i].engine.as_ref().unwrap().is_running(s))
    });
    c.lock(0, "r", Mode::EX);
    let before = c.nodes[2].events.len();
    c.engine(2).handle(other[1], lock("r", Mode::EX)).unwrap();
    c.wait("the same name in the other lockspace", |c| {
        c.nodes[2].events[before..].iter().any(|e| {
            matches!(e, HostEvent::Completed { space, completion }
                if *space == other[1] && completion.status == Status::Granted)
        })
    });
    let t = c.engine(2).status().spaces.iter().find(|s| s.name == "t").unwrap().members.clone();
    assert_eq!(t, [NodeId(1), NodeId(3)]);
}

#[test]
fn joining_twice_and_bad_joins_are_told_apart() {
    let mut e = NodeEngine::new(NodeConfig::alone()).unwrap();
    let one = e.join("s", SpaceConfig::new(Policy::Directory)).unwrap();
    assert_eq!(e.join("s", SpaceConfig::new(Policy::Directory)), Ok(one));
    assert!(matches!(e.join("s", SpaceConfig::new(Policy::Home)), Err(CallError::Joined(_))));
    assert_eq!(e.join("", SpaceConfig::new(Policy::Home)), Err(CallError::BadSpaceName(0)));
    let mut long = SpaceConfig::new(Policy::Home);
    long.core.lvb_len = 1 << 20;
    assert!(matches!(e.join("l", long), Err(CallError::BadLvbLength(..))));
    assert_eq!(e.handle(one, Input::Halt), Err(CallError::NotACall));
}

#[test]
fn a_delay_is_added_to_every_message_and_they_do_not_wait_for_each_other() {
    const DELAY: Duration = Duration::from_millis(60);
    const LOCKS: u32 = 50;
    let mut c = Cluster::with(2, |c| (c.delay, c.policy) = (DELAY, Policy::Home));
    let space = c.nodes[0].space;
    let before = c.engine(0).space_stats(space).unwrap().messages_sent;
    let start = Instant::now();
    let ids: Vec<_> =
        (0..LOCKS).map(|k| c.call(0, lock(&format!("r{k}"), Mode::EX)).unwrap()).collect();
    c.wait("all grants", |c| ids.iter().all(|&id| c.completion(0, id).is_some()));
    let took = start.elapsed();
    let sent = c.engine(0).space_stats(space).unwrap().messages_sent - before;
    assert!(sent > 10, "half of {LOCKS} names should be the other's");
    assert!(took >= 2 * DELAY, "{took:?} is less than a round trip");
    assert!(took < 2 * DELAY * (sent as u32) / 2, "{took:?} for {sent}: they wait for each other");
}

#[test]
fn the_whole_cluster_answers_who_holds_what() {
    let mut c = Cluster::new(3);
    let (held, token) = c.lock(1, "r", Mode::EX);
    let waits = c.call(2, lock("r", Mode::PR)).unwrap();
    c.wait("a blocking notice", |c| c.saw(1, |e| matches!(e, HostEvent::Bast { .. })));
    let space = "s".to_owned();
    for query in [Query::Who { space: space.clone(), name: name("r") }, Query::Locks { space }] {
        let id = c.engine(0).query(query, LONG);
        let answer = answered(&mut c, 0, id);
        assert_eq!((answer.resources.len(), answer.silent.len()), (1, 0));
        let locks = &answer.resources[0].locks;
        let seen: Vec<_> = locks.iter().map(|l| (l.node.0, l.lock, l.queue)).collect();
        assert_eq!(seen, [(2, held, Queue::Granted), (3, waits, Queue::Waiting)]);
        assert_eq!(locks[0].token, token);
        assert!(locks[1].since > 1_500_000_000_000_000_000, "since 1970");
    }
    let id = c.engine(0).query(Query::Status, LONG);
    let status = answered(&mut c, 0, id).status;
    assert_eq!(status.iter().map(|s| s.node.0).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(status.iter().all(|s| s.view > 0 && s.members.len() == 3 && s.spaces[0].running));
    assert!(status.iter().all(|s| s.peers.len() == 2 && s.peers.iter().all(|p| p.connected)));
}

#[test]
fn an_answer_names_the_nodes_that_did_not_give_one() {
    let mut c = Cluster::new(3);
    // Node 3 is there but does not run: its connection stays open and says nothing.
    let mut paused = c.nodes[2].engine.take();
    let id = c.engine(0).query(Query::Status, Duration::from_millis(50));
    let answer = answered(&mut c, 0, id);
    assert_eq!((answer.status.len(), answer.silent), (2, vec![NodeId(3)]));
    c.nodes[2].engine = paused.take();
}

#[test]
fn many_locks_are_answered_in_parts() {
    let mut c = Cluster::new(2);
    let ids: Vec<_> =
        (0..6000).map(|k| c.call(1, lock(&format!("resource-{k}"), Mode::PR)).unwrap()).collect();
    let last = *ids.last().unwrap();
    c.wait("all grants", |c| c.completion(1, last).is_some());
    let id = c.engine(0).query(Query::Locks { space: "s".into() }, LONG);
    assert_eq!(answered(&mut c, 0, id).resources.len(), 6000);
}

#[test]
fn pages_cover_the_locks_of_all_nodes_once() {
    let mut c = Cluster::with(3, |c| c.policy = Policy::Directory);
    let mut last = Vec::new();
    for k in 0..900_u32 {
        let id = c.call(k as usize % 3, lock(&format!("r{k:03}"), Mode::PR)).unwrap();
        last.push((k as usize % 3, id));
    }
    c.wait("all grants", |c| last.iter().all(|&(i, id)| c.completion(i, id).is_some()));
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let of = PageOf { space: "s".into(), after, limit: 128, waited: false };
        let id = c.engine(1).query(Query::Page(of), LONG);
        let answer = answered(&mut c, 1, id);
        assert!(answer.resources.len() <= 128 && answer.silent.is_empty());
        seen.extend(answer.resources.iter().map(|r| r.name.to_string()));
        assert_eq!(seen.len() as u64 + answer.more, 900);
        after = answer.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), 900);
    assert!(seen.windows(2).all(|two| two[0] < two[1]));
}

#[test]
fn a_page_of_what_somebody_waits_for_leaves_the_rest_out() {
    let mut c = Cluster::new(3);
    for k in 0..50 {
        c.lock(0, &format!("free{k}"), Mode::EX);
    }
    c.lock(0, "wanted", Mode::EX);
    c.call(2, lock("wanted", Mode::EX)).unwrap();
    c.wait("a blocking notice", |c| c.saw(0, |e| matches!(e, HostEvent::Bast { .. })));
    let of = PageOf { space: "s".into(), after: None, limit: 10, waited: true };
    let id = c.engine(1).query(Query::Page(of), LONG);
    let answer = answered(&mut c, 1, id);
    assert_eq!((answer.resources.len(), answer.more, answer.next), (1, 0, None));
    assert_eq!(answer.resources[0].locks.len(), 2);
}

#[test]
fn however_many_ask_all_are_answered_and_few_look_at_once() {
    let mut c = Cluster::new(2);
    for k in 0..200 {
        c.lock(1, &format!("r{k}"), Mode::PR);
    }
    let of = PageOf { space: "s".into(), after: None, limit: 1000, waited: false };
    let ids: Vec<_> = (0..64).map(|_| c.engine(0).query(Query::Page(of.clone()), LONG)).collect();
    for id in ids {
        let answer = answered(&mut c, 0, id);
        assert_eq!((answer.resources.len(), answer.silent), (200, vec![]));
    }
    assert!(!c.saw(0, |e| matches!(e, HostEvent::QuorumLost)));
}

#[track_caller]
fn answered(c: &mut Cluster, i: usize, id: lockify_node::QueryId) -> lockify_node::Answer {
    let find = |c: &Cluster| {
        c.nodes[i].events.iter().find_map(|e| match e {
            HostEvent::Answered { query, answer } if *query == id => Some((**answer).clone()),
            _ => None,
        })
    };
    c.wait("an answer", |c| find(c).is_some());
    find(c).unwrap()
}
