//! `bellglass trace`: shows how long each step of a request took.

use std::fmt::Write as _;
use std::process::ExitCode;

use api::trace::{Step, Trace};
use api::{Error, ExecId, SandboxId};

use crate::command::list;
use crate::connect::{ServerConnection, answer};
use crate::show;

/// Default width if standard output is not a terminal, and maximum width on a terminal.
const COLUMNS: usize = 80;
const COLUMNS_MAX: usize = 160;
/// Maximum width of step names. The bars use the remaining width.
const NAME_MAX: usize = 40;
/// Minimum width of the duration column. It fits durations up to a hundred seconds, in milliseconds with one
/// decimal. Longer durations widen the column.
const TIME_MIN: usize = 7;
/// Minimum width of the bars. Narrower bars would not be readable and are omitted.
const BAR_MIN: usize = 8;

/// Arguments of `bellglass trace`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  bellglass trace build\n  bellglass trace build --exec e4x1\n  \
    bellglass trace build --json | jq '.[0].steps[] | select(.took_us > 10000) | .name'\n\n\
    The server keeps traces of recent requests in memory: requests that create a sandbox, start an exec\n\
    or stop a sandbox.")]
pub struct Arguments {
    /// Sandbox, by id or name. A sandbox that has ended can be given only by id.
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// Id of the exec to show. If omitted, all requests to the sandbox are shown.
    #[arg(long, value_name = "EXEC")]
    exec: Option<ExecId>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the traces.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    let traces = answer(&client, client.trace(&arguments.sandbox, arguments.exec.as_ref())).await?;
    if arguments.json {
        show::json(&traces)?;
    } else if traces.is_empty() {
        show::note(
            "the server has no matching traces in memory: it was restarted, or traces of newer requests have replaced the matching traces",
        );
    } else {
        let shown = traces.iter().map(|trace| text(trace, &list::age(trace.at_ms), columns()));
        show::text(&shown.collect::<Vec<_>>().join("\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a trace as text: a summary, followed by one line for each step. Child steps follow their parent
/// and are indented.
fn text(trace: &Trace, age: &str, columns: usize) -> String {
    let ends = |step: &Step| step.begun_us.saturating_add(step.took_us.unwrap_or(0));
    let whole = trace.steps.iter().map(ends).max().unwrap_or(0).max(1);
    let first = trace.steps.first().map_or("nothing", |step| &step.name);
    let exec = trace.exec.as_ref().map(|exec| format!(" {exec}")).unwrap_or_default();
    let mut text = format!("{}{exec}: {} ms, {age} ago\n", show::escape(first), millis(whole));
    let rows: Vec<(String, String, &Step)> = in_order(&trace.steps)
        .into_iter()
        .map(|(depth, step)| {
            (name(step, depth), step.took_us.map_or_else(|| "running".to_owned(), millis), step)
        })
        .collect();
    let wide = rows.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0);
    let time = rows.iter().map(|(_, took, _)| took.len()).max().unwrap_or(0).max(TIME_MIN);
    let left = columns.saturating_sub(wide + time + 4);
    for (name, took, step) in rows {
        let bar = if left < BAR_MIN { String::new() } else { bar(step, whole, left) };
        let line = format!("{name:wide$}  {took:>time$}  {bar}");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    if trace.left_out > 0 {
        let _ = writeln!(text, "and {} more steps that were not recorded", trace.left_out);
    }
    text
}

/// Returns all steps except the first, each with its depth. Each step appears after its parent.
fn in_order(steps: &[Step]) -> Vec<(usize, &Step)> {
    let mut below: Vec<Vec<usize>> = vec![Vec::new(); steps.len()];
    for (place, step) in steps.iter().enumerate().skip(1) {
        // A parent must precede its child. A step with an invalid parent becomes a child of the first step.
        let parent = step.parent.map_or(0, |parent| parent as usize);
        let parent = if parent < place { parent } else { 0 };
        if let Some(children) = below.get_mut(parent) {
            children.push(place);
        }
    }
    let children = |place: usize| below.get(place).into_iter().flatten().rev();
    let mut waiting: Vec<(usize, usize)> = children(0).map(|place| (0, *place)).collect();
    let mut ordered = Vec::with_capacity(steps.len());
    while let Some((depth, place)) = waiting.pop() {
        ordered.extend(steps.get(place).map(|step| (depth, step)));
        waiting.extend(children(place).map(|place| (depth + 1, *place)));
    }
    ordered
}

fn name(step: &Step, depth: usize) -> String {
    let what = step.what.as_ref().map(|what| format!(": {what}")).unwrap_or_default();
    let indent = 2 * (depth + 1).min(NAME_MAX / 4);
    let whole = format!("{:indent$}{}", "", show::escape(&format!("{}{what}", step.name)));
    if whole.chars().count() <= NAME_MAX {
        return whole;
    }
    whole.chars().take(NAME_MAX - 1).chain(['…']).collect()
}

/// Returns the bar for a step. The bar shows the step's start and duration to scale, and is never too narrow
/// to be visible.
fn bar(step: &Step, whole: u64, columns: usize) -> String {
    let eighths = |us: u64| {
        let scaled = u128::from(us.min(whole)) * 8 * columns as u128 / u128::from(whole);
        usize::try_from(scaled).unwrap_or(0)
    };
    let took = step.took_us.unwrap_or(whole.saturating_sub(step.begun_us));
    let long = eighths(took).max(1);
    // Bars begin at whole columns. The start is rounded, and capped so that the bar stays within the line.
    let begin = ((eighths(step.begun_us) + 4) / 8).min((8 * columns - long) / 8);
    let rest = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"].get(long % 8).unwrap_or(&"");
    format!("{:begin$}{}{rest}", "", "█".repeat(long / 8))
}

fn millis(us: u64) -> String {
    format!("{}.{}", us / 1000, us % 1000 / 100)
}

fn columns() -> usize {
    let own = rustix::termios::tcgetwinsize(rustix::stdio::stdout()).map_or(0, |size| size.ws_col);
    if own == 0 { COLUMNS } else { usize::from(own).min(COLUMNS_MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str, parent: Option<u32>, begun_us: u64, took_us: u64) -> Step {
        Step { name: name.into(), what: None, parent, begun_us, took_us: Some(took_us) }
    }

    fn trace(steps: Vec<Step>) -> Trace {
        Trace { exec: None, at_ms: 0, steps, left_out: 0 }
    }

    #[test]
    fn a_waterfall_fits_the_terminal_and_each_step_stands_below_its_whole() {
        let steps = vec![
            step("create", None, 0, 40_000),
            step("key", Some(0), 10, 40),
            step("start", Some(0), 10_000, 25_000),
            Step { what: Some("keep".into()), ..step("store", Some(0), 35_000, 5_000) },
            step("disk", Some(2), 12_000, 2_000),
        ];
        // Twenty columns remain for the bars, and each represents two milliseconds.
        let shown = text(&trace(steps), "3 s", 13 + 2 + TIME_MIN + 2 + 20);
        let lines = [
            "create: 40.0 ms, 3 s ago",
            "  key              0.0  ▏",
            "  start           25.0       ████████████▌",
            "    disk           2.0        █",
            "  store: keep      5.0                   ██▌",
        ];
        assert_eq!(shown.lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn what_a_server_says_wrong_is_shown_all_the_same() {
        let mut steps: Vec<_> = (0..5000_u32)
            .map(|n| step("x\u{1b}[2J", Some(n.saturating_sub(1)), u64::MAX, u64::MAX))
            .collect();
        steps[0].parent = Some(7);
        steps[3].parent = Some(4000);
        let shown = text(&trace(steps), "1 s", COLUMNS);
        assert_eq!(shown.lines().count(), 5000);
        assert!(
            !shown.contains('\u{1b}') && shown.lines().skip(1).all(|line| line.chars().count() <= COLUMNS)
        );
        assert_eq!(text(&trace(Vec::new()), "1 s", 0).lines().count(), 1);
    }

    #[test]
    fn a_step_that_goes_on_reaches_to_the_end() {
        let open = Step { took_us: None, ..step("end", Some(0), 500, 0) };
        let shown = text(&trace(vec![step("exec", None, 0, 1000), open]), "1 s", 36);
        assert!(shown.contains("running") && shown.ends_with("█\n"), "{shown}");
    }
}
