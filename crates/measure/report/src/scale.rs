//! Axes: from values to places.

/// How an axis spaces its values.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Scale {
    /// Even steps.
    #[default]
    Linear,
    /// By their logarithm. Values of 0 and less have no place and are left out.
    Log,
    /// Percentiles by their nines: 90, 99, 99.9 … are equally far apart. 100 has no place.
    Nines,
}

impl Scale {
    /// The place of a value, before the axis is stretched; `None` if it has none.
    fn place(self, value: f64) -> Option<f64> {
        let place = match self {
            Scale::Linear => value,
            Scale::Log => value.log10(),
            Scale::Nines => -(1.0 - value / 100.0).log10(),
        };
        (value.is_finite() && place.is_finite()).then_some(place)
    }
}

/// An axis: a scale, and the values that it has to show.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Axis {
    scale: Scale,
    from: f64,
    to: f64,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// An axis on which all values have a place; with the origin, if `zero` says so.
    pub(crate) fn new(scale: Scale, values: impl Iterator<Item = f64>, zero: bool) -> Axis {
        let values: Vec<f64> = values.filter(|v| scale.place(*v).is_some()).collect();
        let mut low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let mut high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if values.is_empty() {
            (low, high) = if scale == Scale::Log { (1.0, 10.0) } else { (0.0, 1.0) };
        }
        if zero && scale == Scale::Linear {
            (low, high) = (low.min(0.0), high.max(0.0));
        }
        let ticks = match scale {
            Scale::Linear => linear_ticks(low, high),
            Scale::Log => log_ticks(low, high),
            Scale::Nines => nines_ticks(high),
        };
        let ends = ticks.first().zip(ticks.last());
        let (first, last) = ends.map_or((low, high), |(first, last)| (*first, *last));
        let from = scale.place(low.min(first)).unwrap_or(0.0);
        let to = scale.place(high.max(last)).unwrap_or(1.0);
        let ticks = ticks.into_iter().filter_map(|t| Some((scale.place(t)?, label(t, scale))));
        let ticks = ticks.collect();
        Axis { scale, from, to: if to > from { to } else { from + 1.0 }, ticks }
    }

    /// Where the value is: 0 at the axis's beginning, 1 at its end.
    pub(crate) fn at(&self, value: f64) -> Option<f64> {
        Some((self.scale.place(value)? - self.from) / (self.to - self.from))
    }

    /// The places of the axis's ticks, and their labels.
    pub(crate) fn ticks(&self) -> impl Iterator<Item = (f64, &str)> {
        let place = |t: f64| (t - self.from) / (self.to - self.from);
        self.ticks.iter().map(move |(t, text)| (place(*t), text.as_str()))
    }
}

/// Round numbers that enclose the range, about five of them.
fn linear_ticks(low: f64, high: f64) -> Vec<f64> {
    let high = if high > low { high } else { low + low.abs().max(1.0) };
    let rough = high / 5.0 - low / 5.0;
    if !rough.is_normal() {
        return vec![low, high];
    }
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|m| m * power >= rough * 0.999);
    let step = step.unwrap_or(10.0) * power;
    let (first, last) = ((low / step).floor() as i64, (high / step).ceil() as i64);
    (first..=last.min(first + 20)).map(|i| i as f64 * step).collect()
}

/// Powers of ten that enclose the range, with 2 and 5 between them if they are few.
fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let last = last.max(first + 1);
    let steps: &[f64] = if last - first <= 2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let decades = (first..last).flat_map(|d| steps.iter().map(move |s| s * 10f64.powi(d)));
    decades.chain([10f64.powi(last)]).collect()
}

/// 0, 90, 99 … up to the first that is not below the range's end.
fn nines_ticks(high: f64) -> Vec<f64> {
    let ticks = [0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999];
    let below = ticks.iter().filter(|t| **t < high).count();
    ticks[..(below + 1).min(ticks.len())].to_vec()
}

/// A tick's text: k, M and G for thousands, millions and thousand millions.
fn label(value: f64, scale: Scale) -> String {
    if scale == Scale::Nines {
        return format!("{value}");
    }
    let (divisor, suffix) = match value.abs() {
        v if v >= 1e9 => (1e9, "G"),
        v if v >= 1e6 => (1e6, "M"),
        v if v >= 1e4 => (1e3, "k"),
        _ => (1.0, ""),
    };
    format!("{}{suffix}", crate::table::number(value / divisor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks().map(|(_, text)| text).collect()
    }

    #[test]
    fn ticks_are_round_and_enclose_the_values() {
        let axis = Axis::new(Scale::Linear, [3.0, 970.0].into_iter(), true);
        assert_eq!(labels(&axis), ["0", "200", "400", "600", "800", "1000"]);
        let axis = Axis::new(Scale::Log, [3.0, 40_000.0].into_iter(), true);
        assert_eq!(labels(&axis), ["1", "10", "100", "1000", "10k", "100k"]);
        let axis = Axis::new(Scale::Nines, [50.0, 99.9].into_iter(), true);
        assert_eq!(labels(&axis), ["0", "50", "90", "99", "99.9"]);
    }

    #[test]
    fn every_value_has_its_place_between_the_ends() {
        for scale in [Scale::Linear, Scale::Log, Scale::Nines] {
            let values = [0.001, 1.0, 42.0, 99.0];
            let axis = Axis::new(scale, values.into_iter(), true);
            let places: Vec<f64> = values.iter().filter_map(|v| axis.at(*v)).collect();
            assert!(places.is_sorted() && places.iter().all(|p| (-1e-9..=1.0 + 1e-9).contains(p)));
        }
    }

    #[test]
    fn odd_values_make_no_odd_axis() {
        for values in [vec![], vec![f64::NAN], vec![0.0], vec![5.0, 5.0], vec![f64::MAX, f64::MIN]]
        {
            for scale in [Scale::Linear, Scale::Log, Scale::Nines] {
                let axis = Axis::new(scale, values.iter().copied(), true);
                assert!(axis.ticks().all(|(place, _)| place.is_finite()), "{values:?} {scale:?}");
            }
        }
    }
}
