//! Attacks of group D on the default configuration: keys, tiers, fields, variables and names.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use api::account::{Quota, Role};
use e2e::lab::script;
use e2e::service::{PLENTY, Service, binary, served};
use serde_json::{Value, json};

use super::ground::{Answer, HERE, ask, held, keyed, quick, recovers, small};

/// Timeout for a list request, which takes milliseconds.
const LISTED_WITHIN: Duration = Duration::from_secs(10);
/// Routes that need no key.
const OPEN: [&str; 2] = ["/healthz", "/openapi.json"];

/// Returns every operation of the API description, with invented names in its path.
fn operations() -> Vec<(String, String)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    let description: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let paths = description["paths"].as_object().unwrap().iter();
    let of = |(path, methods): (&String, &Value)| {
        let path: Vec<&str> =
            path.split('/').map(|part| if part.starts_with('{') { "some" } else { part }).collect();
        let methods = methods.as_object().unwrap().keys().map(|method| method.to_uppercase());
        methods.map(|method| (method, path.join("/"))).collect::<Vec<_>>()
    };
    paths.flat_map(of).collect()
}

fn serve(data: &Path, extra: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["10"]).arg(binary()).arg("--data").arg(data).arg("serve").args(extra);
    command.env_remove("BELLGLASS_SERVER").output().unwrap()
}

/// Verifies that attack D-01 fails: a request without a key has no effect.
#[test]
#[ignore = "starts real sandboxes"]
fn nothing_is_done_for_whoever_has_no_key() {
    served(async || {
        let service = Service::start();
        let mut refused = 0;
        for ((method, path), number) in operations().into_iter().zip(0u8..) {
            // Requests without a key are slowed down per address, and there are more operations than attempts
            // per address.
            let wire = service.wire().from(Ipv4Addr::new(127, 0, 1, 1 + number / 20)).with_key(None);
            let none = wire.ask(&method, &path, None).await;
            if OPEN.contains(&path.as_str()) {
                assert!([200, 503].contains(&none.status), "{path}: {none:?}");
                continue;
            }
            assert_eq!((none.status, none.code().as_str()), (401, "unauthorized"), "{method} {path}");
            refused += 1;
            // Control: with a key, the same request passes authentication. The event stream is skipped,
            // because its response never ends.
            if path != "/v1/events" {
                let some = keyed(&service, &service.key, &method, &path, &Value::Null);
                assert!(![401, 403, 429].contains(&some.status), "{method} {path}: {some:?}");
            }
            e2e::attack::count_control();
        }
        assert!(refused >= 20, "{refused} operations");
        held("D-01", &format!("{refused} operations refused without a key"));
    });
}

/// Verifies that attack D-01 fails: requests without a key leave no data behind, regardless of their content.
#[test]
#[ignore = "starts real sandboxes"]
fn what_strangers_make_up_is_not_kept() {
    const MADE_UP: usize = 300;
    served(async || {
        let service = Service::start();
        let counted = || keyed(&service, &service.key, "GET", "/metrics", &Value::Null).body;
        assert_eq!(ask(&service, "GET", "/v1/node", &[], b"").status, 401);
        let before = counted();
        for number in 0..MADE_UP {
            let (method, path) = (format!("METHOD{number}"), format!("/v1/{number}"));
            assert!(ask(&service, &method, &path, &[], b"").status >= 400);
            if number % 10 == 0 {
                assert!(ask(&service, &method, "/v1/node", &[], b"").status >= 400);
            }
        }
        let after = counted();
        // Control: the requests were counted.
        assert!(after.contains("method=\"other\""), "{after}");
        e2e::attack::count_control();
        let more = after.lines().count().saturating_sub(before.lines().count());
        assert!(more < 100, "{MADE_UP} methods became {more} lines of what is counted");
        held("D-01", &format!("{MADE_UP} methods and paths became {more} lines of what is counted"));
    });
}

/// Verifies that attack D-01 fails: plain HTTP is served only to the machine itself. Only the owner can read
/// the first key, even if a different file exists at the key's path.
#[test]
#[ignore = "starts real sandboxes"]
fn the_first_key_is_shown_once_and_only_to_its_owner() {
    served(async || {
        let data = tempfile::Builder::new().prefix("bellglass-serve").tempdir().unwrap();
        std::fs::set_permissions(data.path(), PermissionsExt::from_mode(0o711)).unwrap();
        let said = serve(data.path(), &["--listen", "0.0.0.0:0"]);
        assert!(!said.status.success() && said.status.code() != Some(124), "plain HTTP for everybody");
        assert!(String::from_utf8_lossy(&said.stderr).contains("tls_certificate"), "{said:?}");
        assert!(!data.path().join("bellglass.db").exists(), "it began before it was refused");
        // Plant a symlink at the key's path, whose target every user can read.
        let trap = data.path().join("trap");
        std::fs::write(&trap, "").unwrap();
        std::fs::set_permissions(&trap, PermissionsExt::from_mode(0o666)).unwrap();
        symlink(&trap, data.path().join("first.key")).unwrap();
        // Control: data written to this path ends up in the symlink's target.
        std::fs::write(data.path().join("first.key"), "bait").unwrap();
        assert_eq!(std::fs::read(&trap).unwrap(), b"bait");
        e2e::attack::count_control();
        let mut service = Service::on(data, &[], &[]);
        let path = service.data().join("first.key");
        assert_eq!(std::fs::read(service.data().join("trap")).unwrap(), b"bait", "the key is in the trap");
        assert_eq!(path.symlink_metadata().unwrap().permissions().mode() & 0o7777, 0o600);
        let store = service.data().join("bellglass.db").metadata().unwrap();
        assert_eq!(store.permissions().mode() & 0o7777, 0o600);
        for entry in std::fs::read_dir(service.data()).unwrap().flatten() {
            let text = std::fs::read(entry.path()).unwrap_or_default();
            let shown = String::from_utf8_lossy(&text).contains(&service.key);
            assert_eq!(shown, entry.file_name() == "first.key", "{:?}", entry.path());
        }
        std::fs::remove_file(&path).unwrap();
        service.kill();
        service.begin();
        assert!(!path.exists(), "it is shown twice");
        assert_eq!(keyed(&service, &service.key, "GET", "/v1/keys", &Value::Null).status, 200);
        held("D-01", "the first key is in one file, 0600");
    });
}

/// Verifies that attack D-02 fails: fields that request access to the host are unknown to every request.
#[test]
#[ignore = "starts real sandboxes"]
fn fields_that_ask_for_the_host_are_unknown_everywhere() {
    served(async || {
        let service = Service::start();
        let sandbox = service.client().create(&e2e::service::small()).await.unwrap().id;
        let at = |rest: &str| format!("/v1/sandboxes/{sandbox}{rest}");
        let bodies = [
            ("POST", "/v1/sandboxes".to_owned(), small()),
            ("POST", at("/execs"), quick()),
            ("PUT", at("/lease"), json!({ "idle_ms": 60_000 })),
            ("PUT", "/v1/projects/other".to_owned(), json!({ "quota": PLENTY })),
            ("POST", "/v1/keys".to_owned(), json!({ "project": "default", "role": "read" })),
            ("PUT", "/v1/node/drain".to_owned(), json!({ "draining": false })),
        ];
        let fields = [
            ("privileged", json!(true)),
            ("mounts", json!(["/:/host"])),
            ("caps", json!(["SYS_ADMIN"])),
            ("network", json!("host")),
            ("annotations", json!({ "dev.gvisor.flag.network": "host" })),
            ("project", json!("another")),
            ("id", json!("mine")),
        ];
        let mut refused = 0;
        for (method, path, body) in &bodies {
            for (field, value) in &fields {
                if body.get(field).is_some() {
                    continue;
                }
                let mut asked = body.clone();
                asked[field] = value.clone();
                let answer = keyed(&service, &service.key, method, path, &asked);
                answer.assert(&format!("{method} {path} with {field}"), 400, "invalid_request");
                refused += 1;
            }
            // Control: without the field, the same body is accepted.
            let taken = keyed(&service, &service.key, method, path, body);
            assert!([200, 201].contains(&taken.status), "{method} {path}: {taken:?}");
            e2e::attack::count_control();
        }
        for nested in
            [json!({ "limits": { "swap_bytes": 1 } }), json!({ "limits": { "devices": ["/dev/kvm"] } })]
        {
            let answer = keyed(&service, &service.key, "POST", "/v1/sandboxes", &nested);
            answer.assert("a nested field", 400, "invalid_request");
            refused += 1;
        }
        // Unknown query parameters are refused too.
        let answer = keyed(&service, &service.key, "GET", "/v1/sandboxes?project=other", &Value::Null);
        answer.assert("a query", 400, "invalid_request");
        held("D-02", &format!("{refused} fields refused"));
    });
}

/// Verifies that attack D-03 fails: an exec's environment variables reach user code, but no process that runs
/// before it.
#[test]
#[ignore = "starts real sandboxes"]
fn variables_reach_user_code_and_nothing_before_it() {
    const LOUD: [&str; 5] = ["LD_PRELOAD", "LD_LIBRARY_PATH", "LD_DEBUG", "GLIBC_TUNABLES", "PYTHONSTARTUP"];
    served(async || {
        let service = Service::start();
        let client = service.client();
        let sandbox = client.create(&e2e::service::small()).await.unwrap().id;
        let run = async |text: &str, env: &[(&str, &str)]| {
            let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let spec = api::exec::ExecSpec { env, ..script(text) };
            client.exec(&sandbox, &spec).await.unwrap().collect().await.unwrap()
        };
        let planted = "echo 'import os; print(\"planted\", os.getuid())' > /workspace/usercustomize.py";
        run(planted, &[]).await;
        let evil = [
            ("LD_PRELOAD", "/workspace/evil.so"),
            ("LD_LIBRARY_PATH", "/workspace"),
            ("LD_DEBUG", "libs"),
            ("GLIBC_TUNABLES", "glibc.malloc.check=3"),
            ("PYTHONSTARTUP", "/workspace/usercustomize.py"),
            ("PYTHONPATH", "/workspace"),
        ];
        // Control: the variables reach user code and have an effect there.
        let done = run("env; /usr/bin/true; python3 -c 'pass'", &evil).await;
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(LOUD.iter().all(|name| out.contains(&format!("{name}="))), "{out}");
        e2e::attack::count_control();
        assert!(err.contains("evil.so"), "the loader was not reached: {err}");
        assert!(out.contains("planted 1000"), "{out}{err}");
        // Neither process 1 (as seen by the host), nor an exec without these variables, nor the server
        // contains them.
        let guest = guest(sandbox.as_str());
        let of = |name: &str| std::fs::read(format!("/proc/{guest}/{name}")).unwrap();
        assert!(!of("maps").is_empty() && !of("cmdline").is_empty(), "nothing was looked at");
        let next = run("env", &[]).await;
        assert!(String::from_utf8_lossy(&next.stdout).contains("PATH="), "nothing was looked at");
        for seen in [of("environ"), of("maps"), next.stdout] {
            let seen = String::from_utf8_lossy(&seen).into_owned();
            assert!(!LOUD.iter().any(|name| seen.contains(name)) && !seen.contains("evil"), "{seen}");
        }
        let environ = std::fs::read(format!("/proc/{}/environ", service.pid())).unwrap();
        assert!(!String::from_utf8_lossy(&environ).contains("/workspace"));
        // An invalid variable name could define a second variable.
        for name in ["A=B", "", "A\u{0}B"] {
            let body = json!({ "argv": ["/bin/true"], "env": { name: "x" } });
            let answer =
                keyed(&service, &service.key, "POST", &format!("/v1/sandboxes/{sandbox}/execs"), &body);
            answer.assert(name, 400, "invalid_request");
        }
        held("D-03", &format!("{} variables, in user code only", evil.len()));
    });
}

/// Returns the host pid of a sandbox's process 1.
fn guest(id: &str) -> u32 {
    let mark = format!("/bellglass/{id}/guest");
    let numbers = std::fs::read_dir("/proc").unwrap().flatten();
    let mut numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let inside = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text.contains(&mark))
    };
    numbers.find(inside).expect("a guest")
}

/// Verifies that attack D-04 fails: no key can be known before a server starts.
#[test]
#[ignore = "starts real sandboxes"]
fn no_key_is_known_before_a_server_is_started() {
    served(async || {
        let (one, two) = (Service::start(), Service::start());
        assert_ne!(one.key, two.key);
        assert_eq!(keyed(&one, &one.key, "GET", "/v1/keys", &Value::Null).status, 200);
        let crossed = keyed(&one, &two.key, "GET", "/v1/keys", &Value::Null);
        crossed.assert("another server's key", 401, "unauthorized");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let listed = Command::new("git").arg("-C").arg(&root).args(["ls-files", "-z"]).output().unwrap();
        let names = String::from_utf8(listed.stdout).unwrap();
        let mut looked = 0;
        // Skip the lock file, because it contains checksums that look like keys.
        for name in names.split('\0').filter(|name| !name.is_empty() && *name != "Cargo.lock") {
            let Ok(text) = std::fs::read_to_string(root.join(name)) else { continue };
            for word in secrets(&text) {
                let known = keyed(&one, word, "GET", "/v1/keys", &Value::Null);
                assert!([401, 429].contains(&known.status), "{name} holds a key");
            }
            assert!(!text.contains(concat!("-----BEGIN ", "PRIVATE KEY")), "{name} holds a private key");
            looked += 1;
        }
        // Control: the scan finds a key in text that contains one.
        let digits = one.key.strip_prefix("bgk_").unwrap();
        assert_eq!(secrets(&format!("key = \"{}\"", one.key)).collect::<Vec<_>>(), [digits]);
        e2e::attack::count_control();
        assert!(looked > 100, "{looked} files");
        held("D-04", &format!("{looked} files hold no key"));
    });
}

/// Returns the words that could be keys: 64 lower-case hexadecimal digits that are not all the same.
fn secrets(text: &str) -> impl Iterator<Item = &str> {
    let is_digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    text.split(move |c: char| !is_digit(c))
        .filter(|word| word.len() == 64 && word.bytes().any(|byte| byte != word.as_bytes()[0]))
}

/// Verifies that attack D-05 fails: the server never uses a tier weaker than the requested tier.
#[test]
#[ignore = "starts real sandboxes"]
fn a_weaker_tier_is_never_used_in_place_of_the_one_asked_for() {
    served(async || {
        let tools = tempfile::tempdir().unwrap();
        for directory in ["/usr/bin", "/usr/sbin", "/bin", "/sbin"] {
            for entry in std::fs::read_dir(directory).unwrap().flatten() {
                if entry.file_name() != "runsc" {
                    let _ = symlink(entry.path(), tools.path().join(entry.file_name()));
                }
            }
        }
        let path = format!("PATH={}", tools.path().display());
        let mut service = Service::with(&["env", &path], &[]);
        let strong = {
            let mut body = small();
            body["tier"] = json!("user_kernel");
            body
        };
        let create =
            |service: &Service, body: &Value| keyed(service, &service.key, "POST", "/v1/sandboxes", body);
        let live =
            |service: &Service| keyed(service, &service.key, "GET", "/v1/sandboxes?all=true", &Value::Null);
        create(&service, &strong).assert("without runsc", 422, "tier_unavailable");
        assert_eq!(live(&service).json()["items"], json!([]), "something was made");
        let node = keyed(&service, &service.key, "GET", "/v1/node", &Value::Null).json();
        assert!(!node["runtimes"].as_array().unwrap().contains(&json!("runsc")), "{node}");
        // A runtime that is installed but does not work is not replaced by a different runtime either.
        std::fs::write(tools.path().join("runsc"), "#!/bin/sh\nexit 1\n").unwrap();
        std::fs::set_permissions(tools.path().join("runsc"), PermissionsExt::from_mode(0o755)).unwrap();
        service.kill();
        service.begin();
        let broken = create(&service, &strong);
        assert!(broken.status >= 400 && !broken.refusal().1.is_empty(), "{broken:?}");
        // Control: with a working runsc, the same request creates a sandbox. Without it, containers can still
        // be created.
        recovers(&service).await;
        drop(service);
        let service = Service::start();
        assert_eq!(create(&service, &strong).status, 201);
        e2e::attack::count_control();
        held("D-05", &format!("broken runtime: {:?}", broken.refusal()));
    });
}

/// Verifies that attack D-06 fails: reserved names cannot be used by callers.
#[test]
#[ignore = "starts real sandboxes"]
fn what_is_ours_by_name_cannot_be_claimed() {
    served(async || {
        let service = Service::start();
        let create = |labels: Value| {
            let mut body = small();
            body["labels"] = labels;
            keyed(&service, &service.key, "POST", "/v1/sandboxes", &body)
        };
        for name in ["bellglass.project", "bellglass.", ""] {
            create(json!({ name: "x" })).assert(name, 400, "invalid_request");
        }
        // Control: a label with a similar name is accepted and returned unchanged.
        let made = create(json!({ "bellglass-project": "x" }));
        assert_eq!((made.status, &made.json()["labels"]), (201, &json!({ "bellglass-project": "x" })));
        e2e::attack::count_control();
        // The key determines the request's project, and headers cannot change it.
        let key = service.key_of("other", Role::Read, Quota::default()).await;
        let bearer = format!("Bearer {key}");
        for header in ["x-bellglass-project", "bellglass-project", "x-forwarded-user", "x-real-ip"] {
            let headers = [("authorization", bearer.as_str()), (header, "default")];
            let listed = ask(&service, "GET", "/v1/sandboxes?all=true", &headers, b"");
            assert_eq!(listed.json()["items"], json!([]), "{header}");
        }
        // Headers cannot change a client's address either, so wrong keys are still counted together.
        let wrong = |number: u32| -> Answer {
            let from = format!("10.0.0.{}", number % 250);
            let headers = [
                ("authorization", "Bearer wrong"),
                ("x-forwarded-for", from.as_str()),
                ("forwarded", "for=10.1.1.1"),
                ("x-real-ip", from.as_str()),
            ];
            ask(&service, "GET", "/v1/sandboxes", &headers, b"")
        };
        let answers: Vec<u16> = (0..60).map(|number| wrong(number).status).collect();
        assert!(answers[..20].iter().all(|status| *status == 401), "{answers:?}");
        assert!(answers[40..].iter().all(|status| *status == 429), "{answers:?}");
        let log = std::fs::read_to_string(service.data().join("audit.log")).unwrap();
        assert!(log.contains(&HERE.to_string()) && !log.contains("10.0.0."), "{log}");
        held("D-06", "labels, headers and addresses are ours");
    });
}

/// Verifies that attack N-40 fails: a proxy that the environment configures does not receive the key.
#[test]
#[ignore = "starts real sandboxes"]
fn a_proxy_of_the_environment_gets_no_key() {
    served(async || {
        let service = Service::start();
        let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
        proxy.set_nonblocking(true).unwrap();
        let url = format!("http://{}", proxy.local_addr().unwrap());
        let listed = |off: &str| {
            let mut command = Command::new(binary());
            command
                .args(["list"])
                .env("BELLGLASS_SERVER", service.url())
                .env("BELLGLASS_API_KEY", &service.key);
            for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
                command.env(name, &url);
            }
            for name in ["no_proxy", "NO_PROXY"] {
                command.env_remove(name);
            }
            let mut child = command
                .env(api::defence::VARIABLE, e2e::attack::off(off))
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut heard = String::new();
            let began = Instant::now();
            while began.elapsed() < LISTED_WITHIN && child.try_wait().unwrap().is_none() && heard.is_empty() {
                if let Ok((mut stream, _)) = proxy.accept() {
                    stream.set_nonblocking(false).unwrap();
                    let mut bytes = [0; 4096];
                    let count = stream.read(&mut bytes).unwrap();
                    heard = String::from_utf8_lossy(&bytes[..count]).into_owned();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = child.kill();
            (heard, child.wait_with_output().unwrap().status.success())
        };
        let (heard, _) = listed("N-40");
        assert!(heard.contains(&service.key), "control: {heard:?}");
        e2e::attack::count_control();
        assert_eq!(listed(""), (String::new(), true));
        held("N-40", "four variables, and the proxy heard nothing");
    });
}

/// Verifies that attack D-07 fails: a TLS key that every user can read is refused. The test also checks that
/// SIGHUP, which a server gets when its terminal closes, shuts the server down as gracefully as SIGTERM, and
/// that its sandboxes remain.
#[test]
#[ignore = "starts real sandboxes"]
fn a_tls_key_that_everybody_can_read_is_refused() {
    served(async || {
        let place = tempfile::tempdir().unwrap();
        let settings = super::wire::certified(place.path());
        let key = place.path().join("key.pem");
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o644)).unwrap();
        let data = || tempfile::Builder::new().prefix("bellglass-serve").tempdir().unwrap();
        let config = ["--listen", "127.0.0.1:0", "--config", settings.to_str().unwrap()];
        let said = serve(data().path(), &config);
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.status.code().is_some_and(|code| code != 0 && code != 124), "{said:?}");
        assert!(text.contains("key.pem") && text.contains("chmod 600"), "{text}");
        for (what, mode, off) in [("control", 0o644, "D-07"), ("0600", 0o600, "")] {
            std::fs::set_permissions(&key, PermissionsExt::from_mode(mode)).unwrap();
            let data = data();
            let mut command = Command::new(binary());
            command
                .arg("--data")
                .arg(data.path())
                .arg("serve")
                .args(config)
                .env(api::defence::VARIABLE, e2e::attack::off(off));
            command.arg("--first-key").arg(data.path().join("first.key"));
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert!(line.contains("https://"), "{what}: {line}");
            e2e::attack::count_control();
            let pid = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
            assert!(child.wait().unwrap().success(), "{what}: a hangup ends the server in order");
        }
        held("D-07", "mode 0644 is refused; a hangup ends the server in order");
    });
}
