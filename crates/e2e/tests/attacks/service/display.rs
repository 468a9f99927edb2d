//! Attack O-08: text that acts on the program displaying it: terminals, tables, logs and metrics.

use std::process::Output;
use std::time::Duration;

use api::exec::ExecSpec;
use e2e::lab::exec;
use e2e::service::{Service, served};
use e2e::wild::{TEXT, acts};
use serde_json::{Value, json};

use super::ground::{Answer, address, ask, head, held, keyed, recovers, send};

/// Panics if a text contains a forged line, or characters other than line breaks that act on a terminal.
fn is_inert(what: &str, text: &str) {
    let acting: Vec<char> = text.chars().filter(|c| acts(*c) && *c != '\n').collect();
    assert!(acting.is_empty(), "{what} holds {acting:?}: {text:?}");
    assert!(!text.lines().any(|line| line.starts_with("forged")), "{what} has a forged line: {text}");
}

fn both(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A server with hostile text in every field that accepts text, a sandbox with hostile labels, and an exec
/// that writes hostile text.
struct Marked {
    service: Service,
    sandbox: String,
    exec: String,
}

impl Marked {
    fn new(log: &str) -> Self {
        let settings = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        std::fs::write(settings.path(), format!("log = {log:?}\npool_ready = 0\n")).unwrap();
        let service = Service::with(&[], &["--config", settings.path().to_str().unwrap()]);
        let mut body = super::ground::small();
        body["labels"] = json!({ TEXT: TEXT });
        let made = keyed(&service, &service.key, "POST", "/v1/sandboxes", &body);
        assert_eq!(made.status, 201, "{made:?}");
        let sandbox = made.json()["id"].as_str().unwrap().to_owned();
        let label = json!({ "project": "default", "role": "read", "label": TEXT.split_at(40).0 });
        assert_eq!(keyed(&service, &service.key, "POST", "/v1/keys", &label).status, 201);
        let path = format!("/v1/sandboxes/{sandbox}/execs");
        let started = keyed(&service, &service.key, "POST", &path, &json!(exec(&["/bin/echo", "-n", TEXT])));
        let exec = started.json()["id"].as_str().unwrap().to_owned();
        Self { service, sandbox, exec }
    }

    fn get(&self, path: &str) -> Answer {
        keyed(&self.service, &self.service.key, "GET", path, &Value::Null)
    }

    fn bellglass(&self, words: &[&str]) -> Output {
        self.service.command(words).output().unwrap()
    }

    /// Controls: the API returns the text unchanged, and without escaping the text would act on a terminal.
    fn is_raw_where_it_belongs(&self) {
        let shown = self.get(&format!("/v1/sandboxes/{}", self.sandbox)).json();
        assert_eq!(shown["labels"][TEXT], TEXT, "control");
        let row = format!("{}  {}", self.sandbox, shown["labels"][TEXT].as_str().unwrap());
        assert!(row.lines().count() == 2 && row.contains('\u{1b}'), "control");
        let written = self.bellglass(&["logs", &self.sandbox, &self.exec]);
        assert_eq!(String::from_utf8_lossy(&written.stdout), TEXT, "control: a pipe gets what was written");
        e2e::attack::count_control();
    }

    /// Sends the hostile text in every part of a request, header or path that could appear in errors and
    /// logs.
    fn provoke(&self) {
        let service = &self.service;
        let execs = format!("/v1/sandboxes/{}/execs", self.sandbox);
        let post = |path: &str, body: &Value| keyed(service, &service.key, "POST", path, body);
        let spec = |spec: ExecSpec| json!(spec);
        let refusals = [
            post("/v1/sandboxes", &json!({ "template": TEXT })),
            post("/v1/sandboxes", &json!({ "name": TEXT })),
            post("/v1/sandboxes", &json!({ TEXT: 1 })),
            post("/v1/sandboxes", &json!({ "labels": { (format!("bellglass.{TEXT}")): "" } })),
            post("/v1/sandboxes", &json!({ "tier": TEXT })),
            post("/v1/keys", &json!({ "project": TEXT, "role": "read", "label": "" })),
            post(&execs, &spec(exec(&[TEXT]))),
            post(&execs, &spec(ExecSpec { cwd: Some(TEXT.into()), ..exec(&["true"]) })),
            post(
                &execs,
                &spec(ExecSpec { env: [(format!("={TEXT}"), String::new())].into(), ..exec(&["true"]) }),
            ),
            post(&format!("{execs}/{}/signal", self.exec), &json!({ "signal": TEXT })),
        ];
        for (number, refusal) in refusals.iter().enumerate() {
            assert!(
                (400..500).contains(&refusal.status) && refusal.body.len() < 8192,
                "{number}: {refusal:?}"
            );
            // The response is JSON and contains no line breaks.
            assert!(
                refusal.json()["fix"].is_string() && !refusal.body.contains(['\n', '\r', '\u{1b}']),
                "{refusal:?}"
            );
        }
        let escaped: String = TEXT.bytes().map(|byte| format!("%{byte:02X}")).collect();
        for path in [
            format!("/v1/sandboxes/{escaped}"),
            format!("/v1/sandboxes?cursor={escaped}"),
            format!("/v1/sandboxes?{escaped}=1"),
            format!("/v1/{escaped}"),
            format!("{execs}/{escaped}"),
        ] {
            let answer = self.get(&path);
            assert!((400..500).contains(&answer.status), "{path}: {answer:?}");
        }
        let bearer = format!("Bearer {}", service.key);
        let tame: String = TEXT.chars().filter(|c| !c.is_control()).collect();
        for (name, value) in [
            ("user-agent", tame.as_str()),
            ("user-agent", TEXT),
            ("idempotency-key", &tame),
            ("bellglass-version", &tame),
            ("x-forwarded-for", TEXT),
            ("content-type", &tame),
        ] {
            ask(service, "POST", "/v1/sandboxes", &[("authorization", &bearer), (name, value)], b"{}");
        }
        ask(service, "GET", "/v1/node", &[("authorization", &format!("Bearer {tame}"))], b"");
        for method in [TEXT, "G\u{1b}T", "BELL\u{7}", "forged"] {
            send(&address(service), format!("{}\r\n", head(method, "/v1/node", &[])).as_bytes());
        }
    }
}

/// Verifies that attack O-08 fails: text that acts on a terminal is escaped before it is displayed.
#[test]
#[ignore = "starts real sandboxes"]
fn text_that_acts_on_a_terminal_is_shown_and_not_obeyed() {
    served(async || {
        let marked = Marked::new("text");
        marked.is_raw_where_it_belongs();
        let sandbox = marked.sandbox.as_str();
        let wrong = "../\u{1b}]52;c;Ym9v\u{7}\nforged";
        // Commands, each with the number of lines that it prints.
        let shown: [(&[&str], usize); 15] = [
            (&["list"], 2),
            (&["list", "--all"], 2),
            (&["list", "--json"], 1),
            (&["logs", sandbox], 2),
            (&["logs", "--json", sandbox], 1),
            (&["logs", "--json", sandbox, &marked.exec], 1),
            (&["top", "--once"], 2),
            (&["top", "--json"], 1),
            (&["key", "list"], 3),
            (&["key", "list", "--json"], 1),
            (&["exec", "--json", sandbox, "--", "/bin/echo", TEXT], 1),
            (&["exec", sandbox, "--", wrong], 3),
            (&["exec", "--cwd", wrong, sandbox, "--", "true"], 3),
            (&["create", "--template", wrong], 3),
            (&["key", "create", "--project", wrong], 3),
        ];
        for (words, lines) in shown {
            let output = both(&marked.bellglass(words));
            is_inert(&format!("{words:?}"), &output);
            assert_eq!(output.lines().count(), lines, "{words:?}: {output}");
        }
        let events = told_by_events(&marked);
        is_inert("events", &events);
        marked.provoke();
        let lines = watched(&marked);
        recovers(&marked.service).await;
        held("O-08", &format!("{} views, {lines} lines of logs and metrics", shown.len() + 1));
    });
}

/// Verifies that attack O-08 fails: text that acts on a terminal is escaped in the JSON log, because people
/// read that log in terminals too.
#[test]
#[ignore = "starts real sandboxes"]
fn text_that_acts_on_a_terminal_is_not_in_a_log_of_json() {
    served(async || {
        let marked = Marked::new("json");
        marked.provoke();
        for line in marked.service.words().lines().filter(|line| line.starts_with('{')) {
            serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        }
        let lines = watched(&marked);
        recovers(&marked.service).await;
        held("O-08", &format!("{lines} lines of logs and metrics, as JSON"));
    });
}

/// Checks the logs and metrics of a server that has received hostile text, and returns their number of lines.
fn watched(marked: &Marked) -> usize {
    let audit = marked.service.data().join("audit.log");
    control::audit::verify(&audit, false, None).expect("the chain of the audit log");
    let metrics = marked.get("/metrics");
    assert_eq!(metrics.status, 200);
    let (log, audit) = (marked.service.words(), std::fs::read_to_string(audit).unwrap());
    let mut lines = 0;
    for (what, text) in [("the log", &log), ("the audit log", &audit), ("metrics", &metrics.body)] {
        is_inert(what, text);
        assert!(
            !text.contains("turned") && !text.contains("Ym9v"),
            "{what} holds what a stranger wrote: {text}"
        );
        lines += text.lines().count();
    }
    // Control: the requests were counted and logged by their route, and without names that the client chose.
    assert!(log.contains("/v1/sandboxes/{sandbox}") && metrics.body.contains("method=\"other\""), "{log}");
    e2e::attack::count_control();
    lines
}

/// Returns the output of `bellglass events` while a sandbox with hostile labels is created and stopped.
fn told_by_events(marked: &Marked) -> String {
    let mut command = marked.service.command(&["events"]);
    let mut watching = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let mut body = super::ground::small();
    body["labels"] = json!({ TEXT: TEXT });
    let made = keyed(&marked.service, &marked.service.key, "POST", "/v1/sandboxes", &body).json();
    let path = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
    keyed(&marked.service, &marked.service.key, "DELETE", &path, &Value::Null);
    std::thread::sleep(Duration::from_millis(500));
    watching.kill().unwrap();
    let output = watching.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("is ended (stopped)"), "{text}");
    text
}
