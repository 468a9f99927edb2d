//! The report as Markdown.

use crate::figure::{Figure, Got, Outcome, Unit};
use crate::report::Report;

/// Target that all other targets are compared with.
const REFERENCE: &str = "bellglass";

/// Returns the whole report as text.
pub(super) fn report(report: &Report) -> String {
    let mut text = String::from("# Bench\n\n");
    text.push_str(&machine(report));
    text.push_str("| target | description |\n|---|---|\n");
    for target in &report.targets {
        let facts: Vec<String> =
            target.facts.iter().map(|(name, value)| format!("{name}: {}", cell(value))).collect();
        text.push_str(&format!("| {} | {} |\n", target.name, facts.join("; ")));
    }
    for target in &report.left_out {
        text.push_str(&format!("| {} | left out: {} |\n", target.name, cell(&target.why)));
    }
    text.push_str(
        "\nTimes are in milliseconds. The second-to-last column is the p50, or the number, divided by Bellglass's in the same run. \
         A dash: the target cannot do it.\n",
    );
    report.scenarios.iter().for_each(|outcome| text.push_str(&scenario(outcome)));
    text
}

fn machine(report: &Report) -> String {
    let machine = &report.machine;
    let built = if machine.optimized {
        ""
    } else {
        " The bench was built without optimisation: do not compare large files."
    };
    format!(
        "{}: Linux {}, {} cores of {}, {:.1} GiB, cgroup version {}. Load averages before: {}; after: {}.{built}\n\n",
        machine.date,
        machine.kernel,
        machine.cores,
        machine.processor,
        machine.memory_bytes as f64 / (1_u64 << 30) as f64,
        machine.cgroup_version,
        machine.load_before,
        machine.load_after,
    )
}

fn scenario(outcome: &Outcome) -> String {
    let scale = outcome.scale.unwrap_or("");
    let mut text = format!(
        "\n## {}\n\n{}. {:.0} s; load averages before: {}; after: {}.\n\n",
        outcome.name, outcome.about, outcome.took_s, outcome.load_before, outcome.load_after,
    );
    text.push_str(&format!("| what | {scale} | target | n | p50 | p95 | p99 | × {REFERENCE} | failures |\n"));
    text.push_str("|---|--:|---|--:|--:|--:|--:|--:|---|\n");
    for figure in &outcome.figures {
        text.push_str(&row(figure, outcome));
    }
    let mut said: Vec<String> = outcome.figures.iter().flat_map(said).collect();
    said.dedup();
    if !said.is_empty() {
        text.push_str(&format!("\n{}\n", said.join("\n")));
    }
    if let Some((name, _)) = super::plot::pictures(outcome).first() {
        text.push_str(&format!("\n![{}]({name})\n", outcome.name));
    }
    text
}

fn row(figure: &Figure, outcome: &Outcome) -> String {
    let at = figure.at.map_or(String::new(), |at| at.to_string());
    let numbers = match &figure.got {
        Got::Times(summary) => {
            let [p50, p95, p99] = [summary.p50_ms, summary.p95_ms, summary.p99_ms].map(number);
            format!("{} | {p50} | {p95} | {p99}", summary.count)
        }
        Got::Value { value, unit } => format!(" | {} | | ", measured(*value, *unit)),
        Got::Nothing => "0 | | | ".into(),
        Got::Unsupported => "– | – | – | –".into(),
    };
    let mut notes: Vec<String> =
        figure.failures.iter().map(|(code, count)| format!("{count} {}", cell(code))).collect();
    notes.extend(figure.starts.iter().map(|(start, count)| format!("{count} started {}", cell(start))));
    format!(
        "| {} | {at} | {} | {numbers} | {} | {} |\n",
        figure.what,
        figure.target,
        ratio(figure, outcome),
        notes.join(", ")
    )
}

/// Lists the message of the first failure with each code.
fn said(figure: &Figure) -> Vec<String> {
    let of = |(code, message): (&String, &String)| {
        format!("- {}, {}: {}: {}", figure.target, figure.what, cell(code), cell(message))
    };
    figure.said.iter().map(of).collect()
}

/// Returns the ratio of a figure to the reference target's figure for the same measurement.
fn ratio(figure: &Figure, outcome: &Outcome) -> String {
    let same =
        |other: &&Figure| other.target == REFERENCE && other.what == figure.what && other.at == figure.at;
    let reference = outcome.figures.iter().find(same).and_then(|other| other.got.number());
    match (figure.got.number(), reference) {
        (Some(number), Some(reference)) if figure.target != REFERENCE && reference > 0.0 && number > 0.0 => {
            format!("{:.2}", number / reference)
        }
        (Some(_) | None, Some(_) | None) => String::new(),
    }
}

/// Formats a number with about three significant digits.
pub(super) fn number(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

fn measured(value: f64, unit: Unit) -> String {
    match unit {
        Unit::PerSecond => format!("{} /s", number(value)),
        Unit::Bytes => format!("{} MiB", number(value / (1_u64 << 20) as f64)),
    }
}

/// Escapes external text so that it cannot break a table.
fn cell(text: &str) -> String {
    text.replace('|', "/").replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_a_row_and_targets_are_compared_within_the_same_size() {
        let text = report(&crate::report::example());
        assert!(text.contains("| create alone | 1 | runc | 10 | 14.0 | 19.0 | 19.0 | 0.58 |  |\n"), "{text}");
        assert!(text.contains("| create alone | 10 | runc | – | – | – | – |  |  |\n"), "{text}");
        assert!(text.contains("1 capacity, 3 started warm |"), "{text}");
        assert!(text.contains("| 2.50 MiB |") && text.contains("| 12.3 /s |"), "{text}");
        assert!(text.contains("| e2b | left out: no E2B_API_KEY |"), "{text}");
        assert!(text.contains("\n- bellglass, create alone: capacity: no room / now\n"), "{text}");
        assert!(text.contains("![create](create.svg)"), "{text}");
    }

    #[test]
    fn words_of_others_do_not_break_a_table() {
        assert_eq!(cell("a | b\nc"), "a / b c");
    }
}
