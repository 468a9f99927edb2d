//! Reports the broker's decisions. Equal decisions within a second are reported as one line with a count.
//!
//! Each report becomes a line in the audit log, which is stored on this machine. The number of lines per
//! sandbox is therefore limited, separately for allowed and refused requests, so that a flood of one kind
//! does not hide the other.
//!
//! ```text
//! the first of its kind               ──▶ one line at once
//! equal to a decision of this second  ──▶ counted: one line at the end of the second, `…, 41 more times`
//! over the limit of lines             ──▶ counted by target: one line at the end of the second
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use governor::DefaultDirectRateLimiter;

use crate::party::{BrokerReport, Decision, Tell, rate};

/// Maximum number of lines per second, and in a burst after a pause. A person can still read this many lines,
/// and a day's worth takes 300 MB.
const LINES_PER_SECOND: u32 = 10;
const LINES_AT_ONCE: u32 = 200;
/// Equal decisions within this time are reported as one line.
const WINDOW: Duration = Duration::from_secs(1);
/// Maximum number of targets that the summary line names.
const TARGETS_NAMED_MAX: usize = 8;

/// A reporter that turns decisions into lines in the audit log.
pub struct DecisionReporter {
    tell: Tell,
    lines: [DefaultDirectRateLimiter; 2],
    now: Mutex<Window>,
}

/// The decisions of the current second.
#[derive(Default)]
struct Window {
    /// Reported decisions, each with the number of times that it has been repeated since.
    again: HashMap<Decision, u64>,
    /// Counts of the decisions without a line of their own: first the allowed requests, then the refused
    /// ones.
    untold: [Untold; 2],
    /// True if a task is waiting for the end of the second.
    ends: bool,
}

#[derive(Default)]
struct Untold {
    count: u64,
    targets: BTreeMap<String, u64>,
}

impl DecisionReporter {
    /// Creates a reporter whose lines are passed to `tell`.
    pub fn new(tell: Tell) -> Arc<Self> {
        let lines = || rate(LINES_PER_SECOND, LINES_AT_ONCE);
        Arc::new(Self { tell, lines: [lines(), lines()], now: Mutex::default() })
    }

    /// Passes on a report immediately.
    pub fn tell(&self, told: BrokerReport) {
        (self.tell)(told);
    }

    /// Reports a decision, or only counts it if it is repeated or exceeds the limit of lines.
    pub fn decided(self: &Arc<Self>, decision: Decision) {
        let Ok(executor) = tokio::runtime::Handle::try_current() else {
            return self.tell(BrokerReport::Decided(decision));
        };
        let mut now = self.now();
        if !now.ends {
            now.ends = true;
            executor.spawn(end(Arc::downgrade(self)));
        }
        if api::defence::is_off("N-38") {
            drop(now);
            return self.tell(BrokerReport::Decided(decision));
        }
        if let Some(again) = now.again.get_mut(&decision) {
            *again += 1;
        } else if self.has_line(&decision) {
            now.again.insert(decision.clone(), 0);
            drop(now);
            self.tell(BrokerReport::Decided(decision));
        } else {
            now.untold(&decision, 1);
        }
    }

    /// Ends the current window and reports its counts. Returns true if repeated decisions remain, so that
    /// another window must follow.
    fn end(&self) -> bool {
        let mut lines = Vec::new();
        let goes_on = {
            let mut now = self.now();
            // Repeated decisions remain in the window, so that a steady stream produces one line per second.
            let again = std::mem::take(&mut now.again).into_iter().filter(|(_, count)| *count > 0);
            for (decision, count) in again {
                if self.has_line(&decision) {
                    lines.push(repeated(&decision, count));
                    now.again.insert(decision, 0);
                } else {
                    now.untold(&decision, count);
                }
            }
            let [allowed, refused] = std::mem::take(&mut now.untold);
            lines.extend(allowed.line().map(|(count, named)| Decision {
                target: "any".into(),
                ask: format!("{count} times"),
                verdict: Ok(format!("allowed, but too many requests to report individually: {named}")),
            }));
            lines.extend(refused.line().map(|(count, named)| Decision {
                target: "any".into(),
                ask: "any".into(),
                verdict: Err(format!("{count} requests refused, too many to report individually: {named}")),
            }));
            now.ends = !now.again.is_empty();
            now.ends
        };
        for line in lines {
            self.tell(BrokerReport::Decided(line));
        }
        goes_on
    }

    fn has_line(&self, decision: &Decision) -> bool {
        let [allowed, refused] = &self.lines;
        let lines = if decision.verdict.is_ok() { allowed } else { refused };
        lines.check().is_ok()
    }

    fn now(&self) -> MutexGuard<'_, Window> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DecisionReporter {
    /// Reports the remaining counts when the sandbox ends.
    fn drop(&mut self) {
        self.end();
    }
}

impl Window {
    fn untold(&mut self, decision: &Decision, count: u64) {
        let [allowed, refused] = &mut self.untold;
        let untold = if decision.verdict.is_ok() { allowed } else { refused };
        untold.count += count;
        let is_known = untold.targets.contains_key(&decision.target);
        if is_known || untold.targets.len() < TARGETS_NAMED_MAX {
            *untold.targets.entry(decision.target.clone()).or_default() += count;
        }
    }
}

impl Untold {
    /// Returns the number of unreported decisions and their targets, or `None` if there were none.
    fn line(self) -> Option<(u64, String)> {
        let named: u64 = self.targets.values().sum();
        let mut words: Vec<String> =
            self.targets.iter().map(|(target, count)| format!("{target} {count}")).collect();
        if self.count > named {
            words.push(format!("others {}", self.count - named));
        }
        (self.count > 0).then(|| (self.count, words.join(", ")))
    }
}

/// Ends the reporter's one-second windows, one after another, until no repeated decisions remain or the
/// sandbox is gone.
async fn end(tally: Weak<DecisionReporter>) {
    loop {
        tokio::time::sleep(WINDOW).await;
        match tally.upgrade() {
            Some(tally) if tally.end() => {}
            Some(_) | None => return,
        }
    }
}

fn repeated(decision: &Decision, count: u64) -> Decision {
    Decision { ask: format!("{}, {count} more times", decision.ask), ..decision.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally() -> (Arc<DecisionReporter>, Arc<Mutex<Vec<Decision>>>) {
        let told = Arc::<Mutex<Vec<Decision>>>::default();
        let heard = Arc::clone(&told);
        let tell = move |one| match one {
            BrokerReport::Decided(decision) => heard.lock().unwrap().push(decision),
            BrokerReport::Installed(_) => {}
        };
        (DecisionReporter::new(Box::new(tell)), told)
    }

    fn decision(target: &str, ask: &str) -> Decision {
        Decision { target: target.into(), ask: ask.into(), verdict: Ok("a.org".into()) }
    }

    #[tokio::test(start_paused = true)]
    async fn equal_decisions_of_a_second_are_one_line_with_a_count() {
        let (tally, told) = tally();
        for _ in 0..300 {
            tally.decided(decision("a.org:80", "GET /"));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tally.decided(Decision { verdict: Err("no rule".into()), ..decision("b.org:80", "GET /") });
        drop(tally);
        let told = told.lock().unwrap();
        let asks: Vec<&str> = told.iter().map(|one| one.ask.as_str()).collect();
        assert_eq!((asks[0], asks.len()), ("GET /", 5), "{asks:?}");
        let counted: u64 = asks
            .iter()
            .filter_map(|ask| ask.strip_prefix("GET /, ")?.strip_suffix(" more times")?.parse::<u64>().ok())
            .sum();
        assert_eq!(counted, 299, "nothing is lost: {asks:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_differs_each_time_is_told_within_a_bound_and_counted_by_target() {
        // Covers attack N-38.
        let (tally, told) = tally();
        for number in 0..6000 {
            tally.decided(decision(&format!("{}.a.org:80", number % 20), &format!("GET /{number}")));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(tally);
        let told = told.lock().unwrap();
        // The limit allows a burst of 200 lines, at most 10 more in each of 60 seconds (the limiter uses its
        // own clock), and one summary line per second.
        assert!((200..=870).contains(&told.len()), "{} lines", told.len());
        let untold: Vec<&Decision> = told.iter().filter(|one| one.target == "any").collect();
        let count = |one: &Decision| one.ask.strip_suffix(" times").unwrap().parse::<usize>().unwrap();
        let counted: usize = untold.iter().map(|one| count(one)).sum();
        assert_eq!(told.len() - untold.len() + counted, 6000, "nothing is lost");
        let last = untold.last().unwrap().verdict.clone().unwrap();
        assert!(last.contains(".a.org:80 ") && last.contains("others "), "{last}");
    }

    #[tokio::test(start_paused = true)]
    async fn many_that_are_repeated_slowly_have_no_line_each() {
        let (tally, told) = tally();
        for number in 0..6000 {
            tally.decided(decision("a.org:80", &format!("GET /{}", number % 90)));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(tally);
        assert!(told.lock().unwrap().len() <= 870, "{} lines", told.lock().unwrap().len());
    }
}
