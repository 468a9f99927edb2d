//! Attacks S-01, S-02, N-32 and N-37: searching for secrets inside the sandbox, and making the proxy reveal
//! them.

use api::policy::Policy;
use api::secret::PutSecret;
use e2e::attack;
use e2e::world::{GOOD, World, in_a_world};

use super::ground::on_each_tier;

const CANARY: &str = "canary/5f0e9c2b+77d1";

/// Verifies that attacks S-01 and S-02 fail: a secret's value is not inside the sandbox, and no host other
/// than the bound host receives it.
#[test]
#[ignore = "starts real sandboxes"]
fn a_secret_is_not_inside_and_is_not_told() {
    in_a_world(async |world| {
        on_each_tier(world, async |siege| {
            let secret = PutSecret { value: CANARY.into() };
            siege.client().put_secret("API_KEY", &secret).await.unwrap();
            let words = ["good.example", "evil.example", "93.184.216.35", "secret:API_KEY=good.example/v1"];
            let sandbox = siege.sandbox(Policy::of_words(&words).unwrap()).await;
            let digits: String = CANARY.bytes().map(|byte| format!("{byte:02x}")).collect();
            for (id, least) in [("S-01", 8), ("S-02", 28)] {
                let strayed = strayed(world);
                siege.withstand(id, &sandbox, &[&digits], &[&digits, "control"], least).await;
                // Count the requests of the control alone, before the sandbox runs the payload once more.
                let marks = self::strayed(world).len() - strayed.len();
                attack::held(id, siege.runtime(), &format!("{marks} requests of the control strayed"));
                assert!(marks > 0, "the control is to send it elsewhere");
                siege.run(id, &sandbox, &[&digits]).await;
                assert_eq!(self::strayed(world).len() - strayed.len(), marks, "{:#?}", self::strayed(world));
            }
            // Control: the secret was in use, because the bound host received its value.
            let used = "import os, urllib.request\nrequest = urllib.request.Request('https://good.example/v1/used', headers={'authorization': os.environ['API_KEY']})\nprint(urllib.request.urlopen(request).status)";
            assert_eq!(siege.python(&sandbox, used).await, "200\n");
            let said = world.seen()["said"].as_array().unwrap().clone();
            let seen = said.iter().rfind(|one| one["tls"] == true).unwrap();
            assert_eq!((&seen["headers"]["authorization"], &seen["path"]), (&CANARY.into(), &"/v1/used".into()));
            siege.recovers(&sandbox).await;
        })
        .await;
    });
}

/// Verifies that attack N-32 fails: a response with a compressed transfer coding does not reveal a secret.
#[test]
#[ignore = "starts real sandboxes"]
fn an_answer_that_is_compressed_on_its_way_only_does_not_bring_a_secret_in() {
    in_a_world(async |world| {
        on_each_tier(world, async |siege| {
            let secret = PutSecret { value: CANARY.into() };
            siege.client().put_secret("API_KEY", &secret).await.unwrap();
            let policy = Policy::of_words(&["good.example", "secret:API_KEY=good.example"]).unwrap();
            let sandbox = siege.sandbox(policy.clone()).await;
            let digits: String = CANARY.bytes().map(|byte| format!("{byte:02x}")).collect();
            let said = siege.run("N-32", &sandbox, &[&digits]).await;
            let through = said.lines().filter(|line| line.ends_with(" ok")).count();
            assert_eq!((through, said.lines().count()), (0, 8), "{said}");
            siege.told(&sandbox, "sent an encoded response").await;
            siege.recovers(&sandbox).await;
            // Control: without the defence, code in the sandbox can read the value.
            siege.undefend("N-32");
            let said = siege.run("N-32", &siege.sandbox(policy).await, &[&digits]).await;
            let through = said.lines().filter(|line| line.ends_with(" ok")).count();
            assert!(through >= 3, "{said}");
            attack::held("N-32", siege.runtime(), &format!("8 codings; the control reached {through}"));
        })
        .await;
    });
}

/// Checks attack N-37: masking lets code confirm a correct guess, which is accepted and documented. `secret
/// set` warns about values that are easy to guess.
#[test]
#[ignore = "starts real sandboxes"]
fn whoever_sets_a_secret_that_can_be_guessed_is_warned() {
    in_a_world(async |world| {
        on_each_tier(world, async |siege| {
            let set = |value: &str| siege.set_secret(&[], "API_KEY", value);
            let warned = set("48201937");
            assert!(warned.contains("is easy to guess (it has only digits)"), "{warned}");
            let policy = Policy::of_words(&["good.example", "secret:API_KEY=good.example"]).unwrap();
            let sandbox = siege.sandbox(policy).await;
            // The guess succeeds, so the warning is justified.
            let said = siege.run("N-37", &sandbox, &["48190000", "20000"]).await;
            assert!(said.contains("found 48201937"), "{said}");
            let warned = set(CANARY);
            assert!(!warned.contains("warning"), "{warned}");
            let said = siege.run("N-37", &sandbox, &["48190000", "20000"]).await;
            assert!(said.contains("found nothing"), "{said}");
            // Control: without the defence, there is no warning.
            let off = [(api::defence::VARIABLE, "N-37")];
            let silent = siege.set_secret(&off, "API_KEY", "48201937");
            assert!(!silent.contains("warning"), "{silent}");
            attack::count_control();
            attack::held("N-37", siege.runtime(), "the guessable value was warned of");
        })
        .await;
    });
}

/// Returns the requests that carried the value anywhere except in the bound header of a request for the bound
/// path.
fn strayed(world: &World) -> Vec<serde_json::Value> {
    let mut said = world.seen()["said"].as_array().unwrap().clone();
    said.retain(|one| {
        let headers = one["headers"].as_object().unwrap();
        let has = |text: &serde_json::Value| text.to_string().contains(CANARY);
        let elsewhere = headers.iter().any(|(name, value)| name != "authorization" && has(value));
        let bound =
            one["here"] == GOOD && one["tls"] == true && one["path"].as_str().unwrap().starts_with("/v1/");
        let stepped = one["path"].to_string().contains("..") || one["path"].to_string().contains('%');
        (has(one) && (!bound || stepped)) || elsewhere || has(&one["body"])
    });
    said
}
