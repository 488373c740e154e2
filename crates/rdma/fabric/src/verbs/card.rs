//! The interface that connections need of a network card: `device.rs` and `pair.rs` have the real one, `schedules.rs` has
//! one with chosen steps.

use lockify_onesided::{MESSAGE_WORDS, Message, Verb};

use super::endpoint::Endpoint;
use super::error::VerbsError;

/// Bytes of a message.
pub(super) const MESSAGE_BYTES: usize = 8 * MESSAGE_WORDS;

/// A finished work request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    /// As it was posted.
    pub id: u64,
    pub status: u32,
    pub bytes: u32,
}

/// Where a verb goes.
pub(super) struct Target {
    pub offset: u64,
    pub key: u32,
}

/// A card. Clones are the same one.
pub(super) trait Card {
    type Pair: CardPair;

    fn name(&self) -> &str;

    /// A queue pair that takes messages as soon as it is connected.
    fn pair(&self) -> Result<Self::Pair, VerbsError>;

    /// The data that another end needs to connect to a pair: its number, the `psn` it begins with, and how many messages
    /// of that other end this one has `taken` by earlier pairs.
    fn endpoint(&self, pair: &Self::Pair, psn: u32, taken: u64) -> Endpoint;

    /// Takes completions; false if there were none.
    fn completions(&self, each: impl FnMut(Completion)) -> Result<bool, VerbsError>;
}

/// A queue pair of a reliable connection. Dropping it ends it.
pub(super) trait CardPair {
    /// Connects it to another; `psn` is this end's own number.
    fn connect(&self, to: &Endpoint, psn: u32) -> Result<(), VerbsError>;

    /// Posts a verb; its result will be in this place, below [`super::SENDS`].
    fn post(&self, id: u64, to: &Target, verb: Verb, place: usize) -> Result<(), VerbsError>;

    /// Posts a message.
    fn send(&self, id: u64, message: &Message) -> Result<(), VerbsError>;

    /// Posts a place for a message, below [`super::RECEIVES`].
    fn receive(&self, id: u64, place: usize) -> Result<(), VerbsError>;

    /// The result of the verb that was posted with this place.
    fn result(&self, place: usize) -> u64;

    /// The message that has come into this place.
    fn message(&self, place: usize) -> Message;

    /// From the return of the call on it takes no message: the completion of each that it has taken can be had.
    fn stop(&self);
}
