//! Packages that a run requests, and packages that its imports turn out to need. They are installed through
//! the gate (the package proxy), from the package index that this machine uses.

use std::time::Instant;

use api::code::{Code, Installed, RunResult};
use api::exec::Outcome;
use api::limits::{self, Limits};
use api::{ErrorCode, Ran};
use e2e::lab::promised;
use e2e::room::{Room, coded, in_a_room_with, python};

const LIMITS: Limits = Limits {
    memory_bytes: 1 << 30,
    cpu_millis: 1000,
    pids: 128,
    disk_bytes: 1 << 30,
    disk_inodes: 65_536,
    tmp_bytes: 64 << 20,
    ttl_ms: 3_600_000,
};

fn requiring(source: &str, requirements: &[&str]) -> Code {
    let requirements = requirements.iter().map(|one| (*one).to_owned()).collect();
    Code { source: source.into(), requirements, ..Code::default() }
}

fn missing(source: &str) -> Code {
    Code { source: source.into(), install_missing: true, ..Code::default() }
}

#[test]
#[ignore = "starts real sandboxes"]
fn packages_are_installed_once_and_a_failure_runs_nothing() {
    in_a_room_with(LIMITS, &["python-packages"], async |service, room| {
        named(room).await;
        failing(room).await;
        imported(room).await;
        let closed = Room::with(service, room.tier, LIMITS, &[]).await;
        for code in [requiring("open('ran', 'w')", &["cowsay"]), missing("open('ran', 'w')")] {
            let error = closed.refused(&coded(code)).await;
            assert_eq!((error.code, error.ran), (ErrorCode::Forbidden, Ran::No), "{error:?}");
            assert!(error.fix.contains("python-packages"), "{error:?}");
        }
        assert_eq!(closed.sh("ls").await, "");
    });
}

/// Checks requirements A4.01, A4.02 and A4.03: requested packages are installed before the run, and remain
/// available to later runs.
async fn named(room: &Room) {
    let code = "import cowsay\nprint(cowsay.__name__)";
    assert_eq!(room.run(code).await.error().name, "ModuleNotFoundError");
    let wanted = requiring(code, &["cowsay==6.1"]);
    let ran = room.exec(&coded(wanted.clone())).await.well();
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("cowsay\n", ""), "the installer is not heard");
    assert_eq!(room.sh("cat requirements.txt").await, "cowsay==6.1");
    assert_eq!(room.sh("stat -c %u ~/.local/lib/python3.13/site-packages/cowsay").await, "1000");
    for again in [coded(wanted), python(code)] {
        let began = Instant::now();
        assert_eq!(room.exec(&again).await.well().stdout, "cowsay\n");
        assert!(began.elapsed() < promised(2), "{:?}", began.elapsed());
    }
    assert_eq!(room.client.packages(&room.id).await.unwrap().len(), 1);
}

/// Checks requirements A4.05 and A4.07: if the installation fails, times out or is refused, the code does not
/// run.
async fn failing(room: &Room) {
    let begins = "Failed to install requirements: ";
    for (bad, says) in [
        ("no-such-package-of-bellglass", "No matching distribution"),
        ("cowsay==999", "cowsay==999"),
        ("--index-url=http://elsewhere", "options"),
        ("-e .", "options"),
        ("cowsay --pre", "options"),
        ("https://elsewhere/x.whl", "URLs"),
        ("x @ https://elsewhere/x.whl", "URLs"),
        ("git+https://elsewhere/x", "URLs"),
        ("./here", "paths"),
        ("/workspace/x.whl", "paths"),
    ] {
        let ran = room.exec(&coded(requiring("open('ran', 'w')\nprint('ran')", &["tabulate", bad]))).await;
        assert_eq!((ran.code(), ran.stdout.as_str()), (1, ""), "{bad}: {ran:?}");
        assert!(ran.stderr.starts_with(begins) && ran.stderr.contains(says), "{bad}: {}", ran.stderr);
        assert_eq!(ran.error().text, ran.stderr);
    }
    let short = Code { install_ms: Some(1), ..requiring("print('ran')", &["tqdm"]) };
    let ran = room.exec(&coded(short)).await;
    assert_eq!(ran.end.outcome, Outcome::Exited { code: 1 });
    assert!(ran.stderr.starts_with(begins) && ran.stderr.contains("timed out"), "{}", ran.stderr);
    for bad in [
        Code { install_ms: Some(limits::INSTALL_MS_MAX + 1), ..requiring("1", &["x"]) },
        requiring("1", &["a\nb"]),
        requiring("1", &[""]),
    ] {
        assert_eq!(room.refused(&coded(bad)).await.ran, Ran::No);
    }
    assert_eq!(room.sh("ls ran 2>/dev/null | wc -l").await, "0");
}

/// Checks that importing a missing module installs it, unless the code handles the `ImportError` itself.
async fn imported(room: &Room) {
    let code = "print('before')\nimport bs4\nprint(bs4.__name__)";
    assert_eq!(room.run(code).await.error().name, "ModuleNotFoundError");
    let ran = room.exec(&coded(missing(code))).await.well();
    let packages = vec![Installed { module: "bs4".into(), package: "beautifulsoup4".into() }];
    assert_eq!(ran.results.len(), 1, "{ran:?}");
    assert_eq!((&ran.results[0].result, ran.results[0].stdout), (&RunResult::Installed { packages }, 7));
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("before\nbs4\n", ""));
    assert!(room.exec(&coded(missing(code))).await.well().results.is_empty(), "it is there");
    let code = "try:\n    import humanfriendly\nexcept ImportError:\n    print('without')";
    let ran = room.exec(&coded(missing(code))).await.well();
    assert_eq!((ran.stdout.as_str(), ran.results.len()), ("without\n", 0));
    let ran = room.exec(&coded(missing("import no_such_module_of_bellglass"))).await;
    assert_eq!((ran.code(), ran.error().name.as_str()), (1, "ModuleNotFoundError"));
    let RunResult::NotInstalled { module, why, .. } = &ran.results[0].result else { panic!("{ran:?}") };
    assert_eq!(module, "no_such_module_of_bellglass");
    assert!(
        why.contains("No matching distribution") && ran.stderr.contains("could not be installed"),
        "{ran:?}"
    );
}
