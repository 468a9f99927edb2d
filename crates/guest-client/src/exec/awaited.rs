//! What a reader of an exec waits for, as steps: the first thing that the exec shows, and then its end.

use api::trace::STEP;
use tracing::{Span, info_span};

use super::Event;

/// What is waited for.
#[derive(Default)]
pub(super) enum Awaited {
    /// Nobody reads yet.
    #[default]
    Nothing,
    /// The first thing that it shows; its end, where it shows nothing.
    First(#[allow(dead_code, reason = "the span measures the time until it is dropped")] Span),
    /// Its end.
    End(#[allow(dead_code, reason = "the span measures the time until it is dropped")] Span),
}

impl Awaited {
    /// Somebody waits.
    pub fn begin(&mut self) {
        if let Self::Nothing = self {
            *self = Self::First(info_span!(target: STEP, "first byte"));
        }
    }

    /// This came.
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
