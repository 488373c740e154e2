//! A device's steps on its blocks, and the lives that it refuses.

use std::io;
use std::path::Path;

use lockify_array::{DeviceEvent, DeviceId, Extent, Layout, Redundancy};
use lockify_history::array::Kind;

use super::{History, HistoryError, by, digest};
use crate::ArrayFile;
use crate::store::Store;

/// Blocks that are read at once for the end of a history.
const PIECE: u32 = 256;

/// A device's history.
pub(crate) struct DeviceHistory {
    history: History,
    device: DeviceId,
    redundancy: Redundancy,
}

impl DeviceHistory {
    pub fn create(
        path: &Path,
        file: &ArrayFile,
        device: DeviceId,
        log: fn(&str),
    ) -> Result<DeviceHistory, HistoryError> {
        let history = History::create(path, file, log)?;
        Ok(DeviceHistory { history, device, redundancy: file.layout.redundancy })
    }

    /// It did something to blocks.
    pub fn did(&mut self, event: DeviceEvent) {
        let device = self.device.0;
        self.history.note(match event {
            DeviceEvent::Read { op, extent: Extent { start, count } } => {
                Kind::DevRead { device, by: by(op.life), seq: op.seq, start, count }
            }
            DeviceEvent::Write { op, extent: Extent { start, count }, stamp, dropped } => {
                let stamp = Some((stamp.time, stamp.host));
                Kind::DevWrite {
                    device,
                    by: by(op.life),
                    seq: op.seq,
                    start,
                    count,
                    stamp,
                    dropped,
                }
            }
            DeviceEvent::Fenced { life } => Kind::Fenced { device, by: by(life) },
        });
    }

    /// The array has this layout. Its processes say so before they use what is new.
    pub fn grown(&mut self, layout: &Layout) {
        self.history.grown(layout);
    }

    /// Before the disk is asked, and before anything is sent.
    pub fn flush(&mut self) {
        self.history.flush();
    }

    /// The device ends in order. `good`: it has everything, so that its blocks are told.
    pub fn end(mut self, store: &Store, good: bool) -> io::Result<()> {
        if good {
            let blocks = store.blocks();
            for start in (0..blocks).step_by(PIECE as usize) {
                let count = u32::try_from(blocks - start).unwrap_or(PIECE).min(PIECE);
                let found = store.read(Extent { start, count })?;
                let lost = (0..).zip(&found);
                let lost = lost.filter(|(_, b)| b.as_ref().map_or(true, |b| b.header.lost));
                let lost = lost.map(|(i, _)| i).collect();
                let content = |block: &Result<lockify_array::Block, _>| {
                    let data = block.as_ref().map_or(&[][..], |block| &block.data);
                    digest(self.redundancy, data)
                };
                let blocks = found.iter().map(content).collect();
                self.history.note(Kind::Dump { device: self.device.0, start, blocks, lost });
            }
        }
        self.history.note(Kind::End {});
        self.history.flush();
        Ok(())
    }
}
