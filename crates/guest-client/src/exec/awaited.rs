//! The trace steps of an exec's reader: the wait for the first event, and then the wait for the end.

use api::trace::STEP;
use tracing::{Span, info_span};

use api::output::Event;

/// The trace step in progress.
#[derive(Default)]
pub(super) enum Awaited {
    /// The exec is not being read yet.
    #[default]
    Nothing,
    /// The wait for the first event, which is the end if the exec prints nothing.
    First(#[allow(dead_code, reason = "the span measures the time until it is dropped")] Span),
    /// The wait for the end.
    End(#[allow(dead_code, reason = "the span measures the time until it is dropped")] Span),
}

impl Awaited {
    /// Records that a reader is waiting for an event.
    pub fn begin(&mut self) {
        if let Self::Nothing = self {
            *self = Self::First(info_span!(target: STEP, "first byte"));
        }
    }

    /// Records an event.
    pub fn saw(&mut self, event: &Event) {
        match (event, &self) {
            (Event::End(_), _) => *self = Self::Nothing,
            (Event::Data { .. } | Event::Gap { .. } | Event::Result { .. }, Self::First(_)) => {
                *self = Self::End(info_span!(target: STEP, "end"));
            }
            (Event::Data { .. } | Event::Gap { .. } | Event::Result { .. }, Self::Nothing | Self::End(_)) => {
            }
        }
    }
}
