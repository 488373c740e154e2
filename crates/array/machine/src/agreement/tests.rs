use std::collections::{BTreeMap, BTreeSet};

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::*;
use crate::{
    Change, Condition, DeviceId, HostId, Layout, Node, NodeName, OpError, Redundancy, Term, Usage,
};

fn life(host: u32) -> Life {
    Life { host: HostId(host), incarnation: 1 }
}

/// A proposer of a change in an array of these devices.
fn proposer(host: u32, number: u64, change: Change, devices: u16, state: &ArrayState) -> Proposer {
    let layout = Layout {
        redundancy: Redundancy::Raid5,
        data: devices - 1,
        groups: 1,
        unit: 1,
        block_size: 16,
        stripes: 1,
        added: Default::default(),
    };
    Proposer::new((life(host), number), change, (layout, 0), state.clone())
}

enum Letter {
    Ask { host: usize, voter: usize, ask: Agree },
    Answer { host: usize, voter: usize, ballot: Ballot, accepting: bool, answer: Box<Agreed> },
}

struct World {
    rng: Xoshiro256PlusPlus,
    voters: Vec<Acceptor>,
    hosts: Vec<Proposer>,
    /// Each host's last question. Answers to older ones are dropped.
    asked: Vec<Option<Agree>>,
    letters: Vec<Letter>,
    done: Vec<bool>,
    chosen: BTreeMap<Epoch, ArrayState>,
}

impl World {
    fn step(&mut self, host: usize, step: Step) {
        match step {
            Step::AskAll(ask) => {
                self.asked[host] = Some(ask.clone());
                for voter in 0..self.voters.len() {
                    self.letters.push(Letter::Ask { host, voter, ask: ask.clone() });
                }
            }
            Step::BackOff(_) => self.asked[host] = None,
            Step::Chosen(state) => {
                self.note(&state);
                self.asked[host] = None;
                self.done[host] = true;
            }
            Step::Refused(why) => panic!("{why}"),
        }
        let state = self.hosts[host].state().clone();
        self.note(&state);
    }

    /// Everybody's idea of an epoch's state is the same.
    fn note(&mut self, state: &ArrayState) {
        let known = self.chosen.entry(state.epoch).or_insert_with(|| state.clone());
        assert_eq!(known, state);
    }

    fn deliver(&mut self, letter: Letter) {
        match letter {
            Letter::Ask { host, voter, ask } => {
                let (ballot, accepting) = match &ask {
                    Agree::Promise { ballot, .. } => (*ballot, false),
                    Agree::Accept { ballot, .. } => (*ballot, true),
                };
                let (answer, _) = self.voters[voter].handle(ask, false);
                let answer = Box::new(answer);
                self.letters.push(Letter::Answer { host, voter, ballot, accepting, answer });
            }
            Letter::Answer { host, voter, ballot, accepting, answer } => {
                let current = match &self.asked[host] {
                    Some(Agree::Promise { ballot, .. }) => (*ballot, false),
                    Some(Agree::Accept { ballot, .. }) => (*ballot, true),
                    None => return,
                };
                if current != (ballot, accepting) {
                    return;
                }
                if let Agreed::Missing(_) = *answer {
                    let state = self.hosts[host].state().clone();
                    self.voters[voter].install(&state);
                }
                if let Some(step) = self.hosts[host].answer(DeviceId(voter as u16), *answer) {
                    self.step(host, step);
                }
            }
        }
    }
}

#[test]
fn hosts_that_propose_at_once_agree_on_every_epoch_and_every_change_gets_in() {
    for seed in 0..300 {
        let rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let first = ArrayState::new(5);
        let changes = [0, 1, 0, 3].map(|device| Change::Lose(DeviceId(device), 0));
        // The last two are of one host.
        let hosts: Vec<Proposer> = (0u32..)
            .zip(changes)
            .map(|(n, change)| proposer(n.min(2), n.into(), change, 5, &first))
            .collect();
        let mut w = World {
            rng,
            voters: vec![Acceptor::new(first); 5],
            asked: vec![None; hosts.len()],
            done: vec![false; hosts.len()],
            hosts,
            letters: Vec::new(),
            chosen: BTreeMap::new(),
        };
        for turn in 0.. {
            assert!(turn < 100_000, "seed {seed} does not come to an end");
            if w.done.iter().all(|&done| done) {
                break;
            }
            // Late, the network loses nothing and one host at a time tries: it must come to an end then.
            let calm = turn > 2000;
            if w.letters.is_empty() || (!calm && w.rng.random_ratio(1, 20)) {
                let waiting: Vec<usize> = (0..w.hosts.len()).filter(|&h| !w.done[h]).collect();
                let host =
                    if calm { waiting[0] } else { waiting[w.rng.random_range(0..waiting.len())] };
                let step = w.hosts[host].again();
                w.step(host, step);
                continue;
            }
            let index = w.rng.random_range(0..w.letters.len());
            let letter = w.letters.swap_remove(index);
            if calm || !w.rng.random_ratio(1, 5) {
                w.deliver(letter);
            }
        }
        let last = w.chosen.values().last().unwrap();
        let failed: BTreeSet<usize> = (0..5).filter(|&d| !last.devices[d].has(0)).collect();
        assert_eq!(failed, BTreeSet::from([0, 1, 3]), "seed {seed}");
        assert_eq!(last.epoch, Epoch(4));
    }
}

#[test]
fn what_a_majority_accepted_survives_its_proposer() {
    let first = ArrayState::new(3);
    let mut voters = vec![Acceptor::new(first.clone()); 3];
    let dead = Ballot { round: 1, by: Some(life(1)), change: 1 };
    let state = first.changed(Change::Fail(DeviceId(2), 0)).unwrap().unwrap();
    for voter in &mut voters[..2] {
        voter.handle(Agree::Promise { epoch: state.epoch, ballot: dead }, false);
        let accept = Agree::Accept { ballot: dead, state: Box::new(state.clone()) };
        let (answer, save) = voter.handle(accept, false);
        assert_eq!((answer, save), (Agreed::Accepted, true));
    }
    // Another host, which knows nothing of it and reaches a different majority, has to propose the same.
    let mut proposer = proposer(2, 1, Change::Fail(DeviceId(0), 0), 3, &first);
    let Step::AskAll(ask) = proposer.again() else { panic!() };
    // Its first ballot is below nobody's: the round is the same, and its life is larger.
    let mut step = None;
    for voter in [1, 2] {
        let (answer, _) = voters[voter].handle(ask.clone(), false);
        step = proposer.answer(DeviceId(voter as u16), answer);
    }
    let Some(Step::AskAll(Agree::Accept { state: proposed, .. })) = step else { panic!() };
    assert_eq!(*proposed, state);
}

/// Asks all voters until the proposer has its end.
fn ask_all(proposer: &mut Proposer, voters: &mut [Acceptor]) -> Step {
    let mut step = proposer.again();
    while let Step::AskAll(ask) = step {
        let answers = voters.iter_mut().enumerate().map(|(voter, acceptor)| {
            acceptor.install(proposer.state());
            (DeviceId(voter as u16), acceptor.handle(ask.clone(), false).0)
        });
        let answers: Vec<_> = answers.collect();
        let next = answers.into_iter().find_map(|(voter, answer)| proposer.answer(voter, answer));
        step = next.expect("an answer of all voters decides");
    }
    step
}

/// The proposer of a change has died when voters had accepted it, and nobody was told. By the state that all know, what follows the
/// change makes no sense.
#[test]
fn a_change_is_refused_only_by_the_newest_state_that_was_chosen() {
    let (back, other) = (DeviceId(0), DeviceId(1));
    let good = ArrayState::new(3);
    let failed = good.changed(good.without(back)).unwrap().unwrap();
    let begun = failed.changed(Change::Rebuild(back)).unwrap().unwrap();
    let whole = begun.rebuilt(back, u64::MAX);
    for (known, before, change) in [
        (&good, good.without(back), Change::Rebuild(back)),
        // What the redundancy bears depends on the state as well.
        (&begun, whole, begun.without(other)),
    ] {
        let state = known.changed(before).unwrap().unwrap();
        let next = state.changed(change.clone()).unwrap();
        for accepted in 0..=3 {
            let mut voters = vec![Acceptor::new(known.clone()); 3];
            let dead = Ballot { round: 1, by: Some(life(1)), change: 1 };
            for voter in &mut voters[..accepted] {
                let accept = Agree::Accept { ballot: dead, state: Box::new(state.clone()) };
                assert_eq!(voter.handle(accept, false).0, Agreed::Accepted);
            }
            let mut proposer = proposer(2, 1, change.clone(), 3, known);
            match ask_all(&mut proposer, &mut voters) {
                Step::Refused(OpError::State(_) | OpError::Unavailable(_)) => {
                    assert_eq!(accepted, 0);
                }
                step => {
                    assert!(accepted > 0);
                    assert_eq!(step, Step::Chosen(next.clone().unwrap()));
                }
            }
        }
    }
}

/// Others are refused all the time, each with a ballot above the one before. Then every ballot is an old one after a back-off.
#[test]
fn a_proposer_gets_in_beside_others_that_are_refused() {
    let first = ArrayState::new(3);
    let mut voters = vec![Acceptor::new(first.clone()); 3];
    let nonsense = Change::Rebuild(DeviceId(0));
    let mut host = proposer(1, 1, first.without(DeviceId(1)), 3, &first);
    let mut step = host.again();
    for number in 1..20 {
        let Step::AskAll(ask) = step else {
            assert!(matches!(step, Step::Chosen(_)), "{step:?}");
            return;
        };
        let answers = voters.iter_mut().map(|voter| voter.handle(ask.clone(), false).0);
        let answers: Vec<Agreed> = answers.collect();
        let next = (0..).zip(answers).find_map(|(id, answer)| host.answer(DeviceId(id), answer));
        step = next.unwrap();
        if matches!(step, Step::BackOff(_)) {
            for number in number * 10..number * 10 + 5 {
                let mut other = proposer(2, number, nonsense.clone(), 3, &first);
                while !matches!(ask_all(&mut other, &mut voters), Step::Refused(_)) {}
            }
            step = host.again();
        }
    }
    panic!("not chosen");
}

#[test]
fn changes_that_make_no_sense_are_refused() {
    let state = ArrayState::new(3);
    assert!(state.changed(Change::Fail(DeviceId(3), 0)).is_err());
    assert!(state.changed(Change::Rebuild(DeviceId(0))).is_err());
    let failed = state.changed(Change::Fail(DeviceId(0), 0)).unwrap().unwrap();
    assert_eq!(failed.changed(Change::Fail(DeviceId(0), 0)), Ok(None));
    assert!(failed.changed(failed.rebuilt(DeviceId(0), 4)).is_err());
    let rebuilding = failed.changed(Change::Rebuild(DeviceId(0))).unwrap().unwrap();
    let half = rebuilding.changed(rebuilding.rebuilt(DeviceId(0), 4)).unwrap().unwrap();
    assert!(half.has(DeviceId(0), 3) && !half.has(DeviceId(0), 4));
    assert_eq!(half.changed(half.rebuilt(DeviceId(0), 3)), Ok(None));
    let good = half.changed(half.rebuilt(DeviceId(0), u64::MAX)).unwrap().unwrap();
    assert!(good.has(DeviceId(0), 1 << 40));
    assert_eq!(good.epoch, Epoch(5));
}

/// A device fails during its rebuild, and a new one is to be rebuilt in its place. What the first rebuild has written is not there.
#[test]
fn a_rebuild_does_not_count_for_the_next_medium() {
    let device = DeviceId(0);
    let begin = |state: &ArrayState| {
        let failed = state.changed(state.without(device)).unwrap().unwrap();
        failed.changed(Change::Rebuild(device)).unwrap().unwrap()
    };
    let first = begin(&ArrayState::new(3));
    let second = begin(&first);
    assert_eq!((first.absences(device), second.absences(device)), (1, 2));
    for to in [4, u64::MAX] {
        assert!(first.changed(first.rebuilt(device, to)).unwrap().is_some());
        assert!(second.changed(first.rebuilt(device, to)).is_err());
        let good = second.changed(second.rebuilt(device, to)).unwrap().unwrap();
        // It restarts: that is no absence.
        let term = Term { number: good.term(device) + 1, follows: 0, key: 0 };
        let good = good.changed(Change::LetIn(device, term)).unwrap().unwrap();
        assert_eq!(good.absences(device), 2);
    }
}

#[test]
fn a_device_that_has_come_back_is_not_left_out_by_what_was_seen_before() {
    let device = DeviceId(1);
    let state = ArrayState::new(3);
    let gone = state.without(device);
    let term = |number| Term { number, follows: 0, key: 0 };
    let back = state.changed(Change::LetIn(device, term(1))).unwrap().unwrap();
    assert!(back.changed(gone).is_err());
    assert_eq!(back.changed(Change::LetIn(device, term(1))), Ok(None));
    // An earlier life's question comes late.
    let again = back.changed(Change::LetIn(device, term(3))).unwrap().unwrap();
    assert_eq!(again.changed(Change::LetIn(device, term(2))), Ok(None));
    // Plans from before it is let in still fit.
    assert_eq!((again.epoch, again.since), (Epoch(3), Epoch(1)));
    let failed = again.changed(again.without(device)).unwrap().unwrap();
    assert_eq!((failed.epoch, failed.since), (Epoch(4), Epoch(4)));
    assert_eq!(failed.devices[1], crate::Condition::Failed);
}

#[test]
fn an_older_copy_of_a_medium_is_let_in_only_when_nobody_reads_it() {
    let device = DeviceId(1);
    let entry = |number, follows, key| Change::LetIn(device, Term { number, follows, key });
    let state = ArrayState::new(3).changed(entry(1, 0, 10)).unwrap().unwrap();
    // It asked, and did not hear that it has been let in.
    assert_eq!(state.changed(entry(1, 0, 10)), Ok(None));
    assert!(state.changed(entry(2, 0, 10)).unwrap().is_some());
    // It serves, and its medium gets another number.
    let state = state.changed(entry(1, 10, 11)).unwrap().unwrap();
    assert_eq!((state.term(device), state.key(device)), (1, 11));
    let why = state.changed(entry(2, 10, 12)).unwrap_err();
    assert!(why.contains("an older copy"), "{why}");
    let failed = state.changed(state.without(device)).unwrap().unwrap();
    // It asked before it was given up.
    assert_eq!(failed.changed(entry(2, 10, 12)), Ok(None));
    let next = failed.term(device) + 1;
    let back = failed.changed(entry(next, 10, 12)).unwrap().unwrap();
    // Nobody knows any more which medium it left with.
    assert_eq!((back.term(device), back.key(device)), (next, 0));
    assert_eq!(back.devices[1], Condition::Failed);
    // The medium that it left with is known, also if it was gone when its rebuild began.
    let back = failed.changed(entry(next, 11, 12)).unwrap().unwrap();
    assert_eq!(back.devices[1], Condition::Failed);
    let returning = Condition::Returning { done: 0, whole_to: 0 };
    let rebuild = |state: &ArrayState| state.changed(Change::Rebuild(device)).unwrap().unwrap();
    assert_eq!(rebuild(&back).devices[1], returning);
    // Also if it comes after another one, it is rebuilt as a whole.
    let other = failed.changed(entry(next, 10, 12)).unwrap().unwrap();
    let after = other.changed(entry(next + 1, 11, 13)).unwrap().unwrap();
    assert_eq!(rebuild(&after).devices[1], Condition::Rebuilding { done: 0 });
    let begun = rebuild(&failed);
    assert_eq!(begun.devices[1], returning);
    assert_eq!(begun.changed(entry(next, 11, 12)).unwrap().unwrap().devices[1], returning);
    // Another one is rebuilt as a whole, and plans of the state before do not fit.
    let other = begun.changed(entry(next, 10, 12)).unwrap().unwrap();
    assert_eq!(other.devices[1], Condition::Rebuilding { done: 0 });
    assert_eq!(other.since, other.epoch);
    // From now on no other one will do.
    assert!(other.changed(entry(next + 1, 10, 13)).is_err());
    // Without a number, nobody knows which medium it is.
    let unknown = ArrayState { keys: vec![0; 3], ..failed };
    assert_eq!(rebuild(&unknown).devices[1], Condition::Rebuilding { done: 0 });
    // It stays without one until it is rebuilt, so that an operator may still bring it back.
    let back = unknown.changed(entry(next, 10, 12)).unwrap().unwrap();
    assert_eq!((back.devices[1], back.key(device)), (Condition::Failed, 0));
    assert_eq!(back.changed(entry(next, 10, 12)), Ok(None));
    let returning = back.changed(back.with_old_blocks(device, 5)).unwrap().unwrap();
    let numbered = returning.changed(entry(next, 10, 12)).unwrap().unwrap();
    assert_eq!((numbered.devices[1], numbered.key(device)), (returning.devices[1], 12));
}

fn attach(after: u64, by: u64) -> Change {
    Change::Attach { after, by, node: NodeName::of_machine(b"node"), usage: Usage::Shared }
}

#[test]
fn hosts_that_attach_at_the_same_time_get_different_numbers() {
    let state = ArrayState::new(3);
    let (one, other) = (attach(0, 7), attach(0, 8));
    let first = state.changed(one.clone()).unwrap().unwrap();
    assert_eq!((first.hosts, first.since), (1, state.since));
    assert_eq!(first.changed(one.clone()), Ok(None));
    assert!(first.changed(other).is_err());
    let second = first.changed(attach(1, 8)).unwrap().unwrap();
    assert_eq!(second.hosts, 2);
    // It need not know.
    assert_eq!(second.changed(one), Ok(None));
    let hosts = |state: &ArrayState| state.nodes.iter().flat_map(Node::hosts).collect::<Vec<_>>();
    assert_eq!(hosts(&second), [1, 2]);
    let gone = second.changed(Change::Detach { host: 1 }).unwrap().unwrap();
    assert_eq!((hosts(&gone), gone.hosts, gone.since), (vec![2], 2, state.since));
    assert_eq!(gone.changed(Change::Detach { host: 1 }), Ok(None));
    // Nobody else gets its number.
    assert!(gone.changed(attach(0, 9)).is_err());
    assert!(gone.changed(attach(u64::MAX, 9)).is_err());
}

/// A voter's medium was put back to an older copy. Another one has missed the state that tells. The third one knows it, and
/// answers last.
#[test]
fn a_copy_that_has_forgotten_its_votes_is_no_majority_with_one_that_has_missed_them() {
    let first = ArrayState::new(3);
    let term = |number, follows, key| Change::LetIn(DeviceId(0), Term { number, follows, key });
    let newest = first.changed(term(0, 0, 7)).unwrap().unwrap();
    let promised = |unsure| Agreed::Promised { accepted: None, unsure };
    let begin = || {
        let mut host = proposer(1, 1, term(1, 5, 6), 3, &first);
        assert!(matches!(host.again(), Step::AskAll(Agree::Promise { .. })));
        assert_eq!(host.answer(DeviceId(0), promised(true)), None);
        host
    };
    let mut host = begin();
    assert_eq!(host.answer(DeviceId(2), promised(false)), None);
    assert!(host.is_unsure());
    let Some(Step::AskAll(Agree::Promise { epoch, .. })) =
        host.answer(DeviceId(1), Agreed::Chosen(newest))
    else {
        panic!()
    };
    assert_eq!((epoch, host.answer(DeviceId(2), promised(false))), (Epoch(3), None));
    let refused = host.answer(DeviceId(1), promised(false));
    assert!(matches!(refused, Some(Step::Refused(_))), "{refused:?}");
    // All have answered, or two that remember, or nobody else answers.
    let goes_on = |step| matches!(step, Some(Step::AskAll(Agree::Accept { .. })));
    let mut host = begin();
    assert_eq!(host.answer(DeviceId(2), promised(true)), None);
    assert!(goes_on(host.answer(DeviceId(1), promised(true))));
    let mut host = begin();
    assert_eq!(host.answer(DeviceId(2), promised(false)), None);
    assert!(goes_on(host.answer(DeviceId(1), promised(false))));
    let mut host = begin();
    assert_eq!(host.answer(DeviceId(2), promised(false)), None);
    assert!(goes_on(host.wait_no_more()));
    // The next attempt for this epoch does not wait.
    let outbid = Agreed::Outbid { ballot: Ballot { round: 5, ..Ballot::default() } };
    assert_eq!(host.answer(DeviceId(0), outbid), Some(Step::BackOff(1)));
    assert!(matches!(host.again(), Step::AskAll(Agree::Promise { .. })));
    assert_eq!(host.answer(DeviceId(0), promised(true)), None);
    assert!(goes_on(host.answer(DeviceId(2), promised(false))));
}
