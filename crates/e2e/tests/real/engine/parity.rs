//! Every backend returns the same results, byte for byte (requirements A9.01 and A14.07).

use api::code::Code;
use api::exec::ExecSpec;
use api::limits::Limits;
use api::policy::Policy;
use api::sandbox::CreateSandbox;
use client::Client;
use e2e::daytona::Server;
use e2e::lab::script;
use e2e::layer;
use e2e::room::{Ran, coded, python};
use e2e::service::{Service, served};

use super::{daytona, engines};

/// Limits that every backend can enforce.
const LIMITS: Limits = Limits {
    memory_bytes: 1 << 30,
    cpu_millis: 2000,
    pids: 128,
    disk_bytes: 256 << 20,
    disk_inodes: 8192,
    tmp_bytes: 64 << 20,
    ttl_ms: 3_600_000,
};

/// Returns the execs that every sandbox runs, each with a name, in the order in which they run.
fn questions() -> Vec<(&'static str, ExecSpec)> {
    let requiring = |name: &str| {
        coded(Code { source: "print(1)".into(), requirements: vec![name.to_owned()], ..Code::default() })
    };
    let short = |spec: ExecSpec| ExecSpec { deadline_ms: Some(1000), ..spec };
    vec![
        ("streams and a code", script("echo out; echo err >&2; exit 3")),
        ("bytes", script("printf 'a\\000\\377\\n'")),
        ("who", script("id; pwd; umask; echo $0; ulimit -c; ulimit -n")),
        ("variables", script("env | sort")),
        (
            "lists",
            script(
                "cat /etc/passwd /etc/group; hostname; grep -v '127.0.0.1' /etc/resolv.conf; echo nobody else",
            ),
        ),
        (
            "names",
            python(
                "import socket\nfor name in ('localhost', 'sandbox'):\n    print(socket.gethostbyname(name))",
            ),
        ),
        (
            "what may not be written",
            script("touch /usr/x; touch /etc/x; mkdir /proc/x; touch /.bellglass/x; ls /.bellglass/spool"),
        ),
        (
            "what may be",
            script(
                "echo 1 > a; mkdir -p b/c; echo 2 > b/c/d; echo 3 > /tmp/e; echo 4 > ~/f; cat a b/c/d /tmp/e ~/f; chmod +x a; ./a",
            ),
        ),
        (
            "threads",
            python(
                "import threading\nt = threading.Thread(target=print, args=('inside',))\nt.start()\nt.join()",
            ),
        ),
        ("a signal", script("kill -SEGV $$")),
        ("a program that is not there", script("/no/such/program; no-such-command")),
        ("too slow", short(script("echo begun; sleep 60"))),
        ("too large", python("print('begun', flush=True)\nx = bytearray(2 << 30)\nprint(len(x))")),
        ("after it", script("echo still here; cat a")),
        ("no network", python("import socket\nsocket.create_connection(('192.0.2.1', 80), 5)")),
        ("no name", python("import socket\nsocket.getaddrinfo('example.org', 80)")),
        ("a value", python("import numpy\nnumpy.arange(6).reshape(2, 3).sum(axis=0)")),
        ("an exception", python("def f():\n    return 1 / 0\nf()")),
        ("what cannot be read", python("print('a'\n")),
        ("a module that is not there", python("import no_such_module_of_bellglass")),
        ("a package that is not there", requiring("no-such-package-of-bellglass")),
        ("a version that is not there", requiring("cowsay==999")),
        (
            "a package",
            coded(Code {
                source: "import cowsay\nprint(cowsay.__name__)".into(),
                requirements: vec!["cowsay==6.1".into()],
                ..Code::default()
            }),
        ),
        ("files at the end", script("cd /workspace; find . -type f | sort | xargs sha256sum")),
        ("a terminal's size", script("stty size; test -t 0 || echo no terminal")),
    ]
}

/// Formats a run for comparison: its outcome, its output streams and its displayed results.
fn told(ran: &Ran) -> String {
    let results: Vec<String> =
        ran.results.iter().map(|line| serde_json::to_string(&line.result).unwrap()).collect();
    format!(
        "{:?}\n--- out\n{}\n--- err\n{}\n--- results\n{}",
        ran.end.outcome,
        ran.stdout,
        ran.stderr,
        results.join("\n")
    )
}

async fn answers(client: &Client) -> Vec<(&'static str, String)> {
    let policy = Some(Policy::of_words(&["python-packages"]).unwrap());
    let ask = CreateSandbox {
        template: "interpreter".into(),
        limits: LIMITS.into(),
        policy,
        ..CreateSandbox::default()
    };
    let id = client.create(&ask).await.unwrap_or_else(|error| panic!("{error:?}")).id;
    let mut all = Vec::new();
    for (name, spec) in questions() {
        let ran = match client.exec(&id, &spec).await {
            Ok(exec) => told(&Ran::from(exec.collect().await.unwrap())),
            Err(error) => format!("{:?}", error.to_api()),
        };
        all.push((name, ran));
    }
    client.stop(&id).await.unwrap();
    all
}

#[test]
#[ignore = "starts real sandboxes"]
fn every_backend_answers_the_same() {
    let engines = engines();
    if engines.is_empty() {
        return;
    }
    served(async || {
        let native = Service::start();
        layer::lend(native.data(), "interpreter");
        let expected = answers(&native.client()).await;
        drop(native);
        for kind in &engines {
            let service = Service::on_engine(*kind);
            compare(&expected, &answers(&service.client()).await, kind.name());
        }
        if daytona() {
            let service = Service::on_daytona(Server::shared());
            compare(&expected, &answers(&service.client()).await, "daytona");
        }
    });
}

fn compare(expected: &[(&str, String)], seen: &[(&str, String)], name: &str) {
    let differing: Vec<String> = expected
        .iter()
        .zip(seen)
        .filter(|(ours, theirs)| ours != theirs)
        .map(|((asked, ours), (_, theirs))| format!("== {asked}\noci: {ours}\n{name}: {theirs}"))
        .collect();
    let all = expected.len();
    assert!(differing.is_empty(), "{} of {all}:\n{}", differing.len(), differing.join("\n"));
    eprintln!("{name}: {all} answers, all the same");
}
