//! The egress attacks of `attacks/`, namely N, C-15, S-01 and S-02, on a real `bellglass serve` in a
//! simulated internet ([`e2e::world`]).
//!
//! Every address that a payload tries to reach has a server behind it. The control runs the same payload
//! without a sandbox, with an unrestricted proxy on the same port. Each address that the control reaches
//! proves that the attack works without the defence.
//!
//! | module | contains |
//! |---|---|
//! | [`ground`] | the payloads, their controls, and their output |
//! | [`secrets`] | S-01, S-02, N-32, N-37: searching for secrets inside, and making the proxy reveal them |
//! | [`hosts`] | N-30, N-34, N-38: hosts and programs that use up memory, descriptors and the audit log |
//! | [`packages`] | N-31, N-39: fetching packages that the policy does not allow, through the gate |

mod ground;
mod hosts;
mod packages;
mod secrets;

use std::time::Duration;

use api::policy::Policy;
use api::sandbox::CreateSandbox;
use e2e::attack;
use e2e::service::small;
use e2e::world::in_a_world;

use ground::on_each_tier;

/// Verifies that attacks N-01, N-02, N-03 and N-06 fail: internal addresses stay blocked, even if the policy
/// is `open` or names these addresses.
#[test]
#[ignore = "starts real sandboxes"]
fn what_is_not_the_internet_stays_closed_when_all_of_it_is_open() {
    in_a_world(async |world| {
        on_each_tier(world, async |siege| {
            let port = siege.api_port().to_string();
            // Neither the policy `open` nor a rule that names these addresses makes them reachable.
            let named =
                ["169.254.169.254", "meta.example", "private.example:5432", "loop.example", "good.example"];
            for (words, what) in [(&["open"][..], "open"), (&named[..], "named")] {
                let sandbox = siege.sandbox(Policy::of_words(words).unwrap()).await;
                for (id, arguments, least) in [
                    ("N-01", &[][..], 20),
                    ("N-02", &[], 20),
                    ("N-03", &[port.as_str()], 4),
                    ("N-06", &[], 20),
                ] {
                    // No rule can name most of the disguised addresses, so skip N-02 with the policy `named`.
                    if (id, what) == ("N-02", "named") {
                        continue;
                    }
                    siege.withstand(id, &sandbox, arguments, arguments, least).await;
                    attack::held(id, siege.runtime(), what);
                }
                siege.recovers(&sandbox).await;
            }
        })
        .await;
    });
}

/// Verifies that attacks N-04, N-05, N-07, N-08, N-09, N-11 and N-15 fail: a policy that allows one host
/// cannot be bypassed to reach a different host.
#[test]
#[ignore = "starts real sandboxes"]
fn one_host_that_is_allowed_opens_no_other() {
    in_a_world(async |world| {
        on_each_tier(world, async |siege| {
            let sandbox = siege.sandbox(Policy::of_words(&["good.example"]).unwrap()).await;
            for (id, inside, outside, least) in [
                ("N-05", &["inside"][..], &[][..], 20),
                ("N-07", &[], &[], 23),
                ("N-08", &[], &[], 4),
                ("N-09", &[], &[], 8),
                ("N-11", &[], &[], 8),
                ("N-15", &[], &[], 1),
            ] {
                siege.withstand(id, &sandbox, inside, outside, least).await;
                attack::held(id, siege.runtime(), "nothing was reached");
            }
            siege.recovers(&sandbox).await;
        })
        .await;
    });
}

/// Verifies that attacks N-10 and N-12 fail: a name is resolved only if a rule allows the host, and the rate
/// of new names is limited.
#[test]
#[ignore = "starts real sandboxes"]
fn names_carry_no_words_out() {
    in_a_world(async |world| {
        on_each_tier(world, async |siege| {
            let asked = || {
                let seen = world.seen()["asked"].clone();
                let names = seen.as_object().unwrap().iter();
                let smuggled = names.filter(|(name, _)| name.ends_with(".tunnel.example"));
                smuggled.map(|(_, count)| count.as_u64().unwrap()).sum::<u64>()
            };
            let before = asked();
            let closed = siege.sandbox(Policy::of_words(&["good.example"]).unwrap()).await;
            siege.run("N-10", &closed, &["50"]).await;
            assert_eq!(asked(), before, "a name that no rule allows was asked for");
            let open = siege.sandbox(Policy::of_words(&["open"]).unwrap()).await;
            siege.run("N-10", &open, &["400"]).await;
            let through = asked() - before;
            assert!((100..400).contains(&through), "{through} of 1,200 names were asked for");
            attack::count_control();
            siege.told(&open, "too many new host name lookups per second").await;
            // Nonexistent and private names get the same response.
            let script = "import sys, urllib.request, urllib.error\nfor host in ('private.example', 'nobody.example'):\n    try:\n        urllib.request.urlopen(f'http://{host}/')\n    except urllib.error.HTTPError as error:\n        print(error.code, error.read().decode().replace(host, 'HOST'))";
            let said = siege.python(&siege.sandbox(Policy::of_words(&["open"]).unwrap()).await, script).await;
            let half = said.len() / 2;
            assert_eq!(said[..half], said[half..], "{said}");
            assert!(said.starts_with("502 bellglass: HOST cannot be resolved, or has only addresses"), "{said}");
            attack::held("N-10", siege.runtime(), &format!("{through} of 1,200 names"));
        })
        .await;
    });
}

/// Verifies that attacks N-20 and D-02 fail: an empty or invalid policy never counts as open.
#[test]
#[ignore = "starts real sandboxes"]
fn a_policy_that_is_empty_or_wrong_opens_nothing() {
    in_a_world(async |world| {
        on_each_tier(world, async |siege| {
            for body in ["{}", r#"{"hosts":[]}"#, r#"{"hosts":[],"presets":[],"open":false}"#] {
                let sandbox = siege.sandbox(serde_json::from_str(body).unwrap()).await;
                siege.withstand("N-08", &sandbox, &[], &[], 4).await;
            }
            for body in [
                r#"{"hosts":[""]}"#,
                r#"{"hosts":["*"]}"#,
                r#"{"hosts":[{"host":"*"}]}"#,
                r#"{"hosts":[{"host":"."}]}"#,
                r#"{"hosts":[{"host":"*.example"}]}"#,
                r#"{"hosts":[{"host":"good.example","ports":[]}]}"#,
                r#"{"hosts":null}"#,
                r#"{"open":1}"#,
            ] {
                let text = format!(r#"{{"template":"base","policy":{body}}}"#);
                siege.refused(&text).await;
            }
            attack::held("N-20", siege.runtime(), "nothing was reached");
        })
        .await;
    });
}

/// Verifies that attacks N-19 and N-21 fail: a policy change closes connections that the new policy does not
/// allow, and a restarted server enforces the same policy as before.
#[test]
#[ignore = "starts real sandboxes"]
fn a_policy_holds_for_what_is_under_way_and_after_a_restart() {
    in_a_world(async |world| {
        on_each_tier(world, async |siege| {
            let client = siege.client();
            let sandbox = siege.sandbox(Policy::of_words(&["good.example", "evil.example"]).unwrap()).await;
            let drip = "import socket, sys, time\nstreams = []\nfor host in ('good.example', 'evil.example'):\n    for way in ('request', 'tunnel'):\n        s = socket.create_connection(('127.0.0.1', 3128))\n        if way == 'tunnel':\n            s.sendall(f'CONNECT {host}:80 HTTP/1.1\\r\\nhost: {host}:80\\r\\n\\r\\n'.encode())\n            s.recv(1000)\n            s.sendall(f'GET /drip HTTP/1.1\\r\\nhost: {host}\\r\\n\\r\\n'.encode())\n        else:\n            s.sendall(f'GET http://{host}/drip HTTP/1.1\\r\\nhost: {host}\\r\\n\\r\\n'.encode())\n        assert b'drip' in s.recv(1000) + s.recv(1000)\n        streams.append((host, way, s))\nprint('flowing', flush=True)\nend = time.time() + 4\nalive = list(streams)\nwhile time.time() < end:\n    for one in list(alive):\n        one[2].settimeout(0.5)\n        try:\n            piece = one[2].recv(1000)\n        except OSError:\n            piece = b''\n        if not piece:\n            alive.remove(one)\n            print('cut', one[0], one[1], round(time.time(), 3), flush=True)\nprint('left', sorted(set(h for h, _, _ in alive)), len(alive), flush=True)";
            let mut running = siege.begin(&sandbox, drip).await;
            running.until("flowing").await;
            let changed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            client.set_policy(&sandbox, &Policy::of_words(&["good.example"]).unwrap()).await.unwrap();
            let said = running.rest().await;
            let cuts: Vec<f64> = said
                .lines()
                .filter(|line| line.starts_with("cut evil.example"))
                .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() - changed.as_secs_f64())
                .collect();
            assert_eq!(cuts.len(), 2, "{said}");
            assert!(cuts.iter().all(|after| *after < 1.0), "cut after {cuts:?} s");
            assert!(said.contains("left ['good.example'] 2"), "{said}");
            siege.told(&sandbox, "disconnected: the policy has changed").await;
            siege.restart().await;
            siege.withstand("N-08", &sandbox, &[], &[], 4).await;
            siege.recovers(&sandbox).await;
            attack::held("N-19", siege.runtime(), &format!("cut after {cuts:?} s"));
        })
        .await;
    });
}

/// Verifies that attack C-15 fails: a flood of connections does not slow down a neighbouring sandbox.
#[test]
#[ignore = "starts real sandboxes"]
fn as_many_connections_as_there_can_be_leave_the_neighbour_its_own() {
    in_a_world(async |world| {
        on_each_tier(world, async |siege| {
            let open = Policy::of_words(&["good.example:2222"]).unwrap();
            let request = CreateSandbox { policy: Some(open), ..small() };
            let greedy =
                siege.client().create(&CreateSandbox { tier: siege.tier, ..request }).await.unwrap().id;
            let witness = siege.sandbox(Policy::of_words(&["good.example"]).unwrap()).await;
            let calm = siege.watched(&witness, tokio::time::sleep(Duration::from_secs(2))).await;
            let (said, usual, worst) =
                siege.watched(&witness, siege.run("C-15", &greedy, &["1500", "500"])).await;
            let held: usize = said.split_whitespace().nth(1).unwrap().parse().unwrap();
            assert!((400..=512).contains(&held), "{said}");
            assert!(worst < Duration::from_secs(2), "the neighbour waited {worst:?}");
            let (runtime, said, calm) = (siege.runtime(), said.trim().replace('\n', ", "), calm.1);
            println!(
                "C-15 {runtime}: {said}; the neighbour waited {usual:?}, {worst:?} at worst; {calm:?} before"
            );
            attack::held_without_control(
                "C-15",
                runtime,
                "`just mutants` removes the limit, and then more connections are held",
            );
            siege.recovers(&witness).await;
        })
        .await;
    });
}
