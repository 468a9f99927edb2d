//! Charts in SVG, generated without a library. Each measurement has a group of bars on a logarithmic axis,
//! because targets differ by orders of magnitude.
//!
//! A bar ends at the p50, and its whisker ends at the p95. Results that are not durations have no bar.

use crate::figure::{Figure, Got, Outcome};
use crate::report::markdown::number;
use crate::target::NAMES;

/// Colours from Okabe and Ito's palette for people with colour blindness, one for each of [`NAMES`].
const COLOURS: [&str; 6] = ["#0072b2", "#999999", "#e69f00", "#009e73", "#cc79a7", "#d55e00"];
const WIDTH: f64 = 860.0;
const LABELS: f64 = 300.0;
const BAR: f64 = 14.0;
const GAP: f64 = 10.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 30.0;
const STYLE: &str = "font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\"";

/// Bars of one measurement, one for each target.
struct Group<'a> {
    label: String,
    bars: Vec<(&'a Figure, f64, f64)>,
}

/// Mapping from milliseconds to coordinates.
struct Axis {
    low: f64,
    high: f64,
}

/// Returns the chart of a scenario and its file name, or an empty list if the scenario measured no durations.
pub(super) fn pictures(outcome: &Outcome) -> Vec<(String, String)> {
    let groups = groups(outcome);
    if groups.is_empty() {
        return Vec::new();
    }
    // A scenario's name is free text. It is sanitized so that the file name cannot leave the directory.
    let safe = |c: char| if c.is_alphanumeric() || c == '-' { c } else { '_' };
    let name: String = outcome.name.chars().map(safe).collect();
    vec![(format!("{name}.svg"), draw(outcome, &groups))]
}

fn groups(outcome: &Outcome) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for figure in &outcome.figures {
        let Got::Times(summary) = figure.got else { continue };
        let label = match (figure.at, outcome.scale) {
            (Some(at), Some(scale)) => format!("{}, {at} {scale}", figure.what),
            (Some(_) | None, Some(_) | None) => figure.what.to_owned(),
        };
        let bar = (figure, summary.p50_ms, summary.p95_ms);
        match groups.iter_mut().find(|group| group.label == label) {
            Some(group) => group.bars.push(bar),
            None => groups.push(Group { label, bars: vec![bar] }),
        }
    }
    groups
}

fn draw(outcome: &Outcome, groups: &[Group<'_>]) -> String {
    let axis = Axis::of(groups);
    let bars: usize = groups.iter().map(|group| group.bars.len()).sum();
    let height = TOP + bars as f64 * BAR + groups.len() as f64 * GAP + BOTTOM;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" height=\"{height:.0}\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    svg.push_str(&text(8.0, 18.0, "start", &format!("{}: {}", outcome.name, outcome.about)));
    svg.push_str(&legend(groups));
    for tick in axis.ticks() {
        let (x, bottom) = (axis.place(tick), height - BOTTOM);
        svg.push_str(&format!(
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom:.1}\" stroke=\"#ddd\"/>\n"
        ));
        svg.push_str(&text(x, bottom + 16.0, "middle", &format!("{tick} ms")));
    }
    let mut y = TOP;
    for group in groups {
        svg.push_str(&text(LABELS - 8.0, y + BAR * 0.8, "end", &group.label));
        for (figure, p50, p95) in &group.bars {
            svg.push_str(&bar(&axis, y, colour(figure.target), *p50, *p95));
            y += BAR;
        }
        y += GAP;
    }
    svg.push_str("</svg>\n");
    svg
}

fn bar(axis: &Axis, y: f64, colour: &str, p50: f64, p95: f64) -> String {
    let (end, whisker, middle) = (axis.place(p50), axis.place(p95), y + BAR / 2.0);
    let (width, thick) = (end - LABELS, BAR - 2.0);
    let mut svg = format!(
        "<rect x=\"{LABELS}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{thick}\" fill=\"{colour}\"/>\n\
         <line x1=\"{end:.1}\" x2=\"{whisker:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\" stroke=\"#333\"/>\n"
    );
    svg.push_str(&text(whisker + 4.0, y + BAR * 0.75, "start", &number(p50)));
    svg
}

fn legend(groups: &[Group<'_>]) -> String {
    let shown = |name: &str| groups.iter().flat_map(|group| &group.bars).any(|bar| bar.0.target == name);
    let mut svg = text(8.0, 39.0, "start", "bar: p50, with its number; line: p95");
    for (index, name) in NAMES.into_iter().filter(|name| shown(name)).enumerate() {
        let x = LABELS + index as f64 * 96.0;
        svg.push_str(&format!(
            "<rect x=\"{x}\" y=\"30\" width=\"10\" height=\"10\" fill=\"{}\"/>\n",
            colour(name)
        ));
        svg.push_str(&text(x + 14.0, 39.0, "start", name));
    }
    svg
}

fn colour(target: &str) -> &'static str {
    NAMES.iter().zip(COLOURS).find(|(name, _)| **name == target).map_or("#333", |(_, colour)| colour)
}

fn text(x: f64, y: f64, anchor: &str, words: &str) -> String {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {STYLE}>{words}</text>\n")
}

impl Axis {
    /// Returns an axis that spans whole powers of ten and contains all bars and whiskers.
    fn of(groups: &[Group<'_>]) -> Self {
        let bars = || groups.iter().flat_map(|group| &group.bars);
        let low = bars().map(|bar| bar.1).fold(f64::INFINITY, f64::min).max(0.001);
        let high = bars().map(|bar| bar.2).fold(low, f64::max);
        let (low, high) = (low.log10().floor(), high.log10().ceil());
        Self { low, high: high.max(low + 1.0) }
    }

    fn ticks(&self) -> impl Iterator<Item = f64> + use<> {
        (self.low as i32..=self.high as i32).map(|power| 10_f64.powi(power))
    }

    fn place(&self, millis: f64) -> f64 {
        let share = (millis.max(1e-9).log10() - self.low) / (self.high - self.low);
        // Leave space for the number next to the longest bar.
        LABELS + share.clamp(0.0, 1.0) * (WIDTH - LABELS - 60.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_a_bar_for_every_time_and_escapes_words() {
        let outcome = crate::report::example().scenarios.remove(0);
        let pictures = pictures(&outcome);
        let [(name, svg)] = pictures.as_slice() else { panic!("{pictures:?}") };
        assert_eq!(name, "create.svg");
        // One background, two rectangles in the legend, and three bars.
        assert_eq!(svg.matches("<rect").count(), 6);
        assert!(svg.contains("Sandboxes &lt;made&gt;") && svg.contains("create alone, 10 at once"));
        assert!(svg.starts_with("<svg xmlns") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn an_axis_holds_all_bars_between_powers_of_ten() {
        let axis = Axis { low: 0.0, high: 2.0 };
        assert_eq!(axis.ticks().collect::<Vec<_>>(), [1.0, 10.0, 100.0]);
        assert_eq!(axis.place(0.5), LABELS);
        assert!(axis.place(10.0) > axis.place(2.0) && axis.place(100.0) < WIDTH);
    }
}
