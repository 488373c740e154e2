//! The membership service's state on a node's simulated disk, as a daemon keeps it in a file.
//!
//! The new image is written beside the old one and made durable. Then a pointer to it is made durable, as a rename does.
//! A crash leaves the old image or the new one. Every image takes fresh sectors, so a full disk refuses it as a file
//! system would.

use lockify_sim::{DiskDone, DiskError, DiskId};

use super::HostContext;

/// The disk.
pub const DISK: DiskId = DiskId(0);

const SECTOR: usize = 4096;

/// Where an image is: its first sector and its bytes.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: u64,
    bytes: usize,
}

impl Place {
    fn sectors(self) -> u64 {
        self.bytes.div_ceil(SECTOR) as u64
    }

    /// The sector that says so.
    fn encode(self) -> Vec<u8> {
        let mut sector = vec![0; SECTOR];
        sector[..8].copy_from_slice(&self.start.to_le_bytes());
        sector[8..16].copy_from_slice(&(self.bytes as u64).to_le_bytes());
        sector
    }

    /// A disk that nothing was written to has no image.
    fn decode(sector: &[u8]) -> Option<Place> {
        let number = |at: usize| Some(u64::from_le_bytes(sector.get(at..at + 8)?.try_into().ok()?));
        let start = number(0).filter(|start| *start > 0)?;
        Some(Place { start, bytes: usize::try_from(number(8)?).ok()? })
    }
}

/// A step of the disk.
#[derive(Clone, Copy, Debug)]
enum Step {
    Nothing,
    ReadPointer,
    ReadImage(Place),
    WriteImage(u64, Place),
    SyncImage(u64, Place),
    WritePointer(u64, Place),
    SyncPointer(u64, Place),
}

/// The effect of a finished disk operation.
#[derive(Debug)]
pub enum Ended {
    /// There is more to do.
    Nothing,
    /// The image, if there is one.
    Read(Option<Vec<u8>>),
    /// The disk does not answer: begin again later.
    Unreadable,
    /// The write of this number has ended.
    Written {
        /// The number of the image.
        number: u64,
        /// The disk has it.
        success: bool,
    },
}

/// The disk of one process.
#[derive(Debug)]
pub struct Store {
    step: Step,
    /// Marks operations: those of a step that was given up are ignored.
    tag: u64,
    /// The first sector that no image has.
    free: u64,
}

impl Store {
    /// Nothing is known of the disk yet.
    pub fn new() -> Store {
        Store { step: Step::Nothing, tag: 0, free: 1 }
    }

    /// Begins to read.
    pub fn read(&mut self, cx: &mut HostContext<'_>) {
        let tag = self.begin(Step::ReadPointer);
        cx.read(DISK, 0, 1, tag);
    }

    /// Begins to replace the image on the disk.
    pub fn write(&mut self, cx: &mut HostContext<'_>, number: u64, mut image: Vec<u8>) {
        let place = Place { start: self.free, bytes: image.len() };
        image.resize(place.sectors() as usize * SECTOR, 0);
        let tag = self.begin(Step::WriteImage(number, place));
        cx.write(DISK, place.start, image, tag);
    }

    fn begin(&mut self, step: Step) -> u64 {
        self.step = step;
        self.tag += 1;
        self.tag
    }

    /// A disk operation has ended.
    pub fn ended(&mut self, cx: &mut HostContext<'_>, done: DiskDone) -> Ended {
        if done.tag != self.tag {
            return Ended::Nothing;
        }
        match (self.step, done.result) {
            (Step::ReadPointer, Ok(sector)) => self.follow(cx, &sector),
            (Step::ReadImage(place), Ok(mut image)) => {
                image.truncate(place.bytes);
                Ended::Read(Some(image))
            }
            (Step::ReadPointer | Step::ReadImage(_), Err(_)) => Ended::Unreadable,
            (step, result) => self.wrote(cx, step, &result),
        }
    }

    fn follow(&mut self, cx: &mut HostContext<'_>, sector: &[u8]) -> Ended {
        let Some(place) = Place::decode(sector) else { return Ended::Read(None) };
        self.free = place.start + place.sectors();
        let tag = self.begin(Step::ReadImage(place));
        cx.read(DISK, place.start, place.sectors(), tag);
        Ended::Nothing
    }

    fn wrote(
        &mut self,
        cx: &mut HostContext<'_>,
        step: Step,
        result: &Result<Vec<u8>, DiskError>,
    ) -> Ended {
        let success = result.is_ok();
        match step {
            Step::WriteImage(number, place) if success => {
                let tag = self.begin(Step::SyncImage(number, place));
                cx.flush(DISK, tag);
            }
            Step::SyncImage(number, place) if success => {
                let tag = self.begin(Step::WritePointer(number, place));
                cx.write(DISK, 0, place.encode(), tag);
            }
            Step::WritePointer(number, place) if success => {
                let tag = self.begin(Step::SyncPointer(number, place));
                cx.flush(DISK, tag);
            }
            Step::WriteImage(number, place)
            | Step::SyncImage(number, place)
            | Step::WritePointer(number, place)
            | Step::SyncPointer(number, place) => {
                // Even after a failure the pointer may be this one: its image must stay.
                if !matches!(step, Step::WriteImage(..)) {
                    self.free = place.start + place.sectors();
                }
                self.step = Step::Nothing;
                return Ended::Written { number, success };
            }
            Step::Nothing | Step::ReadPointer | Step::ReadImage(_) => {}
        }
        Ended::Nothing
    }
}
