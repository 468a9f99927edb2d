//! S: secrets, looked for inside, and had told by the proxy.

use api::policy::Policy;
use api::secret::PutSecret;
use e2e::world::{GOOD, World, in_a_world};

use crate::ground::on_each_tier;

const CANARY: &str = "canary/5f0e9c2b+77d1";

/// S-01, S-02; scenario 84.
#[test]
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
                siege.withstand(id, &sandbox, (&[&digits], &[&digits, "control"]), least).await;
                // What the control has sent astray is before, what the sandbox has sent is after it.
                let marks = self::strayed(world).len() - strayed.len();
                println!("attack {id} {} held (control reached; {marks} requests of the control strayed)", siege.runtime());
                assert!(marks > 0, "the control is to send it elsewhere");
                siege.run(id, &sandbox, &[&digits]).await;
                assert_eq!(self::strayed(world).len() - strayed.len(), marks, "{:#?}", self::strayed(world));
            }
            // It was not for want of use.
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

/// Requests that had the value and were not for the place to which it is bound, or had it at another place of theirs.
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
