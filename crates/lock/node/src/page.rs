//! Pages of a lockspace's resources, in the order of their names: a node's choice of its own, and
//! the merge of all nodes' pages.
//!
//! A page is the first so many names after a given one. A name that has locks all the while is on
//! exactly one page, even if others come and go between the pages.

use std::collections::{BTreeMap, BTreeSet};

use lockify_core::{Name, NodeId, ResourceInfo};
use serde::{Deserialize, Serialize};

use crate::query::merge;

/// The most resources of a page.
pub const MOST_PER_PAGE: u32 = 1024;

/// Which resources.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PageOf {
    /// The lockspace's name.
    pub space: String,
    /// Only names after this one.
    pub after: Option<Name>,
    /// At most so many, and [`MOST_PER_PAGE`].
    pub limit: u32,
    /// Only resources for which somebody waits.
    pub waited: bool,
}

/// The part that a node has left out of its page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Rest {
    /// There are resources after the page that the node knows of.
    pub goes_on: bool,
    /// How many of these it masters, or nobody does.
    pub more: u64,
    /// Locks of the page's resources that are left out, as one has too many.
    pub locks: u64,
}

/// The first so many names after one, of all that are offered in whatever order.
#[derive(Debug)]
pub(crate) struct Selection {
    after: Option<Name>,
    most: usize,
    /// The names, and whether each is this node's to count.
    names: BTreeMap<Name, bool>,
    pub(crate) rest: Rest,
}

impl Selection {
    pub(crate) fn new(after: Option<Name>, most: usize) -> Selection {
        Selection { after, most: most.max(1), names: BTreeMap::new(), rest: Rest::default() }
    }

    /// `counts`: whether it is this node's to count.
    pub(crate) fn offer(&mut self, name: Name, counts: bool) {
        if self.after.is_some_and(|after| name <= after) {
            return;
        }
        let full = self.names.len() >= self.most;
        if full && self.names.last_key_value().is_some_and(|(last, _)| *last < name) {
            return self.leave_out(counts);
        }
        // The one that gives way is left out, not the one that takes its place.
        if self.names.insert(name, counts).is_none()
            && full
            && let Some((_, counts)) = self.names.pop_last()
        {
            self.leave_out(counts);
        }
    }

    pub(crate) fn leave_out(&mut self, counts: bool) {
        self.rest.goes_on = true;
        self.rest.more += u64::from(counts);
    }

    pub(crate) fn take(&mut self) -> BTreeSet<Name> {
        std::mem::take(&mut self.names).into_keys().collect()
    }
}

/// The pages of all nodes, as they come.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    parts: Vec<(NodeId, Vec<ResourceInfo>)>,
    rest: Rest,
    /// The first name after which some node's page does not go on.
    bound: Option<Name>,
}

impl Pages {
    pub(crate) fn add(&mut self, node: NodeId, resources: Vec<ResourceInfo>) {
        match self.parts.iter_mut().find(|(of, _)| *of == node) {
            Some((_, part)) => part.extend(resources),
            None => self.parts.push((node, resources)),
        }
    }

    /// A node does not know of pages and says all it has: it is cut down as it comes.
    pub(crate) fn cut(&mut self, node: NodeId, of: &PageOf) {
        let Some((_, part)) = self.parts.iter_mut().find(|(of, _)| *of == node) else { return };
        part.retain(|r| {
            of.after.is_none_or(|after| r.name > after) && (!of.waited || r.is_waited_for())
        });
        part.sort_unstable_by_key(|r| r.name);
        let most = of.limit.clamp(1, MOST_PER_PAGE) as usize;
        if part.len() > most {
            self.rest.more += (part.len() - most) as u64;
            part.truncate(most);
            let last = part.last().map(|r| r.name);
            self.bind(last);
        }
    }

    /// A node has said all of its page.
    pub(crate) fn end(&mut self, node: NodeId, rest: Rest) {
        self.rest.more += rest.more;
        self.rest.locks += rest.locks;
        if rest.goes_on {
            let part = self.parts.iter().find(|(of, _)| *of == node);
            let last = part.and_then(|(_, part)| part.iter().map(|r| r.name).max());
            self.bind(last);
        }
    }

    fn bind(&mut self, last: Option<Name>) {
        self.rest.goes_on = true;
        self.bound = [self.bound, last].into_iter().flatten().min();
    }

    /// The page of the whole cluster, the omitted part, and the name for the next page.
    pub(crate) fn merged(mut self, limit: u32) -> (Vec<ResourceInfo>, Rest, Option<Name>) {
        self.limit_to(limit.max(1) as usize);
        if let Some(bound) = self.bound {
            for (node, part) in &mut self.parts {
                let (node, before) = (*node, part.len());
                let counts =
                    |r: &&ResourceInfo| r.name > bound && r.master.is_none_or(|m| m == node);
                self.rest.more += part.iter().filter(counts).count() as u64;
                part.retain(|r| r.name <= bound);
                self.rest.goes_on |= part.len() < before;
            }
        }
        let next = self.bound.filter(|_| self.rest.goes_on);
        (merge(self.parts), self.rest, next)
    }

    /// No more names than that.
    fn limit_to(&mut self, limit: usize) {
        let names: BTreeSet<Name> =
            self.parts.iter().flat_map(|(_, part)| part).map(|r| r.name).collect();
        if names.len() > limit {
            let last = names.into_iter().nth(limit - 1);
            self.bind(last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(i: u32) -> Name {
        Name::new(format!("{i:05}")).unwrap()
    }

    fn resource(i: u32, master: u32) -> ResourceInfo {
        ResourceInfo {
            name: name(i),
            master: Some(NodeId(master)),
            claim_pending: false,
            locks: Vec::new(),
            lvb: None,
            lvb_invalid: false,
        }
    }

    /// Node n masters every third name; node 1 knows of all.
    fn page(after: Option<Name>, limit: u32, names: &[u32]) -> (Vec<u32>, u64, Option<Name>) {
        let mut pages = Pages::default();
        for node in 1..=3 {
            let mut chosen = Selection::new(after, limit as usize);
            let known = names.iter().filter(|&&i| node == 1 || i % 3 + 1 == node);
            // In another order at each node.
            let mut known: Vec<u32> = known.copied().collect();
            known.rotate_left(node as usize % names.len().max(1));
            known.iter().for_each(|&i| chosen.offer(name(i), i % 3 + 1 == node));
            let part = chosen.take().into_iter();
            let number = |n: Name| n.to_string().trim_matches('"').parse::<u32>().unwrap();
            let part = part.map(|n| resource(number(n), number(n) % 3 + 1)).collect();
            pages.add(NodeId(node), part);
            pages.end(NodeId(node), chosen.rest);
        }
        let (resources, rest, next) = pages.merged(limit);
        let numbers =
            resources.iter().map(|r| r.name.to_string().trim_matches('"').parse::<u32>().unwrap());
        (numbers.collect(), rest.more, next)
    }

    #[test]
    fn pages_cover_the_table_once_and_say_how_much_is_left() {
        let names: Vec<u32> = (0..500).map(|i| i * 7 % 500).collect();
        for limit in [1, 7, 100, 500, 1000] {
            let (mut seen, mut after) = (Vec::new(), None);
            loop {
                let (found, more, next) = page(after, limit, &names);
                assert!(found.len() <= limit as usize);
                seen.extend(found);
                assert_eq!(seen.len() as u64 + more, 500, "limit {limit}");
                after = next;
                if next.is_none() {
                    break;
                }
            }
            assert_eq!(seen, (0..500).collect::<Vec<_>>(), "limit {limit}");
        }
    }

    #[test]
    fn what_comes_and_goes_between_pages_hides_and_doubles_nothing_that_stays() {
        let mut names: Vec<u32> = (0..300).collect();
        let (mut seen, mut after, mut round) = (Vec::new(), None, 0);
        loop {
            let (found, _, next) = page(after, 10, &names);
            seen.extend(found);
            after = next;
            if next.is_none() {
                break;
            }
            round += 1;
            // Every odd name goes, or comes back; the even ones stay.
            names = (0..300).filter(|i| i % 2 == 0 || round % 2 == 0).collect();
        }
        let even: Vec<u32> = seen.iter().copied().filter(|i| i % 2 == 0).collect();
        assert_eq!(even, (0..300).step_by(2).collect::<Vec<_>>());
        assert!(seen.windows(2).all(|two| two[0] < two[1]));
    }

    #[test]
    fn a_node_that_says_all_it_has_is_cut_down() {
        let of = PageOf { space: "s".into(), after: Some(name(10)), limit: 5, waited: false };
        let mut pages = Pages::default();
        for chunk in (0..100).rev().collect::<Vec<u32>>().chunks(7) {
            pages.add(NodeId(2), chunk.iter().map(|&i| resource(i, 2)).collect());
            pages.cut(NodeId(2), &of);
        }
        pages.end(NodeId(2), Rest::default());
        let (found, rest, next) = pages.merged(5);
        assert_eq!(
            found.iter().map(|r| r.name).collect::<Vec<_>>(),
            (11..16).map(name).collect::<Vec<_>>()
        );
        assert_eq!((rest.more, next), (84, Some(name(15))));
    }
}
