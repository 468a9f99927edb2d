//! Every route of the API description, requested with another project's key and without a valid key.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Instant;

use api::account::{CreateKey, Role};
use api::code::{ContextSpec, Language};
use api::sandbox::{CreateSandbox, SandboxState};
use api::secret::PutSecret;
use api::session::{CreateSession, ToolSet};
use api::{ContextId, ExecId, SandboxId};
use bytes::Bytes;
use client::Client;
use e2e::lab::{promised, script};
use e2e::service::{PLENTY, Service, served, small};
use e2e::talk::{self, Talk};
use e2e::wire::{Coming, Wire, command, sandbox};
use serde_json::{Value, json};

/// Names of a dataset and of a secret that both projects have.
const DATASET: &str = "shared";
const SECRET: &str = "SHARED";

/// A request for one route of the API description.
struct Route {
    method: String,
    /// Path as in the description, with its parameters as names.
    template: String,
    /// Path with all parameters filled in, and the query parameters that the route requires.
    path: String,
    body: Option<Value>,
}

/// What a key of role write gets on a route if everything that the path names belongs to another project.
#[derive(Debug, PartialEq, Eq)]
enum Reach {
    /// The same 404 response as for an ID that does not exist.
    NotFound,
    /// 403, because the route is for administrators.
    Forbidden,
    /// Success, on resources of the key's own project only.
    Own,
    /// Success, and the response is the same for all projects.
    Public,
    /// A stream of the events of the key's own project.
    Events,
}

/// Resources of the project `default`.
struct Mine {
    sandbox: SandboxId,
    exec: ExecId,
    context: ContextId,
    talk: Talk,
    run: ExecId,
    /// Texts that occur only in descriptions of these resources.
    marks: Vec<String>,
}

impl Route {
    /// Returns the access that another project has. A route that this function does not know is an error, so that
    /// every new route is classified.
    fn reach(&self) -> Reach {
        let below = |prefix: &str| self.template.starts_with(prefix);
        match (self.method.as_str(), self.template.as_str()) {
            _ if below("/v1/sandboxes/{sandbox}") || below("/v1/sessions/{session}") => Reach::NotFound,
            _ if below("/v1/keys") || below("/v1/projects") || below("/v1/node") => Reach::Forbidden,
            ("GET", "/metrics") => Reach::Forbidden,
            ("GET" | "POST", "/v1/sandboxes" | "/v1/sessions") => Reach::Own,
            ("GET", "/v1/datasets" | "/v1/secrets") => Reach::Own,
            ("PUT" | "DELETE", "/v1/datasets/{name}" | "/v1/secrets/{name}") => Reach::Own,
            ("GET", "/v1/events") => Reach::Events,
            ("GET", "/healthz" | "/openapi.json" | "/v1/tools" | "/v1/tools/prompt") => Reach::Public,
            other => panic!("which access has another project to {other:?}?"),
        }
    }
}

/// Returns every route of the OpenAPI description, with a valid request for it.
fn routes(names: &BTreeMap<&str, &str>) -> Vec<Route> {
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    let description: Value = serde_json::from_str(&std::fs::read_to_string(text).unwrap()).unwrap();
    let mut routes = Vec::new();
    for (template, methods) in description["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let mut path = template.clone();
            for (name, value) in names {
                let value = if template == "/v1/secrets/{name}" { SECRET } else { value };
                path = path.replace(&format!("{{{name}}}"), value);
            }
            assert!(!path.contains('{'), "{template} has a parameter that this test does not know");
            path.push_str(query(template));
            let body = (method != "get" && method != "delete").then(|| body(method, template));
            routes.push(Route { method: method.to_uppercase(), template: template.clone(), path, body });
        }
    }
    routes
}

/// Returns the query parameters that a route requires.
fn query(template: &str) -> &'static str {
    match template.rsplit('/').next().unwrap() {
        "read" => "?stdout=0&stderr=0",
        "stdin" => "?offset=0",
        "files" | "list" | "content" | "hash" | "make" | "watch" | "edit" | "archive" => "?path=x",
        "move" | "copy" => "?from=x&to=y",
        "output" if template.starts_with("/v1/sessions/") => "?stream=stdout",
        "tools" | "prompt" => "?set=python",
        _ => "",
    }
}

/// Returns a valid request body.
fn body(method: &str, template: &str) -> Value {
    match (method, template.rsplit('/').next().unwrap()) {
        ("post", "execs") => command(&script("true")),
        ("post", "signal") => json!({ "signal": 9 }),
        ("put", "lease") => json!({ "idle_ms": 1000 }),
        ("put", "size") => json!({ "cols": 80, "rows": 24 }),
        ("put", "{port}") => json!({ "public": true }),
        ("post", "edit") => json!({ "old": "a", "new": "b" }),
        ("post", "sandboxes") => sandbox(&small()),
        ("post", "sessions") => json!({ "set": "python" }),
        ("post", "{tool}") => json!({ "script": "print(1)" }),
        ("put", "drain") => json!({ "draining": true }),
        ("post", "keys") => json!({ "project": "default", "role": "admin" }),
        ("put", "{name}") if template == "/v1/secrets/{name}" => {
            json!({ "value": "canary-of-strangers-7c1d" })
        }
        _ => json!({}),
    }
}

impl Mine {
    /// Creates one resource of each kind.
    async fn create(service: &Service) -> Self {
        talk::lend(service);
        let client = service.client();
        let named = Some("mine".parse().unwrap());
        let request =
            CreateSandbox { name: named, template: "interpreter".into(), ..CreateSandbox::default() };
        let id = client.create(&request).await.unwrap().id;
        let exec = client.start(&id, &script("exec sleep 300")).await.unwrap().id;
        let bash = ContextSpec { language: Language::Bash, ..ContextSpec::default() };
        let context = client.create_context(&id, &bash).await.unwrap().id;
        let dataset =
            client.put_dataset(DATASET, Bytes::from_static(b"of the project default")).await.unwrap();
        let secret = PutSecret { value: "canary-of-default-5f0e9c2b".into() };
        client.put_secret(SECRET, &secret).await.unwrap();
        let talk = Talk::with(service, CreateSession::of(ToolSet::Python)).await;
        let run = talk.called("execute_python", json!({ "script": "print('of default')" })).await.run;
        let marks = vec![id.to_string(), talk.id.to_string(), dataset.sha256, run.to_string()];
        Self { sandbox: id, exec, context, talk, run, marks }
    }

    /// Returns the parameters of paths that name these resources. The sandbox is named by its ID or by its name.
    fn names<'a>(&'a self, sandbox: &'a str) -> BTreeMap<&'static str, &'a str> {
        BTreeMap::from([
            ("sandbox", sandbox),
            ("exec", self.exec.as_str()),
            ("context", self.context.as_str()),
            ("session", self.talk.id.as_str()),
            ("run", self.run.as_str()),
            ("name", DATASET),
            ("tool", "execute_python"),
            ("number", "0"),
            ("port", "80"),
            ("key", "k"),
            ("project", "p"),
        ])
    }

    /// Returns a description of all these resources that changes if any of them changes.
    async fn state(&self) -> Value {
        let client = &self.talk.client;
        assert_eq!(client.sandbox(&self.sandbox).await.unwrap().state, SandboxState::Running);
        json!({
            "execs": client.execs(&self.sandbox).await.unwrap().into_iter().map(|exec| exec.id).collect::<Vec<_>>(),
            "contexts": client.contexts(&self.sandbox).await.unwrap(),
            "datasets": client.datasets().await.unwrap(),
            "secrets": client.secrets().await.unwrap(),
            "session": client.session(&self.talk.id).await.unwrap().id,
            "runs": client.runs(&self.talk.id).await.unwrap(),
            "sessions": client.sessions().await.unwrap().len(),
            "sandboxes": client.sandboxes(false).await.unwrap().len(),
        })
    }

    /// Panics if a response to another project describes one of these resources.
    fn assert_absent(&self, text: &str, what: &str) {
        let found = self.marks.iter().find(|mark| text.contains(mark.as_str()));
        assert_eq!(found, None, "{what}: {text}");
    }
}

/// Sends one request with the other project's key, and checks the response.
async fn check(wire: &Wire, mine: &Mine, route: &Route, sandbox: &str) {
    let Route { method, template, path, body } = route;
    let what = format!("{method} {path}");
    let answer = wire.ask(method, path, body.as_ref()).await;
    match route.reach() {
        Reach::NotFound => {
            assert_eq!((answer.status, answer.code().as_str()), (404, "not_found"), "{what}");
            let is_session = template.starts_with("/v1/sessions");
            let name = if is_session { mine.talk.id.as_str() } else { sandbox };
            // The response equals the response for an ID that never existed.
            let nothing = wire.ask(method, &path.replace(name, "nothing"), body.as_ref()).await;
            assert_eq!(answer.body, nothing.body.replace("nothing", name), "{what}");
        }
        Reach::Forbidden => {
            assert_eq!((answer.status, answer.code().as_str()), (403, "forbidden"), "{what}");
        }
        Reach::Own | Reach::Public => {
            assert!((200..300).contains(&answer.status), "{what}: {answer:?}");
            mine.assert_absent(&answer.body, &what);
        }
        Reach::Events => unreachable!("the caller reads the stream"),
    }
}

/// Reads events until one describes this sandbox. Panics if an event describes a resource of the other project.
async fn read_events(events: &mut Coming, mine: &Mine, until: &SandboxId) {
    loop {
        let event = events.line().await.expect("another event").to_string();
        mine.assert_absent(&event, "an event");
        if event.contains(until.as_str()) {
            return;
        }
    }
}

/// On every route, another project's key gets the same 404 response as for a resource that does not exist, or only
/// resources of its own project.
#[test]
#[ignore = "starts real sandboxes"]
fn what_belongs_to_another_project_is_not_there_on_any_route() {
    served(async || {
        let service = Service::start();
        let mut mine = Mine::create(&service).await;
        let before = mine.state().await;
        let key = service.key_of("strangers", Role::Write, PLENTY).await;
        let wire = service.wire().with_key(Some(&key));
        let mut events = wire.open("GET", "/v1/events", None, &[]).await;
        assert_eq!(events.status, 200);
        // Events that the stream must not contain.
        let passing = service.client().create(&small()).await.unwrap().id;
        service.client().stop(&passing).await.unwrap();
        mine.marks.push(passing.to_string());
        let mut asked = BTreeMap::new();
        for name in [mine.sandbox.as_str(), "mine"] {
            for route in routes(&mine.names(name)) {
                let reach = route.reach();
                if reach != Reach::Events {
                    check(&wire, &mine, &route, name).await;
                }
                *asked.entry(format!("{reach:?}")).or_insert(0) += 1;
            }
        }
        eprintln!("requests by expected response: {asked:?}");
        let own = Client::new(&service.url(), &key).unwrap().create(&small()).await.unwrap().id;
        read_events(&mut events, &mine, &own).await;
        assert_eq!(mine.state().await, before, "something was done to a resource of another project");
        // Control: with a key of the right project, the routes find the resources.
        let found = service.wire().ask("GET", &format!("/v1/sandboxes/{}", mine.sandbox), None).await;
        assert!(mine.marks.iter().any(|mark| found.body.contains(mark)), "{found:?}");
    });
}

/// On every route, a request whose key is missing, wrong, expired or revoked is refused immediately with 401.
#[test]
#[ignore = "starts real sandboxes"]
fn a_request_without_a_valid_key_is_refused_at_once_on_every_route() {
    served(async || {
        let service = Service::start();
        let admin = service.client();
        let ask = CreateKey {
            project: "default".into(),
            role: Role::Admin,
            label: String::new(),
            valid_ms: Some(1),
        };
        let expired = admin.create_key(&ask).await.unwrap().secret;
        let revoked = admin.create_key(&CreateKey { valid_ms: None, ..ask }).await.unwrap();
        let works = service.wire().with_key(Some(&revoked.secret));
        assert_eq!(works.ask("GET", "/v1/sandboxes", None).await.status, 200);
        admin.revoke_key(&revoked.key.id).await.unwrap();
        let wrong = "0".repeat(64);
        let keys = [None, Some(wrong.as_str()), Some(&expired), Some(&revoked.secret)];
        let parameters = ["sandbox", "exec", "context", "session", "run", "name", "tool", "key", "project"]
            .map(|name| (name, "x"));
        let names = parameters.into_iter().chain([("number", "0"), ("port", "80")]).collect();
        let begun = Instant::now();
        let mut asked = 0;
        for (key, number) in keys.into_iter().zip(2..) {
            for (Route { method, path, body, .. }, route) in routes(&names).into_iter().zip(0u8..) {
                // The server counts wrong keys per address, and there are more routes than attempts per
                // address.
                let wire = service.wire().from(Ipv4Addr::new(127, 0, number, 1 + route / 20)).with_key(key);
                if path == "/healthz" || path == "/openapi.json" {
                    continue;
                }
                let answer = wire.ask(&method, &path, body.as_ref()).await;
                assert_eq!((answer.status, answer.code().as_str()), (401, "unauthorized"), "{method} {path}");
                asked += 1;
            }
        }
        let each = begun.elapsed() / asked;
        eprintln!("{asked} refusals, {each:?} each");
        assert!(each < promised(1) / 10, "{each:?} for a refusal");
        assert!(admin.sandboxes(true).await.unwrap().is_empty());
    });
}
