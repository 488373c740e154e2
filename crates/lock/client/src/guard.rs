//! Locks that are held.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use lockify_core::{LockFlags, Lvb, Mode, Name, SbFlags, UnlockFlags};
use lockify_session::protocol::{ConvertRequest, Done, Request, UnlockRequest};

use crate::channel::Channel;
use crate::client::Inner;
use crate::error::Error;
use crate::table::{LockState, OpSlot};

/// An operation under way. Dropped before its end, it is cancelled.
pub(crate) struct Pending {
    inner: Arc<Inner>,
    channel: Arc<Channel>,
    tag: u64,
    slot: Arc<OpSlot>,
    state: Arc<LockState>,
    ended: bool,
    /// A new lock: nobody will want it if this is dropped.
    is_new: bool,
}

impl Pending {
    pub(crate) fn new(
        inner: Arc<Inner>,
        channel: Arc<Channel>,
        tag: u64,
        slot: Arc<OpSlot>,
        state: Arc<LockState>,
    ) -> Pending {
        Pending { inner, channel, tag, slot, state, ended: false, is_new: true }
    }

    fn wait(&mut self) -> Result<Done, Error> {
        let outcome = self.channel.wait(&self.slot);
        self.ended = !matches!(outcome, Err(Error::Interrupted));
        outcome
    }

    async fn finish(&mut self) -> Result<Done, Error> {
        let _task = self.channel.task();
        let outcome = std::future::poll_fn(|cx| self.channel.poll(&self.slot, cx)).await;
        self.ended = true;
        outcome
    }

    pub(crate) fn wait_for_guard(mut self) -> Result<Guard, Error> {
        let done = self.wait()?;
        Ok(self.into_guard(done))
    }

    pub(crate) async fn guard(mut self) -> Result<Guard, Error> {
        let done = self.finish().await?;
        Ok(self.into_guard(done))
    }

    fn into_guard(self, done: Done) -> Guard {
        Guard {
            inner: self.inner.clone(),
            channel: self.channel.clone(),
            tag: self.tag,
            state: self.state.clone(),
            lvb: done.ended.lvb,
            status_flags: done.ended.status_flags,
            freed: false,
            released: false,
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let cancel = self.channel.table().cancel(self.tag, self.is_new);
        if let Some(cancel) = cancel {
            self.channel.post(cancel);
        }
    }
}

/// A lock that is held; it is released on drop.
///
/// Dropping sends the release and does not wait for it. [`Guard::unlock`] waits, tells errors, and
/// can write the lock value block.
#[must_use = "a guard that is dropped releases its lock at once"]
pub struct Guard {
    /// Keeps the session open.
    inner: Arc<Inner>,
    channel: Arc<Channel>,
    tag: u64,
    state: Arc<LockState>,
    lvb: Option<Lvb>,
    status_flags: SbFlags,
    freed: bool,
    released: bool,
}

impl Guard {
    /// The resource.
    pub fn name(&self) -> &Name {
        &self.state.name
    }

    /// The mode held.
    pub fn mode(&self) -> Mode {
        self.state.mode()
    }

    /// The fencing token of a lock held in PW or EX, else 0. Larger than that of every earlier
    /// such grant of this resource: a storage service that refuses smaller ones than it has seen
    /// is safe from holders that were declared dead. While [`Guard::provisional`], it may still
    /// be replaced by a larger one.
    pub fn token(&self) -> u64 {
        self.state.token()
    }

    /// The lock value block, if the last operation asked for it and it has ever been written.
    pub fn lvb(&self) -> Option<&[u8]> {
        self.lvb.as_deref()
    }

    /// False if the lock value block's content is not to be trusted: a holder died before it
    /// wrote it.
    pub fn lvb_valid(&self) -> bool {
        !self.status_flags.contains(SbFlags::VALNOTVALID)
    }

    /// Flags of the last completion: DEMOTED, VALNOTVALID, ALTMODE.
    pub fn sb_flags(&self) -> SbFlags {
        self.status_flags
    }

    /// Granted on a claim that has not been confirmed yet.
    pub fn provisional(&self) -> bool {
        self.state.provisional()
    }

    /// Returns true if the lock is no longer held (see [`crate::Lockspace::on_lost`]).
    pub fn is_lost(&self) -> bool {
        self.check().is_err()
    }

    /// An error if the lock is no longer held.
    ///
    /// # Errors
    /// [`Error::Lost`], [`Error::Disconnected`].
    pub fn check(&self) -> Result<(), Error> {
        self.state.lost().map_or(Ok(()), Err)
    }

    /// The socket of the lock's session; none with an embedded node. The daemon keeps the lock as
    /// long as a process has this socket open, also a process that inherits it.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.channel.descriptor()
    }

    /// The mode that somebody has waited for since this lock's last grant; known only of locks
    /// with [`crate::LockBuilder::on_block`].
    pub fn blocked(&self) -> Option<Mode> {
        self.state.blocked()
    }

    /// Converts the lock to `mode`; waits as long as it takes.
    ///
    /// # Errors
    /// [`Error::Deadlock`] if a waiting conversion waits for this one's present mode (which is
    /// kept); [`Error::Lost`], [`Error::Refused`], [`Error::Disconnected`].
    pub fn convert(&mut self, mode: Mode) -> Result<(), Error> {
        self.conversion(mode).convert()
    }

    /// Converts the lock to `mode` if that is possible at once.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if it is not; else as [`Guard::convert`].
    pub fn try_convert(&mut self, mode: Mode) -> Result<(), Error> {
        self.conversion(mode).flags(LockFlags::NOQUEUE).convert()
    }

    /// As [`Guard::convert`], for async code. Dropping the future cancels the conversion.
    ///
    /// # Errors
    /// As [`Guard::convert`].
    pub async fn convert_async(&mut self, mode: Mode) -> Result<(), Error> {
        self.conversion(mode).convert_async().await
    }

    /// A conversion, to be refined and then made.
    pub fn conversion(&mut self, mode: Mode) -> ConvertBuilder<'_> {
        let flags = LockFlags::empty();
        ConvertBuilder { guard: self, mode, flags, timeout: None, lvb: None }
    }

    /// The locked object is being freed, so that the release need not wait for claims to settle.
    pub fn freed(mut self) -> Guard {
        self.freed = true;
        self
    }

    /// Releases the lock and waits until that is done.
    ///
    /// # Errors
    /// [`Error::Lost`] or [`Error::Disconnected`] if the lock had been lost before (it is released
    /// all the same).
    pub fn unlock(self) -> Result<(), Error> {
        self.release().unlock()
    }

    /// As [`Guard::unlock`], for async code. The release is on its way when this returns; dropping
    /// the future does not take it back.
    ///
    /// # Errors
    /// As [`Guard::unlock`].
    pub fn unlock_async(self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        self.release().unlock_async()
    }

    /// A release, to be refined and then made.
    pub fn release(self) -> UnlockBuilder {
        UnlockBuilder { guard: self, flags: UnlockFlags::empty(), lvb: None }
    }

    /// Leaves the lock held until the session ends, when it is released, or becomes an orphan if
    /// it is PERSISTENT.
    pub fn keep(mut self) {
        self.released = true;
    }

    /// Sends the release; `None` if there is nothing to release.
    fn start_unlock(
        &mut self,
        flags: UnlockFlags,
        lvb: Option<Lvb>,
    ) -> Result<Option<(Arc<OpSlot>, Request)>, Error> {
        self.released = true;
        let freed = if self.freed { UnlockFlags::FREED } else { UnlockFlags::empty() };
        let begun = self.channel.table().begin_unlock(self.tag, flags | freed)?;
        Ok(begun.map(|(lock, flags, slot)| {
            (slot, Request::Unlock(UnlockRequest { lock, tag: self.tag, flags, lvb }))
        }))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        // With the session gone, the lock is gone, too.
        if let Ok(Some((_, request))) = self.start_unlock(UnlockFlags::empty(), None) {
            self.channel.post(request);
        }
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard")
            .field("name", self.name())
            .field("mode", &self.mode())
            .field("token", &self.token())
            .field("lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}

/// A conversion that has not been made yet.
#[must_use = "nothing is converted until `convert` or `convert_async` is called"]
pub struct ConvertBuilder<'a> {
    guard: &'a mut Guard,
    mode: Mode,
    flags: LockFlags,
    timeout: Option<Duration>,
    lvb: Option<Lvb>,
}

impl ConvertBuilder<'_> {
    /// Adds flags ([`LockFlags`]).
    pub fn flags(mut self, flags: LockFlags) -> Self {
        self.flags |= flags;
        self
    }

    /// Fail with [`Error::TimedOut`] after waiting this long; the present mode is kept. If the lock's
    /// master does not answer then, or a recovery runs, the lock cannot be converted again before that
    /// is over (EBUSY). The call waits for conversions that the master alone can end: those between PR
    /// and CW, with CONVDEADLK, ALTPR, ALTCW or IVVALBLK, and those that write the value block.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Transfer the lock value block: a conversion from PW or EX writes `lvb` (but PW to EX, and
    /// others, read it into [`Guard::lvb`]). Its length is the lockspace's.
    pub fn lvb(mut self, lvb: &[u8]) -> Self {
        self.lvb = Some(lvb.into());
        self.flags(LockFlags::VALBLK)
    }

    /// Makes the conversion and waits for its end.
    ///
    /// # Errors
    /// As [`Guard::convert`]; [`Error::TimedOut`], [`Error::WouldBlock`].
    pub fn convert(self) -> Result<(), Error> {
        let (guard, conversion) = self.make()?;
        guard.converted(conversion.wait()?);
        Ok(())
    }

    /// As [`ConvertBuilder::convert`], for async code. Dropping the future cancels.
    ///
    /// # Errors
    /// As [`ConvertBuilder::convert`].
    pub async fn convert_async(self) -> Result<(), Error> {
        let (guard, conversion) = self.make()?;
        guard.converted(conversion.finish().await?);
        Ok(())
    }

    /// Makes the conversion and leaves the guard free meanwhile, to be looked at, and to be
    /// released, which cancels the conversion.
    ///
    /// # Errors
    /// [`Error::Refused`] while another operation is under way; [`Error::Disconnected`].
    pub fn start(self) -> Result<Conversion, Error> {
        self.make().map(|(_, conversion)| conversion)
    }
}

impl<'a> ConvertBuilder<'a> {
    fn make(self) -> Result<(&'a mut Guard, Conversion), Error> {
        let guard = self.guard;
        let (lock, slot) = guard.channel.table().begin(guard.tag)?;
        guard.channel.submit(Request::Convert(ConvertRequest {
            lock,
            tag: guard.tag,
            mode: self.mode,
            flags: self.flags,
            lvb: self.lvb,
            timeout: self.timeout.map(crate::nanoseconds),
        }));
        let (inner, channel) = (guard.inner.clone(), guard.channel.clone());
        let mut pending = Pending::new(inner, channel, guard.tag, slot, guard.state.clone());
        pending.is_new = false;
        Ok((guard, Conversion(pending)))
    }
}

/// A conversion under way ([`ConvertBuilder::start`]). Dropped before its end, it is cancelled.
#[must_use = "a conversion that is dropped is cancelled"]
pub struct Conversion(Pending);

impl Conversion {
    /// Waits for its end; the guard wants to know of it ([`Guard::converted`]).
    ///
    /// # Errors
    /// As [`ConvertBuilder::convert`].
    pub fn wait(mut self) -> Result<Converted, Error> {
        self.0.wait().map(Converted)
    }

    /// As [`Conversion::wait`], for async code. Dropping the future cancels.
    ///
    /// # Errors
    /// As [`ConvertBuilder::convert`].
    pub async fn finish(mut self) -> Result<Converted, Error> {
        self.0.finish().await.map(Converted)
    }
}

/// How a conversion ended that was started by [`ConvertBuilder::start`].
#[must_use = "give it to Guard::converted"]
pub struct Converted(Done);

impl Guard {
    /// Takes over the value block and flags of a conversion of this lock. Mode and token have
    /// changed already.
    pub fn converted(&mut self, converted: Converted) {
        let Converted(done) = converted;
        self.status_flags = done.status_flags;
        if done.lvb.is_some() {
            self.lvb = done.ended.lvb;
        }
    }
}

/// A release that has not been made yet.
#[must_use = "call `unlock` or `unlock_async`; a drop releases without the lock value block"]
pub struct UnlockBuilder {
    guard: Guard,
    flags: UnlockFlags,
    lvb: Option<Lvb>,
}

impl UnlockBuilder {
    /// Write the lock value block, if the lock is held in PW or EX. Its length is the lockspace's.
    pub fn lvb(mut self, lvb: &[u8]) -> UnlockBuilder {
        self.lvb = Some(lvb.into());
        self.flags |= UnlockFlags::VALBLK;
        self
    }

    /// Mark the lock value block as not to be trusted, if the lock is held in PW or EX.
    pub fn invalidate_lvb(mut self) -> UnlockBuilder {
        self.flags |= UnlockFlags::IVVALBLK;
        self
    }

    /// As [`Guard::unlock`].
    ///
    /// # Errors
    /// As [`Guard::unlock`].
    pub fn unlock(mut self) -> Result<(), Error> {
        let lost = self.guard.check();
        let Some((slot, request)) = self.guard.start_unlock(self.flags, self.lvb)? else {
            return lost;
        };
        self.guard.channel.submit(request);
        let ended = self.guard.channel.wait(&slot);
        lost.and(ended.map(drop))
    }

    /// As [`Guard::unlock_async`].
    ///
    /// # Errors
    /// As [`Guard::unlock`].
    pub fn unlock_async(mut self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let lost = self.guard.check();
        let started = self.guard.start_unlock(self.flags, self.lvb);
        let started = started.map(|begun| {
            begun.map(|(slot, request)| {
                self.guard.channel.post(request);
                slot
            })
        });
        let guard = self.guard;
        async move {
            let Some(slot) = started? else { return lost };
            let _task = guard.channel.task();
            let ended = std::future::poll_fn(|cx| guard.channel.poll(&slot, cx)).await;
            lost.and(ended.map(drop))
        }
    }
}
