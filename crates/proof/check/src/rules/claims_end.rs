//! INV-3. Every claim ends confirmed, merged, reported as a conflict, or its node is removed.
//!
//! A claim whose lock was released before the answer (`drop`) has ended too. So has a refused strict claim
//! without a grant: its request continues as any other. A claim that has not ended when everything has
//! come to rest never will.

use crate::invariant::{Counts, End, Field, Invariant, Seen, Violation};

const NAME: &str = "claims_end";

/// INV-3: every claim ends.
#[derive(Clone, Copy, Default, Debug)]
pub struct ClaimsEnd;

impl Invariant for ClaimsEnd {
    fn name(&self) -> &'static str {
        NAME
    }

    fn needs(&self) -> &'static [Field] {
        &[Field::Claim, Field::End]
    }

    fn observe(&mut self, _: &Seen<'_>, _: &mut Counts) -> Result<(), Violation> {
        Ok(())
    }

    fn finish(&mut self, end: &End<'_>, _: &mut Counts) -> Vec<Violation> {
        if !end.quiet {
            return Vec::new();
        }
        let open = end.state.all_claims().map(|(life, id, claim)| {
            let what =
                format!("claim {id} of node {} for {:?} never ended", life.node, claim.resource);
            end.violation(NAME, vec![claim.line], what)
        });
        open.collect()
    }
}
