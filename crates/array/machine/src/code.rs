//! The blocks of one column, made of each other: parity, and with RAID-6 the second parity (docs/design/array.md 1.3).

use bytes::Bytes;

use crate::Layout;
use crate::galois::{add, add_times, inverse, scale};
use crate::plan::Unit;

/// A column: the blocks of its units, in their order; none of those that nobody knows.
pub(crate) type Blocks = Vec<Option<Bytes>>;

/// A parity of these data units; unknown ones count as zeros.
pub(crate) fn parity(layout: &Layout, parity: Unit, column: &[Option<Bytes>]) -> Vec<u8> {
    let mut sum = vec![0; layout.block_size as usize];
    for (unit, block) in (0..layout.data).zip(column) {
        if let Some(block) = block {
            add_times(&mut sum, parity.factor(unit), block);
        }
    }
    sum
}

/// Makes the unknown blocks of the others. Returns false, and changes nothing, if more data units are unknown than parities are
/// known.
pub(crate) fn fill(layout: &Layout, column: &mut [Option<Bytes>]) -> bool {
    let unknown: Vec<u16> =
        (0..layout.data).filter(|unit| !is_known(column, (*unit).into())).collect();
    let parities: Vec<Unit> = Unit::all(layout)
        .skip(layout.data.into())
        .filter(|parity| is_known(column, parity.index(layout)))
        .collect();
    if unknown.len() > parities.len() {
        return false;
    }
    // A parity, and the sum that it has of known data units: the unknown ones remain.
    let rest = |unit: Unit| {
        let mut rest = parity(layout, unit, column);
        if let Some(Some(block)) = column.get(unit.index(layout)) {
            add(&mut rest, block);
        }
        rest
    };
    match (&unknown[..], &parities[..]) {
        (&[unit], &[parity, ..]) => {
            let mut block = rest(parity);
            scale(&mut block, inverse(parity.factor(unit)));
            column[usize::from(unit)] = Some(block.into());
        }
        (&[one, other], &[first, second]) => {
            // With x and y unknown: the first rest is x + y, and the second one a x + b y. So the sum of it and b times the first
            // one is (a + b) x.
            let (sum, weighted) = (rest(first), rest(second));
            let (a, b) = (second.factor(one), second.factor(other));
            let mut x = weighted;
            add_times(&mut x, b, &sum);
            scale(&mut x, inverse(a ^ b));
            let mut y = sum;
            add(&mut y, &x);
            column[usize::from(one)] = Some(x.into());
            column[usize::from(other)] = Some(y.into());
        }
        _ => {}
    }
    for unit in Unit::all(layout).skip(layout.data.into()) {
        if !is_known(column, unit.index(layout)) {
            let block = parity(layout, unit, column).into();
            column[unit.index(layout)] = Some(block);
        }
    }
    true
}

fn is_known(column: &[Option<Bytes>], unit: usize) -> bool {
    column.get(unit).is_some_and(Option::is_some)
}

/// Returns true if the known parities fit the data units, all of which are known.
pub(crate) fn fits(layout: &Layout, column: &[Option<Bytes>]) -> bool {
    Unit::all(layout).skip(layout.data.into()).all(|unit| match column.get(unit.index(layout)) {
        Some(Some(block)) => block[..] == parity(layout, unit, column)[..],
        _ => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Redundancy;

    /// Each one or two units that are unknown come back, of stripes with as many data units as there can be.
    #[test]
    fn any_two_units_are_made_of_the_others() {
        for (redundancy, data) in [
            (Redundancy::Raid6, 2),
            (Redundancy::Raid6, 5),
            (Redundancy::Raid6, 64),
            (Redundancy::Raid5, 4),
            (Redundancy::Mirror, 1),
        ] {
            let layout = Layout {
                redundancy,
                data,
                groups: 1,
                unit: 1,
                block_size: 65,
                stripes: 1,
                added: Default::default(),
            };
            let block = |unit: u16| (0..65).map(|i| (i * 31 + unit * 57 + 7) as u8).collect();
            let mut whole: Blocks = (0..data).map(|unit| Some(block(unit))).collect();
            whole.resize(layout.group_size().into(), None);
            assert!(fill(&layout, &mut whole));
            assert!(fits(&layout, &whole));
            let units = whole.len();
            for one in 0..units {
                let mut wrong = whole.clone();
                wrong[one] = Some(vec![1; 65].into());
                assert!(!fits(&layout, &wrong), "{one}");
                for other in one..units {
                    let mut column = whole.clone();
                    (column[one], column[other]) = (None, None);
                    let before = column.clone();
                    let can = one == other || redundancy == Redundancy::Raid6;
                    assert_eq!(fill(&layout, &mut column), can || one >= usize::from(data));
                    let expected = if can { &whole } else { &before };
                    assert_eq!(&column, expected, "{redundancy:?}, {one} and {other}");
                }
            }
            if redundancy == Redundancy::Raid6 && data > 2 {
                let mut column = whole.clone();
                column[..3].fill(None);
                assert!(!fill(&layout, &mut column), "three are too many");
                column[..3].clone_from_slice(&whole[..3]);
                column[1..=2].fill(None);
                column[usize::from(data)] = None;
                assert!(!fill(&layout, &mut column));
            }
        }
    }
}
