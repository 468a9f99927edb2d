//! Watches a running sandbox: waits for its end, for requests, and for its limits.

use std::time::Duration;

use api::exec::LostCause;
use api::sandbox::{EndReason, SandboxEvent};
use guest_client::Sandbox;
use guest_client::exec::OVERDUE_MS;
use host::clock;
use host::error::Error;
use tokio::time::Instant;

use super::egress::attended;
use super::{Driver, LOOK_AGAIN, SLEEP_MAX};
use crate::handle::Handle;
use crate::lifecycle::Event;
use crate::message::DriverMessage;

/// Maximum time between the warning and the stop of an idle sandbox. If a fifth of the sandbox's idle timeout
/// is shorter, it is used instead.
const WARN_MAX: Duration = Duration::from_secs(60);

/// The result of checking a sandbox's limits.
enum Looked {
    /// A reason to end the sandbox.
    Reason(EndReason),
    /// A request to stop arrived during the check.
    Message(DriverMessage),
    Nothing,
}

impl Driver {
    /// Waits until process 1 exits, a request to stop or pause arrives, or a limit is reached. Serves the
    /// sandbox's outgoing connections in the meantime.
    pub(super) async fn watch(&mut self) -> Event {
        let Some(sandbox) = self.handle.sandbox() else { return Event::Exited(EndReason::Died) };
        if self.attendant.is_none() {
            self.attendant = Some(attended(&self.shared, &self.handle, &sandbox));
        }
        if self.telling.is_none() && self.handle.pauses_on_timeout() {
            self.tell_lifetime(&sandbox);
        }
        let mut warned = false;
        loop {
            let wake = self.wake(&mut warned);
            let message = tokio::select! {
                cause = sandbox.ended() => return Event::Exited(self.why(cause)),
                message = self.inbox.recv() => message,
                () = tokio::time::sleep_until(wake) => match self.look(&sandbox).await {
                    Looked::Reason(reason) => return self.timeout(reason),
                    Looked::Nothing if !self.pause_replies.is_empty() => {
                        return Event::PauseRequested { otherwise: None };
                    }
                    Looked::Nothing => continue,
                    Looked::Message(message) => Some(message),
                },
            };
            match message {
                Some(DriverMessage::End(reason)) => return Event::Requested(reason),
                Some(DriverMessage::Pause(asked)) => {
                    self.pause_replies.push(asked);
                    return Event::PauseRequested { otherwise: None };
                }
                Some(DriverMessage::Resume(request)) => drop(request.reply.send(Ok(false))),
                Some(DriverMessage::Look) => {}
                // The node is gone, and this task is about to be dropped.
                None => std::future::pending().await,
            }
        }
    }

    /// Checks the limits of the sandbox. An unresponsive guest must not delay a stop, so a request to stop
    /// ends the check. A pause is postponed until the check is complete, because the result of the check
    /// would otherwise be lost.
    async fn look(&mut self, sandbox: &Sandbox) -> Looked {
        let looking = look(&self.handle, sandbox);
        tokio::pin!(looking);
        loop {
            tokio::select! {
                reason = &mut looking => return match reason {
                    Some(reason) => Looked::Reason(reason),
                    None => Looked::Nothing,
                },
                message = self.inbox.recv() => match message {
                    Some(DriverMessage::Pause(asked)) => self.pause_replies.push(asked),
                    Some(DriverMessage::Resume(request)) => drop(request.reply.send(Ok(false))),
                    Some(DriverMessage::Look) => {}
                    Some(message @ DriverMessage::End(_)) => return Looked::Message(message),
                    // The node is gone, and this task is about to be dropped.
                    None => std::future::pending().await,
                },
            }
        }
    }

    /// Returns the event that follows when a limit is reached: a pause or a stop.
    fn timeout(&self, reason: EndReason) -> Event {
        let is_timeout = matches!(reason, EndReason::Idle | EndReason::Expired);
        match is_timeout && self.handle.pauses_on_timeout() {
            true => Event::PauseRequested { otherwise: Some(reason) },
            false => Event::Requested(reason),
        }
    }

    /// Returns the time by which the next check must take place. Emits a warning if the sandbox has nearly
    /// reached its idle timeout.
    fn wake(&self, warned: &mut bool) -> Instant {
        let now = Instant::now();
        let left = self.handle.left();
        let idle = self.handle.idle_left(now);
        let near = WARN_MAX.min(self.handle.idle() / 5);
        if idle > near {
            *warned = false;
        } else if !*warned {
            *warned = true;
            self.shared.say(SandboxEvent::Expiring {
                sandbox: self.handle.id().clone(),
                reason: EndReason::Idle,
                in_ms: clock::millis(idle),
            });
        }
        let to_warning = if *warned { idle } else { idle - near };
        let look = self.handle.next_look().map_or(SLEEP_MAX, |at| at.saturating_duration_since(now));
        now + left.min(to_warning).min(look).min(SLEEP_MAX)
    }

    /// Returns the end reason for a sandbox whose process 1 has exited.
    pub(super) fn why(&self, cause: LostCause) -> EndReason {
        match cause {
            // Only the parent of process 1 can read its exit status, and a restarted server is not the
            // parent. Expiry is therefore recognized by the clock.
            LostCause::Died | LostCause::Expired if clock::boot_ms() >= self.handle.expires_boot_ms() => {
                EndReason::Expired
            }
            LostCause::Died => EndReason::Died,
            LostCause::Expired => EndReason::Expired,
            LostCause::Oom => EndReason::Oom,
            LostCause::Stopped => EndReason::Stopped,
            LostCause::KernelResource => EndReason::KernelResource,
        }
    }
}

/// Returns the reason to end the sandbox now, if it has reached a limit.
async fn look(handle: &Handle, sandbox: &Sandbox) -> Option<EndReason> {
    if clock::boot_ms() >= handle.expires_boot_ms() {
        return Some(EndReason::Expired);
    }
    let now = Instant::now();
    let overdue = handle.take_look(now)?;
    let execs = match sandbox.execs().await {
        Ok(execs) => execs,
        // The reason becomes known when the exit of process 1 is noticed.
        Err(Error::Lost(_)) => return None,
        Err(_) => {
            // If a deadline has passed, the unresponsive guest has failed to enforce it. Otherwise, the guest
            // may only be slow to reconnect.
            handle.look_at(Instant::now() + LOOK_AGAIN);
            return overdue.then_some(EndReason::Overdue);
        }
    };
    let of_template = crate::ready::started();
    for exec in execs.iter().filter(|exec| exec.id != of_template) {
        if let Some(since) = exec.ended_ms_ago {
            handle.active(now.checked_sub(Duration::from_millis(since)).unwrap_or(now));
        } else if exec.outcome.is_none() {
            handle.active(now);
            let whole = exec.deadline_ms.map(|deadline| deadline + exec.grace_ms + OVERDUE_MS);
            match whole.map(|whole| whole.saturating_sub(exec.duration_ms)) {
                Some(0) => {
                    sandbox.link().overdue(&exec.id);
                    return Some(EndReason::Overdue);
                }
                Some(left) => handle.due_at(now + Duration::from_millis(left)),
                None => {}
            }
        }
    }
    handle.idle_left(now).is_zero().then_some(EndReason::Idle)
}
