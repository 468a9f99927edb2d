//! The life of one sandbox as a pure function: what happens to it, and what is to be done about it.
//!
//! ```text
//! Starting ──Started──▶ Running ──Asked, Vanished──▶ Stopping ──Gone──▶ Ended
//!     ├──StartFailed──────────────────────────────────▲  └─NotGone─┘ (again, until it is gone)
//!     └──Asked: remembered, and done as soon as the start is over
//! ```
//!
//! A start is never torn down under itself: it takes milliseconds and ends by its own deadline. The first reason is the
//! reason: whatever happens later does not rewrite why a sandbox ended.

use api::sandbox::{EndReason, Sandbox, SandboxState};

/// Where a sandbox is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It is being made; `asked` is why it is to end as soon as it is.
    Starting {
        /// Why it is to end.
        asked: Option<EndReason>,
    },
    /// It runs.
    Running,
    /// It is being taken down.
    Stopping(EndReason),
    /// Nothing of it is left.
    Ended(EndReason),
}

/// What can happen to a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// It runs, and its posture was checked.
    Started,
    /// It could not be started.
    StartFailed,
    /// Somebody or a limit wants it to end.
    Asked(EndReason),
    /// Its process 1 is gone.
    Vanished(EndReason),
    /// Everything of it is removed.
    Gone,
    /// Something of it could not be removed.
    NotGone,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Nothing but waiting for what happens next.
    Wait,
    /// Remove everything of it.
    TearDown,
    /// Remove everything of it, after a pause: it was tried and did not work.
    TearDownLater,
    /// Write down that it has ended, and why.
    Finish,
}

/// What becomes of a sandbox when something happens to it, and what is to be done.
pub fn next(phase: Phase, happening: Happening) -> (Phase, Act) {
    use Happening as H;
    use Phase as P;
    match (phase, happening) {
        (P::Starting { asked: None }, H::Started) => (P::Running, Act::Wait),
        (P::Starting { asked: Some(reason) }, H::Started) => (P::Stopping(reason), Act::TearDown),
        (P::Starting { .. }, H::StartFailed) => (P::Stopping(EndReason::StartFailed), Act::TearDown),
        (P::Starting { asked }, H::Asked(reason)) => {
            (P::Starting { asked: asked.or(Some(reason)) }, Act::Wait)
        }
        (P::Running, H::Asked(reason) | H::Vanished(reason)) => (P::Stopping(reason), Act::TearDown),
        (P::Stopping(reason), H::Gone) => (P::Ended(reason), Act::Finish),
        (P::Stopping(reason), H::NotGone) => (P::Stopping(reason), Act::TearDownLater),
        // What comes too late or too early changes nothing.
        (P::Starting { .. }, H::Vanished(_) | H::Gone | H::NotGone)
        | (P::Running, H::Started | H::StartFailed | H::Gone | H::NotGone)
        | (P::Stopping(_), H::Started | H::StartFailed | H::Asked(_) | H::Vanished(_))
        | (P::Ended(_), _) => (phase, Act::Wait),
    }
}

impl Phase {
    /// The state that is shown.
    pub fn state(self) -> SandboxState {
        match self {
            Self::Starting { .. } => SandboxState::Starting,
            Self::Running => SandboxState::Running,
            Self::Stopping(_) => SandboxState::Stopping,
            Self::Ended(reason) => reason.state(),
        }
    }

    /// Why it ends or ended.
    pub fn reason(self) -> Option<EndReason> {
        match self {
            Self::Starting { .. } | Self::Running => None,
            Self::Stopping(reason) | Self::Ended(reason) => Some(reason),
        }
    }

    /// Shows it on a sandbox that enters it at this time.
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

    fn reasons() -> impl Strategy<Value = EndReason> {
        prop::sample::select(vec![
            EndReason::Stopped,
            EndReason::Idle,
            EndReason::Expired,
            EndReason::Died,
            EndReason::Oom,
        ])
    }

    fn happenings() -> impl Strategy<Value = Happening> {
        prop_oneof![
            Just(Happening::Started),
            Just(Happening::StartFailed),
            reasons().prop_map(Happening::Asked),
            reasons().prop_map(Happening::Vanished),
            Just(Happening::Gone),
            Just(Happening::NotGone),
        ]
    }

    fn rank(phase: Phase) -> u32 {
        match phase {
            Phase::Starting { .. } => 0,
            Phase::Running => 1,
            Phase::Stopping(_) => 2,
            Phase::Ended(_) => 3,
        }
    }

    proptest! {
        #[test]
        fn life_goes_one_way_and_the_first_reason_stays(story in prop::collection::vec(happenings(), 0..40)) {
            let mut phase = Phase::Starting { asked: None };
            for happening in story {
                let (after, act) = next(phase, happening);
                prop_assert!(rank(after) >= rank(phase), "{phase:?} {happening:?} {after:?}");
                if let Some(reason) = phase.reason() {
                    prop_assert_eq!(after.reason(), Some(reason));
                }
                // Whoever begins to stop is torn down, and nobody is finished who was not.
                let begins = rank(phase) < 2 && rank(after) == 2;
                prop_assert_eq!(begins, act == Act::TearDown);
                prop_assert_eq!(act == Act::Finish, rank(phase) == 2 && rank(after) == 3);
                phase = after;
            }
        }

        #[test]
        fn whoever_is_asked_to_end_ends(
            before in prop::collection::vec(happenings(), 0..20),
            reason in reasons(),
            failures in 0..5,
        ) {
            let mut phase = before.into_iter().fold(Phase::Starting { asked: None }, |phase, one| next(phase, one).0);
            phase = next(phase, Happening::Asked(reason)).0;
            phase = next(phase, Happening::Started).0;
            prop_assert!(rank(phase) >= 2, "{phase:?} after a start that was to end");
            for _ in 0..failures {
                phase = next(phase, Happening::NotGone).0;
            }
            prop_assert!(matches!(next(phase, Happening::Gone).0, Phase::Ended(_)));
        }

        #[test]
        fn after_the_end_nothing_happens(reason in reasons(), happening in happenings()) {
            prop_assert_eq!(next(Phase::Ended(reason), happening), (Phase::Ended(reason), Act::Wait));
        }
    }
}
