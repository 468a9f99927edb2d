//! Tests of the clock of an exec.

use super::*;

/// Verifies that a pause longer than the deadline does not end the exec, and does not count toward its
/// duration.
#[tokio::test(start_paused = true)]
async fn the_time_of_a_pause_does_not_count() {
    let spec = ExecSpec { argv: vec!["true".into()], deadline_ms: Some(1000), ..ExecSpec::default() };
    let exec = GuestExec::new(ExecId::from_random([1; 16]), &spec, 0, 1, Rc::default());
    let seconds = Duration::from_secs;
    exec.clock();
    tokio::time::advance(Duration::from_millis(400)).await;
    exec.hold_time();
    assert!(tokio::time::timeout(seconds(3600), exec.until_decided()).await.is_err());
    exec.hold_time();
    assert_eq!(exec.info(1).duration_ms, 400);
    exec.release_time();
    exec.release_time();
    assert_eq!(exec.info(1).duration_ms, 400);
    assert!(tokio::time::timeout(Duration::from_millis(500), exec.until_decided()).await.is_err());
    tokio::time::timeout(seconds(1), exec.until_decided()).await.unwrap();
    assert_eq!(exec.reason(), Some(Outcome::Timeout));
}

/// Verifies that a deadline timer that expires during a pause does not end the exec.
#[tokio::test(start_paused = true)]
async fn a_deadline_that_passed_in_a_pause_ends_nothing() {
    let spec = ExecSpec { argv: vec!["true".into()], deadline_ms: Some(1000), ..ExecSpec::default() };
    for _ in 0..20 {
        let exec = GuestExec::new(ExecId::from_random([1; 16]), &spec, 0, 1, Rc::default());
        exec.clock();
        let decided = exec.until_decided();
        tokio::pin!(decided);
        assert!(tokio::time::timeout(Duration::ZERO, &mut decided).await.is_err());
        exec.hold_time();
        tokio::time::advance(Duration::from_secs(3600)).await;
        exec.release_time();
        assert!(tokio::time::timeout(Duration::from_millis(500), &mut decided).await.is_err());
        assert_eq!(exec.reason(), None);
    }
}

/// Verifies that code that begins during a pause gets its full deadline, and no more.
#[tokio::test(start_paused = true)]
async fn what_begins_during_a_pause_has_its_own_deadline() {
    let spec = ExecSpec { argv: vec!["true".into()], deadline_ms: Some(1000), ..ExecSpec::default() };
    let exec = GuestExec::new(ExecId::from_random([1; 16]), &spec, 0, 1, Rc::default());
    exec.hold_time();
    tokio::time::advance(Duration::from_secs(3600)).await;
    exec.clock();
    tokio::time::advance(Duration::from_millis(10)).await;
    exec.release_time();
    assert_eq!(exec.info(1).duration_ms, 0);
    tokio::time::timeout(Duration::from_millis(1100), exec.until_decided()).await.unwrap();
    assert_eq!(exec.reason(), Some(Outcome::Timeout));
}

#[test]
fn an_exec_tells_the_deadline_it_was_given() {
    for deadline_ms in [None, Some(1), Some(limits::DEADLINE_MS_MAX)] {
        let spec = ExecSpec { argv: vec!["true".into()], deadline_ms, ..ExecSpec::default() };
        let exec = GuestExec::new("e1".parse().unwrap(), &spec, 0, 20_000, Rc::default());
        assert_eq!(exec.info(1).deadline_ms, deadline_ms);
    }
}
