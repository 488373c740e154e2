//! Clients that are gone. Their remaining locks count as their user's. These are PERSISTENT locks, which are orphans
//! now. Until the engine reports their number, all former locks count. Without that, a user could have any number of
//! locks by leaving again and again.

use std::collections::HashMap;

use lockify_core::ClientId;
use serde::{Deserialize, Serialize};

use super::handover::ClientImage;
use super::{HostedClient, Quota};

/// Clients that are gone and have left locks.
#[derive(Default)]
pub(super) struct Departed(HashMap<ClientId, Gone>);

struct Gone {
    client: HostedClient,
    /// Its user, if it was somebody.
    uid: Option<u32>,
}

/// A client that is gone, for the program that goes on in this one's place.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DepartedImage {
    client: ClientImage,
    uid: Option<u32>,
}

impl Departed {
    /// A client is going, with all that it has.
    pub(super) fn add(&mut self, client: HostedClient) {
        let uid = client.who.as_ref().map(|(who, _)| who.uid);
        self.keep(Gone { client, uid });
    }

    fn keep(&mut self, gone: Gone) {
        if gone.client.locks() > 0 {
            self.0.insert(gone.client.id, gone);
        }
    }

    /// Returns true if this client has left locks.
    pub(super) fn contains(&self, client: ClientId) -> bool {
        self.0.contains_key(&client)
    }

    /// The number of locks that it has left in the lockspace of this number, from the number that
    /// it had there.
    pub(super) fn recount(
        &mut self,
        client: ClientId,
        space: usize,
        left: impl FnOnce(u32) -> u32,
    ) {
        let Some(gone) = self.0.get_mut(&client) else { return };
        gone.client.recount(space, left);
        if gone.client.locks() == 0 {
            self.0.remove(&client);
        }
    }

    /// Nothing is left in the lockspace of this number.
    pub(super) fn forget_space(&mut self, space: usize) {
        self.0.retain(|_, gone| {
            gone.client.recount(space, |_| 0);
            gone.client.locks() > 0
        });
    }

    pub(super) fn images(&self) -> Vec<DepartedImage> {
        let image = |gone: &Gone| DepartedImage { client: gone.client.image(), uid: gone.uid };
        self.0.values().map(image).collect()
    }

    /// Goes on with those of which these are the images; `quota` is that of a user.
    pub(super) fn resume(
        &mut self,
        images: Vec<DepartedImage>,
        mut quota: impl FnMut(Option<u32>) -> Quota,
    ) {
        for DepartedImage { client, uid } in images {
            self.keep(Gone { client: HostedClient::resume(client, quota(uid)), uid });
        }
    }
}
