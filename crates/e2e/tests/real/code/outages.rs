//! Kills of the server in the middle of a run: no output is lost or repeated.

use api::ErrorCode;
use api::code::{ResultLine, RunResult};
use api::exec::{Outcome, Stream};
use client::Event;
use e2e::lab::promised;
use e2e::room::{Room, in_a_room, python};
use e2e::service::Service;

const ROUNDS: usize = 60;
/// Python code that alternates between output and results, slowly enough for a kill to interrupt it.
const TALKING: &str = "import sys, time
for n in range(60):
    print(f'out {n}')
    display(n)
    print(f'err {n}', file=sys.stderr)
    time.sleep(0.1)
'done'";

#[test]
#[ignore = "starts real sandboxes"]
fn nothing_of_a_run_is_lost_or_told_twice_when_the_server_is_killed() {
    in_a_room(async |service, room| {
        room.run("1").await.well();
        a_reader_outlives_three_servers(service, room).await;
        a_reader_goes_on_where_another_was(room).await;
    });
}

async fn a_reader_outlives_three_servers(service: &mut Service, room: &Room) {
    let mut exec = room.client.exec(&room.id, &python(TALKING)).await.unwrap();
    let (mut stdout, mut stderr, mut lines, mut kills) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let end = loop {
        let event = tokio::time::timeout(promised(60), exec.next()).await.unwrap().unwrap().unwrap();
        match event {
            Event::Data { stream: Stream::Stderr, bytes, .. } => stderr.extend_from_slice(&bytes),
            Event::Data { bytes, .. } => stdout.extend_from_slice(&bytes),
            Event::Result { line, .. } => lines.push(line),
            Event::Gap { .. } => panic!("{event:?}"),
            Event::End(end) => break end,
        }
        if lines.len() > (kills + 1) * ROUNDS / 4 && kills < 3 {
            kills += 1;
            service.kill();
            service.begin();
        }
    };
    assert_eq!((kills, end.outcome), (3, Outcome::Exited { code: 0 }));
    whole(&String::from_utf8(stdout).unwrap(), &String::from_utf8(stderr).unwrap(), &lines);
}

/// Checks that everything that the run wrote and displayed has arrived exactly once and in order.
fn whole(stdout: &str, stderr: &str, lines: &[ResultLine]) {
    let all = |word: &str, count| (0..count).map(|n| format!("{word} {n}\n")).collect::<String>();
    assert_eq!((stdout, stderr), (&*all("out", ROUNDS), &*all("err", ROUNDS)));
    assert_eq!(lines.len(), ROUNDS + 1);
    for (n, line) in lines.iter().enumerate() {
        let places = (line.stdout, line.stderr);
        match &line.result {
            RunResult::Display(bundle) => {
                assert_eq!(bundle.data["text/plain"], n.to_string());
                let before = (all("out", n + 1).len() as u64, all("err", n).len() as u64);
                assert_eq!(places, before, "display {n}");
            }
            RunResult::Value(bundle) => {
                assert_eq!((n, &bundle.data["text/plain"]), (ROUNDS, &"'done'".into()))
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Checks that, after a run has ended, its results can be read again from any offset that an earlier reader
/// had reached.
async fn a_reader_goes_on_where_another_was(room: &Room) {
    let done = room.client.execs(&room.id).await.unwrap();
    let id = done.iter().max_by_key(|info| info.results_bytes).unwrap().id.clone();
    let mut reader = room.client.reader(&room.id, &id);
    let (mut seen, mut places) = (Vec::new(), Vec::new());
    while let Some(event) = reader.next().await.unwrap() {
        if let Event::Result { offset, next, line } = event {
            seen.push(line);
            places.push((offset, next));
        }
    }
    assert!(places.windows(2).all(|pair| pair[0].1 == pair[1].0), "{places:?}");
    for from in [1, 30, ROUNDS] {
        let mut reader = room.client.reader(&room.id, &id);
        reader.seek(0, 0, places[from].0);
        let again = reader.collect().await.unwrap();
        assert_eq!(again.results, seen[from..], "from {from}");
        assert_eq!(again.stdout.len(), again.end.stdout_bytes as usize);
    }
    let mut reader = room.client.reader(&room.id, &id);
    reader.seek(7, 0, places[1].0 + 1);
    let between = reader.collect().await.unwrap_err().to_api();
    assert_eq!(between.code, ErrorCode::InvalidRequest, "a line is told whole: {between:?}");
}
