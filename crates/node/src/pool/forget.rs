//! Chooses the kind of sandbox that the pool stops pre-warming to make room for a new kind.
//!
//! A project that requests many kinds displaces its own kinds first. Otherwise, it displaces a kind of the
//! project that has the most kinds. No project can lock other projects out of the pool (attack X-25).

/// Maximum number of kinds in the pool. Each combination of template and limits is one kind.
pub const KINDS_MAX: usize = 64;
/// Maximum number of kinds per project. A kind counts towards the project that was the first to request it.
/// Eight projects can each have this many kinds without displacing each other's.
pub const KINDS_OF_PROJECT_MAX: usize = 8;

/// A kind in the pool.
#[derive(Clone, Copy, Debug)]
pub struct EvictionCandidate<'a> {
    /// Project that was the first to request the kind.
    pub project: &'a str,
    /// Time of the last request for the kind.
    pub last_ms: u64,
    /// True if the kind is never forgotten.
    pub always: bool,
}

/// Returns the index of the kind to forget before `project` adds a kind: the least recently requested kind of
/// this project if it has reached its limit, or otherwise of the project with the most kinds. Returns `None`
/// if there is a free slot.
pub fn forgotten(kinds: &[EvictionCandidate<'_>], project: &str) -> Option<usize> {
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

    fn known(project: &str, last_ms: u64) -> EvictionCandidate<'_> {
        EvictionCandidate { project, last_ms, always: false }
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
        let always = EvictionCandidate { always: true, ..known("", 0) };
        assert_eq!(forgotten(&[always; KINDS_MAX], "p"), None);
    }
}
