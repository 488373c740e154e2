//! Plots as SVG.
//!
//! Readable without colours: every series has its own marker and dashes, or hatching. Text and
//! axes take the page's colour, so that they show on light and dark ground and on paper.

use std::fmt::Write as _;

use crate::plot::{Form, Plot, Point, Series};
use crate::scale::{Axis, Scale};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 560.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 348.0;

/// Okabe and Ito's colours for all kinds of colour vision, without black and yellow, of which one
/// or the other vanishes on dark or light ground.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
const DASHES: [&str; 4] = ["", "7 3", "2 3", "9 3 2 3"];
/// Markers about the origin: circle, square, triangle, diamond, cross, inverted triangle, plus.
const MARKERS: [&str; 7] = [
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "M-3.6 -3.6h7.2v7.2h-7.2z",
    "M0 -4.8L4.6 3.6H-4.6z",
    "M0 -5.2L4.4 0L0 5.2L-4.4 0z",
    "M-4 -4L4 4M4 -4L-4 4",
    "M0 4.8L4.6 -3.6H-4.6z",
    "M-5 0H5M0 -5V5",
];
/// Hatching in a square of eight.
const HATCHES: [&str; 6] = [
    "",
    "M0 8L8 0M-2 2L2 -2M6 10L10 6",
    "M0 4H8",
    "M0 0L8 8M-2 6L2 10M6 -2L10 2",
    "M4 0V8",
    "M0 4H8M4 0V8",
];

/// Text in HTML and XML. Control characters have no place in either.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

struct Drawing<'a> {
    plot: &'a Plot,
    /// Makes the ids of this drawing unique in its page.
    number: usize,
    x: Axis,
    y: Axis,
    out: String,
}

/// The plot; `number` distinguishes it from others of the page.
pub(crate) fn svg(plot: &Plot, number: usize) -> String {
    let points = || plot.series.iter().flat_map(|s| &s.points);
    let ys = points().flat_map(|p| {
        let (low, high) = p.range.unwrap_or((p.y, p.y));
        [p.y, low, high]
    });
    let x = match &plot.form {
        Form::Bars(_) => Axis::new(Scale::Linear, std::iter::empty(), true),
        _ => Axis::new(plot.x_scale, points().map(|p| p.x), true),
    };
    let y = Axis::new(plot.y_scale, ys, true);
    let mut drawing = Drawing { plot, number, x, y, out: String::new() };
    drawing.draw();
    drawing.out
}

fn across(share: f64) -> f64 {
    LEFT + share * (RIGHT - LEFT)
}

fn up(share: f64) -> f64 {
    BOTTOM - share * (BOTTOM - TOP)
}

impl Drawing<'_> {
    /// Appends an element. Writing to a string cannot fail.
    fn put(&mut self, element: std::fmt::Arguments<'_>) {
        let _ = self.out.write_fmt(element);
        self.out.push('\n');
    }

    fn draw(&mut self) {
        let title = escape(&self.plot.title);
        self.put(format_args!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\" \
             font-size=\"13\" fill=\"currentColor\">"
        ));
        self.put(format_args!("<title>{title}</title>"));
        self.axes();
        match &self.plot.form {
            Form::Bars(categories) => self.bars(categories),
            form => {
                for (i, series) in self.plot.series.iter().enumerate() {
                    self.line(i, series, *form == Form::Steps);
                }
            }
        }
        self.legend();
        self.put(format_args!("</svg>"));
    }

    fn axes(&mut self) {
        let y: Vec<(f64, String)> = self.y.ticks().map(|(at, t)| (up(at), t.to_owned())).collect();
        for (y, text) in y {
            self.put(format_args!(
                "<path d=\"M{LEFT} {y:.1}H{RIGHT}\" stroke=\"currentColor\" stroke-opacity=\"0.2\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                LEFT - 8.0,
                y + 4.5
            ));
        }
        if !matches!(self.plot.form, Form::Bars(_)) {
            let x: Vec<(f64, String)> =
                self.x.ticks().map(|(at, t)| (across(at), t.to_owned())).collect();
            for (x, text) in x {
                self.tick(x, &text);
                self.put(format_args!("<path d=\"M{x:.1} {BOTTOM}v5\" stroke=\"currentColor\"/>"));
            }
        }
        self.put(format_args!(
            "<path d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\" fill=\"none\" stroke=\"currentColor\"/>"
        ));
        let (x_label, y_label) = (escape(&self.plot.x_label), escape(&self.plot.y_label));
        let (middle, centre) = (across(0.5), up(0.5));
        self.put(format_args!(
            "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{x_label}</text>",
            HEIGHT - 10.0
        ));
        self.put(format_args!(
            "<text transform=\"translate(16 {centre:.1}) rotate(-90)\" \
             text-anchor=\"middle\">{y_label}</text>"
        ));
    }

    fn tick(&mut self, x: f64, text: &str) {
        self.put(format_args!(
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            BOTTOM + 20.0,
            escape(text)
        ));
    }

    fn place(&self, point: &Point) -> Option<(f64, f64)> {
        Some((across(self.x.at(point.x)?), up(self.y.at(point.y)?)))
    }

    fn line(&mut self, i: usize, series: &Series, steps: bool) {
        let mut path = String::new();
        let placed: Vec<(&Point, (f64, f64))> =
            series.points.iter().filter_map(|p| Some((p, self.place(p)?))).collect();
        for (n, (_, (x, y))) in placed.iter().enumerate() {
            let _ = match n {
                0 => write!(path, "M{x:.1} {y:.1}"),
                _ if steps => write!(path, "H{x:.1}V{y:.1}"),
                _ => write!(path, "L{x:.1} {y:.1}"),
            };
        }
        let (colour, dashes) = (colour(i), DASHES[i % DASHES.len()]);
        self.put(format_args!(
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" \
             stroke-dasharray=\"{}\"/>",
            if dashes.is_empty() { "none" } else { dashes }
        ));
        if steps {
            return;
        }
        for (point, (x, y)) in placed {
            self.error_bar(x, point.range, colour);
            self.marker(i, x, y);
        }
    }

    fn marker(&mut self, i: usize, x: f64, y: f64) {
        let (marker, colour) = (MARKERS[i % MARKERS.len()], colour(i));
        self.put(format_args!(
            "<path d=\"{marker}\" transform=\"translate({x:.1} {y:.1})\" fill=\"{colour}\" \
             stroke=\"{colour}\" stroke-width=\"1.5\"/>"
        ));
    }

    fn error_bar(&mut self, x: f64, range: Option<(f64, f64)>, colour: &str) {
        let ends = range.and_then(|(low, high)| Some((self.y.at(low)?, self.y.at(high)?)));
        let Some((low, high)) = ends.filter(|(low, high)| high > low) else {
            return;
        };
        let (low, high) = (up(low), up(high));
        self.put(format_args!(
            "<path d=\"M{x:.1} {low:.1}V{high:.1}m-4 0h8M{:.1} {low:.1}h8\" fill=\"none\" \
             stroke=\"{colour}\" stroke-width=\"1.3\"/>",
            x - 4.0
        ));
    }

    fn bars(&mut self, categories: &[String]) {
        self.hatches();
        let group = 1.0 / categories.len().max(1) as f64;
        let width = group * 0.8 / self.plot.series.len().max(1) as f64;
        for (i, category) in categories.iter().enumerate() {
            self.tick(across((i as f64 + 0.5) * group), category);
        }
        let ground = up(self.y.at(0.0).unwrap_or(0.0));
        for (i, series) in self.plot.series.iter().enumerate() {
            for point in &series.points {
                let Some(share) = self.y.at(point.y) else {
                    continue;
                };
                let left = across((point.x + 0.1) * group + i as f64 * width);
                let bar = (left, up(share), across(width) - LEFT, ground);
                self.bar(i, bar);
                self.error_bar(left + bar.2 / 2.0, point.range, "currentColor");
            }
        }
    }

    /// A bar from `ground` to `top`.
    fn bar(&mut self, i: usize, (left, top, width, ground): (f64, f64, f64, f64)) {
        let (y, height) = (top.min(ground), (top - ground).abs());
        for fill in
            [colour(i).to_owned(), format!("url(#hatch-{}-{})", self.number, i % HATCHES.len())]
        {
            self.put(format_args!(
                "<rect x=\"{left:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
                 fill=\"{fill}\" stroke=\"{}\"/>",
                colour(i)
            ));
        }
    }

    fn hatches(&mut self) {
        let number = self.number;
        for (i, hatch) in HATCHES.iter().enumerate().take(self.plot.series.len()) {
            self.put(format_args!(
                "<pattern id=\"hatch-{number}-{i}\" width=\"8\" height=\"8\" \
                 patternUnits=\"userSpaceOnUse\"><path d=\"{hatch}\" stroke=\"#fff\" \
                 stroke-width=\"1.6\"/></pattern>"
            ));
        }
    }

    fn legend(&mut self) {
        let x = RIGHT + 18.0;
        for (i, series) in self.plot.series.iter().enumerate() {
            let y = TOP + 8.0 + 22.0 * i as f64;
            if matches!(self.plot.form, Form::Bars(_)) {
                self.bar(i, (x, y - 7.0, 26.0, y + 7.0));
            } else {
                let dashes = DASHES[i % DASHES.len()];
                self.put(format_args!(
                    "<path d=\"M{x} {y}h26\" stroke=\"{}\" stroke-width=\"2\" \
                     stroke-dasharray=\"{}\"/>",
                    colour(i),
                    if dashes.is_empty() { "none" } else { dashes }
                ));
                if self.plot.form == Form::Lines {
                    self.marker(i, x + 13.0, y);
                }
            }
            self.put(format_args!(
                "<text x=\"{}\" y=\"{}\">{}</text>",
                x + 34.0,
                y + 4.5,
                escape(&series.name)
            ));
        }
    }
}

fn colour(i: usize) -> &'static str {
    COLOURS[i % COLOURS.len()]
}
