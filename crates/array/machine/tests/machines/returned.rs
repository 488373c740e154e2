//! Two devices of a group are gone, and the medium of the one that went first is there (docs/design/array.md 3.9): nothing false
//! is read, and what nobody has written since is there.

use std::collections::BTreeSet;

use bytes::Bytes;
use lockify_array::{
    Change, Condition, DeviceId, HostAnswer, Layout, OpError, Outlook, Redundancy, Scheme, Span,
    Time, Work,
};
use rand::RngExt as _;

use crate::world::{Flight, World, life, raid5};

/// The last of the hosts repairs.
const REPAIRER: usize = 2;
const SCHEMES: [Scheme; 2] = [Scheme::TimestampOrdering, Scheme::DeviceLocking];

fn run(world: &mut World, host: usize, work: Work) -> Result<HostAnswer, OpError> {
    let before = world.done.len();
    world.submit(host, work);
    world.run();
    world.done.drain(before..).next_back().expect("it was answered").result
}

fn change(world: &mut World, change: Change) {
    assert_eq!(run(world, REPAIRER, Work::Change { change }), Ok(HostAnswer::Done));
}

/// The host stops. Some of its sent messages arrive later, at any time, and some do not.
fn crash(world: &mut World, host: usize) {
    for flight in std::mem::take(&mut world.flights) {
        let sent = matches!(&flight, Flight::Request(h, ..) if *h == host);
        if !sent || world.random.random_bool(0.5) {
            world.flights.push(flight);
        }
    }
    world.kill_host(host);
}

fn layouts() -> [Layout; 3] {
    let three = Layout { data: 2, ..raid5() };
    // Two groups, so that a majority is left.
    [three, raid5(), Layout { redundancy: Redundancy::Mirror, data: 1, groups: 2, ..raid5() }]
}

/// An array that has gone on without a device, and then loses another one of its group.
struct Story {
    world: World,
    /// The device that left first.
    first: DeviceId,
    /// The one that is lost.
    lost: DeviceId,
    /// Each block, when the first one left.
    before: Vec<Bytes>,
    /// The newest content of each.
    newest: Vec<Bytes>,
    /// What a host was writing that has died.
    cut: Vec<(u64, Bytes)>,
    /// The stripes that were written since.
    written: BTreeSet<u64>,
}

impl Story {
    fn new(layout: Layout, scheme: Scheme, seed: u64) -> Story {
        Story::of(World::new(layout, scheme, 3, seed))
    }

    fn of(mut world: World) -> Story {
        let layout = world.layout;
        world.gossip = true;
        world.run();
        // Each medium gets a number with the first requests.
        for device in 0..world.devices.len() {
            let now = world.now;
            world.devices[device].change_key(now);
            world.run();
        }
        let group = world.random.random_range(0..layout.groups) * layout.group_size();
        let first = world.random.random_range(0..layout.group_size());
        let other =
            (first + world.random.random_range(1..layout.group_size())) % layout.group_size();
        let zeros = Bytes::from(vec![0; layout.block_size as usize]);
        let newest = vec![zeros; layout.blocks() as usize];
        let (first, lost) = (DeviceId(group + first), DeviceId(group + other));
        let (before, cut, written) = (Vec::new(), Vec::new(), BTreeSet::new());
        Story { world, first, lost, before, newest, cut, written }
    }

    fn blocks(&self, span: Span, data: &Bytes) -> Vec<(u64, Bytes)> {
        let size = self.world.layout.block_size as usize;
        let block = |at: u64| data.slice(at as usize * size..(at as usize + 1) * size);
        (0..span.count).map(|at| (span.start + at, block(at))).collect()
    }

    fn random_write(&mut self) -> (Work, Vec<(u64, Bytes)>) {
        let span = self.world.random_span(6);
        self.write_of(span)
    }

    fn write_of(&mut self, span: Span) -> (Work, Vec<(u64, Bytes)>) {
        let work = self.world.write(span);
        let Work::Write { data, .. } = &work else { unreachable!() };
        let blocks = self.blocks(span, data);
        self.written.extend(blocks.iter().map(|(block, _)| self.world.layout.place(*block).stripe));
        (work, blocks)
    }

    fn writes(&mut self, count: u32) {
        for _ in 0..count {
            let (work, blocks) = self.random_write();
            self.is_written(work, blocks);
        }
    }

    /// Writes that may be refused where a missing block cannot be made of the others. Then nothing is written.
    fn tries(&mut self, count: u32) {
        for _ in 0..count {
            let (work, blocks) = self.random_write();
            match run(&mut self.world, 0, work) {
                Ok(HostAnswer::Done) => self.has_newest(blocks),
                refused => assert!(matches!(refused, Err(OpError::Lost { .. })), "{refused:?}"),
            }
        }
    }

    fn has_newest(&mut self, blocks: Vec<(u64, Bytes)>) {
        for (block, data) in blocks {
            self.cut.retain(|(cut, _)| *cut != block);
            self.newest[block as usize] = data;
        }
    }

    fn is_written(&mut self, work: Work, blocks: Vec<(u64, Bytes)>) {
        assert_eq!(run(&mut self.world, 0, work), Ok(HostAnswer::Done));
        self.has_newest(blocks);
    }

    /// A last write that the device has, too: its medium has everything until then.
    fn write_to_first(&mut self) {
        let layout = self.world.layout;
        let start = layout.logical(self.stripes()[0], 0);
        let count = u64::from(layout.data) * u64::from(layout.unit);
        let (work, blocks) = self.write_of(Span { start, count });
        self.is_written(work, blocks);
    }

    fn fail(&mut self) {
        let first = self.first;
        self.before.clone_from(&self.newest);
        self.written.clear();
        self.world.dead.insert(first);
        let fail = self.world.hosts[REPAIRER].state().without(first);
        change(&mut self.world, fail);
    }

    /// A host dies in the middle of a write.
    fn cut(&mut self) {
        let span = self.world.random_span(6);
        self.cut_of(span);
    }

    fn cut_of(&mut self, span: Span) {
        let (work, blocks) = self.write_of(span);
        self.world.submit(1, work);
        for _ in 0..self.world.random.random_range(0..40) {
            self.world.step();
        }
        crash(&mut self.world, 1);
        self.cut = blocks;
    }

    fn repair(&mut self) {
        // Its leftovers end, although its stripes may miss two units.
        let fence = Work::Fence { life: life(1) };
        assert_eq!(run(&mut self.world, REPAIRER, fence), Ok(HostAnswer::Done));
    }

    /// A host dies in the middle of a write, and the other device at the same time.
    fn lose(&mut self, cuts: bool) {
        if cuts {
            self.cut();
        }
        self.world.dead.insert(self.lost);
        let lose = self.world.hosts[REPAIRER].state().without_at_a_loss(self.lost);
        change(&mut self.world, lose);
        if cuts {
            self.repair();
        }
    }

    fn newest_stamp(&self) -> Time {
        let disk = &self.world.disks[usize::from(self.first.0)];
        disk.blocks.iter().map(|block| block.header.stamp.time).max().unwrap_or_default()
    }

    fn stripes(&self) -> Vec<u64> {
        let layout = self.world.layout;
        let group = u64::from(self.first.0 / layout.group_size());
        (0..layout.stripes).filter(|stripe| stripe % u64::from(layout.groups) == group).collect()
    }

    fn survey(&mut self, whole_to: Time) -> Outlook {
        let (device, without) = (self.first, self.lost);
        let mut all = Outlook::default();
        for stripe in self.stripes() {
            let work = Work::Survey { device, whole_to, without, stripe };
            match run(&mut self.world, REPAIRER, work) {
                Ok(HostAnswer::Surveyed(outlook)) => all += outlook,
                other => panic!("{other:?}"),
            }
        }
        all
    }

    /// The first device comes back with its medium.
    fn comes_back(&mut self) -> Time {
        self.world.dead.remove(&self.first);
        self.world.restart_device(self.first);
        self.world.run();
        self.newest_stamp()
    }

    fn rebuild(&mut self, device: DeviceId, interrupts: bool) {
        if interrupts {
            let stripe = self.world.random.random_range(0..self.stripes().len());
            let stripe = self.stripes()[stripe];
            self.world.submit(0, Work::Rebuild { device, stripe });
            for _ in 0..self.world.random.random_range(0..60) {
                self.world.step();
            }
            crash(&mut self.world, 0);
            let fence = Work::Fence { life: life(0) };
            assert_eq!(run(&mut self.world, REPAIRER, fence), Ok(HostAnswer::Done));
        }
        for stripe in self.stripes() {
            let rebuilt = run(&mut self.world, REPAIRER, Work::Rebuild { device, stripe });
            assert!(matches!(rebuilt, Ok(HostAnswer::Rebuilt { .. })), "{rebuilt:?}");
        }
        let all = self.world.hosts[REPAIRER].state().rebuilt(device, u64::MAX);
        change(&mut self.world, all);
    }

    fn replace_lost(&mut self) {
        let lost = self.lost;
        self.world.dead.remove(&lost);
        self.world.replace(lost);
        change(&mut self.world, Change::Rebuild(lost));
        self.rebuild(lost, false);
        for stripe in self.stripes() {
            run(&mut self.world, REPAIRER, Work::Scrub { stripe, repair: true }).unwrap();
        }
        let state = self.world.hosts[REPAIRER].state().clone();
        assert!(state.devices.iter().all(|condition| *condition == Condition::Good));
        assert_eq!(self.world.inconsistent_stripes(&state), [0; 0]);
    }

    /// Returns true if only the lost device could tell if a block is old.
    fn may_be_old(&self, block: u64) -> bool {
        let layout = self.world.layout;
        let place = layout.place(block);
        let pair = [place.device, layout.parity(place.stripe)];
        pair == [self.first, self.lost] || pair == [self.lost, self.first]
    }

    /// Counts the lost blocks, and those with old content.
    fn judge(&mut self, what: &str) -> (u32, u32) {
        let (mut lost, mut old) = (0, 0);
        for block in 0..self.world.layout.blocks() {
            let span = Span { start: block, count: 1 };
            let at = block as usize;
            let cut = self.cut.iter().find(|(cut, _)| *cut == block).map(|(_, data)| data);
            let stripe = self.world.layout.place(block).stripe;
            match run(&mut self.world, REPAIRER, Work::Read { span }) {
                Ok(HostAnswer::Read { data }) if data == self.newest[at] || Some(&data) == cut => {}
                Ok(HostAnswer::Read { data }) => {
                    assert!(
                        self.may_be_old(block),
                        "{what}: block {block} is not its newest content"
                    );
                    assert_eq!(data, self.before[at], "{what}: block {block} is nobody's");
                    old += 1;
                }
                Err(OpError::Lost { .. }) => {
                    assert!(
                        self.written.contains(&stripe),
                        "{what}: block {block} need not be lost"
                    );
                    lost += 1;
                }
                other => panic!("{what}: block {block}: {other:?}"),
            }
        }
        (lost, old)
    }
}

/// `seed` says what happens.
fn story(layout: Layout, scheme: Scheme, seed: u64) -> (u32, u32, Outlook) {
    let what = format!("{:?} of {}, {scheme}, seed {seed}", layout.redundancy, layout.group_size());
    let mut story = Story::new(layout, scheme, seed);
    story.writes(12);
    story.write_to_first();
    story.fail();
    story.writes((seed % 5) as u32);
    let (cuts, interrupts) = (seed % 3 == 1, seed % 4 == 2);
    // It is back as a voter, before the other one is lost.
    let whole_to = story.comes_back();
    story.lose(cuts);
    let outlook = story.survey(whole_to);
    let back = story.world.hosts[REPAIRER].state().with_old_blocks(story.first, whole_to);
    change(&mut story.world, back);
    story.rebuild(story.first, interrupts);
    story.replace_lost();
    let (lost, old) = story.judge(&what);
    let told = outlook.outdated + outlook.gone + outlook.other_lost;
    if !interrupts {
        assert_eq!(u64::from(lost), told, "{what}: {outlook:?}");
    }
    let may_be_old = outlook.may_be_old + outlook.other_may_be_old;
    assert!(u64::from(old) <= may_be_old, "{what}: {old} blocks are old, {outlook:?}");
    (lost, old, outlook)
}

#[test]
fn a_device_that_comes_back_has_the_newest_content_or_says_that_it_is_lost() {
    let (mut lost, mut old, mut all) = (0, 0, Outlook::default());
    for layout in layouts() {
        for scheme in SCHEMES {
            for seed in 0..80 {
                let found = story(layout, scheme, seed);
                lost += found.0;
                old += found.1;
                all += found.2;
            }
        }
    }
    assert!(lost > 0 && old > 0, "{lost} {old}");
    assert!(all.current > all.outdated && all.other_current > 0 && all.gone == 0, "{all:?}");
}

/// A medium that never had everything does not come back; neither does one in use, or one that another has replaced since.
#[test]
fn only_a_device_that_had_everything_comes_back() {
    let mut story = Story::new(raid5(), Scheme::TimestampOrdering, 1);
    story.writes(3);
    let state = |story: &Story| story.world.hosts[REPAIRER].state().clone();
    let first = story.first;
    let refused = |story: &Story| {
        let state = state(story);
        state.changed(state.with_old_blocks(first, 1)).unwrap_err()
    };
    assert!(refused(&story).contains("is in use"));
    story.fail();
    let early = state(&story).with_old_blocks(first, 1);
    story.comes_back();
    assert!(state(&story).changed(early).unwrap_err().contains("started again"));
    change(&mut story.world, Change::Rebuild(first));
    assert!(refused(&story).contains("being rebuilt already"));
    let fail = state(&story).without(first);
    change(&mut story.world, fail);
    assert!(refused(&story).contains("never had everything"));
    assert_eq!(state(&story).condition(first), Some(Condition::Unfinished));
    change(&mut story.world, Change::Rebuild(first));
    story.rebuild(first, false);
    assert_eq!(story.judge("rebuilt"), (0, 0));
}

/// A node has a host and a device, and ends in the middle of a write of the host. `written` counts the writes of other hosts after the
/// device is given up and before the host dies: more than one node has failed then. Returns the number of lost blocks.
pub fn node_ends(world: World, seed: u64, written: u32, replaced: bool) -> u32 {
    let (layout, scheme) = (world.layout, world.scheme);
    let what = format!(
        "{:?} of {}, {scheme}, seed {seed}, {written} written, {replaced}",
        layout.redundancy,
        layout.group_size()
    );
    let mut story = Story::of(world);
    let first = story.first;
    story.writes(12);
    if written > 0 {
        story.fail();
        story.writes(written);
        story.cut();
    } else {
        story.cut();
        story.fail();
    }
    story.repair();
    story.tries((seed % 3) as u32);
    if replaced {
        story.world.dead.remove(&first);
        story.world.replace(first);
        story.world.run();
    } else {
        story.comes_back();
    }
    change(&mut story.world, Change::Rebuild(first));
    let state = story.world.hosts[REPAIRER].state().clone();
    let is_returning = matches!(state.condition(first), Some(Condition::Returning { .. }));
    assert_eq!(is_returning, !replaced, "{what}: {state:?}");
    story.rebuild(first, seed % 4 == 2);
    // All stripes may have lost blocks if more has failed.
    story.written.extend(story.stripes());
    let (lost, old) = story.judge(&what);
    assert_eq!(old, 0, "{what}");
    for stripe in story.stripes() {
        run(&mut story.world, REPAIRER, Work::Scrub { stripe, repair: true }).unwrap();
    }
    let state = story.world.hosts[REPAIRER].state().clone();
    assert_eq!(story.world.inconsistent_stripes(&state), [0; 0], "{what}");
    lost
}

/// The other blocks of the stripes that the host was writing in do not yield the device's blocks. Its medium has them.
#[test]
fn nothing_is_lost_when_a_host_and_a_device_of_one_node_end() {
    let (mut degraded, mut replaced) = (0, 0);
    for layout in layouts() {
        for scheme in SCHEMES {
            for seed in 0..80 {
                let world = || World::new(layout, scheme, 3, seed);
                let lost = node_ends(world(), seed, 0, false);
                assert_eq!(lost, 0, "{:?}, {scheme}, seed {seed}", layout.redundancy);
                degraded += node_ends(world(), seed, 3, false);
                replaced += node_ends(world(), seed, 0, true);
            }
        }
    }
    // What a host has left behind that dies after the device, and a medium that is gone as well, is more than redundancy replaces.
    assert!(degraded > 0 && replaced > 0, "{degraded} {replaced}");
}

/// While a device comes back, writes of its unit go to it as well, and those beside it do not. One write may have columns of both kinds.
/// Then a host dies in the middle of a write: parity vouches for none of the blocks that were written without the device.
#[test]
fn a_write_of_some_of_its_blocks_does_not_vouch_for_the_others() {
    const UNIT: u32 = 3;
    let mut lost = 0;
    for scheme in SCHEMES {
        for seed in 0..100 {
            let what = format!("{scheme}, seed {seed}");
            let layout = Layout { unit: UNIT, ..raid5() };
            let mut story = Story::of(World::new(layout, scheme, 3, seed));
            let first = story.first;
            let units = 1..layout.data;
            let places = units.flat_map(|unit| story.stripes().into_iter().map(move |s| (s, unit)));
            let starts = places.map(|(stripe, unit)| layout.logical(stripe, unit));
            let start = starts.into_iter().find(|block| layout.place(*block).device == first);
            let start = start.expect("the device has data");
            let write = |story: &mut Story, start, count| {
                let (work, blocks) = story.write_of(Span { start, count });
                story.is_written(work, blocks);
            };
            story.writes(12);
            story.fail();
            write(&mut story, start + 1, 2);
            story.comes_back();
            change(&mut story.world, Change::Rebuild(first));
            // The end of the unit before, and the first block of this one.
            write(&mut story, start - 2, 3);
            story.cut_of(Span { start: start - 2, count: 2 });
            story.repair();
            story.rebuild(first, seed % 4 == 2);
            story.written.extend(story.stripes());
            let (of_story, old) = story.judge(&what);
            assert_eq!(old, 0, "{what}");
            lost += of_story;
        }
    }
    assert!(lost > 0);
}
