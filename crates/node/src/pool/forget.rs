//! Which kind of ready sandboxes is forgotten for a new one.
//!
//! A project that asks for many kinds takes places from itself first, and then from whoever has the most: no project closes the pool
//! to others.

/// Kinds that are remembered: templates, with each set of limits that was asked for.
pub const KINDS_MAX: usize = 64;
/// Of these, those that one project asked for first. Eight projects with as many leave nobody out.
pub const KINDS_OF_PROJECT_MAX: usize = 8;

/// A kind that is remembered.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// The project that asked for it first.
    pub project: &'a str,
    /// When it was last asked for.
    pub last_ms: u64,
    /// Whether it stays in any case.
    pub always: bool,
}

/// The place in the list of the kind that is forgotten before a project gets one more: the one that was not asked for the longest,
/// of that project, or of the project that has the most. Nothing where there is a place left.
pub fn forgotten(kinds: &[Known<'_>], project: &str) -> Option<usize> {
    let count = |of: &str| kinds.iter().filter(|kind| !kind.always && kind.project == of).count();
    let owner = if count(project) >= KINDS_OF_PROJECT_MAX {
        project
    } else if kinds.len() >= KINDS_MAX {
        let of_projects = kinds.iter().filter(|kind| !kind.always);
        of_projects.max_by_key(|kind| count(kind.project)).map(|kind| kind.project)?
    } else {
        return None;
    };
    let own = kinds.iter().enumerate().filter(|(_, kind)| !kind.always && kind.project == owner);
    own.min_by_key(|(_, kind)| kind.last_ms).map(|(place, _)| place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(project: &str, last_ms: u64) -> Known<'_> {
        Known { project, last_ms, always: false }
    }

    #[test]
    fn whoever_asks_for_many_kinds_loses_its_own() {
        let mut kinds = vec![known("other", 0)];
        for last_ms in 1..=KINDS_OF_PROJECT_MAX as u64 {
            assert_eq!(forgotten(&kinds, "many"), None);
            kinds.push(known("many", 10 - last_ms));
        }
        assert_eq!(forgotten(&kinds, "many"), Some(KINDS_OF_PROJECT_MAX), "its own, the longest unused");
        assert_eq!(forgotten(&kinds, "other"), None);
    }

    #[test]
    fn a_new_project_takes_the_place_of_the_one_that_has_most() {
        let names: Vec<String> = (0..KINDS_MAX).map(|number| format!("p{}", number / 7)).collect();
        let mut kinds: Vec<_> = names.iter().map(|name| known(name, 5)).collect();
        kinds[3].last_ms = 1;
        kinds[0].always = true;
        let place = forgotten(&kinds, "new").unwrap();
        assert!(kinds[place].project != "p0", "p0 has one less that can be forgotten");
        assert!(!kinds[place].always);
    }

    #[test]
    fn what_the_operator_wants_is_never_forgotten() {
        let always = Known { always: true, ..known("", 0) };
        assert_eq!(forgotten(&[always; KINDS_MAX], "p"), None);
    }
}
