//! Tests of the journal, each with real files.

use std::collections::BTreeMap;

use api::policy::Policy;
use api::sandbox::{EndReason, Sandbox, SandboxState};
use template::Posture;

use super::inventory::layers_in_use;
use super::*;
use crate::token::Token;

pub fn record(id: &str) -> SandboxRecord {
    SandboxRecord {
        sandbox: Sandbox::asked(
            id.parse().unwrap(),
            "p",
            &api::sandbox::CreateSandbox::default(),
            &Default::default(),
            1,
        ),
        runtime: "sim".into(),
        layers: vec!["a".repeat(64)],
        env: BTreeMap::new(),
        cwd: None,
        imports: vec!["json".into()],
        posture: Posture::Run,
        rooted: false,
        pooled: false,
        auto_resume: AutoResume::default(),
        boot: "b".into(),
        expires_boot_ms: 5,
        first_policy: Policy::default(),
        ports: Ports::fresh().unwrap(),
    }
}

#[test]
fn a_record_that_cannot_be_read_is_read_from_its_copy_and_else_set_aside() {
    // Covers attack L-13.
    let data = tempfile::tempdir().unwrap();
    let journal = Journal::open(data.path()).unwrap();
    let at = |name: &str| data.path().join("node").join(name);
    for id in ["a", "b", "c", "d"] {
        journal.save(&record(id)).unwrap();
    }
    fs::write(at("b.json"), "{").unwrap();
    fs::write(at("c.json"), "{").unwrap();
    fs::write(at("c.copy"), "{").unwrap();
    fs::remove_file(at("d.json")).unwrap();
    fs::write(at("e.json.part"), "{").unwrap();
    assert_eq!(
        layers_in_use(data.path()).unwrap(),
        None,
        "who cannot read everything cannot say what is free"
    );
    let ids: Vec<_> = journal.load().unwrap().iter().map(|one| one.sandbox.id.to_string()).collect();
    assert_eq!(ids, ["a", "b", "d"]);
    assert_eq!(fs::read(at("b.damaged")).unwrap(), b"{");
    assert_eq!(fs::read(at("c.damaged")).unwrap(), b"{");
    assert_eq!(journal.lost().unwrap(), BTreeSet::from(["c".parse().unwrap()]));
    assert!(at("b.json").exists() && !at("c.json").exists() && !at("c.copy").exists());
    assert_eq!(layers_in_use(data.path()).unwrap().unwrap().len(), 3, "nothing is left of c");
    fs::create_dir_all(data.path().join("sandboxes/c")).unwrap();
    assert_eq!(layers_in_use(data.path()).unwrap(), None, "c may be alive");
    journal.tidy(|_| false).unwrap();
    assert!(at("c.damaged").exists(), "it is kept for a week");
    let old = std::time::SystemTime::now() - 2 * ASIDE_FOR;
    File::options().write(true).open(at("c.damaged")).unwrap().set_modified(old).unwrap();
    journal.tidy(|_| true).unwrap();
    assert!(at("c.damaged").exists(), "and for as long as its sandbox is there");
    journal.tidy(|_| false).unwrap();
    assert!(!at("c.damaged").exists());
    journal.remove(&"a".parse().unwrap()).unwrap();
    journal.remove(&"a".parse().unwrap()).unwrap();
    assert!(!at("a.copy").exists());
}

#[test]
fn a_record_of_a_release_without_ports_has_no_token_that_opens_anything() {
    let mut old = serde_json::to_value(record("a")).unwrap();
    old.as_object_mut().unwrap().remove("ports");
    old.as_object_mut().unwrap().remove("imports");
    let read: SandboxRecord = serde_json::from_value(old).unwrap();
    assert_eq!(read.ports, Ports::default());
    assert!(read.imports.is_empty());
    let ports = Ports::fresh().unwrap();
    assert!(ports.has_all_tokens());
    let kept = Ports { agent: Token::default(), ..ports.clone() }.with_all_tokens().unwrap();
    assert!(kept.token == ports.token && kept.has_all_tokens() && kept.agent != ports.agent);
}

#[test]
fn a_data_directory_has_one_server() {
    // Covers attack L-06.
    let data = tempfile::tempdir().unwrap();
    let first = Journal::open(data.path()).unwrap();
    let second = Journal::open(data.path()).unwrap_err().to_api();
    assert_eq!(second.code, api::ErrorCode::Conflict);
    drop(first);
    Journal::open(data.path()).unwrap();
}

#[test]
fn an_end_fits_into_the_record_that_is_there() {
    let data = tempfile::tempdir().unwrap();
    let journal = Journal::open(data.path()).unwrap();
    let mut record = record("a");
    journal.save(&record).unwrap();
    let path = journal.path(&record.sandbox.id);
    let before = fs::metadata(&path).unwrap().len();
    record.sandbox.state = SandboxState::Lost;
    record.sandbox.reason = Some(EndReason::Died);
    record.sandbox.ended_at_ms = Some(u64::MAX);
    let text = serde_json::to_vec(&record).unwrap();
    let length = text.len();
    overwrite(&path, text, length).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), before);
    assert_eq!(journal.load().unwrap(), [record]);
}
