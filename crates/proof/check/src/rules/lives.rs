//! Fencing tokens grow over lives, of one node and of the whole cluster, over all restarts. Every token of a later life
//! for a name is larger than those of all lives that had ended before it.
//!
//! The order of lives is that of their views, not that of time. Clocks may be set between two lives, and histories of
//! nodes are merged by their clocks. One life is over before another if its views have lower numbers than the first view
//! with the other. The rule `fencing` judges lives whose views overlap.
//!
//! As there, the least recently used names are forgotten beyond a limit, and counted.

use hashbrown::HashMap;
use lockify_history::{Event, Kind, Resource};

use super::fencing::final_mode;
use crate::invariant::{Counts, End, Field, Invariant, Seen, Violation};
use crate::state::Life;

const NAME: &str = "lives";

/// Lives of one name whose tokens are remembered; of more, the first ones are forgotten.
const LIVES: usize = 64;

/// The views that a life was in, by number.
#[derive(Clone, Copy, Debug)]
struct Span {
    first: u64,
    last: u64,
}

/// A token, and where it was given.
#[derive(Clone, Copy, Debug)]
struct Given {
    token: u64,
    line: u64,
}

/// The tokens that a life was given for a name.
#[derive(Clone, Copy, Debug)]
struct Range {
    life: Life,
    least: Given,
    most: Given,
}

/// Fencing tokens grow over lives.
#[derive(Debug)]
pub struct Lives {
    spans: HashMap<Life, Span>,
    /// Two generations of names, as in [`super::Fencing`].
    young: HashMap<Resource, Vec<Range>>,
    old: HashMap<Resource, Vec<Range>>,
    limit: usize,
}

impl Lives {
    /// The rule, remembering at least this many names.
    pub fn new(remembered: usize) -> Lives {
        Lives {
            spans: HashMap::new(),
            young: HashMap::new(),
            old: HashMap::new(),
            limit: remembered.max(1),
        }
    }

    /// Notes the members of a view.
    fn learn(&mut self, event: &Event) {
        let (Some(view), Some(members)) = (event.view, &event.members) else { return };
        for m in members {
            let Some(incarnation) = m.incarnation else { continue };
            let life = Life { node: m.node, incarnation };
            let span = self.spans.entry(life).or_insert(Span { first: view, last: view });
            (span.first, span.last) = (span.first.min(view), span.last.max(view));
        }
    }

    /// Returns true if one life was over before the first view of the other.
    fn is_before(&self, one: Life, other: Life) -> bool {
        let spans = self.spans.get(&one).zip(self.spans.get(&other));
        spans.is_some_and(|(a, b)| a.last < b.first)
    }

    /// The token of another life that contradicts this one.
    fn contradiction(&self, ranges: &[Range], life: Life, token: u64) -> Option<(Life, Given)> {
        ranges.iter().find_map(|r| {
            let falls = r.most.token >= token && self.is_before(r.life, life);
            let fell = r.least.token <= token && self.is_before(life, r.life);
            let given = if falls { r.most } else { r.least };
            (falls || fell).then_some((r.life, given))
        })
    }

    fn ranges(&mut self, resource: &Resource, counts: &mut Counts) -> &mut Vec<Range> {
        if !self.young.contains_key(resource) {
            let known = self.old.remove(resource).unwrap_or_default();
            if self.young.len() >= self.limit {
                counts.tokens_forgotten += self.old.len() as u64;
                self.old = std::mem::take(&mut self.young);
            }
            self.young.insert(resource.clone(), known);
        }
        self.young.entry_ref(resource).or_default()
    }
}

/// Notes a token.
fn note(ranges: &mut Vec<Range>, life: Life, given: Given) {
    let Some(range) = ranges.iter_mut().find(|r| r.life == life) else {
        if ranges.len() >= LIVES {
            ranges.remove(0);
        }
        return ranges.push(Range { life, least: given, most: given });
    };
    if given.token < range.least.token {
        range.least = given;
    }
    if given.token > range.most.token {
        range.most = given;
    }
}

impl Invariant for Lives {
    fn name(&self) -> &'static str {
        NAME
    }

    fn needs(&self) -> &'static [Field] {
        &[Field::Grant, Field::Token]
    }

    fn observe(&mut self, seen: &Seen<'_>, counts: &mut Counts) -> Result<(), Violation> {
        if matches!(seen.event.kind, Kind::View | Kind::Recover) {
            self.learn(seen.event);
            return Ok(());
        }
        let (Some(mode), Some(token)) = (final_mode(seen), seen.event.token) else {
            return Ok(());
        };
        let Some(resource) = seen.resource().filter(|_| mode.writes() && token > 0) else {
            return Ok(());
        };
        let life = seen.life;
        let mut ranges = std::mem::take(self.ranges(resource, counts));
        let found = self.contradiction(&ranges, life, token);
        note(&mut ranges, life, Given { token, line: seen.line });
        *self.ranges(resource, counts) = ranges;
        match found {
            Some((other, given)) => {
                let what = format!(
                    "{resource:?}: node {} was given token {token} in life {}, and node {} token {} in life {}: \
                     tokens of a life that was over before another one are smaller than the other's",
                    life.node, life.incarnation, other.node, given.token, other.incarnation
                );
                Err(seen.violation(NAME, [given.line], what))
            }
            None => Ok(()),
        }
    }

    fn finish(&mut self, _: &End<'_>, _: &mut Counts) -> Vec<Violation> {
        Vec::new()
    }
}
