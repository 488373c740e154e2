//! Handing clients over to another program that takes this one's place (as [`NodeEngine::image`] does
//! with their locks).

use lockify_core::ClientId;
use lockify_node::{HostEvent, NodeEngine};
use serde::{Deserialize, Serialize};

use super::spaces::Settling;
use super::{ClientHost, DepartedImage, HostedClient, HostedSpace, Outbox, Quota, Waiting};

/// The state of a host; see [`ClientHost::image`].
#[derive(Serialize, Deserialize)]
pub struct HostImage {
    spaces: Vec<HostedSpace>,
    waiting: Vec<Waiting>,
    joined: bool,
    settling: Vec<Settling>,
    departed: Vec<DepartedImage>,
}

/// A client of a host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClientImage {
    id: ClientId,
    /// Of the session protocol.
    version: u16,
    locks: Vec<u32>,
}

impl ClientHost {
    /// Ends the work that cannot be handed over ([`NodeEngine::prepare_image`]). The clients' events are
    /// appended to `out`, and those of the host's owner to `rest`.
    pub fn prepare_image(
        &mut self,
        engine: &mut NodeEngine,
        out: &mut Outbox,
        rest: &mut Vec<HostEvent>,
    ) {
        engine.prepare_image();
        self.collect(engine, out);
        rest.append(&mut self.unclaimed);
    }

    /// This host's state, for the program that replaces this one; figures begin anew there.
    ///
    /// # Errors
    /// The reason why that is impossible now.
    pub fn image(&self) -> Result<HostImage, String> {
        // Without `..`: who adds a field has to say here what becomes of it.
        let ClientHost {
            node: _,
            shard: _,
            spaces,
            external,
            queries,
            changes,
            scratch: _,
            unclaimed,
            waiting,
            joined,
            settling,
            departed,
            meter: _,
        } = self;
        if !queries.is_empty() || !changes.is_empty() || !unclaimed.is_empty() {
            return Err("questions of clients have not been answered yet".into());
        }
        if !external.is_empty() {
            return Err(
                "a lockspace's locks are not the engine's, and cannot be handed over".into()
            );
        }
        Ok(HostImage {
            spaces: spaces.clone(),
            waiting: waiting.iter().cloned().collect(),
            joined: *joined,
            settling: settling.clone(),
            departed: departed.images(),
        })
    }

    /// Goes on as the host of which this is the image, with its engine, which has been resumed. The
    /// clients that it gives, too, are for [`ClientHost::resume_departed`].
    pub fn resume(engine: &NodeEngine, image: HostImage) -> (ClientHost, Vec<DepartedImage>) {
        let HostImage { spaces, waiting, joined, settling, departed } = image;
        let waiting = waiting.into_iter().collect();
        (ClientHost { spaces, waiting, joined, settling, ..ClientHost::empty(engine) }, departed)
    }

    /// Goes on counting what these clients have left, which are gone; `quota` is that of a user.
    pub fn resume_departed(
        &mut self,
        departed: Vec<DepartedImage>,
        quota: impl FnMut(Option<u32>) -> Quota,
    ) {
        self.departed.resume(departed, quota);
    }
}

impl HostedClient {
    /// The host's state of the client, without what the configuration gives.
    pub fn image(&self) -> ClientImage {
        let HostedClient { id, privileged: _, version, quota: _, who: _, locks } = self;
        ClientImage { id: *id, version: *version, locks: locks.clone() }
    }

    /// The client of which this is the image.
    pub fn resume(image: ClientImage, quota: Quota) -> HostedClient {
        let ClientImage { id, version, locks } = image;
        let mut client = HostedClient::new(id, quota);
        client.version = version;
        client.locks = locks;
        client.quota.user.fetch_add(client.locks(), std::sync::atomic::Ordering::Relaxed);
        client
    }
}
