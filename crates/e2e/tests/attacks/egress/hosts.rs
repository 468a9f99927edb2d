//! Attacks N-30, N-34 and N-38: hosts and programs that use up the server's memory, descriptors and audit
//! log.

use std::time::Duration;

use api::policy::Policy;
use e2e::attack;
use e2e::world::in_a_world;

use super::ground::{Running, Siege, descriptors, on_each_tier, rss_bytes};

/// Number of requests to which the host responds with endless headers.
const HEADS: usize = 200;
/// Maximum memory growth of the server. With the limit of 64 KiB per response, it grows by about 12 MiB.
const HEADS_BYTES_MAX: u64 = 24 << 20;
/// Minimum memory growth without the limit. At 392 kB per response, the server grows by about 75 MiB.
const HEADS_BYTES_CONTROL: u64 = 48 << 20;
/// Maximum increase in descriptors: the 512 connections of a sandbox, and the other descriptors that the
/// server opens for the sandbox.
const DESCRIPTORS_MAX: usize = 512 + 40;
/// Maximum number of audit log lines about one sandbox. It allows a burst of 200 lines, and then 10 lines and
/// one summary per second for 20 s.
const LINES_MAX: usize = 200 + 11 * 20;

/// Verifies that attack N-30 fails: the memory used for a response with endless headers is limited.
#[test]
#[ignore = "starts real sandboxes"]
fn a_head_that_never_ends_costs_the_server_no_more_than_its_bound() {
    in_a_world(async |world| {
        on_each_tier(world, async |siege| {
            let (said, grown) = heads(siege).await;
            assert!(said.contains(&format!("refused {HEADS} waiting 0")), "{said}");
            assert!(grown < HEADS_BYTES_MAX, "the server has {grown} bytes more");
            siege.undefend("N-30");
            let (said, without) = heads(siege).await;
            assert!(said.contains(&format!("refused 0 waiting {HEADS}")), "control: {said}");
            assert!(without > HEADS_BYTES_CONTROL, "control: the server has {without} bytes more");
            let runtime = siege.runtime();
            attack::held(
                "N-30",
                runtime,
                &format!("{HEADS} heads, {grown} bytes; the control took {without}"),
            );
        })
        .await;
    });
}

/// Runs a payload that requests responses with endless headers. Returns its output and the server's memory
/// growth.
async fn heads(siege: &Siege<'_>) -> (String, u64) {
    let sandbox = siege.sandbox(Policy::of_words(&["good.example"]).unwrap()).await;
    siege.recovers(&sandbox).await;
    let before = rss_bytes(siege.pid());
    let mut running = siege.begin_payload("N-30", &sandbox, &[&HEADS.to_string()]).await;
    running.until("waiting").await;
    let grown = rss_bytes(siege.pid()).saturating_sub(before);
    let said = running.rest().await;
    siege.recovers(&sandbox).await;
    (said, grown)
}

/// Verifies that attack N-34 fails: a program that disconnects while the server is still dialling counts
/// towards the connection limit.
#[test]
#[ignore = "starts real sandboxes"]
fn programs_that_connect_and_leave_have_no_more_connections_than_others() {
    in_a_world(async |world| {
        on_each_tier(world, async |siege| {
            let (said, most) = dials(siege).await;
            assert!(most <= DESCRIPTORS_MAX, "{most} descriptors more: {said}");
            assert!(most >= 300, "hosts were dialled: {most}: {said}");
            siege.undefend("N-34");
            let (said, without) = dials(siege).await;
            assert!(without > DESCRIPTORS_MAX + 50, "control: {without} descriptors more: {said}");
            attack::held(
                "N-34",
                siege.runtime(),
                &format!("{most} descriptors at most; the control took {without}"),
            );
        })
        .await;
    });
}

/// Runs a payload that connects to silent hosts. Returns its output and the maximum increase in descriptors.
async fn dials(siege: &Siege<'_>) -> (String, usize) {
    let sandbox = siege.sandbox(Policy::of_words(&["silent.example:443", "good.example"]).unwrap()).await;
    siege.recovers(&sandbox).await;
    let before = descriptors(siege.pid());
    let mut running = siege.begin_payload("N-34", &sandbox, &["12"]).await;
    running.until("begun").await;
    let mut most = 0;
    let watching = async {
        loop {
            most = most.max(descriptors(siege.pid()).saturating_sub(before));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let said = tokio::select! {
        said = running.rest() => said,
        () = watching => unreachable!(),
    };
    (said, most)
}

/// Verifies that attack N-38 fails: if a sandbox sends many requests per second, the audit log combines them.
#[test]
#[ignore = "starts real sandboxes"]
fn a_sandbox_that_asks_without_end_does_not_fill_the_audit_log() {
    in_a_world(async |world| {
        on_each_tier(world, async |siege| {
            let (asked, lines) = asks(siege).await;
            assert!(lines.len() <= LINES_MAX, "{} lines for {asked} requests", lines.len());
            assert_eq!(counted(&lines), asked, "nothing is lost: {:#?}", &lines[lines.len() - 5..]);
            siege.undefend("N-38");
            let (asked_without, without) = asks(siege).await;
            // There can be more lines than requests, because the log also contains rate-limit refusals.
            assert!(without.len() >= asked_without, "control: a line for each: {}", without.len());
            assert_eq!(counted(&without), asked_without, "control: a line for each");
            println!(
                "attack N-38 {} held: {} lines for {asked} requests (control {})",
                siege.runtime(),
                lines.len(),
                without.len()
            );
        })
        .await;
    });
}

/// Runs a payload that repeats one request and also sends varying requests. Returns the number of requests,
/// and the audit log lines about them.
async fn asks(siege: &Siege<'_>) -> (usize, Vec<String>) {
    let sandbox = siege.sandbox(Policy::of_words(&["good.example"]).unwrap()).await;
    let running: Running = siege.begin_payload("N-38", &sandbox, &["2000"]).await;
    let said = running.rest().await;
    let word = said.split_whitespace().nth(1).unwrap_or_else(|| panic!("{said}"));
    // The broker (the egress proxy) reports counts after a second. The server then writes them to the log.
    tokio::time::sleep(Duration::from_secs(3)).await;
    (word.parse().unwrap(), siege.decided(&sandbox))
}

/// Returns the total number of requests that these lines record.
fn counted(lines: &[String]) -> usize {
    let number = |line: &str, after: &str| -> Option<usize> {
        let text = line.split(after).next()?;
        text.rsplit(' ').next()?.parse().ok()
    };
    let one = |line: &String| match line {
        line if line.contains(" more times: ") => number(line, " more times: ").unwrap(),
        line if line.starts_with("any ") && line.contains(" times: allowed") => {
            number(line, " times: ").unwrap()
        }
        // The payload does not count requests that the rate limit refuses.
        line if line.starts_with("any any: ") => 0,
        _ => 1,
    };
    lines.iter().map(one).sum()
}
