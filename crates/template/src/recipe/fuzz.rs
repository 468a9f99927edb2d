//! Fuzz target: recipes, and the Containerfiles that they become.

use super::*;
use crate::Template;

/// The instructions that a Containerfile of a recipe may contain.
const INSTRUCTIONS: [&str; 8] =
    ["FROM ", "USER ", "WORKDIR ", "RUN ", "ENV ", "COPY ", "LABEL ", "# Generated"];

#[test]
fn a_recipe_becomes_a_containerfile_of_its_own_steps() {
    bolero::check!().with_iterations(1000).for_each(|input: &[u8]| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        let Ok(recipe) = Recipe::parse(text) else { return };
        recipe.check().unwrap();
        let policy = recipe.policy().unwrap();
        assert_eq!(Policy::of_words(&policy.words()).unwrap(), policy);
        for step in &recipe.steps {
            assert!(!step.what().contains(|c: char| c.is_control()));
            if let Step::Apt(names) | Step::Pip(names) | Step::Npm(names) = step {
                assert!(names.iter().all(|name| !name.starts_with(['-', '/', '.'])), "{names:?}");
            }
        }
        let Ok(file) = recipe.containerfile(&Template::of("a"), None) else { return };
        assert!(!file.contains(['\r', '\0']), "{file:?}");
        let mut continues = false;
        for line in file.lines() {
            assert!(
                continues || INSTRUCTIONS.iter().any(|instruction| line.starts_with(instruction)),
                "{line:?}"
            );
            continues = line.ends_with('\\');
            assert!(!continues || line.starts_with("RUN for list in") || line.starts_with(' '), "{line:?}");
        }
        assert!(!continues);
        assert_eq!(file.lines().filter(|line| line.starts_with("FROM ")).count(), 1);
        let copies = recipe.steps.iter().filter(|step| matches!(step, Step::Copy(_))).count();
        assert_eq!(file.lines().filter(|line| line.starts_with("COPY ")).count(), copies);
    });
}
