//! The published results beside ours: the expectations of docs/design/array.md 5, one by one.
//!
//! This file has figure 6 and figure 5a's ends, which are its peaks. `shapes.rs` has the other
//! figures.

mod shapes;

use lockify_array::Scheme::{
    self, CallbackLocking, DeviceLocking, ServerLocking, TimestampOrdering, ZeroOverhead,
};
use lockify_report::{Metric, Row, Table, Value, metric};

use super::of;
use super::published::{Column, LATENCY_LIMIT_MS, figure_6};
use crate::workload::{Alignment, PER_HOST};

/// Something that was published or is expected, and what comes out.
#[derive(Clone, Debug, PartialEq)]
pub struct Criterion {
    /// Which figure, and what of it.
    pub what: String,
    /// The published result, or the expectation where no number was printed.
    pub published: String,
    /// Our result.
    pub here: String,
    /// True if they agree; false if rows are missing.
    pub met: bool,
    /// The reason for a difference, by the counts, where it is known.
    pub because: Option<String>,
}

fn criterion(
    what: impl Into<String>,
    published: impl Into<String>,
    here: impl Into<String>,
    met: bool,
) -> Criterion {
    let (what, published, here) = (what.into(), published.into(), here.into());
    Criterion { what, published, here, met, because: None }
}

impl Criterion {
    fn because(self, reason: String) -> Criterion {
        Criterion { because: (!self.met).then_some(reason), ..self }
    }

    /// The verdict, for a reader.
    pub fn verdict(&self) -> &'static str {
        if self.met { "as published" } else { "DIFFERS" }
    }
}

/// All of them as a table.
pub fn table(criteria: &[Criterion]) -> Table {
    let headings = ["what", "published, or expected", "here", "verdict", "why it differs"];
    let line = |criterion: &Criterion| {
        let Criterion { what, published, here, because, .. } = criterion;
        let because = because.clone().unwrap_or_default();
        [what.clone(), published.clone(), here.clone(), criterion.verdict().to_owned(), because]
    };
    Table {
        headings: headings.map(str::to_owned).into(),
        properties: headings.len(),
        lines: criteria.iter().map(|criterion| line(criterion).into()).collect(),
    }
}

/// Finds values among the rows.
struct Figures<'a>(&'a [Row]);

impl Figures<'_> {
    /// Not a number if there is no such row, so that no comparison holds.
    fn find(
        &self,
        figure: &str,
        alignment: Alignment,
        scheme: Scheme,
        metric: &Metric,
        at: &[(&str, f64)],
    ) -> f64 {
        let fits = |row: &&Row| {
            row.metric == metric.name
                && row.case.get("alignment") == Some(&Value::from(alignment.name()))
                && row.case.get("scheme") == Some(&Value::from(scheme.name()))
                && at.iter().all(|(x, v)| row.case.get(*x).and_then(Value::number) == Some(*v))
        };
        of(self.0, figure).find(fits).map_or(f64::NAN, |row| row.value)
    }

    fn six(&self, alignment: Alignment, scheme: Scheme, metric: &Metric) -> f64 {
        self.find("6", alignment, scheme, metric, &[])
    }

    /// The places of a figure's points, in order.
    fn places(&self, figure: &str, x: &str) -> Vec<f64> {
        let mut places: Vec<f64> =
            of(self.0, figure).filter_map(|row| row.case.get(x).and_then(Value::number)).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        places
    }
}

fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

fn number(value: f64) -> String {
    format!("{value:.2}")
}

/// Values by scheme, for a person.
fn listed(values: impl IntoIterator<Item = (Scheme, f64)>, show: impl Fn(f64) -> String) -> String {
    let items = values.into_iter().map(|(scheme, value)| format!("{scheme} {}", show(value)));
    items.collect::<Vec<_>>().join(", ")
}

/// All of them.
pub fn criteria(rows: &[Row]) -> Vec<Criterion> {
    let figures = Figures(rows);
    let mut all = Vec::new();
    for alignment in Alignment::ALL {
        all.extend(order(&figures, alignment));
        all.extend(ratios(&figures, alignment));
        all.push(four_messages(&figures, alignment));
        all.extend(close(&figures, alignment));
        all.push(bottlenecks(&figures, alignment));
    }
    all.extend(shapes::criteria(&figures));
    all
}

/// Those that do not come out under the first reading ([`super::search`]).
pub(super) fn disputed(rows: &[Row]) -> Vec<Criterion> {
    let figures = Figures(rows);
    let latencies = Alignment::ALL.map(|alignment| latency_ratio(&figures, alignment));
    latencies.into_iter().chain(shapes::disputed(&figures)).collect()
}

fn six(alignment: Alignment, what: &str) -> String {
    format!("figure 6, operations {}: {what}", alignment.describe())
}

/// The order of the schemes in every row of figure 6.
fn order(figures: &Figures<'_>, alignment: Alignment) -> Vec<Criterion> {
    let order = |what: &str,
                 metric: &Metric,
                 of: fn(Column) -> f64,
                 order: [Scheme; 5],
                 show: fn(f64) -> String| {
        let found = order.map(|scheme| (scheme, figures.six(alignment, scheme, metric)));
        let met = found.windows(2).all(|pair| pair[0].1 < pair[1].1);
        let published = order.map(|scheme| (scheme, of(figure_6(scheme))));
        criterion(
            six(alignment, &format!("order of {what}")),
            listed(published, show),
            listed(found, show),
            met,
        )
    };
    let mut all = vec![
        order(
            "mean latencies [ms]",
            &metric::MEAN_LATENCY_MS,
            |column| column.latency_ms,
            [ZeroOverhead, TimestampOrdering, DeviceLocking, CallbackLocking, ServerLocking],
            number,
        ),
        order(
            "messages per operation",
            &metric::MESSAGES_PER_OP,
            |column| column.messages,
            [ZeroOverhead, TimestampOrdering, CallbackLocking, ServerLocking, DeviceLocking],
            number,
        ),
        order(
            "operations delayed",
            &metric::DELAYED_SHARE,
            |column| column.delayed,
            [ZeroOverhead, TimestampOrdering, DeviceLocking, ServerLocking, CallbackLocking],
            percent,
        ),
    ];
    // Published peaks of both device protocols are equal.
    let peaks =
        Scheme::ALL.map(|scheme| (scheme, figures.six(alignment, scheme, &metric::PEAK_OPS_PER_S)));
    let peak = |scheme| peaks.iter().find(|(s, _)| *s == scheme).map_or(f64::NAN, |p| p.1);
    let (device, stamps) = (peak(DeviceLocking), peak(TimestampOrdering));
    all.push(criterion(
        six(
            alignment,
            "order of peaks [1/s]: server, callback, both device protocols, zero-overhead",
        ),
        listed(Scheme::ALL.map(|scheme| (scheme, figure_6(scheme).peak)), number),
        listed(peaks, number),
        peak(ServerLocking) < peak(CallbackLocking)
            && peak(CallbackLocking) < device.min(stamps)
            && device.max(stamps) < peak(ZeroOverhead),
    ));
    let rates =
        Scheme::ALL.map(|scheme| (scheme, figures.six(alignment, scheme, &metric::OPS_PER_S)));
    all.push(criterion(
        six(alignment, "throughput of all [1/s], within 1 %"),
        listed(Scheme::ALL.map(|scheme| (scheme, figure_6(scheme).per_s)), number),
        listed(rates, number),
        rates.iter().all(|(_, rate)| (rate / 600.0 - 1.0).abs() <= 0.01),
    ));
    all
}

/// Ratios to zero-overhead within 10 %.
fn ratios(figures: &Figures<'_>, alignment: Alignment) -> Vec<Criterion> {
    vec![
        latency_ratio(figures, alignment),
        ratio(figures, alignment, "messages", metric::MESSAGES_PER_OP, |s| figure_6(s).messages),
        ratio(figures, alignment, "peak", metric::PEAK_OPS_PER_S, |s| figure_6(s).peak),
    ]
}

fn latency_ratio(figures: &Figures<'_>, alignment: Alignment) -> Criterion {
    let published = |s| figure_6(s).latency_ms;
    ratio(figures, alignment, "mean latency", metric::MEAN_LATENCY_MS, published).because(
        "the lock server is nine tenths busy, so that its queue decides; no one time that it takes for a message gives the published \
         latencies and peaks (lockify sim array --serving)"
            .to_owned(),
    )
}

fn ratio(
    figures: &Figures<'_>,
    alignment: Alignment,
    what: &str,
    metric: Metric,
    published: fn(Scheme) -> f64,
) -> Criterion {
    let zero = figures.six(alignment, ZeroOverhead, &metric);
    let pairs = Scheme::ALL[1..].iter().map(|&scheme| {
        let found = figures.six(alignment, scheme, &metric) / zero;
        (scheme, found, published(scheme) / published(ZeroOverhead))
    });
    let pairs: Vec<(Scheme, f64, f64)> = pairs.collect();
    let texts = pairs.iter().map(|(scheme, found, published)| {
        format!("{scheme} {found:.2} ({:+.0} %)", 100.0 * (found / published - 1.0))
    });
    criterion(
        six(alignment, &format!("{what}, ratio to zero-overhead, within 10 %")),
        listed(pairs.iter().map(|(scheme, _, published)| (*scheme, *published)), number),
        texts.collect::<Vec<_>>().join(", "),
        pairs.iter().all(|(_, found, published)| (found / published - 1.0).abs() <= 0.1),
    )
}

fn four_messages(figures: &Figures<'_>, alignment: Alignment) -> Criterion {
    let [server, zero] = [ServerLocking, ZeroOverhead]
        .map(|scheme| figures.six(alignment, scheme, &metric::MESSAGES_PER_OP));
    criterion(
        six(alignment, "messages that server locking has more than zero-overhead"),
        "3.99, which is 4",
        number(server - zero),
        (server - zero - 4.0).abs() <= 0.05,
    )
}

/// How close timestamp ordering comes to zero-overhead.
fn close(figures: &Figures<'_>, alignment: Alignment) -> Vec<Criterion> {
    let ratio = |metric: &Metric| {
        figures.six(alignment, TimestampOrdering, metric)
            / figures.six(alignment, ZeroOverhead, metric)
    };
    let peak = ratio(&metric::PEAK_OPS_PER_S);
    let rate = ratio(&metric::OPS_PER_S);
    let latency = ratio(&metric::MEAN_LATENCY_MS);
    let hosts = figures.six(alignment, ZeroOverhead, &metric::PEAK_OPS_PER_S) / PER_HOST;
    let [zero, stamps] = [ZeroOverhead, TimestampOrdering].map(|scheme| {
        let at = [("hosts", hosts)];
        figures.find("5a", alignment, scheme, &metric::MEAN_LATENCY_MS, &at)
    });
    let because = format!(
        "with {hosts} hosts zero-overhead has {zero:.1} ms and timestamp ordering {stamps:.1} ms in one run, and the limit is \
         {LATENCY_LIMIT_MS} ms: a step of the sweep decides"
    );
    vec![
        criterion(
            six(alignment, "timestamp ordering's peak as a share of zero-overhead's"),
            "0.94 ± 0.03 (34 of 36 hosts)",
            format!("{peak:.3}"),
            (peak - 0.94).abs() <= 0.03,
        )
        .because(because),
        criterion(
            six(
                alignment,
                "timestamp ordering at 600 operations per second: throughput within 2 % of zero-overhead's",
            ),
            "0.999 of its throughput, 1.104 of its mean latency",
            format!("{rate:.3} of its throughput, {latency:.3} of its mean latency"),
            (rate - 1.0).abs() <= 0.02,
        ),
    ]
}

/// Figure 5a: where central schemes end.
fn bottlenecks(figures: &Figures<'_>, alignment: Alignment) -> Criterion {
    let peak = |scheme| figures.six(alignment, scheme, &metric::PEAK_OPS_PER_S);
    let zero = peak(ZeroOverhead);
    let (server, callback) = (peak(ServerLocking) / zero, peak(CallbackLocking) / zero);
    let shown = |server: f64, callback: f64| {
        format!("server {:.0} %, callback {:.0} %", 100.0 * server, 100.0 * callback)
    };
    criterion(
        format!(
            "figure 5a, operations {}: where central schemes end, as a share of zero-overhead's peak, within 10 points",
            alignment.describe()
        ),
        shown(0.44, 0.67),
        shown(server, callback),
        (server - 0.44).abs() <= 0.1 && (callback - 0.67).abs() <= 0.1,
    )
}
