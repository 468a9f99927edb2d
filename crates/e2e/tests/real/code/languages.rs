//! Code in other languages: Bash everywhere, JavaScript and TypeScript where the template has Node.js.

use api::code::{Code, Language};
use api::exec::{ExecSpec, Outcome};
use api::limits::{self, Limits};
use api::sandbox::CreateSandbox;
use api::{ErrorCode, Ran};
use e2e::room::{Room, coded, in_a_room, written_in};
use e2e::service::{Service, served, tiers};

#[test]
#[ignore = "starts real sandboxes"]
fn bash_runs_everywhere_and_what_is_missing_is_named() {
    in_a_room(async |_, room| {
        let bash = |source: &str| written_in(Language::Bash, source);
        let ran = room.exec(&bash("echo $0 $#; echo err >&2; x=1; cd /tmp; exit 4")).await;
        assert_eq!((ran.code(), ran.stdout.as_str(), ran.stderr.as_str()), (4, "bash 0\n", "err\n"));
        assert_eq!(
            room.exec(&bash("echo [$x] $PWD 'it'\"'\"'s' | tr a-z A-Z")).await.well().stdout,
            "[] /WORKSPACE IT'S\n"
        );
        let ran = room.exec(&ExecSpec { deadline_ms: Some(3000), ..bash("echo so far; sleep 100") }).await;
        assert_eq!((ran.end.outcome.clone(), ran.stdout.as_str()), (Outcome::Timeout, "so far\n"));
        let long = format!("#{}", "x".repeat(limits::WORD_BYTES_MAX));
        let error = room.refused(&bash(&long)).await;
        assert_eq!((error.code, error.ran), (ErrorCode::LimitExceeded, Ran::No), "{error:?}");
        let packages = Code {
            source: "1".into(),
            language: Some(Language::Bash),
            requirements: vec!["x".into()],
            ..Code::default()
        };
        assert_eq!(room.refused(&coded(packages)).await.code, ErrorCode::InvalidRequest);
        let error = room.refused(&written_in(Language::Javascript, "1")).await;
        assert_eq!((error.code, error.ran), (ErrorCode::SpawnFailed, Ran::No));
        assert!(error.message.contains("\"node\""), "{error:?}");
        let ran = room.exec(&written_in(Language::Javascript, "await 1")).await;
        assert_eq!((ran.code(), ran.stdout.as_str()), (127, ""));
        assert!(ran.stderr.contains("JavaScript requires Node.js"), "{}", ran.stderr);
        let ran = room.exec(&written_in(Language::Typescript, "1")).await;
        assert_eq!((ran.code(), ran.stdout.as_str()), (127, ""));
        assert!(ran.stderr.contains("TypeScript requires esbuild"), "{}", ran.stderr);
    });
}

/// The template `node` is large, so only this test builds it.
#[test]
#[ignore = "starts real sandboxes"]
fn javascript_and_typescript_run_where_the_template_has_them() {
    served(async || {
        for tier in tiers() {
            let service = Service::start();
            e2e::layer::lend(service.data(), "node");
            let limits = Limits { memory_bytes: 1 << 30, ..Limits::default() };
            let ask = CreateSandbox {
                template: "node".into(),
                tier,
                limits: limits.into(),
                ..CreateSandbox::default()
            };
            let client = service.client();
            let id = client.create(&ask).await.unwrap().id;
            scripts(&Room { client, id, tier }).await;
        }
    });
}

async fn scripts(room: &Room) {
    let javascript = |source: &str| written_in(Language::Javascript, source);
    let code = "const path = require('path');\nconsole.log(path.join('a', 'b'), process.cwd());\nconsole.error('err');\nprocess.exit(3)";
    let ran = room.exec(&javascript(code)).await;
    assert_eq!((ran.code(), ran.stdout.as_str(), ran.stderr.as_str()), (3, "a/b /workspace\n", "err\n"));
    let ran = room.exec(&javascript("const x = await Promise.resolve(42);\nconsole.log(x)")).await;
    assert_eq!((ran.code(), ran.stdout.as_str()), (0, "42\n"), "await at the top: {ran:?}");
    let code = "const { sep } = require('path');\nconsole.log(await Promise.resolve(sep), typeof require)";
    let ran = room.exec(&javascript(code)).await;
    assert_eq!((ran.code(), ran.stdout.as_str()), (0, "/ function\n"), "require beside await: {ran:?}");
    let code = "async function go() { undeclared = 5; console.log(await undeclared, typeof module) }\ngo()";
    let ran = room.exec(&javascript(code)).await;
    assert_eq!((ran.code(), ran.stdout.as_str()), (0, "5 object\n"), "await inside a function: {ran:?}");
    let ran = room.exec(&javascript("\nthrow new RangeError('far')")).await;
    assert!(ran.code() == 1 && ran.stderr.contains("RangeError: far"), "{ran:?}");
    let typescript = |source: &str| written_in(Language::Typescript, source);
    let code = "interface City { name: string; people?: number }\nenum Size { Small = 1 }\nconst all: City[] = [{ name: 'Bern' }];\n\
                function first<T>(list: T[]): T { return list[0] as T }\nconsole.log(first(all).name, Size.Small, require('os').EOL === '\\n')";
    let ran = room.exec(&typescript(code)).await;
    assert_eq!((ran.code(), ran.stdout.as_str()), (0, "Bern 1 true\n"), "{ran:?}");
    let ran = room.exec(&typescript("const x: number = await Promise.resolve(7);\nconsole.log(x)")).await;
    assert_eq!((ran.code(), ran.stdout.as_str()), (0, "7\n"), "await at the top: {ran:?}");
    let ran = room.exec(&typescript("let x: = 1")).await;
    assert!(ran.code() == 1 && ran.stderr.contains("1:7"), "where it is wrong: {ran:?}");
}
