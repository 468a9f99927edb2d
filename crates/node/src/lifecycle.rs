//! The life of a sandbox as a pure function. [`next`] maps a phase and an event to the next phase and the
//! effect to execute.
//!
//! ```text
//! Starting ──Started──▶ Running ──Requested──▶ Settling ──Settled──▶ Stopping ──Removed──▶ Ended
//!     │                    └──────Exited───────────────────────────────▲ ▲  └─NotRemoved─┘ (retried)
//!     ├──StartFailed─────────────────────────────────────────────────────┘
//!     └──Requested: recorded, and applied when startup finishes
//!
//! Running ──PauseRequested──▶ Pausing ──Paused──▶ Paused ──ResumeRequested──▶ Resuming ──Resumed──▶ Running
//!    ▲                           │                 ▲ │ └──Requested, Exited──▶ Stopping      │
//!    └────────NotPaused──────────┘                 │ └─────────────◀───────NotResumed────────┘
//! ```
//!
//! If a timeout requested a pause and the pause fails, the sandbox is stopped, because its time is up. A
//! paused sandbox is stopped without settling, because no results can be read from it. Neither a pause nor a
//! resume is interrupted halfway: both have deadlines.
//!
//! Startup is never torn down halfway: it takes milliseconds and has its own deadline. The first reason for
//! ending a sandbox is final; later events do not change it. The driver executes exactly the effects that
//! `next` returns, so the properties tested here hold for the driver.

use api::sandbox::{EndReason, Sandbox, SandboxState};

/// A phase in the life of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The sandbox is being created.
    Starting {
        /// Reason to stop the sandbox as soon as startup finishes.
        requested: Option<EndReason>,
    },
    /// The sandbox is running.
    Running,
    /// The sandbox is being paused. Clients see it as running until it is paused.
    Pausing {
        /// Reason to stop the sandbox if it cannot be paused.
        otherwise: Option<EndReason>,
    },
    /// The sandbox is paused.
    Paused,
    /// The sandbox is being resumed. Clients see it as paused until it is running again.
    Resuming,
    /// Results of the sandbox are being collected before it is stopped. Clients still see it as running.
    Settling(EndReason),
    /// The sandbox is being removed.
    Stopping(EndReason),
    /// The sandbox has been removed.
    Ended(EndReason),
}

/// An event in the life of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The sandbox was created and its posture was checked.
    Started,
    /// The sandbox could not be created.
    StartFailed,
    /// A request or a limit ends the sandbox.
    Requested(EndReason),
    /// A request or a limit pauses the sandbox.
    PauseRequested {
        /// Reason to stop the sandbox if it cannot be paused.
        otherwise: Option<EndReason>,
    },
    /// The sandbox is paused, and the pause is journalled.
    Paused,
    /// The sandbox could not be paused and is still running.
    NotPaused,
    /// A request resumes the sandbox.
    ResumeRequested,
    /// The sandbox is running again, and the resume is journalled.
    Resumed,
    /// The sandbox could not be resumed and is still paused.
    NotResumed,
    /// Process 1 of the sandbox exited.
    Exited(EndReason),
    /// The results of the sandbox have been collected.
    Settled,
    /// The sandbox was removed completely.
    Removed,
    /// A part of the sandbox could not be removed.
    NotRemoved,
}

/// An effect that the driver executes. Each effect except `Finish` ends with the next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Wait until startup finishes, or for a request to stop the sandbox.
    AwaitStart,
    /// Notify the startup task that its result is no longer needed, then wait until startup finishes.
    AbandonStart,
    /// Wait until process 1 exits, a request to stop or pause arrives, or a limit is reached.
    Watch,
    /// Pause the sandbox.
    Pause,
    /// Wait until a request to resume or stop arrives, process 1 exits, or the maximum pause time has passed.
    AwaitResume,
    /// Resume the sandbox.
    Resume,
    /// Collect results that are available only while the sandbox is running.
    Settle,
    /// Remove the sandbox.
    TearDown,
    /// Remove the sandbox after a delay, because the last attempt failed.
    TearDownLater,
    /// Nothing is left to do.
    Finish,
}

/// Returns the phase after an event, and the effect to execute next. An event that does not apply to the
/// phase changes nothing, and the effect of the phase continues.
pub fn next(phase: Phase, event: Event) -> (Phase, Effect) {
    use Event as E;
    use Phase as P;
    match (phase, event) {
        (P::Starting { requested: None }, E::Started) => (P::Running, Effect::Watch),
        (P::Starting { requested: Some(reason) }, E::Started) => (P::Stopping(reason), Effect::TearDown),
        (P::Starting { .. }, E::StartFailed) => (P::Stopping(EndReason::StartFailed), Effect::TearDown),
        (P::Starting { requested }, E::Requested(reason)) => {
            (P::Starting { requested: requested.or(Some(reason)) }, Effect::AbandonStart)
        }
        (P::Running, E::Requested(reason)) => (P::Settling(reason), Effect::Settle),
        (P::Running, E::PauseRequested { otherwise }) => (P::Pausing { otherwise }, Effect::Pause),
        (P::Running, E::Exited(reason)) => (P::Stopping(reason), Effect::TearDown),
        (P::Pausing { .. }, E::Paused) => (P::Paused, Effect::AwaitResume),
        (P::Pausing { otherwise: None }, E::NotPaused) => (P::Running, Effect::Watch),
        (P::Pausing { otherwise: Some(reason) }, E::NotPaused) => (P::Settling(reason), Effect::Settle),
        (P::Paused, E::ResumeRequested) => (P::Resuming, Effect::Resume),
        (P::Paused, E::Requested(reason) | E::Exited(reason)) => (P::Stopping(reason), Effect::TearDown),
        (P::Resuming, E::Resumed) => (P::Running, Effect::Watch),
        (P::Resuming, E::NotResumed) => (P::Paused, Effect::AwaitResume),
        (P::Settling(reason), E::Settled | E::Exited(_)) => (P::Stopping(reason), Effect::TearDown),
        (P::Stopping(reason), E::Removed) => (P::Ended(reason), Effect::Finish),
        (P::Stopping(_), E::NotRemoved) => (phase, Effect::TearDownLater),
        _ => (phase, effect(phase)),
    }
}

/// Returns the effect that continues a phase after an event that does not apply to the phase.
fn effect(phase: Phase) -> Effect {
    match phase {
        Phase::Starting { .. } => Effect::AwaitStart,
        Phase::Running => Effect::Watch,
        Phase::Pausing { .. } => Effect::Pause,
        Phase::Paused => Effect::AwaitResume,
        Phase::Resuming => Effect::Resume,
        Phase::Settling(_) => Effect::Settle,
        Phase::Stopping(_) => Effect::TearDown,
        Phase::Ended(_) => Effect::Finish,
    }
}

impl Phase {
    /// Returns the state that clients see.
    pub fn state(self) -> SandboxState {
        match self {
            Self::Starting { .. } => SandboxState::Starting,
            Self::Running | Self::Pausing { .. } | Self::Settling(_) => SandboxState::Running,
            Self::Paused | Self::Resuming => SandboxState::Paused,
            Self::Stopping(_) => SandboxState::Stopping,
            Self::Ended(reason) => reason.state(),
        }
    }

    /// Returns the end reason that clients see, if there is one.
    pub fn reason(self) -> Option<EndReason> {
        match self {
            Self::Starting { .. }
            | Self::Running
            | Self::Pausing { .. }
            | Self::Paused
            | Self::Resuming
            | Self::Settling(_) => None,
            Self::Stopping(reason) | Self::Ended(reason) => Some(reason),
        }
    }

    /// Writes the phase to the record of a sandbox that enters the phase at `now_ms`.
    pub fn mark(self, sandbox: &mut Sandbox, now_ms: u64) {
        sandbox.state = self.state();
        sandbox.reason = self.reason();
        if sandbox.state.is_terminal() {
            sandbox.ended_at_ms = Some(now_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: Phase = Phase::Starting { requested: None };

    fn reasons() -> impl Strategy<Value = EndReason> {
        prop::sample::select(vec![
            EndReason::Stopped,
            EndReason::Idle,
            EndReason::Expired,
            EndReason::Died,
            EndReason::Oom,
        ])
    }

    fn events() -> impl Strategy<Value = Event> {
        prop_oneof![
            Just(Event::Started),
            Just(Event::StartFailed),
            reasons().prop_map(Event::Requested),
            reasons().prop_map(Event::Exited),
            Just(Event::PauseRequested { otherwise: None }),
            reasons().prop_map(|reason| Event::PauseRequested { otherwise: Some(reason) }),
            Just(Event::Paused),
            Just(Event::NotPaused),
            Just(Event::ResumeRequested),
            Just(Event::Resumed),
            Just(Event::NotResumed),
            Just(Event::Settled),
            Just(Event::Removed),
            Just(Event::NotRemoved),
        ]
    }

    fn rank(phase: Phase) -> u32 {
        match phase {
            Phase::Starting { .. } => 0,
            Phase::Running | Phase::Pausing { .. } | Phase::Paused | Phase::Resuming => 1,
            Phase::Settling(_) => 2,
            Phase::Stopping(_) => 3,
            Phase::Ended(_) => 4,
        }
    }

    /// Returns the events that can follow when the driver executes an effect.
    fn results(effect: Effect, reason: EndReason) -> Vec<Event> {
        match effect {
            Effect::AwaitStart | Effect::AbandonStart => {
                vec![Event::Started, Event::StartFailed, Event::Requested(reason)]
            }
            Effect::Watch => vec![
                Event::Requested(reason),
                Event::Exited(reason),
                Event::PauseRequested { otherwise: None },
                Event::PauseRequested { otherwise: Some(reason) },
            ],
            Effect::Pause => vec![Event::Paused, Event::NotPaused],
            Effect::AwaitResume => {
                vec![Event::Requested(reason), Event::Exited(reason), Event::ResumeRequested]
            }
            Effect::Resume => vec![Event::Resumed, Event::NotResumed],
            Effect::Settle => vec![Event::Settled],
            Effect::TearDown | Effect::TearDownLater => vec![Event::Removed, Event::NotRemoved],
            Effect::Finish => vec![],
        }
    }

    proptest! {
        #[test]
        fn life_goes_one_way_and_the_first_reason_is_final(story in prop::collection::vec(events(), 0..40)) {
            let mut phase = START;
            for event in story {
                let (after, effect) = next(phase, event);
                prop_assert!(rank(after) >= rank(phase), "{phase:?} {event:?} {after:?}");
                if let Some(reason) = phase.reason() {
                    prop_assert_eq!(after.reason(), Some(reason));
                }
                if let (Phase::Settling(before), Phase::Settling(later) | Phase::Stopping(later)) = (phase, after) {
                    prop_assert_eq!(before, later);
                }
                prop_assert_eq!(effect == Effect::Finish, rank(after) == 4);
                phase = after;
            }
        }

        /// Verifies that each effect fits the new phase: a sandbox is removed only while it is stopping, and
        /// watched only while it is running.
        #[test]
        fn an_effect_fits_its_phase(story in prop::collection::vec(events(), 1..40)) {
            let mut phase = START;
            for event in story {
                let (after, effect) = next(phase, event);
                let fits = match effect {
                    Effect::AwaitStart | Effect::AbandonStart => 0,
                    Effect::Watch | Effect::Pause | Effect::AwaitResume | Effect::Resume => 1,
                    Effect::Settle => 2,
                    Effect::TearDown | Effect::TearDownLater => 3,
                    Effect::Finish => 4,
                };
                prop_assert_eq!(rank(after), fits, "{:?} {:?} {:?}", phase, event, effect);
                phase = after;
            }
        }

        /// Verifies that a driver that executes the effects reaches the end after a request to stop, whatever
        /// their results.
        #[test]
        fn a_sandbox_that_is_requested_to_stop_ends(
            choices in prop::collection::vec(0_usize..4, 0..30),
            reason in reasons(),
        ) {
            let (mut phase, mut effect) = (START, Effect::AwaitStart);
            let mut choices = choices.into_iter();
            loop {
                let results = results(effect, reason);
                let Some(last) = results.len().checked_sub(1) else { break };
                // Once the choices are used up, starts and removals succeed, and a running sandbox receives a
                // request to stop.
                let event = results[choices.next().unwrap_or(0).min(last)];
                (phase, effect) = next(phase, event);
            }
            prop_assert!(matches!(phase, Phase::Ended(_)), "{phase:?}");
        }

        /// Verifies that clients see a pause only after it succeeded, and that a sandbox ends if its timeout
        /// requested a pause that failed.
        #[test]
        fn clients_see_a_pause_only_after_it_succeeded(story in prop::collection::vec(events(), 1..60)) {
            let mut phase = START;
            for event in story {
                let (after, _) = next(phase, event);
                if after.state() == SandboxState::Paused && phase.state() != SandboxState::Paused {
                    let succeeded = matches!((phase, event), (Phase::Pausing { .. }, Event::Paused));
                    prop_assert!(succeeded, "{:?} {:?}", phase, event);
                }
                if let (Phase::Pausing { otherwise: Some(reason) }, Event::NotPaused) = (phase, event) {
                    prop_assert_eq!(after, Phase::Settling(reason));
                }
                phase = after;
            }
        }

        #[test]
        fn after_the_end_nothing_happens(reason in reasons(), event in events()) {
            prop_assert_eq!(next(Phase::Ended(reason), event), (Phase::Ended(reason), Effect::Finish));
        }
    }
}
