//! The devices' files without protocol: the same reads and writes, nothing between.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use lockify_array::{
    Block, DeviceId, DiskAnswer, DiskAsk, DiskError, DiskToken, Extent, Header, Layout, OpError,
    Span, Work,
};
use lockify_volume::ArrayFile;
use lockify_volume::store::{Access, Disk, Space, Store};

use super::case::DATA;
use super::work::Doer;

type Finish = Box<dyn FnOnce(Result<(), OpError>) + Send>;

/// An operation that waits for its disks.
struct Waiting {
    left: usize,
    then: Finish,
}

type Operations = Arc<Mutex<HashMap<u64, Waiting>>>;

/// The devices of an array.
pub(super) struct Raw {
    inner: Arc<Inner>,
}

struct Inner {
    layout: Layout,
    durable: bool,
    disks: Vec<Disk>,
    operations: Operations,
    next: AtomicU64,
}

impl Raw {
    /// Makes new files in a folder.
    pub fn create(
        file: &ArrayFile,
        dir: &Path,
        access: Access,
        durable: bool,
    ) -> Result<Raw, String> {
        let operations = Operations::default();
        let disk = |device: u16| {
            let path = dir.join(format!("raw{device}"));
            let store = Store::create(&path, file, device, access, Space::Sparse)
                .map_err(|e| e.to_string())?;
            let operations = Arc::clone(&operations);
            let answered = move |token, result: Result<DiskAnswer, DiskError>| {
                answered(
                    &operations,
                    token,
                    result.map_err(|e: DiskError| OpError::State(e.to_string())),
                );
            };
            Disk::start(store, Box::new(answered)).map_err(|e| e.to_string())
        };
        let disks = (0..file.layout.devices()).map(disk).collect::<Result<_, String>>()?;
        let next = AtomicU64::new(0);
        Ok(Raw { inner: Arc::new(Inner { layout: file.layout, durable, disks, operations, next }) })
    }
}

/// One of an operation's disks has answered.
fn answered(operations: &Operations, token: DiskToken, result: Result<DiskAnswer, OpError>) {
    let mut all = operations.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(waiting) = all.get_mut(&token.0) else { return };
    waiting.left -= 1;
    let finished = waiting.left == 0 || result.is_err();
    let waiting = if finished { all.remove(&token.0) } else { None };
    drop(all);
    if let Some(waiting) = waiting {
        (waiting.then)(result.map(drop));
    }
}

impl Inner {
    /// Has disks do something at once.
    fn all(&self, asks: Vec<(DeviceId, DiskAsk)>, token: u64, then: Finish) {
        let mut operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        operations.insert(token, Waiting { left: asks.len(), then });
        drop(operations);
        for (device, ask) in asks {
            self.disks[usize::from(device.0)].ask(ask);
        }
    }

    fn read(
        &self,
        token: u64,
        units: impl Iterator<Item = DeviceId>,
        start: u64,
    ) -> Vec<(DeviceId, DiskAsk)> {
        let extent = Extent { start, count: self.layout.unit };
        let ask = |device| (device, DiskAsk::Read { token: DiskToken(token), extent });
        units.map(ask).collect()
    }

    fn write(
        &self,
        token: u64,
        units: impl Iterator<Item = DeviceId>,
        start: u64,
        data: &Bytes,
    ) -> Vec<(DeviceId, DiskAsk)> {
        let size = self.layout.block_size as usize;
        let block = |i: u32| {
            let from = i as usize * size;
            Block { header: Header::default(), data: data.slice(from..from + size) }
        };
        let blocks: Vec<Block> = (0..self.layout.unit).map(block).collect();
        let ask = |device| {
            let (token, blocks, durable) = (DiskToken(token), blocks.clone(), self.durable);
            (device, DiskAsk::Write { token, start, blocks, durable })
        };
        units.map(ask).collect()
    }
}

impl Doer for Raw {
    fn begin(&self, work: Work, done: Finish) {
        let inner = &self.inner;
        let layout = inner.layout;
        // The load's accesses, and no more: whole units of one stripe.
        let (Work::Read { span } | Work::Write { span, .. }) = &work else {
            return done(Err(OpError::Range));
        };
        let Span { start, count } = *span;
        let place = layout.place(start);
        let (stripe, at) = (place.stripe, layout.unit_start(place.stripe));
        let units = place.data_unit..place.data_unit + (count / u64::from(layout.unit)) as u16;
        let touched = move || units.clone().map(move |unit| layout.data(stripe, unit));
        let parity = layout.parity(stripe);
        let token = inner.next.fetch_add(2, Relaxed);
        let Work::Write { data, .. } = work else {
            return inner.all(inner.read(token, touched(), at), token, done);
        };
        let mine: Vec<DeviceId> = touched().collect();
        let few = 2 * mine.len() < usize::from(DATA);
        let before: Vec<DeviceId> = match few {
            true => mine.iter().copied().chain([parity]).collect(),
            false => (0..DATA)
                .map(|unit| layout.data(stripe, unit))
                .filter(|device| !mine.contains(device))
                .collect(),
        };
        let writes = {
            let inner = Arc::clone(inner);
            move |done: Finish| {
                let writes = inner.write(token + 1, mine.into_iter().chain([parity]), at, &data);
                inner.all(writes, token + 1, done);
            }
        };
        if before.is_empty() {
            return writes(done);
        }
        let asks = inner.read(token, before.into_iter(), at);
        let then = move |result: Result<(), OpError>| match result {
            Ok(()) => writes(done),
            Err(error) => done(Err(error)),
        };
        inner.all(asks, token, Box::new(then));
    }
}
