//! Attack H-09: valid and invalid requests, generated from the API description, by callers with different
//! keys.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use api::account::{Quota, Role};
use e2e::attack;
use e2e::lab::{script, sized};
use e2e::service::{PLENTY, Service, served, until};
use serde_json::{Value, json};

use super::ground::{held, keyed, recovers, small};

/// Duration of one run of the fuzzer in seconds: first in a full run, then in CI. The callers run one after the
/// other, because concurrent callers would compete for the processors.
const SECONDS: (&str, &str) = ("60", "6");
/// Minimum number of test cases per caller. The speed of the machine decides how many cases one run executes,
/// so the fuzzer runs, with other cases each time, until it has executed this number.
const CASES_MIN: u32 = 150;
/// Maximum number of runs of the fuzzer per caller. The slowest machine so far executed 97 cases in one run.
const RUNS_MAX: u32 = 4;
/// Checks of the fuzzer that must pass for every caller.
const CHECKS: &str =
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";

/// Verifies that attack H-09 fails: no request that is generated from the API description breaks the server.
#[test]
#[ignore = "starts real sandboxes"]
fn no_request_the_description_can_think_of_breaks_the_server() {
    served(async || {
        let fuzzer = fuzzer();
        let service = Service::start();
        let target = keyed(&service, &service.key, "POST", "/v1/sandboxes", &small()).json()["id"].clone();
        let path = format!("/v1/sandboxes/{}/execs", target.as_str().unwrap());
        let exec =
            keyed(&service, &service.key, "POST", &path, &json!(script("echo here"))).json()["id"].clone();
        let reader = service.key_of("default", Role::Read, PLENTY).await;
        let other = service.key_of("other", Role::Write, Quota { sandboxes: 2, ..PLENTY }).await;
        // Set a low quota, so that it is reached before the machine is full. Refusals by a full machine are
        // not tested here.
        let quota = Quota { sandboxes: 4, memory_bytes: 2 << 30, disk_bytes: 2 << 30, ..PLENTY };
        keyed(&service, &service.key, "PUT", "/v1/projects/default", &json!({ "quota": quota }));
        let places = tempfile::tempdir().unwrap();
        let description = places.path().join("openapi.json");
        std::fs::write(&description, aimed(&target, &exec).to_string()).unwrap();
        // Callers that may change something come last, so that changes by any other caller are detected.
        let callers =
            [("nobody", ""), ("other", other.as_str()), ("reader", &reader), ("admin", &service.key)];
        let mut asked = Vec::new();
        let look = || {
            let sandbox = path.strip_suffix("/execs").unwrap();
            [sandbox, &path].map(|path| keyed(&service, &service.key, "GET", path, &Value::Null).body)
        };
        // Ignore the time since the exec's end, which changes without any request.
        let settled = || look().map(|text| text.split("ended_ms_ago").next().unwrap_or_default().to_owned());
        let ended = async || look()[1].contains("ended_ms_ago");
        until(Duration::from_secs(20), "the exec has ended", ended).await;
        let before = settled();
        assert!(before[1].contains(exec.as_str().unwrap()), "{before:?}");
        for (who, key) in callers {
            if who == "admin" {
                assert_eq!(settled(), before, "somebody who may not changed something");
            }
            let mut tried = 0;
            for number in 0..RUNS_MAX {
                let place = places.path().join(format!("{who}-{number}"));
                let output = run(&fuzzer, &description, &service, key, &place);
                let text = String::from_utf8_lossy(&output.stdout);
                let errors = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{who}:\n{text}\n{errors}");
                tried += cases(&text);
                if tried >= CASES_MIN {
                    break;
                }
            }
            assert!(tried >= CASES_MIN, "{who} tried {tried} cases only");
            asked.push(format!("{who} {tried}"));
        }
        assert!(!service.words().contains("panicked"), "{}", service.words());
        for one in service.client().sandboxes(false).await.unwrap() {
            service.client().stop(&one.id).await.unwrap();
        }
        control(&fuzzer, &description, places.path());
        recovers(&service).await;
        held("H-09", &format!("cases tried: {}", asked.join(", ")));
    });
}

/// Control: the fuzzer detects a server that responds to every request with 500.
fn control(fuzzer: &Path, description: &Path, places: &Path) {
    let broken = super::ground::Undefended::start("H-09");
    let output = Command::new("timeout")
        .arg("60")
        .arg(fuzzer)
        .args(arguments(description, &format!("http://127.0.0.1:{}", broken.port), "5"))
        .current_dir(places)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && text.contains("Server error"), "{text}");
}

fn arguments(description: &Path, url: &str, seconds: &str) -> Vec<String> {
    let description = description.to_string_lossy();
    let words = [
        "run",
        &*description,
        "--url",
        url,
        "--checks",
        CHECKS,
        "--max-time",
        seconds,
        "--no-color",
        "--request-timeout",
        "15",
        "--generation-database",
        "none",
        "--no-shrink",
        "--warnings",
        "off",
        "--suppress-health-check",
        "all",
        // The responses of the first three paths never end. The fourth path would affect all other callers.
        "--exclude-path",
        "/v1/events",
        "--exclude-path",
        "/v1/sessions/{session}/events",
        "--exclude-path",
        "/v1/sandboxes/{sandbox}/files/watch",
        "--exclude-path",
        "/v1/node/drain",
    ];
    words.map(str::to_owned).to_vec()
}

fn run(fuzzer: &Path, description: &Path, service: &Service, key: &str, place: &Path) -> Output {
    std::fs::create_dir_all(place).unwrap();
    let mut command = Command::new("timeout");
    command
        .arg("120")
        .arg(fuzzer)
        .args(arguments(description, &service.url(), sized(SECONDS.0, SECONDS.1)))
        .current_dir(place);
    if !key.is_empty() {
        command.args(["--header", &format!("Authorization: Bearer {key}")]);
    }
    command.stdin(Stdio::null()).output().unwrap()
}

/// Returns the number of cases that the fuzzer reports in its output.
fn cases(text: &str) -> u32 {
    let line = text.lines().find(|line| line.contains(" generated, "));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

/// Returns the API description with the names of existing resources, which random names would never match.
fn aimed(sandbox: &Value, exec: &Value) -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    let mut description: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    for (path, methods) in description["paths"].as_object_mut().unwrap() {
        for (method, operation) in methods.as_object_mut().unwrap() {
            // The fuzzer can generate bytes, but no archives.
            if let Some(content) =
                operation.pointer_mut("/requestBody/content").and_then(Value::as_object_mut)
                && let Some(archive) = content.remove("application/x-tar")
            {
                content.insert("application/octet-stream".into(), archive);
            }
            let Some(Value::Array(parameters)) = operation.get_mut("parameters") else { continue };
            for parameter in parameters.iter_mut().filter(|one| one["in"] == "path") {
                // If a request could delete the sandbox, the other requests would have nothing left to test.
                let ends = method == "delete" && path.ends_with("{sandbox}");
                let known = match parameter["name"].as_str().unwrap() {
                    "sandbox" if !ends => sandbox,
                    "exec" => exec,
                    "project" => &json!("fuzzed"),
                    _ => continue,
                };
                parameter["schema"] = json!({ "anyOf": [{ "const": known }, { "type": "string" }] });
            }
        }
    }
    description
}

/// Returns the path of the fuzzer. It is installed on first use, with the version that `requirements.txt`
/// pins.
fn fuzzer() -> PathBuf {
    let wanted = attack::file("H-09", "requirements.txt");
    let version = std::fs::read_to_string(&wanted).unwrap().trim().replace("==", "-");
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(version);
    let program = place.join("bin/schemathesis");
    if !place.join("whole").exists() {
        let must = |command: &mut Command| {
            let output = command.output().unwrap();
            assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        };
        must(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&place));
        must(Command::new(place.join("bin/pip")).args(["install", "-q", "-r"]).arg(&wanted));
        std::fs::write(place.join("whole"), "").unwrap();
    }
    program
}
