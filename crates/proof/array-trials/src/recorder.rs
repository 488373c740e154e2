//! Records the events of a simulated array, for the checker of histories.

use std::collections::BTreeMap;

use lockify_array::{
    BadBlock, Block, DeviceEvent, DeviceId, HostAnswer, Layout, Life, OpError, OpId, Redundancy,
    Scheme, Span, Stamp, Ticket,
};
use lockify_check::array::{Checker, Report};
use lockify_history::array::{self, Event, Kind, Tag};
use lockify_sim::Nanos;

use crate::content;

/// A history as it grows.
pub struct Recorder {
    checker: Checker,
    events: Vec<Event>,
    /// The first sector of each life's unanswered reads.
    reads: BTreeMap<(Life, Ticket), u64>,
    /// The newest try of each operation.
    tries: BTreeMap<(Life, Ticket), u64>,
}

impl Recorder {
    /// The history of a new array.
    pub fn new(layout: &Layout, scheme: Scheme, volatile: bool) -> Recorder {
        let redundancy = match layout.redundancy {
            Redundancy::Raid5 => array::Redundancy::Raid5,
            Redundancy::Mirror => array::Redundancy::Mirror,
            Redundancy::Raid6 => array::Redundancy::Raid6,
        };
        let Layout { data, groups, unit, block_size, stripes, .. } = *layout;
        let sectors = block_size / content::SECTOR_SIZE;
        let later = array::LaterGroups::default();
        let array =
            array::Layout { redundancy, data, groups, unit, block_size, stripes, sectors, later };
        let mut recorder = Recorder {
            checker: Checker::new(),
            events: Vec::new(),
            reads: BTreeMap::new(),
            tries: BTreeMap::new(),
        };
        let scheme = scheme.name().to_owned();
        recorder.note(0, Kind::Begin { array, scheme, volatile });
        recorder
    }

    /// Writes an event.
    pub fn note(&mut self, at: Nanos, kind: Kind) {
        let event = Event::new(at, kind);
        self.checker.observe(&event);
        self.events.push(event);
    }

    /// The array is laid out in this way from now on.
    pub fn grown(&mut self, at: Nanos, layout: &Layout) {
        let later = |group: lockify_array::AddedGroup| array::LaterGroup {
            from: group.from,
            first: group.first.0,
        };
        let groups = layout.added.iter().map(later).collect();
        self.note(at, Kind::Grown { stripes: layout.stripes, groups });
    }

    /// A host is asked to read.
    pub fn reads(&mut self, at: Nanos, life: Life, ticket: Ticket, span: Span) {
        let sectors = content::sectors(span);
        let (start, count) = (sectors.start, sectors.end - sectors.start);
        self.reads.insert((life, ticket), start);
        self.note(at, Kind::Read { by: by(life), op: ticket.0, start, count });
    }

    /// A host is asked to write, from this sector on.
    pub fn writes(&mut self, at: Nanos, life: Life, ticket: Ticket, start: u64, tags: &[Tag]) {
        let tags = tags.to_vec();
        let partial = Vec::new();
        self.note(at, Kind::Write { by: by(life), op: ticket.0, start, tags, partial });
    }

    /// A host is asked to flush.
    pub fn flushes(&mut self, at: Nanos, life: Life, ticket: Ticket) {
        self.note(at, Kind::Flush { by: by(life), op: ticket.0 });
    }

    /// A host is asked to repair something.
    pub fn repairs(&mut self, at: Nanos, life: Life, ticket: Ticket, what: String) {
        self.note(at, Kind::Repair { by: by(life), op: ticket.0, note: Some(what) });
    }

    /// A host begins a try.
    pub fn tries(&mut self, at: Nanos, ticket: Ticket, op: OpId, stamp: Stamp) {
        if self.tries.insert((op.life, ticket), op.seq) == Some(op.seq) {
            return;
        }
        let stamp = Some((stamp.time, stamp.host));
        self.note(at, Kind::Try { by: by(op.life), op: ticket.0, seq: op.seq, stamp });
    }

    /// A host answers.
    pub fn answers(
        &mut self,
        at: Nanos,
        life: Life,
        ticket: Ticket,
        result: &Result<HostAnswer, OpError>,
    ) {
        let start = self.reads.remove(&(life, ticket));
        let (tags, error) = match (result, start) {
            (Ok(HostAnswer::Read { data }), Some(start)) => (content::read(start, data), None),
            (Ok(_), _) => (Vec::new(), None),
            (Err(error), _) => (Vec::new(), Some(error.to_string())),
        };
        self.note(at, Kind::Done { by: by(life), op: ticket.0, tags, error });
    }

    /// A device takes a step.
    pub fn device(&mut self, at: Nanos, device: DeviceId, event: DeviceEvent) {
        let device = device.0;
        self.note(
            at,
            match event {
                DeviceEvent::Read { op, extent } => Kind::DevRead {
                    device,
                    by: by(op.life),
                    seq: op.seq,
                    start: extent.start,
                    count: extent.count,
                },
                DeviceEvent::Write { op, extent, stamp, dropped } => Kind::DevWrite {
                    device,
                    by: by(op.life),
                    seq: op.seq,
                    start: extent.start,
                    count: extent.count,
                    stamp: Some((stamp.time, stamp.host)),
                    dropped,
                },
                DeviceEvent::Fenced { life } => Kind::Fenced { device, by: by(life) },
            },
        );
    }

    /// Records the state that a machine keeps in the end.
    pub fn keeps(&mut self, at: Nanos, whom: &str, kept: Vec<(&str, usize)>) {
        for (what, count) in kept {
            let (at_whom, what) = (whom.to_owned(), what.to_owned());
            self.note(at, Kind::Left { at: at_whom, what, count: count as u64 });
        }
    }

    /// Records the content of a device in the end. Unreadable blocks count as lost.
    pub fn lies(&mut self, at: Nanos, device: DeviceId, blocks: &[Result<Block, BadBlock>]) {
        let content = |block: &Result<Block, BadBlock>| {
            let bytes = block.as_ref().map_or(&[][..], |block| &block.data);
            bytes.iter().map(|byte| format!("{byte:02x}")).collect()
        };
        let is_lost = |block: &Result<Block, BadBlock>| {
            block.as_ref().map_or(true, |block| block.header.lost)
        };
        let lost = (0..).zip(blocks).filter(|(_, block)| is_lost(block)).map(|(i, _)| i).collect();
        let blocks = blocks.iter().map(content).collect();
        self.note(at, Kind::Dump { device: device.0, start: 0, blocks, lost });
    }

    /// Everything has come to rest: the verdict, and the history for who wants to see it.
    pub fn finish(mut self, at: Nanos) -> (Report, Vec<Event>) {
        self.note(at, Kind::End {});
        (self.checker.finish(), self.events)
    }
}

/// A life, in the checker's words.
pub fn by(life: Life) -> array::Life {
    array::Life { host: life.host.0, incarnation: life.incarnation }
}
