//! Attack K-17: a program in a sandbox's terminal that types into the terminal of the operator.

use std::time::Duration;

use api::sandbox::CreateSandbox;
use bytes::Bytes;
use e2e::attack;
use e2e::service::{Service, binary, served, small, tiers};
use e2e::tmux::Tmux;

use super::ground::{held, recovers};

/// Timeout for text to appear on the operator's screen.
const SHOWS: Duration = Duration::from_secs(30);

/// Runs a command in the operator's terminal, and then waits for a line of input. Returns the line that the
/// operator's shell reads.
async fn next_line(service: &Service, command: &str) -> String {
    let script =
        format!("bash -c '{command}; IFS= read -r -t 2 line; echo \"next line: [$line]\"; exec sleep 600'");
    let (url, key) = (service.url(), service.key.clone());
    let tmux = Tmux::run(&script, 100, 30, &[("BELLGLASS_SERVER", &url), ("BELLGLASS_API_KEY", &key)]);
    tmux.until(SHOWS, "the next line", |screen| screen.iter().any(|row| row.starts_with("next line: [")))
        .await;
    let screen = tmux.screen();
    assert!(screen.iter().any(|row| row.starts_with("type ")), "the payload did not run: {screen:#?}");
    let row = screen.iter().rfind(|row| row.starts_with("next line: [")).unwrap();
    row.trim_end().trim_start_matches("next line: [").trim_end_matches(']').to_owned()
}

/// Verifies that attack K-17 fails: input that a program injects into its terminal does not reach the
/// operator's shell.
#[test]
#[ignore = "starts real sandboxes"]
fn what_a_program_types_stays_in_its_sandbox() {
    served(async || {
        let service = Service::start();
        let payload = attack::file("K-17", "attack.py");
        let control = next_line(&service, &format!("python3 {}", payload.display())).await;
        assert_eq!(control, "injected", "control: this kernel refuses TIOCSTI even to root");
        attack::count_control();
        for tier in tiers() {
            let client = service.client();
            let sandbox = client.create(&CreateSandbox { tier, ..small() }).await.unwrap().id;
            let program = api::files::FilePath::new("/workspace/attack.py").unwrap();
            let bytes = Bytes::from(std::fs::read(&payload).unwrap());
            client.files(&sandbox).write(&program, bytes, None).await.unwrap();
            let shell = format!("{} shell {sandbox} -- python3 /workspace/attack.py", binary().display());
            assert_eq!(next_line(&service, &shell).await, "", "{tier:?}: the operator's shell read it");
            client.stop(&sandbox).await.unwrap();
        }
        recovers(&service).await;
        held("K-17", "an injected line stays in the sandbox");
    });
}
