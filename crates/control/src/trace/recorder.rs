//! Keeps the steps of the latest requests in memory.
//!
//! A trace is visible as soon as its sandbox is known, even while the request is in progress. A step in
//! progress has no end yet. Each trace has its own lock, which is held while a step is added or ended. The
//! lock for all traces is acquired only once per trace and once per query.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use api::trace::{Step, Trace};
use api::{ExecId, SandboxId};
use node::clock;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::is_root;

/// Maximum number of traces. With thirty steps each, they use about 8 MiB and cover several minutes of a
/// machine at full load.
const TRACES_MAX: usize = 4096;
/// Maximum number of steps of one trace. A create request has about thirty.
const STEPS_MAX: usize = 64;
/// Maximum number of traces of one sandbox. At the limit, a new trace replaces the trace of the oldest exec.
const OF_SANDBOX_MAX: usize = 16;

/// Recorder of the steps of the latest requests. All clones share one state.
#[derive(Clone, Default)]
pub struct Recorder {
    kept: Arc<Mutex<RetainedTraces>>,
}

#[derive(Default)]
struct RetainedTraces {
    /// Traces by number. Numbers are assigned in increasing order, so the first trace is the oldest.
    traces: BTreeMap<u64, Arc<Open>>,
    of_sandbox: HashMap<String, VecDeque<u64>>,
    next: u64,
}

/// Trace that may still be in progress.
struct Open {
    at_ms: u64,
    begun: Instant,
    state: Mutex<TraceState>,
}

#[derive(Default)]
struct TraceState {
    sandbox: Option<String>,
    exec: Option<String>,
    spans: Vec<Span>,
    left_out: u32,
}

struct Span {
    name: &'static str,
    what: Option<String>,
    parent: Option<u32>,
    begun: Duration,
    took: Option<Duration>,
}

/// Position of a span: its trace, and the index of its step in that trace. The index is `None` if the step
/// was omitted.
struct SpanPosition {
    trace: Arc<Open>,
    step: Option<u32>,
}

/// Values of a span's fields.
#[derive(Default)]
struct SpanFields {
    sandbox: Option<String>,
    exec: Option<String>,
    what: Option<String>,
}

impl Recorder {
    /// Returns the traces of a sandbox, oldest first. If `exec` is set, returns only the traces of that exec.
    pub fn traces(&self, sandbox: &SandboxId, exec: Option<&ExecId>) -> Vec<Trace> {
        let found: Vec<Arc<Open>> = {
            let kept = locked(&self.kept);
            let numbers = kept.of_sandbox.get(sandbox.as_str()).into_iter().flatten();
            numbers.filter_map(|number| kept.traces.get(number).cloned()).collect()
        };
        let shown = found.iter().map(|open| open.shown());
        shown.filter(|trace| exec.is_none() || trace.exec.as_ref() == exec).collect()
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let said = SpanFields::in_new(attributes);
        let place = if is_root(attributes.metadata()) {
            SpanPosition::first(attributes.metadata(), said.what.clone())
        } else {
            let Some(parent) = span.parent() else { return };
            let extensions = parent.extensions();
            let Some(above) = extensions.get::<SpanPosition>() else { return };
            above.below(attributes.metadata(), said.what.clone())
        };
        self.name(&place.trace, said);
        span.extensions_mut().insert(place);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let extensions = span.extensions();
        let Some(place) = extensions.get::<SpanPosition>() else { return };
        let mut said = SpanFields::default();
        values.record(&mut said);
        self.name(&place.trace, said);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let extensions = span.extensions();
        let Some(SpanPosition { trace, step: Some(step) }) = extensions.get::<SpanPosition>() else { return };
        let now = trace.begun.elapsed();
        let mut state = locked(&trace.state);
        if let Some(span) = state.spans.get_mut(*step as usize) {
            span.took = Some(now.saturating_sub(span.begun));
        }
    }
}

impl Recorder {
    /// Records the sandbox and the exec of a trace. The trace can be found once its sandbox is known.
    fn name(&self, trace: &Arc<Open>, said: SpanFields) {
        if said.sandbox.is_none() && said.exec.is_none() {
            return;
        }
        let mut state = locked(&trace.state);
        state.exec = said.exec.or(state.exec.take());
        let Some(sandbox) = said.sandbox.filter(|_| state.sandbox.is_none()) else { return };
        state.sandbox = Some(sandbox.clone());
        drop(state);
        locked(&self.kept).keep(sandbox, Arc::clone(trace));
    }
}

impl RetainedTraces {
    fn keep(&mut self, sandbox: String, trace: Arc<Open>) {
        let number = self.next;
        self.next += 1;
        let of_sandbox = self.of_sandbox.entry(sandbox).or_default();
        of_sandbox.push_back(number);
        if of_sandbox.len() > OF_SANDBOX_MAX {
            let is_exec = |number: &u64| {
                self.traces.get(number).is_some_and(|trace| locked(&trace.state).exec.is_some())
            };
            let oldest = of_sandbox.iter().position(is_exec).unwrap_or(0);
            if let Some(number) = of_sandbox.remove(oldest) {
                self.traces.remove(&number);
            }
        }
        self.traces.insert(number, trace);
        if self.traces.len() > TRACES_MAX
            && let Some((number, oldest)) = self.traces.pop_first()
        {
            self.forget(number, &oldest);
        }
    }

    /// Removes a trace from the list of its sandbox, after the trace itself was removed.
    fn forget(&mut self, number: u64, trace: &Open) {
        let Some(sandbox) = locked(&trace.state).sandbox.clone() else { return };
        let Some(of_sandbox) = self.of_sandbox.get_mut(&sandbox) else { return };
        of_sandbox.retain(|known| *known != number);
        if of_sandbox.is_empty() {
            self.of_sandbox.remove(&sandbox);
        }
    }
}

impl SpanPosition {
    /// Creates the first step of a new trace.
    fn first(metadata: &'static Metadata<'static>, what: Option<String>) -> Self {
        let first = Span { name: metadata.name(), what, parent: None, begun: Duration::ZERO, took: None };
        let state = TraceState { spans: vec![first], ..TraceState::default() };
        let open = Open { at_ms: clock::wall_ms(), begun: Instant::now(), state: Mutex::new(state) };
        Self { trace: Arc::new(open), step: Some(0) }
    }

    /// Creates a new step below this step. The new step is omitted if this step was omitted, or if the trace
    /// is full.
    fn below(&self, metadata: &'static Metadata<'static>, what: Option<String>) -> Self {
        let begun = self.trace.begun.elapsed();
        let mut state = locked(&self.trace.state);
        let step = u32::try_from(state.spans.len()).ok().filter(|_| state.spans.len() < STEPS_MAX);
        let step = step.filter(|_| self.step.is_some());
        if step.is_some() {
            let span = Span { name: metadata.name(), what, parent: self.step, begun, took: None };
            state.spans.push(span);
        } else {
            state.left_out = state.left_out.saturating_add(1);
        }
        drop(state);
        Self { trace: Arc::clone(&self.trace), step }
    }
}

impl Open {
    fn shown(&self) -> Trace {
        let state = locked(&self.state);
        let exec = state.exec.as_deref().and_then(|exec| exec.parse().ok());
        let steps = state.spans.iter().map(Span::shown).collect();
        Trace { exec, at_ms: self.at_ms, steps, left_out: state.left_out }
    }
}

impl Span {
    fn shown(&self) -> Step {
        let (name, what) = (self.name.to_owned(), self.what.clone());
        let took_us = self.took.map(micros);
        Step { name, what, parent: self.parent, begun_us: micros(self.begun), took_us }
    }
}

impl SpanFields {
    /// Reads the fields of a new span. First does a cheap check for the common case, a step without fields.
    fn in_new(attributes: &Attributes<'_>) -> Self {
        let mut said = Self::default();
        if !attributes.fields().is_empty() {
            attributes.record(&mut said);
        }
        said
    }

    fn hear(&mut self, field: &Field, value: String) {
        match field.name() {
            "sandbox" => self.sandbox = Some(value),
            "exec" => self.exec = Some(value),
            "what" => self.what = Some(value),
            _ => {}
        }
    }
}

impl Visit for SpanFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.hear(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.hear(field, format!("{value:?}"));
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use api::trace::STEP;
    use tracing::info_span;
    use tracing_subscriber::prelude::*;

    use super::super::{Steps, about, about_exec, create, exec};
    use super::*;

    /// Returns a recorder that records the steps of this thread until the guard is dropped.
    fn recorded() -> (Recorder, tracing::subscriber::DefaultGuard) {
        let recorder = Recorder::default();
        let layer = recorder.clone().with_filter(Steps);
        (recorder, tracing_subscriber::registry().with(layer).set_default())
    }

    fn sandbox(number: usize) -> SandboxId {
        format!("s{number}").parse().unwrap()
    }

    fn ids(number: usize) -> ExecId {
        format!("e{number}").parse().unwrap()
    }

    #[test]
    fn a_trace_has_its_steps_where_they_belong() {
        let (recorder, _on) = recorded();
        create().in_scope(|| {
            info_span!(target: STEP, "key").in_scope(|| {});
            about(&sandbox(1));
            info_span!(target: STEP, "start").in_scope(|| {
                info_span!("of somebody else").in_scope(|| {
                    info_span!(target: STEP, "store", what = "take a note").in_scope(|| {});
                });
            });
            assert_eq!(recorder.traces(&sandbox(1), None)[0].steps[0].took_us, None, "it goes on");
        });
        let traces = recorder.traces(&sandbox(1), None);
        let shown =
            traces[0].steps.iter().map(|step| (step.name.as_str(), step.parent, step.what.as_deref()));
        assert_eq!(
            shown.collect::<Vec<_>>(),
            [
                ("create", None, None),
                ("key", Some(0), None),
                ("start", Some(0), None),
                ("store", Some(2), Some("take a note"))
            ]
        );
        let ends = |step: &Step| step.begun_us + step.took_us.unwrap();
        assert!(ends(&traces[0].steps[3]) <= ends(&traces[0].steps[0]));
        assert!(recorder.traces(&sandbox(2), None).is_empty());
    }

    #[test]
    fn what_belongs_to_no_request_is_not_kept() {
        let (recorder, _on) = recorded();
        info_span!(target: STEP, "store").in_scope(|| {});
        create().in_scope(|| info_span!(target: STEP, "key").in_scope(|| {}));
        assert!(locked(&recorder.kept).traces.is_empty());
    }

    #[test]
    fn a_step_in_another_task_or_thread_is_found_by_the_span_that_went_along() {
        let (recorder, _on) = recorded();
        let root = create();
        root.in_scope(|| about(&sandbox(1)));
        let dispatch = tracing::dispatcher::get_default(Clone::clone);
        let span = root.clone();
        let blocking = std::thread::spawn(move || {
            tracing::dispatcher::with_default(&dispatch, || {
                span.in_scope(|| info_span!(target: STEP, "disk").in_scope(|| {}));
            });
        });
        blocking.join().unwrap();
        drop(root);
        assert_eq!(recorder.traces(&sandbox(1), None)[0].steps[1].parent, Some(0));
    }

    #[test]
    fn everything_is_bounded_and_the_create_outlives_the_execs() {
        let (recorder, _on) = recorded();
        create().in_scope(|| {
            about(&sandbox(0));
            for _ in 0..2 * STEPS_MAX {
                info_span!(target: STEP, "turn").in_scope(|| info_span!(target: STEP, "one").in_scope(|| {}));
            }
        });
        for number in 0..2 * OF_SANDBOX_MAX {
            exec().in_scope(|| about_exec(&sandbox(0), &ids(number)));
        }
        let traces = recorder.traces(&sandbox(0), None);
        assert_eq!((traces.len(), traces[0].steps.len()), (OF_SANDBOX_MAX, STEPS_MAX));
        assert_eq!(traces[0].left_out as usize, 4 * STEPS_MAX - STEPS_MAX + 1);
        let last = ids(2 * OF_SANDBOX_MAX - 1);
        assert_eq!(recorder.traces(&sandbox(0), Some(&last)).len(), 1);
        assert!(recorder.traces(&sandbox(0), Some(&ids(0))).is_empty());
        for number in 1..=TRACES_MAX {
            exec().in_scope(|| about_exec(&sandbox(number), &ids(1)));
        }
        let kept = locked(&recorder.kept);
        assert_eq!((kept.traces.len(), kept.of_sandbox.len()), (TRACES_MAX, TRACES_MAX));
    }

    /// The time limit suits an unoptimized build, with a margin for a busy machine.
    #[test]
    fn a_step_costs_microseconds() {
        const STEPS: u32 = 20_000;
        let (_recorder, _on) = recorded();
        let begun = Instant::now();
        for _ in 0..STEPS / 20 {
            create().in_scope(|| {
                about(&sandbox(1));
                for _ in 0..19 {
                    info_span!(target: STEP, "disk").in_scope(|| {});
                }
            });
        }
        let each = begun.elapsed() / STEPS;
        println!("a step costs {each:?}");
        assert!(each < Duration::from_micros(100), "{each:?}");
    }
}
