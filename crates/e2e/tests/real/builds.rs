//! Templates that are built from recipes: steps in sandboxes, packages through the gate (the package proxy),
//! cached layers, and export to a single file.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use api::ErrorCode;
use api::exec::{ExecSpec, Outcome};
use api::limits::Limits;
use api::sandbox::{CreateSandbox, EndReason, SandboxState};
use e2e::Lab;
use e2e::lab::{collect, exec, on, text};
use e2e::service::{Service, lend_template, served};
use node::template::recipe::Recipe;
use node::template::{BuildOrder, Builder, Store, Template, TemplateProgress};
use node::{Error, Sandbox};
use runtime::Spec;

/// Builds a recipe. Returns the template and the steps that were executed rather than taken from the cache.
async fn build(lab: &Lab, name: &str, recipe: &str, home: &Path) -> Result<(Template, Vec<String>), Error> {
    let made = Mutex::new(Vec::new());
    let builder = Builder::new(&lab.machine, Arc::clone(&lab.runtime));
    let watch = |progress: TemplateProgress<'_>| {
        if let TemplateProgress::Step { what, kept: false, .. } = progress {
            made.lock().unwrap().push(what.to_owned());
        }
    };
    let recipe = Recipe::parse(recipe)?;
    let order = BuildOrder::new(name, &recipe, home);
    let template = builder.build(&order, &watch).await?;
    let made = made.lock().unwrap().clone();
    Ok((template, made))
}

/// Runs a script in a sandbox of this template and returns its standard output.
async fn said(lab: &Lab, template: &Template, script: &str) -> String {
    let limits = template.limits.over(Limits::default());
    let spec = Spec { layers: template.layer_directories(lab.data()), ..lab.spec(limits) };
    let sandbox = Sandbox::start(Arc::clone(&lab.runtime), lab.id(), &spec).await.unwrap();
    let spec = template.apply(ExecSpec { deadline_ms: Some(120_000), ..exec(&["/bin/sh", "-c", script]) });
    let collected = collect(&sandbox, &spec).await;
    sandbox.stop(std::time::Duration::ZERO).await.unwrap();
    let problem = String::from_utf8_lossy(&collected.stderr).into_owned();
    assert_eq!(collected.end.outcome, Outcome::Exited { code: 0 }, "{script}: {problem}");
    text(&collected)
}

fn log(lab: &Lab, name: &str) -> String {
    String::from_utf8(Store::new(lab.data()).build_log(name).unwrap()).unwrap()
}

/// `apt-get install` and `pip install` work in build steps, where the gate is the only access to the network.
#[test]
#[ignore = "starts real sandboxes"]
fn packages_come_through_the_gate_and_only_what_changed_is_built_again() {
    on(&["runc"], async |lab| {
        lend_template(lab.data(), "base", 'b');
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("app")).unwrap();
        fs::write(home.path().join("app/hello.py"), "print('hello')\n").unwrap();
        let recipe = |pip: &str| {
            format!(
                r#"
                from = "base"
                steps = [
                  {{ apt = ["cowsay"] }},
                  {{ copy = {{ from = "app", to = "/opt/app" }} }},
                  {{ env = {{ GREETING = "hello there", PYTHONDONTWRITEBYTECODE = "1" }} }},
                  {{ pip = [{pip}] }},
                  {{ workdir = "/srv/deep/down" }},
                  {{ run = "echo $GREETING > /srv/greeting; id -u > /srv/root; rm -r /usr/share/perl5/Debconf" }},
                  {{ user = "sandbox" }},
                  {{ run = ["sh", "-c", "id -u; pwd; ! touch /etc/x 2>/dev/null"] }},
                ]
                imports = ["idna"]
                limits = {{ pids = 77 }}
                "#
            )
        };
        let (first, made) = build(lab, "tools", &recipe("\"idna\""), home.path()).await.unwrap();
        assert_eq!(made.len(), 8, "{made:?}");
        let kept = log(lab, "tools");
        assert!(kept.contains("# installed cowsay_") && kept.contains("# installed idna-"), "{kept}");
        assert!(!kept.contains("# refused: "), "{kept}");
        let script = "/usr/games/cowsay hm | head -2 | tail -1; python3 /opt/app/hello.py; cat /srv/greeting /srv/root; pwd; ls -d /usr/share/perl5/Debconf 2>&1; python3 -c 'import idna'; ls -A /var/lib/apt/lists /var/tmp | wc -l; id -u";
        let expected = "< hm >\nhello\nhello there\n0\n/srv/deep/down\nls: cannot access '/usr/share/perl5/Debconf': No such file or directory\n3\n1000\n";
        let seen = said(lab, &first, script).await;
        assert!(seen.starts_with(expected.rsplit_once("3\n").unwrap().0), "{seen}");
        assert_eq!(first.limits.pids, Some(77));

        let (again, made) = build(lab, "tools", &recipe("\"idna\""), home.path()).await.unwrap();
        let free = ["env GREETING PYTHONDONTWRITEBYTECODE", "user sandbox"];
        assert_eq!(made, free, "nothing has changed");
        assert_eq!(again.layers, first.layers);

        let (more, made) =
            build(lab, "tools", &recipe("\"idna\", \"cowsay==6.1\""), home.path()).await.unwrap();
        assert_eq!(made[1], "pip idna cowsay==6.1");
        assert!(!made.iter().any(|what| what.starts_with("apt") || what.starts_with("copy")), "{made:?}");
        assert!(
            log(lab, "tools").contains(", from cache"),
            "idna came from what is kept: {}",
            log(lab, "tools")
        );
        assert_eq!(more.layers[..3], first.layers[..3]);

        fs::write(home.path().join("app/hello.py"), "print('changed')\n").unwrap();
        let (_, made) = build(lab, "tools", &recipe("\"idna\""), home.path()).await.unwrap();
        assert!(made[0].starts_with("copy") && !made.iter().any(|what| what.starts_with("apt")), "{made:?}");
        // Removing unused layers keeps the layers of cached steps, even if no template uses them.
        node::remove_unused_layers(lab.data()).unwrap();
        let (_, made) = build(lab, "tools", &recipe("\"idna\""), home.path()).await.unwrap();
        assert_eq!(made, free);
    });
}

/// Bytecode is compiled at build time and stays valid at run time, because the build preserves the
/// modification times of files.
#[test]
#[ignore = "starts real sandboxes"]
fn what_was_compiled_when_it_was_built_is_not_compiled_again() {
    on(&["runc"], async |lab| {
        lend_template(lab.data(), "base", 'b');
        let recipe =
            "from = \"base\"\nsteps = [{ pip = [\"idna\"] }, { env = { PYTHONDONTWRITEBYTECODE = \"1\" } }]";
        let (template, _) = build(lab, "compiled", recipe, Path::new(".")).await.unwrap();
        let script = "python3 -v -c 'import idna' 2>&1 | grep -c 'matches.*idna'; python3 -v -c 'import idna' 2>&1 | grep -c 'code object from .*idna.*\\.py' || true";
        let seen = said(lab, &template, script).await;
        let (matched, stale) = seen.trim().split_once('\n').unwrap();
        assert!(matched.parse::<u32>().unwrap() > 2, "{seen}");
        let pyc = said(
            lab,
            &template,
            "python3 -v -c 'import idna' 2>&1 | grep 'code object from .*idna.*py' | grep -vc pyc || true",
        )
        .await;
        assert_eq!((pyc.trim(), stale.is_empty()), ("0", false), "{seen}");
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn a_step_that_fails_is_named_and_leaves_nothing_half_made() {
    on(&["runc"], async |lab| {
        lend_template(lab.data(), "base", 'b');
        let fails = |step: &str| format!("from = \"base\"\nsteps = [{{ run = \"echo first\" }}, {step}]");
        for (step, place, why) in [
            ("{ run = \"echo words; echo problem >&2; exit 7\" }", "step 2 of 2 (run echo words", "status 7"),
            (
                "{ apt = [\"no-such-package-anywhere\"] }",
                "step 2 of 2 (apt no-such",
                "Unable to locate package",
            ),
            (
                "{ pip = [\"no-such-package-anywhere-0\"] }",
                "step 2 of 2 (pip no-such",
                "No matching distribution",
            ),
            ("{ copy = { from = \"gone\", to = \"/opt/x\" } }", "step 2 of 2 (copy gone", "cannot copy"),
            ("{ run = [\"/no/such/program\"] }", "step 2 of 2 (run /no/such", "cannot start"),
        ] {
            let home = tempfile::tempdir().unwrap();
            let error = build(lab, "fails", &fails(step), home.path()).await.unwrap_err().to_api();
            assert!(error.message.starts_with(place) && error.message.contains(why), "{}", error.message);
            assert!(error.fix.contains("bellglass template log fails"), "{}", error.fix);
            assert!(!Store::new(lab.data()).has("fails"));
        }
        assert!(log(lab, "fails").contains("step 1 of 2: run echo first, cached"), "{}", log(lab, "fails"));
        let error =
            build(lab, "fails", "from = \"base\"\nimports = [\"json\", \"no_such_module\"]", Path::new("."))
                .await
                .unwrap_err()
                .to_api();
        assert!(
            error.message.starts_with("imports: ") && error.message.contains("no_such_module"),
            "{error:?}"
        );
        let left: Vec<_> =
            fs::read_dir(lab.data().join("layers")).unwrap().map(|one| one.unwrap().file_name()).collect();
        assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("making")), "{left:?}");
    });
}

/// Names of packages, paths and variables are never interpreted by a shell.
#[test]
#[ignore = "starts real sandboxes"]
fn what_looks_like_a_command_is_a_word() {
    on(&["runc"], async |lab| {
        lend_template(lab.data(), "base", 'b');
        let home = tempfile::tempdir().unwrap();
        let name = "a;touch $HOME`touch x`";
        fs::write(home.path().join(name), "content").unwrap();
        let recipe = format!(
            r#"
            from = "base"
            steps = [
              {{ copy = {{ from = '{name}', to = '/opt/$(touch pwned)' }} }},
              {{ env = {{ EVIL = "$(touch /srv/pwned); `touch /srv/pwned`" }} }},
              {{ workdir = "/srv/;touch pwned" }},
              {{ run = ["printenv", "EVIL"] }},
              {{ run = ["touch", "$(touch pwned)"] }},
            ]
            "#
        );
        let (template, _) = build(lab, "words", &recipe, home.path()).await.unwrap();
        let seen = said(
            lab,
            &template,
            "find / -xdev -name '*pwned*' -not -path '/proc/*' 2>/dev/null | sort; cat '/opt/$(touch pwned)'",
        )
        .await;
        assert_eq!(seen, "/opt/$(touch pwned)\n/srv/;touch pwned\n/srv/;touch pwned/$(touch pwned)\ncontent");
        // pip parses this name as a requirement with an environment marker, and rejects it. The command is
        // not executed.
        let recipe = "from = \"base\"\nsteps = [{ pip = [\"idna; touch /srv/pwned\"] }]";
        let error = build(lab, "words", recipe, home.path()).await.unwrap_err().to_api();
        assert!(
            error.message.contains("nvalid marker") || error.message.contains("nvalid requirement"),
            "{}",
            error.message
        );
    });
}

/// A template can be exported to one file, and used on a machine that has only Bellglass and a runtime.
#[test]
#[ignore = "starts real sandboxes"]
fn a_template_is_carried_to_another_machine_in_one_file() {
    on(&["runc"], async |lab| {
        lend_template(lab.data(), "base", 'b');
        let recipe = r#"
            from = "base"
            steps = [
              { run = "mkdir /opt/a; echo one > /opt/a/file; ln /opt/a/file /opt/a/other; ln -s file /opt/a/link; chown 33:33 /opt/a/file; rm /usr/bin/curl; rm -r /usr/share/perl5; mkdir /usr/share/perl5; touch -d @86400 /opt/a/file" },
              { env = { A = "b c" } },
              { workdir = "/opt/a" },
            ]
            imports = ["json"]
            limits = { memory_bytes = 300000000 }
            policy = ["python-packages"]
        "#;
        let (template, _) = build(lab, "carried", recipe, Path::new(".")).await.unwrap();
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("carried.tar");
        let builder = Builder::new(&lab.machine, Arc::clone(&lab.runtime));
        builder.export("carried", &file, &|_| {}).await.unwrap();
        let error = builder.export("carried", &file, &|_| {}).await.unwrap_err().to_api();
        assert_eq!(
            error.code,
            ErrorCode::InvalidRequest,
            "a file that is there is not written over: {error:?}"
        );

        let other = Lab::new("runc");
        let builder = Builder::new(&other.machine, Arc::clone(&other.runtime));
        let imported = builder.import("carried", &file, &|_| {}).await.unwrap();
        assert_eq!(imported.imports, template.imports);
        assert_eq!((imported.limits, imported.policy.clone()), (template.limits, template.policy.clone()));
        let script = "pwd; echo $A; cat file other link; stat -c '%u %h %Y' file; ls /usr/share/perl5 /usr/bin/curl 2>&1; ls / | tr '\\n' ' '";
        let here = said(lab, &template, script).await;
        assert_eq!(said(&other, &imported, script).await, here);
        assert!(here.starts_with("/opt/a\nb c\none\none\none\n33 2 86400\n"), "{here}");
        // A second import of the same file finds that all its layers already exist.
        let kept = Mutex::new(0);
        let watch = |progress: TemplateProgress<'_>| {
            if let TemplateProgress::Kept { .. } = progress {
                *kept.lock().unwrap() += 1;
            }
        };
        builder.import("again", &file, &watch).await.unwrap();
        assert_eq!(*kept.lock().unwrap(), template.layers.len());
    });
}

/// Saves a template whose sandboxes run a start command and a readiness check.
fn serving(service: &Service, name: &str, start: &str, ready: &str) {
    let store = Store::new(service.data());
    let words = |script: &str| Some(["/bin/sh", "-c", script].map(str::to_owned).to_vec());
    let limits = api::limits::WantedLimits { pids: Some(99), ..Default::default() };
    let base = store.load("base").unwrap();
    let env = [("PORT".to_owned(), "8123".to_owned())].into();
    let template = Template { start: words(start), ready: words(ready), limits, env, ..base };
    store.save(&Template { name: name.into(), ..template }).unwrap();
}

/// With `start` and `ready`, a create request returns once the template's service is ready. If the service
/// never becomes ready, the request fails, and the error contains the output of both commands.
#[test]
#[ignore = "starts real sandboxes"]
fn a_sandbox_is_started_when_what_its_template_starts_is_ready() {
    served(async || {
        let service = Service::start();
        let client = service.client();
        let asks = "python3 -c \"import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['PORT'], timeout=1)\"";
        serving(&service, "serves", "cd /tmp && sleep 0.5 && exec python3 -m http.server $PORT", asks);
        serving(&service, "ends", "echo broken >&2; exit 3", "echo not yet >&2; false");
        for tier in e2e::service::tiers() {
            let request = |template: &str| CreateSandbox {
                tier,
                template: template.into(),
                idle_ms: 3000,
                ..CreateSandbox::default()
            };
            let sandbox = client.create(&request("serves")).await.unwrap();
            assert_eq!((sandbox.state, sandbox.limits.pids), (SandboxState::Running, 99), "{sandbox:?}");
            let spec = exec(&["/bin/sh", "-c", asks]);
            let done = client.exec(&sandbox.id, &spec).await.unwrap().collect().await.unwrap();
            assert_eq!(done.end.outcome, Outcome::Exited { code: 0 }, "{done:?}");
            // A running service does not count as activity. Without calls, the sandbox still ends when its
            // idle time is over.
            e2e::service::until(std::time::Duration::from_secs(20), "it is idle and ends", async || {
                client.sandbox(&sandbox.id).await.unwrap().reason == Some(EndReason::Idle)
            })
            .await;

            let failed = client.create(&request("ends")).await.unwrap_err();
            let told = format!("{failed:?}");
            assert!(told.contains("exited with status 3") && told.contains("not yet"), "{told}");
            assert!(told.contains("broken"), "what it said itself comes first: {told}");
        }
        service.assert_nothing_left().await;
    });
}

/// The cache entry of a step depends on the layer below it. If the step below is rebuilt, the steps above are
/// rebuilt too, even if their text is unchanged.
#[test]
#[ignore = "starts real sandboxes"]
fn a_step_below_that_is_made_again_has_those_above_it_made_again() {
    on(&["runc"], async |lab| {
        lend_template(lab.data(), "base", 'b');
        let below = "{ run = \"date +%N > /srv/a\" }";
        let both = format!("from = \"base\"\nsteps = [{below}, {{ run = \"cp /srv/a /srv/b\" }}]");
        let (first, _) = build(lab, "both", &both, Path::new(".")).await.unwrap();
        let recipe = Recipe::parse(&format!("from = \"base\"\nsteps = [{below}]")).unwrap();
        let order = BuildOrder { fresh: true, ..BuildOrder::new("one", &recipe, Path::new(".")) };
        Builder::new(&lab.machine, Arc::clone(&lab.runtime)).build(&order, &|_| {}).await.unwrap();
        let (second, made) = build(lab, "both", &both, Path::new(".")).await.unwrap();
        assert_eq!(made, ["run cp /srv/a /srv/b"]);
        assert_ne!(first.layers, second.layers);
        for template in [&first, &second] {
            assert_eq!(said(lab, template, "cmp /srv/a /srv/b && echo same").await, "same\n");
        }
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn a_user_kernel_builds_what_hides_nothing() {
    on(&["runsc"], async |lab| {
        lend_template(lab.data(), "base", 'b');
        let recipe = "from = \"base\"\nsteps = [{ pip = [\"idna\"] }, { run = \"id -u > /srv/who; mkdir -p /opt/x/y; echo later >> /etc/issue\" }]";
        let (template, _) = build(lab, "inside", recipe, Path::new(".")).await.unwrap();
        let seen = said(
            lab,
            &template,
            "cat /srv/who; tail -1 /etc/issue; python3 -c 'import idna; print(idna.__name__)'",
        )
        .await;
        assert_eq!(seen, "0\nlater\nidna\n");
    });
}
