//! Fuzz targets: policies as words and as JSON.

use super::*;

#[test]
fn a_policy_of_words_is_shown_as_words_of_the_same_policy() {
    bolero::check!().with_iterations(1000).for_each(|input: &[u8]| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        let words: Vec<&str> = text.lines().collect();
        let Ok(policy) = Policy::of_words(&words) else { return };
        assert_eq!(Policy::of_words(&policy.words()).unwrap(), policy);
        let json = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<Policy>(&json).unwrap(), policy);
    });
}

/// Returns the combinations of host, port, methods and path that the rules of a policy allow.
fn allowed(policy: &Policy) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for rule in &policy.hosts {
        let host = rule.parsed().unwrap();
        let paths = match &rule.paths {
            None => vec![None],
            Some(paths) => paths.iter().map(Some).collect(),
        };
        for (port, path) in rule.ports.iter().flat_map(|port| paths.iter().map(move |path| (port, path))) {
            all.insert(format!("{host:?} {port} {:?} {path:?}", rule.methods));
        }
    }
    all
}

#[test]
fn a_policy_of_json_is_shown_as_words_that_allow_the_same() {
    bolero::check!().with_iterations(1000).for_each(|input: &[u8]| {
        let Ok(policy) = serde_json::from_slice::<Policy>(input) else { return };
        if policy.check().is_err() {
            return;
        }
        let json = serde_json::to_vec(&policy).unwrap();
        assert_eq!(serde_json::from_slice::<Policy>(&json).unwrap(), policy);
        let words = policy.words();
        let again = match Policy::of_words(&words) {
            // A rule with many paths becomes many words, which together can exceed a limit.
            Err(error) if error.code == crate::ErrorCode::LimitExceeded => return,
            again => again.unwrap_or_else(|error| panic!("{words:?}: {error:?}")),
        };
        assert_eq!(allowed(&again), allowed(&policy));
        assert_eq!(
            (again.open, &again.presets, &again.secrets),
            (policy.open, &policy.presets, &policy.secrets)
        );
        for preset in &policy.presets {
            assert_eq!(again.packages.only(*preset), policy.packages.only(*preset));
        }
    });
}
