//! Medians and spreads of rounds.

/// The quantile `q` (0 to 1) of sorted numbers, linearly interpolated; `None` if there are none.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = q.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(below + (above - below) * at.fract())
}

/// How numbers spread.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// The smallest.
    pub min: f64,
    /// A quarter is smaller.
    pub lower_quartile: f64,
    /// Half are smaller.
    pub median: f64,
    /// Three quarters are smaller.
    pub upper_quartile: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// The spread of these numbers, in any order; `None` if there are none.
    pub fn of(numbers: &[f64]) -> Option<Spread> {
        let mut sorted = numbers.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Spread {
            min: *sorted.first()?,
            lower_quartile: quantile(&sorted, 0.25)?,
            median: quantile(&sorted, 0.5)?,
            upper_quartile: quantile(&sorted, 0.75)?,
            max: *sorted.last()?,
        })
    }

    /// Half the distance of the extremes, as a share of the median; 0 if the median is 0.
    pub fn relative(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { ((self.max - self.min) / 2.0 / self.median).abs() }
    }
}

/// The middle of some values; 0 of none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.into_iter().collect();
    Spread::of(&values).map_or(0.0, |spread| spread.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        let spread = Spread::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        let expect =
            Spread { min: 1.0, lower_quartile: 1.75, median: 2.5, upper_quartile: 3.25, max: 4.0 };
        assert_eq!(spread, expect);
        assert_eq!(spread.relative(), 0.6);
        assert_eq!(quantile(&[7.0], 0.99), Some(7.0));
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[0.0, 0.0]).unwrap().relative(), 0.0);
    }
}
