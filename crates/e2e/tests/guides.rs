//! Tests that execute the guides. Every command of `docs/operate`, `docs/guides` and the README's section on
//! the service is executed as written, and must print the output that the page shows below it.
//!
//! The blocks of a guide run one after the other in a single shell session. The session runs in separate
//! mount and network namespaces, so that it has its own `/var/lib/bellglass`, `/etc`, `/usr/local/bin`,
//! `/root` and port 7070. In place of systemd, it has a small `systemctl` that runs the `ExecStart` of the
//! installed unit. Only blocks whose fence is `sh no-test` are skipped, and the first line of such a block
//! must state the reason.
//!
//! ```text
//! ```sh            executed; must exit with 0
//! ```text          right after it: the expected output, line by line. `…` matches any text, or any lines if alone on a line
//! ```sh no-test    not executed; begins with `# not tested: <reason>`
//! ```

use std::fmt::Write as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use e2e::service::{Service, binary, served};

/// Timeout for a guide, in seconds.
const GUIDE_SECONDS: u32 = 120;
/// Line that separates the outputs of two blocks.
const MARK: &str = "-- end of block";
/// Markers around the README's section that these tests execute. `just first-minute` executes the rest of the
/// README.
const README_PART: (&str, &str) = ("<!-- service -->", "<!-- /service -->");

/// Pages that begin without a server. All other pages continue from the end of `install-as-a-service.md`.
const WITHOUT_SERVER: [&str; 2] = ["README.md", "docs/operate/install-as-a-service.md"];

/// A page with its executable blocks.
struct Guide {
    path: String,
    blocks: Vec<Block>,
}

/// One block of commands.
struct Block {
    line: usize,
    commands: String,
    expected: Option<String>,
}

/// A fenced block of any kind.
struct Fence {
    line: usize,
    kind: String,
    text: String,
    /// True if only empty lines separate this block from the previous block.
    follows: bool,
}

#[test]
#[ignore = "starts real sandboxes"]
fn the_commands_of_readme_work() {
    run("README.md");
}

#[test]
#[ignore = "starts real sandboxes"]
fn the_commands_of_api_work() {
    run("docs/guides/api.md");
}

#[test]
#[ignore = "starts real sandboxes"]
fn the_commands_of_code_work() {
    run("docs/guides/code.md");
}

#[test]
#[ignore = "starts real sandboxes"]
fn the_commands_of_tools_work() {
    run("docs/guides/tools.md");
}

#[test]
#[ignore = "starts real sandboxes"]
fn the_commands_of_mcp_work() {
    run("docs/guides/mcp.md");
}

#[test]
#[ignore = "starts real sandboxes"]
fn the_commands_of_e2b_work() {
    run("docs/guides/e2b.md");
}

#[test]
#[ignore = "starts real sandboxes"]
fn the_commands_of_templates_work() {
    run("docs/guides/templates.md");
}

#[test]
#[ignore = "starts real sandboxes"]
fn the_commands_of_network_work() {
    run("docs/guides/network.md");
}

#[test]
#[ignore = "starts real sandboxes"]
fn the_commands_of_secrets_work() {
    run("docs/guides/secrets.md");
}

#[test]
#[ignore = "starts real sandboxes"]
fn the_commands_of_ports_work() {
    run("docs/guides/ports.md");
}

#[test]
#[ignore = "starts real sandboxes"]
fn the_commands_of_terminals_work() {
    run("docs/guides/terminals.md");
}

#[test]
#[ignore = "starts real sandboxes"]
fn the_commands_of_files_work() {
    run("docs/guides/files.md");
}

#[test]
#[ignore = "starts real sandboxes"]
fn the_commands_of_artifacts_work() {
    run("docs/guides/artifacts.md");
}

#[test]
#[ignore = "starts real sandboxes"]
fn the_commands_of_install_as_a_service_work() {
    run("docs/operate/install-as-a-service.md");
}

#[test]
#[ignore = "starts real sandboxes"]
fn the_commands_of_upgrade_work() {
    run("docs/operate/upgrade.md");
}

#[test]
#[ignore = "starts real sandboxes"]
fn the_commands_of_backup_work() {
    run("docs/operate/backup.md");
}

#[test]
#[ignore = "starts real sandboxes"]
fn the_commands_of_keys_and_projects_work() {
    run("docs/operate/keys-and-projects.md");
}

#[test]
#[ignore = "starts real sandboxes"]
fn the_commands_of_metrics_and_health_work() {
    run("docs/operate/metrics-and-health.md");
}

#[test]
#[ignore = "starts real sandboxes"]
fn the_commands_of_tls_work() {
    run("docs/operate/tls.md");
}

#[test]
#[ignore = "starts real sandboxes"]
fn the_commands_of_troubleshooting_work() {
    run("docs/operate/troubleshooting.md");
}

#[test]
fn every_page_with_commands_is_a_test_and_every_exception_has_a_reason() {
    let own = std::fs::read_to_string(root().join("crates/e2e/tests/guides.rs")).unwrap();
    for path in pages() {
        let guide = Guide::read(&path);
        if !guide.blocks.is_empty() {
            assert!(own.contains(&format!("run(\"{path}\")")), "{path} has commands and no test here");
        }
    }
}

#[test]
fn every_code_of_an_error_is_in_the_troubleshooting_table() {
    let text = std::fs::read_to_string(root().join("docs/openapi.json")).unwrap();
    let description: serde_json::Value = serde_json::from_str(&text).unwrap();
    let codes = description.pointer("/components/schemas/ErrorCode").unwrap();
    // An enum whose values have descriptions becomes a list of constants; otherwise, it becomes a list of
    // names.
    let named: Vec<&str> = match codes.get("oneOf").and_then(|list| list.as_array()) {
        Some(list) => list.iter().filter_map(|one| one.pointer("/enum/0")?.as_str()).collect(),
        None => codes["enum"].as_array().unwrap().iter().filter_map(|one| one.as_str()).collect(),
    };
    assert!(named.len() > 10, "{named:?}");
    let page = std::fs::read_to_string(root().join("docs/operate/troubleshooting.md")).unwrap();
    for code in named {
        assert!(page.contains(&format!("| `{code}` |")), "{code} has no row");
    }
}

#[test]
fn what_was_printed_is_compared_line_by_line() {
    assert!(printed("a  b\n", "a b"));
    assert!(printed("s3w9 build running\n", "s… build running"));
    assert!(printed("one\ntwo\nthree\n", "one\n…\nthree"));
    assert!(!printed("one\n", "one\ntwo"));
    assert!(!printed("one\ntwo\n", "one"));
    assert!(!printed("xone\n", "one"));
    assert!(!printed("key\n", "key …"));
}

/// Executes all blocks of one page.
fn run(page: &str) {
    served(async || {
        let guide = Guide::read(page);
        assert!(!guide.blocks.is_empty(), "{page} has no commands");
        // Create a data directory that contains only a template, as after `bellglass template build base`.
        let mut service = Service::start();
        service.kill();
        for entry in std::fs::read_dir(service.data()).unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let ours = ["bellglass.db", "audit.log", "first.key", "serve.log"];
            if ours.iter().any(|ours| name.starts_with(ours)) {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
        let needs = |word: &str| guide.blocks.iter().any(|block| block.commands.contains(word));
        if needs("--template interpreter") {
            e2e::layer::lend(service.data(), "interpreter");
        }
        if needs("session create") || needs("/mcp") {
            e2e::talk::lend(&service);
        }
        let scratch = tempfile::Builder::new().prefix("bellglass-guide").tempdir().unwrap();
        guide.execute(service.data(), scratch.path());
    });
}

impl Guide {
    fn read(page: &str) -> Self {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        let mut blocks: Vec<Block> = Vec::new();
        for fence in fences(&text) {
            let wanted = page != "README.md" || within(&text, fence.line);
            match fence.kind.as_str() {
                "sh" if wanted => {
                    blocks.push(Block { line: fence.line, commands: fence.text, expected: None })
                }
                "text" if wanted && fence.follows => {
                    let block = blocks.last_mut().unwrap_or_else(|| panic!("{page}:{}", fence.line));
                    block.expected = Some(fence.text);
                }
                "sh no-test" => assert!(
                    fence.text.starts_with("# not tested: "),
                    "{page}:{}: a block that is not tested begins with `# not tested: ` and why",
                    fence.line
                ),
                _ => {}
            }
        }
        Self { path: page.to_owned(), blocks }
    }

    fn execute(&self, data: &Path, scratch: &Path) {
        let write = |name: &str, text: &str| {
            let path = scratch.join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        let checkout = scratch.join("checkout");
        std::fs::create_dir_all(checkout.join("target/release")).unwrap();
        symlink(binary(), checkout.join("target/release/bellglass")).unwrap();
        symlink(root().join("deploy"), checkout.join("deploy")).unwrap();
        write("enter", ENTER);
        write("systemctl", SYSTEMCTL);
        write("guide", &self.script());
        // Use a separate process group, so that processes which the guide leaves running can be killed with
        // the group.
        let mut child = Command::new("timeout")
            .args(["--signal=KILL", &GUIDE_SECONDS.to_string()])
            .args(["unshare", "--mount", "--net", "--propagation", "private", "bash"])
            .arg(scratch.join("enter"))
            .arg(scratch)
            .arg(data)
            .env_remove("BELLGLASS_SERVER")
            .env_remove("BELLGLASS_API_KEY")
            .env_remove("BELLGLASS_DATA")
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let status = child.wait().unwrap();
        if let Some(group) = rustix::process::Pid::from_raw(child.id().cast_signed()) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let output = std::fs::read_to_string(scratch.join("output")).unwrap_or_default();
        let log = std::fs::read_to_string(scratch.join("journal")).unwrap_or_default();
        let log: Vec<&str> = log.lines().filter(|line| !line.contains("answered")).collect();
        self.compare(&output, &format!("{status}\nserver:\n{}", log.join("\n")));
    }

    /// Compares the output of each block with the expected output.
    fn compare(&self, output: &str, end: &str) {
        let mut rest = output;
        for (number, block) in self.blocks.iter().enumerate() {
            let place = format!("{}:{}", self.path, block.line);
            let Some((said, after)) = rest.split_once(&format!("{MARK} {number}\n")) else {
                panic!("{place}: this block failed\n{}\nprinted:\n{rest}\n{end}", block.commands);
            };
            eprintln!("{place}: ok");
            if let Some(expected) = &block.expected {
                assert!(
                    printed(said, expected),
                    "{place}: printed\n{said}\ninstead of\n{expected}\nby\n{}\n{end}",
                    block.commands
                );
            }
            rest = after;
        }
    }

    fn script(&self) -> String {
        let mut text = String::from("set -e\n");
        if !WITHOUT_SERVER.contains(&self.path.as_str()) {
            text.push_str(PREPARE);
        }
        for (number, block) in self.blocks.iter().enumerate() {
            let _ = writeln!(text, "{}\necho '{MARK} {number}'", block.commands);
        }
        text
    }
}

/// Returns the paths of all pages that may contain commands.
fn pages() -> Vec<String> {
    let mut pages = vec!["README.md".to_owned()];
    for directory in ["docs/operate", "docs/guides"] {
        for entry in std::fs::read_dir(root().join(directory)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") {
                pages.push(format!("{directory}/{name}"));
            }
        }
    }
    pages
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns true if a line of the README is in the section that these tests execute.
fn within(text: &str, line: usize) -> bool {
    let at = |mark: &str| text.lines().position(|one| one == mark).unwrap_or_else(|| panic!("no {mark}"));
    (at(README_PART.0)..at(README_PART.1)).contains(&line)
}

fn fences(text: &str) -> Vec<Fence> {
    let mut fences: Vec<Fence> = Vec::new();
    let mut open = false;
    let mut follows = false;
    for (index, line) in text.lines().enumerate() {
        match (line.strip_prefix("```"), open) {
            (Some(kind), false) => {
                fences.push(Fence { line: index + 1, kind: kind.to_owned(), text: String::new(), follows });
                open = true;
            }
            (Some(_), true) => {
                open = false;
                follows = true;
            }
            (None, true) => {
                let fence = fences.last_mut().unwrap();
                fence.text.push_str(line);
                fence.text.push('\n');
            }
            (None, false) => follows &= line.is_empty(),
        }
    }
    fences
}

/// Returns true if a block printed the expected output. Several spaces count as one, because IDs affect the
/// width of tables. Messages about slow responses are ignored, because they depend on the machine and not on
/// the guide.
fn printed(said: &str, expected: &str) -> bool {
    let words = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with("bellglass: still waiting for a response"));
        lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    };
    lines_match(&words(said), &words(expected))
}

fn lines_match(said: &[String], expected: &[String]) -> bool {
    match (said, expected) {
        (_, [only, rest @ ..]) if only == "…" => {
            (0..=said.len()).any(|skip| lines_match(&said[skip..], rest))
        }
        ([line, lines @ ..], [want, wants @ ..]) => line_matches(line, want) && lines_match(lines, wants),
        ([], []) => true,
        ([], _) | (_, []) => false,
    }
}

fn line_matches(line: &str, want: &str) -> bool {
    let Some((before, rest)) = want.split_once('…') else { return line == want };
    let Some(line) = line.strip_prefix(before) else { return false };
    (0..=line.len())
        .filter(|at| line.is_char_boundary(*at))
        .any(|at| line_matches(&line[at..], rest) && (!line.is_empty() || before.is_empty()))
}

/// Script that isolates the directories that a guide uses, and then runs the guide.
const ENTER: &str = r#"
set -euo pipefail
scratch=$1 data=$2
ip link set lo up
mkdir "$scratch/layers"
mount -t tmpfs tmpfs "$scratch/layers"
for place in etc usr/local/bin; do
    mkdir -p "$scratch/layers/$place/up" "$scratch/layers/$place/work"
    mount -t overlay overlay "/$place" \
        -o "lowerdir=/$place,upperdir=$scratch/layers/$place/up,workdir=$scratch/layers/$place/work"
done
mkdir -p /etc/systemd/system
cp "$scratch/systemctl" /usr/local/bin/systemctl
cp -L "$scratch/checkout/target/release/bellglass" "$scratch/layers/bellglass"
rm "$scratch/checkout/target/release/bellglass"
cp "$scratch/layers/bellglass" "$scratch/checkout/target/release/bellglass"
cp "$scratch/layers/bellglass" /usr/local/bin/bellglass
mount -t tmpfs tmpfs /var/lib
mkdir -m 711 /var/lib/bellglass
mount --bind "$data" /var/lib/bellglass
cp -rL "$scratch/checkout/deploy" "$scratch/layers/deploy"
rm "$scratch/checkout/deploy"
cp -r "$scratch/layers/deploy" "$scratch/checkout/deploy"
mount -t tmpfs tmpfs /root
cd "$scratch/checkout"
env -i HOME=/root TERM=dumb LANG=C.UTF-8 JOURNAL="$scratch/journal" \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin bash "$scratch/guide" >"$scratch/output" 2>&1
"#;

/// Script with the commands that a reader has executed by the end of `install-as-a-service.md`.
const PREPARE: &str = r#"
install -m 644 deploy/bellglass.service /etc/systemd/system/
bellglass serve --print-config > /etc/bellglass.toml
systemctl start bellglass
curl -sf --retry 5 --retry-connrefused http://127.0.0.1:7070/healthz > /dev/null
export BELLGLASS_SERVER=http://127.0.0.1:7070 BELLGLASS_API_KEY=$(cat /var/lib/bellglass/first.key)
"#;

/// Script that replaces systemd: it starts and stops the program of the installed unit, and logs its output.
const SYSTEMCTL: &str = r#"#!/bin/bash
set -eu
pid=/var/lib/server.pid
stop() {
    [[ -e $pid ]] || return 0
    kill -TERM "$(cat $pid)" 2>/dev/null || true
    while [[ -e /proc/$(cat $pid)/exe ]]; do sleep 0.02; done
    rm $pid
}
start() {
    command=$(sed -n 's/^ExecStart=//p' /etc/systemd/system/bellglass.service)
    $command >>"$JOURNAL" 2>&1 </dev/null &
    echo $! >$pid
}
case $* in
daemon-reload) ;;
'enable --now bellglass' | 'start bellglass') start ;;
'stop bellglass') stop ;;
'restart bellglass') stop; start ;;
*) echo "systemctl: $* is not known here" >&2; exit 1 ;;
esac
"#;
