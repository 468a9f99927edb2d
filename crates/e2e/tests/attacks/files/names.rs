//! Attacks P-01, P-10 and P-14: names that lead elsewhere, or that affect a terminal.

use api::ErrorCode;
use api::files::FilePath;

use e2e::attack;

use super::ground::{each, path};
use crate::sandbox::room::Room;

/// Paths through which a program with the rights of process 1 would leave the sandbox's view.
const PROC_PATHS: [&str; 3] = ["/proc/1/environ", "/proc/1/root/etc/debian_version", "/proc/1/mem"];

/// Verifies that attack P-01 fails: an ambiguous or invalid name is refused before any operation.
#[test]
#[ignore = "starts real sandboxes"]
fn a_name_that_means_two_places_or_none_is_refused_before_anything_is_asked() {
    each(async |ground| {
        // Control: without the defence, the same request reads a file above the working directory.
        let control = ground.without_defence("P-01").await;
        let climbs = format!("/v1/sandboxes/{}/files/content?path=../etc/debian_version", control.sandbox);
        let answer = control.service.wire().ask("GET", &climbs, None).await;
        let version = control.run("cat /etc/debian_version").await;
        assert_eq!((answer.status, answer.body.trim()), (200, version.as_str()), "control: {answer:?}");
        control.end().await;
        let wire = ground.service.wire();
        let own = &ground.sandbox;
        for name in
            ["", "..", "../x", "a/../b", "%2e%2e%2f", "..%00", "a%00b", "%", "%zz", "/..", "/workspace/.."]
        {
            for (method, route) in
                [("GET", ""), ("GET", "/content"), ("PUT", "/content"), ("DELETE", ""), ("GET", "/archive")]
            {
                let answer =
                    wire.ask(method, &format!("/v1/sandboxes/{own}/files{route}?path={name}"), None).await;
                assert_eq!(
                    (answer.status, answer.code()),
                    (400, "invalid_request".into()),
                    "{method} {route} {name}"
                );
            }
        }
        let long = format!("/v1/sandboxes/{own}/files?path={}", "x".repeat(300));
        assert_eq!(wire.ask("GET", &long, None).await.status, 400, "a name of 300 bytes");
        let endless = format!("/v1/sandboxes/{own}/files?path={}", "x/".repeat(3000));
        assert_eq!(wire.ask("GET", &endless, None).await.code(), ErrorCode::LimitExceeded.name());
        for id in ["..", "%2e%2e", ".", "a%00b", "%E2%88%95", &"x".repeat(300)] {
            let answer = wire.ask("GET", &format!("/v1/sandboxes/{id}/files?path=/"), None).await;
            assert!([400, 404].contains(&answer.status), "{id}: {answer:?}");
        }
        // A character that only looks like a slash is an ordinary part of a name. A doubly encoded character
        // is too.
        for name in ["a\u{2215}b", "%2e%2e%2f"] {
            ground.files.write(&path(name), "x".into(), None).await.unwrap();
        }
        assert_eq!(ground.run("ls /workspace | wc -l").await, "2");
        ground.held("P-01", "11 names in 5 routes refused, 6 ids");
    });
}

/// Verifies that attack P-10 fails: the API returns every name unchanged, and the command line escapes it.
#[test]
#[ignore = "starts real sandboxes"]
fn every_name_comes_back_exactly_and_none_reaches_a_terminal() {
    each(async |ground| {
        let names: [&[u8]; 14] = [
            b"new\nline",
            b"tab\t",
            b"\x1b]0;pwn\x07",
            b"\x1b[2J",
            "\u{202e}evil".as_bytes(),
            &[0xff; 255],
            b"-rf",
            b"$(id)",
            b"'; drop",
            b" lead",
            b"trail ",
            "\u{1f600}".as_bytes(),
            "\u{e9}".as_bytes(),
            "e\u{301}".as_bytes(),
        ];
        for (number, name) in names.iter().enumerate() {
            let place = path([b"/workspace/n/", *name].concat());
            ground.files.write(&place, format!("{number}").into(), None).await.unwrap();
        }
        let listed = ground.files.list(&path("/workspace/n"), 1).await.unwrap();
        assert_eq!(listed.len(), names.len());
        for info in listed {
            let exact: FilePath = info.exact().unwrap();
            let name = exact.as_bytes().strip_prefix(b"/workspace/n/").unwrap();
            let number = names.iter().position(|known| *known == name).expect("a name that was written");
            assert_eq!(ground.files.read(&exact, 10).await.unwrap(), number.to_string().as_bytes());
        }
        // Control: without escaping, the same command sends control sequences to the terminal.
        attack::count_control();
        let mut unescaped = ground.service.command(&["ls", ground.sandbox.as_str(), "/workspace/n"]);
        let output = unescaped.env(api::defence::VARIABLE, "P-10").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("\u{1b}[2J") && text.contains('\u{202e}'), "control: {text:?}");
        for words in [&["ls", "-l"][..], &["ls"]] {
            let [command, options @ ..] = words else { unreachable!() };
            let place = [ground.sandbox.as_str(), "/workspace/n"];
            let arguments: Vec<&str> =
                [*command].into_iter().chain(options.iter().copied()).chain(place).collect();
            let output = ground.service.command(&arguments).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            let text = String::from_utf8_lossy(&output.stdout);
            let raw = text
                .chars()
                .filter(|c| (c.is_control() && *c != '\n') || ('\u{202a}'..='\u{202e}').contains(c));
            assert_eq!(raw.count(), 0, "{text:?}");
            let lines = text.lines().filter(|line| !line.starts_with("MODE")).count();
            assert_eq!(lines, names.len(), "a name is one line: {text}");
        }
        let header = ground
            .service
            .wire()
            .ask(
                "GET",
                &format!("/v1/sandboxes/{}/files/content?path=/workspace/n/new%0Aline", ground.sandbox),
                None,
            )
            .await;
        let disposition = header.header("content-disposition").unwrap();
        assert!(
            header.status == 200 && !disposition.contains('\n') && disposition.contains("%0A"),
            "{disposition}"
        );
        ground.held("P-10", &format!("{} names", names.len()));
    });
}

/// Verifies that attack P-14 fails: paths through `/proc` do not lead out of the sandbox.
#[test]
#[ignore = "starts real sandboxes"]
fn a_way_out_through_proc_stays_inside() {
    each(async |ground| {
        // Control: in a room without the defences, root, as which a naive program would read, reads the same
        // paths.
        let script =
            PROC_PATHS.map(|path| format!("head -c 1 {path} >/dev/null || exec 3<{path} && echo {path} ok"));
        let control = Room::default().run(&["/bin/bash", "-c", &script.join("; ")].map(str::to_owned));
        control.assert("control", &PROC_PATHS.map(|path| (path, "ok")));
        let inside = ground.run("cat /etc/hostname 2>/dev/null || echo none").await;
        let read = ground.files.read(&path("/proc/self/root/etc/hostname"), 1000).await;
        if let Ok(bytes) = read {
            assert_eq!(String::from_utf8_lossy(&bytes).trim(), inside);
        }
        for place in PROC_PATHS.into_iter().chain(["/.bellglass/channel/node.sock"]) {
            let read = ground.files.read(&path(place), 1 << 20).await;
            assert!(!matches!(&read, Ok(bytes) if !bytes.is_empty()), "{place}: {read:?}");
        }
        ground.held("P-14", "five paths");
    });
}
