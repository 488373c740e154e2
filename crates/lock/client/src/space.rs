//! Lockspaces and requests for locks in them.

use std::sync::Arc;
use std::time::Duration;

use lockify_core::{ClientId, Clients, LockArgs, LockFlags, Mode, Name, NodeId, ResourceInfo};
use lockify_node::MOST_PER_PAGE;
use lockify_session::protocol::{Answer, KNOWS_PAGES, LockRequest, Query, Request, Space};

use crate::channel::Channel;
use crate::client::Inner;
use crate::error::{Error, unexpected};
use crate::guard::{Guard, Pending};
use crate::table::{LockState, LostLock, OnBlock};

/// A lockspace: names in different lockspaces have nothing to do with each other.
#[derive(Clone)]
pub struct Lockspace {
    inner: Arc<Inner>,
    name: Arc<str>,
    /// Its number in each shard.
    spaces: Arc<[Space]>,
    lvb_len: usize,
}

/// The whole cluster's report about some resources.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClusterView {
    /// The resources, by name within each shard.
    pub resources: Vec<ResourceInfo>,
    /// Locks that were left out, because there are too many for one answer: ask for their names
    /// ([`Lockspace::who`]).
    pub omitted: u64,
    /// Members that did not answer in time.
    pub silent: Vec<NodeId>,
}

/// Which resources to tell of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// All that have locks.
    All,
    /// Those for which somebody waits.
    WaitedFor,
}

/// Some of a lockspace's resources, in the order of their names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Page {
    /// The resources.
    pub view: ClusterView,
    /// How many come after them.
    pub more: u64,
    /// The name after which the next page begins; `None`: this is the last one.
    pub next: Option<Name>,
}

impl Page {
    /// Adds a shard's answers.
    fn add(&mut self, answers: Vec<Answer>) -> Result<(), Error> {
        let is_rest = |answer: &Answer| matches!(answer, Answer::Rest { .. });
        let (rest, others): (Vec<Answer>, Vec<Answer>) = answers.into_iter().partition(is_rest);
        for answer in rest {
            if let Answer::Rest { more, next } = answer {
                self.more += more;
                self.next = [self.next, next].into_iter().flatten().min();
            }
        }
        self.view.add(others)
    }

    /// Each shard has told of names of its own: only up to where all of them have is it a page.
    fn arrange(&mut self, which: Which, after: Option<Name>, limit: usize) {
        let resources = &mut self.view.resources;
        resources.retain(|r| {
            // A daemon that knows of no pages tells of all.
            after.is_none_or(|after| r.name > after) && (which == Which::All || r.is_waited_for())
        });
        resources.sort_by_key(|r| r.name);
        if resources.len() > limit {
            let last = Some(resources[limit - 1].name);
            self.next = [self.next, last].into_iter().flatten().min();
        }
        if let Some(next) = self.next {
            let page = resources.partition_point(|r| r.name <= next);
            self.more += (resources.len() - page) as u64;
            resources.truncate(page);
        }
    }
}

impl Lockspace {
    pub(crate) fn new(
        inner: Arc<Inner>,
        name: &str,
        spaces: Vec<Space>,
        lvb_len: usize,
    ) -> Lockspace {
        Lockspace { inner, name: name.into(), spaces: spaces.into(), lvb_len }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Length of its lock value blocks in bytes.
    pub fn lvb_len(&self) -> usize {
        self.lvb_len
    }

    /// Locks `name` in `mode`; waits as long as it takes.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::Refused`], [`Error::Disconnected`].
    pub fn lock(&self, name: impl AsRef<[u8]>, mode: Mode) -> Result<Guard, Error> {
        self.request(name, mode).lock()
    }

    /// Locks `name` in `mode` if nobody holds a conflicting lock.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if somebody does; else as [`Lockspace::lock`].
    pub fn try_lock(&self, name: impl AsRef<[u8]>, mode: Mode) -> Result<Guard, Error> {
        self.request(name, mode).flags(LockFlags::NOQUEUE).lock()
    }

    /// As [`Lockspace::lock`], for async code of any runtime. Dropping the future cancels.
    ///
    /// # Errors
    /// As [`Lockspace::lock`].
    pub async fn lock_async(&self, name: impl AsRef<[u8]>, mode: Mode) -> Result<Guard, Error> {
        self.request(name, mode).lock_async().await
    }

    /// A request for a lock, to be refined and then made.
    pub fn request(&self, name: impl AsRef<[u8]>, mode: Mode) -> LockBuilder {
        LockBuilder {
            space: self.clone(),
            args: Name::new(name).map(|name| LockArgs::new(name, mode)).map_err(Error::from),
            on_block: None,
        }
    }

    /// Calls `callback`, on the client's callback thread, for each lock of this lockspace that is
    /// lost from now on: because the session or the node's quorum goes, or a claim failed.
    pub fn on_lost(&self, callback: impl Fn(&LostLock) + Send + Sync + 'static) {
        let callback: Arc<dyn Fn(&LostLock) + Send + Sync> = Arc::new(callback);
        for (shard, space) in self.inner.shards.iter().zip(self.spaces.iter()) {
            shard.table().on_lost(*space, callback.clone());
        }
    }

    /// Every resource of the lockspace that has locks. Where there may be millions, use
    /// [`Lockspace::page`].
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Disconnected`].
    pub fn locks(&self) -> Result<ClusterView, Error> {
        self.pages(Which::All, usize::MAX)
    }

    /// Every resource of the lockspace for which somebody waits, at most about so many; those that
    /// are left out count as one omitted lock each.
    ///
    /// # Errors
    /// As for [`Lockspace::locks`].
    pub fn waited_for(&self, most: usize) -> Result<ClusterView, Error> {
        self.pages(Which::WaitedFor, most)
    }

    fn pages(&self, which: Which, most: usize) -> Result<ClusterView, Error> {
        let (mut view, mut after) = (ClusterView::default(), None);
        loop {
            let page = self.page(which, after, MOST_PER_PAGE)?;
            view.resources.extend(page.view.resources);
            view.omitted += page.view.omitted;
            view.silent.extend(page.view.silent);
            after = page.next;
            if after.is_none() || view.resources.len() >= most {
                view.omitted += if after.is_some() { page.more } else { 0 };
                view.silent.sort_unstable();
                view.silent.dedup();
                return Ok(view);
            }
        }
    }

    /// The resources of the lockspace that have locks and come after a name, at most `limit` of
    /// them (and [`MOST_PER_PAGE`]), in the order of their names. A resource that has locks all the
    /// while is on exactly one page.
    ///
    /// # Errors
    /// As for [`Lockspace::locks`].
    pub fn page(&self, which: Which, after: Option<Name>, limit: u32) -> Result<Page, Error> {
        let (limit, waited) = (limit.clamp(1, MOST_PER_PAGE), which == Which::WaitedFor);
        let mut page = Page::default();
        for (shard, space) in self.inner.shards.iter().zip(self.spaces.iter()) {
            let space = *space;
            let query = match self.inner.version < KNOWS_PAGES {
                true => Query::Locks(space),
                false => Query::Page { space, after, limit, waited },
            };
            page.add(shard.ask(query)?)?;
        }
        page.arrange(which, after, limit as usize);
        Ok(page)
    }

    /// The holders and waiters of `name`, with the times since when they hold or wait.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::Refused`], [`Error::Disconnected`].
    pub fn who(&self, name: impl AsRef<[u8]>) -> Result<ClusterView, Error> {
        let name = Name::new(name)?;
        let (shard, space) = self.place(&name);
        let mut view = ClusterView::default();
        view.add(shard.ask(Query::Who(space, name))?)?;
        Ok(view)
    }

    /// Drops the orphans that `client` left on `node`; every client's if `None`.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Disconnected`].
    pub fn purge(&self, node: NodeId, client: Option<ClientId>) -> Result<(), Error> {
        let (node, clients) = (Some(node), client.map_or(Clients::ALL, Clients::one));
        for (shard, space) in self.inner.shards.iter().zip(self.spaces.iter()) {
            shard.ask_done(Query::Purge { space: *space, node, clients })?;
        }
        Ok(())
    }

    /// The shard of a name: where all requests for it go, on every node.
    fn place(&self, name: &Name) -> (&Arc<Channel>, Space) {
        let shard = lockify_node::shard_of(name, self.inner.shards.len() as u32) as usize;
        (&self.inner.shards[shard], self.spaces[shard])
    }
}

impl ClusterView {
    fn add(&mut self, answers: Vec<Answer>) -> Result<(), Error> {
        for answer in answers {
            match answer {
                Answer::Resources(pieces) => pieces.into_iter().for_each(|p| self.add_piece(p)),
                Answer::Omitted(locks) => self.omitted += locks,
                Answer::Silent(nodes) => self.silent.extend(nodes),
                Answer::Done => {}
                Answer::Refused(why) => return Err(why.into()),
                other => return Err(unexpected(&other)),
            }
        }
        Ok(())
    }

    /// A resource with many locks comes in several pieces, one after the other.
    fn add_piece(&mut self, piece: ResourceInfo) {
        match self.resources.last_mut() {
            Some(last) if last.name == piece.name => last.locks.extend(piece.locks),
            _ => self.resources.push(piece),
        }
    }
}

/// A request for a lock that has not been made yet.
#[must_use = "nothing is locked until `lock` or `lock_async` is called"]
pub struct LockBuilder {
    space: Lockspace,
    /// All but the tag; the error is the name's.
    args: Result<LockArgs, Error>,
    on_block: Option<OnBlock>,
}

impl LockBuilder {
    fn with(mut self, refine: impl FnOnce(&mut LockArgs)) -> LockBuilder {
        if let Ok(args) = &mut self.args {
            refine(args);
        }
        self
    }

    /// Adds flags ([`LockFlags`]).
    pub fn flags(self, flags: LockFlags) -> LockBuilder {
        self.with(|args| args.flags |= flags)
    }

    /// NOTIFY: the caller is creating the locked object and excludes every other way to learn its
    /// name, so its mastership is claimed without waiting for the network.
    pub fn notify(self) -> LockBuilder {
        self.flags(LockFlags::NOTIFY)
    }

    /// Fail with [`Error::TimedOut`] after waiting this long, even while a needed node does not
    /// answer, or a recovery runs. A later grant is unlocked.
    pub fn timeout(self, timeout: Duration) -> LockBuilder {
        self.with(|args| args.timeout = Some(crate::nanoseconds(timeout)))
    }

    /// Makes the lock part of a transaction, for the search for deadlocks: the same number is the
    /// same transaction in all sessions and on all nodes. Without it (or with 0), the session is
    /// one transaction: programs whose threads lock independently of each other number them.
    pub fn transaction(self, number: u64) -> LockBuilder {
        self.with(|args| args.transaction = number)
    }

    /// Read the resource's lock value block ([`Guard::lvb`]).
    pub fn read_lvb(self) -> LockBuilder {
        let lvb = vec![0; self.space.lvb_len].into();
        self.with(|args| args.lvb = Some(lvb)).flags(LockFlags::VALBLK)
    }

    /// Calls `callback` with the mode wanted, on the client's callback thread, when the lock
    /// blocks somebody. It may come late or more than once; several notices may become one.
    /// Blocking calls are allowed in it.
    pub fn on_block(mut self, callback: impl Fn(Mode) + Send + Sync + 'static) -> LockBuilder {
        self.on_block = Some(Box::new(callback));
        self
    }

    /// Makes the request and waits for the lock.
    ///
    /// # Errors
    /// As [`Lockspace::lock`]; [`Error::TimedOut`], [`Error::WouldBlock`].
    pub fn lock(self) -> Result<Guard, Error> {
        self.start()?.wait_for_guard()
    }

    /// Makes the request, now; the future is the lock. Dropping it cancels the request.
    ///
    /// The request is made by this call, not by the first poll, so that several can be on their
    /// way before the first is awaited.
    ///
    /// # Errors
    /// As [`LockBuilder::lock`].
    pub fn lock_async(self) -> impl Future<Output = Result<Guard, Error>> + Send + 'static {
        let started = self.start();
        async move { started?.guard().await }
    }

    fn start(self) -> Result<Pending, Error> {
        let mut args = self.args?;
        let (channel, space) = self.space.place(&args.name);
        args.bast = self.on_block.is_some();
        let state = Arc::new(LockState::new(args.name, args.mode, self.on_block));
        let (tag, slot) = channel.table().add(space, state.clone())?;
        args.tag = tag;
        channel.submit(Request::Lock(LockRequest { space, args }));
        Ok(Pending::new(self.space.inner.clone(), channel.clone(), tag, slot, state))
    }
}
