//! Attack H-21: templates that are built through E2B's API.

use std::time::Duration;

use api::account::Role;
use e2e::service::{PLENTY, Service, served, until};
use e2e::world::{World, in_a_world};
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

use super::ground::{ask, held, keyed, recovers};

/// Timeout for building a few short steps on a machine under load.
const BUILT_WITHIN: Duration = Duration::from_secs(120);

/// Returns an archive with one entry, whose name no ordinary program would write.
fn archive(name: &str, kind: EntryType, link: &str, content: &[u8]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(content.len() as u64);
    header.set_cksum();
    builder.append(&header, content).unwrap();
    builder.into_inner().unwrap()
}

/// Concatenates two archives into one.
fn then(mut first: Vec<u8>, second: &[u8]) -> Vec<u8> {
    first.truncate(first.len() - 1024);
    first.extend_from_slice(second);
    first
}

/// Programs that request cloud metadata, through the proxy of their environment and directly.
const REACHING: [(&str, &str); 2] = [
    ("proxy", r#"import urllib.request as r; r.urlopen("http://169.254.169.254/", timeout=5)"#),
    (
        "direct",
        r#"import urllib.request as r; r.build_opener(r.ProxyHandler({})).open("http://169.254.169.254/", timeout=5)"#,
    ),
];

/// Returns the number of requests that have arrived at the metadata service of the simulated internet.
fn metadata_requests(world: &World) -> usize {
    let seen = world.seen();
    let said = seen["said"].as_array().unwrap();
    said.iter().filter(|one| one["here"] == "169.254.169.254").count()
}

struct Bench<'a> {
    service: &'a Service,
    next: u8,
}

impl Bench<'_> {
    fn key(&self, method: &str, path: &str, body: &Value) -> super::ground::Answer {
        keyed(self.service, &self.service.key, method, path, body)
    }

    /// Uploads an archive and returns its name.
    fn send(&mut self, bytes: &[u8]) -> String {
        self.next += 1;
        let name = format!("{:064x}", self.next);
        let told = self.key("GET", &format!("/templates/t/files/{name}"), &Value::Null);
        assert_eq!((told.status, &told.json()["present"]), (201, &json!(false)), "{told:?}");
        let url = told.json()["url"].as_str().unwrap().to_owned();
        let path = url.split_once("://").unwrap().1.split_once('/').unwrap().1;
        let sent = ask(self.service, "PUT", &format!("/{path}"), &[], bytes);
        assert_eq!(sent.status, 200, "{sent:?}");
        let again = ask(self.service, "PUT", &format!("/{path}"), &[], b"other");
        assert_eq!(again.status, 401, "a ticket is used once: {again:?}");
        name
    }

    /// Builds a template and returns the final status of the build.
    async fn build(&self, name: &str, steps: &Value) -> Value {
        let asked = self.key("POST", "/v3/templates", &json!({ "name": name }));
        assert_eq!(asked.status, 202, "{asked:?}");
        let id = asked.json()["buildID"].as_str().unwrap().to_owned();
        let begun =
            self.key("POST", &format!("/v2/templates/{name}/builds/{id}"), &json!({ "steps": steps }));
        if begun.status != 202 {
            return json!({ "status": "error", "reason": begun.json() });
        }
        let again = self.key("POST", &format!("/v2/templates/{name}/builds/{id}"), &json!({}));
        assert_eq!(again.status, 409, "{again:?}");
        let until = std::time::Instant::now() + BUILT_WITHIN;
        loop {
            let path = format!("/templates/{name}/builds/{id}/status?logsOffset=0");
            let status = self.key("GET", &path, &Value::Null).json();
            if status["status"] == "ready" || status["status"] == "error" {
                return status;
            }
            assert!(std::time::Instant::now() < until, "{status}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Verifies that attack H-21 fails: only administrator keys can build templates, and only under permitted
/// names.
#[test]
#[ignore = "starts real sandboxes"]
fn only_an_administrator_builds_and_only_what_is_ones_own() {
    served(async || {
        let service = Service::start();
        service.build("workstation");
        let (hash, other) = ("a".repeat(64), "b".repeat(64));
        let (write, read) = (
            service.key_of("other", Role::Write, PLENTY).await,
            service.key_of("other", Role::Read, PLENTY).await,
        );
        let mut tried = 0;
        for (method, path, body) in [
            ("POST", "/v3/templates".to_owned(), json!({ "name": "x" })),
            ("GET", format!("/templates/x/files/{hash}"), Value::Null),
            ("POST", "/v2/templates/x/builds/1".into(), json!({ "steps": [] })),
            ("GET", "/templates/x/builds/1/status".into(), Value::Null),
        ] {
            for key in [&write, &read] {
                let answer = keyed(&service, key, method, &path, &body);
                assert_eq!(answer.status, 403, "{method} {path}: {answer:?}");
                tried += 1;
            }
            assert_eq!(keyed(&service, "wrong", method, &path, &body).status, 401);
            let answer = keyed(&service, &service.key, method, &path, &body);
            assert!([202, 201, 404].contains(&answer.status), "control: {answer:?}");
            e2e::attack::count_control();
        }
        // A ticket is valid for only one archive and only once.
        let told = keyed(&service, &service.key, "GET", &format!("/templates/x/files/{hash}"), &Value::Null);
        let url = told.json()["url"].as_str().unwrap().to_owned();
        let ticket = url.split_once("ticket=").unwrap().1.to_owned();
        let put = |hash: &str, ticket: &str| {
            ask(&service, "PUT", &format!("/templates/x/files/{hash}?ticket={ticket}"), &[], b"x").status
        };
        assert_eq!(put(&hash, &"0".repeat(64)), 401);
        assert_eq!(put(&hash, ""), 401);
        assert_eq!(put(&other, &ticket), 401, "for another archive");
        assert_eq!(put(&hash, &ticket), 401, "it was used up by that");
        assert_eq!(ask(&service, "PUT", &format!("/templates/x/files/{hash}"), &[], b"x").status, 401);
        // Invalid names and reserved names are refused.
        for name in ["../x", "a/b", "A", "", "base", "workstation", "python", "x:v1", "x\u{0}"] {
            let answer = keyed(&service, &service.key, "POST", "/v3/templates", &json!({ "name": name }));
            assert!([400, 501].contains(&answer.status), "{name:?}: {answer:?}");
        }
        for archive in ["..%2F..%2Fbellglass.db", "x", &"A".repeat(64), &"a".repeat(63)] {
            let answer =
                keyed(&service, &service.key, "GET", &format!("/templates/x/files/{archive}"), &Value::Null);
            assert_eq!(answer.status, 400, "{archive}: {answer:?}");
        }
        recovers(&service).await;
        held(
            "H-21",
            &format!("{tried} requests with keys that may not; tickets; names that are paths or taken"),
        );
    });
}

/// Verifies that attack H-21 fails: malicious archives and steps create no template.
#[test]
#[ignore = "starts real sandboxes"]
fn an_archive_that_leads_out_makes_no_template() {
    in_a_world(async |world| {
        let service = world.service();
        service.build("workstation");
        let mut bench = Bench { service: &service, next: 0 };
        let copy = |archive: &str, from: &str, to: &str| json!([{ "type": "COPY", "args": [from, to, "", ""], "filesHash": archive }]);
        let good = bench.send(&archive("a", EntryType::Regular, "", b"good"));
        let file = |name: &str| archive(name, EntryType::Regular, "", b"evil");
        let link = archive("d", EntryType::Symlink, "/etc", b"");
        let hostile = [
            ("climbs", file("../../../../../../tmp/h21")),
            ("at the root", file("/tmp/h21")),
            ("through a link", then(link, &file("d/h21"))),
            ("a device", archive("a", EntryType::Char, "", b"")),
            ("no archive", b"not an archive at all".repeat(40)),
        ];
        for (what, bytes) in &hostile {
            let name = bench.send(bytes);
            let ended = bench.build("hostile", &copy(&name, "a", "/opt/a")).await;
            assert_eq!(ended["status"], "error", "{what}: {ended}");
            assert!(!std::path::Path::new("/tmp/h21").exists() && !std::path::Path::new("/etc/h21").exists());
        }
        for (from, to) in
            [("../a", "/opt/a"), ("a", "/proc/a"), ("a", "/workspace/a"), ("a", "/.bellglass/guest")]
        {
            let ended = bench.build("hostile", &copy(&good, from, to)).await;
            assert_eq!(ended["status"], "error", "{from} {to}: {ended}");
        }
        // Control: from outside a sandbox, the same programs get an answer of the metadata service.
        let asked = || metadata_requests(world);
        for (way, program) in REACHING {
            let words = ["python3", "-c", program].map(str::to_owned);
            let before = asked();
            assert!(world.command(&words).status().unwrap().success() && asked() > before, "control: {way}");
            e2e::attack::count_control();
            let before = asked();
            let step = json!([{ "type": "RUN", "args": [format!("python3 -c '{program}'"), "root"] }]);
            let ended = bench.build("hostile", &step).await;
            assert_eq!((&ended["status"], asked()), (&json!("error"), before), "{way}: {ended}");
        }
        let never = keyed(&service, &service.key, "GET", "/templates/aliases/hostile", &Value::Null);
        assert_eq!(never.status, 404, "{never:?}");
        // Control: a valid archive creates a template.
        let ended = bench.build("good", &copy(&good, "a", "/opt/a")).await;
        assert_eq!(ended["status"], "ready", "{ended}");
        e2e::attack::count_control();
        let there = keyed(&service, &service.key, "GET", "/templates/aliases/good", &Value::Null);
        assert_eq!(there.status, 200, "{there:?}");
        recovers(&service).await;
        held("H-21", &format!("{} archives and 6 steps, none made a template", hostile.len()));
    });
}

/// Verifies that attack H-21 fails: if a server is killed during a build, the build leaves nothing behind and
/// is reported as gone.
#[test]
#[ignore = "starts real sandboxes"]
fn a_build_whose_server_is_killed_leaves_nothing_and_is_told_to_be_gone() {
    served(async || {
        let mut service = Service::start();
        service.build("workstation");
        let ask = |service: &Service, method: &str, path: &str, body: &Value| {
            keyed(service, &service.key, method, path, body)
        };
        let asked = ask(&service, "POST", "/v3/templates", &json!({ "name": "half" })).json();
        let path = format!("/templates/half/builds/{}", asked["buildID"].as_str().unwrap());
        let steps = json!({ "steps": [{ "type": "RUN", "args": ["echo begun; sleep 60"] }] });
        assert_eq!(ask(&service, "POST", &format!("/v2{path}"), &steps).status, 202);
        let status = format!("{path}/status?logsOffset=0");
        until(BUILT_WITHIN, "the step runs", async || {
            ask(&service, "GET", &status, &Value::Null).body.contains("\"begun\"")
        })
        .await;
        service.kill();
        service.begin();
        let answer = ask(&service, "GET", &status, &Value::Null);
        assert_eq!(answer.status, 404, "{answer:?}");
        assert!(answer.body.contains("build again"), "{answer:?}");
        assert_eq!(ask(&service, "GET", "/templates/aliases/half", &Value::Null).status, 404);
        service.assert_nothing_left().await;
        recovers(&service).await;
        let why = "the server is killed from outside, and the step was under way";
        e2e::attack::held_without_control("H-21", "service", why);
    });
}
