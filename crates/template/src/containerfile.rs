//! Conversion of a recipe to a Containerfile, for engines and for other build tools.
//!
//! Every value of the recipe is written as a JSON string, so that neither a shell nor the Containerfile
//! parser can interpret it. Only scripts that the author wrote for a shell are passed to a shell.

use std::fmt::Write as _;

use api::limits::{UID, USER};
use host::error::Error;

use crate::note::{LABEL, Note};
use crate::recipe::{Ground, Recipe, Step};
use crate::step::{ROOT_VARIABLES, programs};
use crate::{Template, base, unsound};

/// Commands that add the sandbox's user to an image. They replace any user or group with the same name or
/// number.
const USERS: &str = "for list in passwd group; do \\
 touch /etc/$list && sed -i -e '/^USER:/d' -e '/^[^:]*:[^:]*:UID:/d' /etc/$list; done; \\
 echo 'USER:x:UID:UID:USER:/home/USER:/bin/sh' >> /etc/passwd; echo 'USER:x:UID:' >> /etc/group; \\
 mkdir -p /workspace /home/USER; chown UID:UID /workspace /home/USER";

/// Returns the name that people and recipes use for a template's image.
pub(super) fn named(template: &str) -> String {
    format!("localhost/bellglass/{template}:latest")
}

impl Recipe {
    /// Returns the recipe as a Containerfile that builds this template's image. `ground` replaces the base
    /// image if the recipe starts from a template or an image. Files are copied from the recipe's directory.
    ///
    /// # Errors
    /// The recipe contains something that a Containerfile cannot express.
    pub fn containerfile(&self, template: &Template, ground: Option<&str>) -> Result<String, Error> {
        let mut text = String::from("# Generated from a Bellglass recipe. Edit the recipe, not this file.\n");
        let ground = match &self.from {
            Ground::Named(_) if ground.is_some() => ground.unwrap_or_default().to_owned(),
            Ground::Debian(debian) => format!("docker.io/library/debian:{}-slim", debian.debian),
            Ground::Named(image) if image.contains(['/', ':']) => image.clone(),
            Ground::Named(template) => named(template),
        };
        let _ = writeln!(text, "FROM {ground}\nUSER root\nWORKDIR /");
        if let Ground::Debian(_) = &self.from {
            let apt = Step::Apt(base::PACKAGES.map(str::to_owned).to_vec());
            write_step(&mut text, &apt, &mut false)?;
        }
        let users = USERS.replace("USER", USER).replace("UID", &UID.to_string());
        let _ = writeln!(text, "RUN {users}");
        let mut as_user = false;
        for step in &self.steps {
            write_step(&mut text, step, &mut as_user)?;
        }
        let note = serde_json::to_string(&Note::of(template)).unwrap_or_default();
        let _ = writeln!(text, "LABEL {LABEL}={}\nUSER {UID}", quoted(&note)?);
        if template.cwd.is_none() {
            text.push_str("WORKDIR /workspace\n");
        }
        Ok(text)
    }

    /// Returns the name of the template that the recipe is based on, if any.
    pub(super) fn ground(&self) -> Option<&str> {
        match &self.from {
            Ground::Named(template) if !template.contains(['/', ':']) => Some(template),
            Ground::Named(_) | Ground::Debian(_) => None,
        }
    }

    /// Returns true if the build needs network access.
    pub(super) fn reaches_out(&self) -> bool {
        let installs = |step: &Step| matches!(step, Step::Apt(_) | Step::Pip(_) | Step::Npm(_));
        !self.policy.is_empty() || matches!(self.from, Ground::Debian(_)) || self.steps.iter().any(installs)
    }
}

fn write_step(text: &mut String, step: &Step, as_user: &mut bool) -> Result<(), Error> {
    match step {
        Step::User(name) => *as_user = name != "root",
        Step::Workdir(path) => {
            let _ = writeln!(text, "WORKDIR {}", quoted(path)?);
        }
        Step::Env(variables) => {
            for (name, value) in variables {
                let _ = writeln!(text, "ENV {name}={}", quoted(value)?);
            }
        }
        Step::Copy(copy) => {
            let _ = writeln!(text, "COPY {}", list(&[copy.from.clone(), copy.to.clone()]));
        }
        Step::Sent(_) => {
            let fix = "Copy files from the recipe's directory.";
            return Err(crate::unsound("uploaded files cannot be used in a Containerfile", fix));
        }
        Step::Apt(_) | Step::Pip(_) | Step::Npm(_) | Step::Run(_) | Step::RunAs(..) => {
            let as_user = step.by_user(*as_user);
            if as_user {
                let _ = writeln!(text, "USER {UID}");
            }
            for argv in programs(step).map(|(programs, _)| programs).unwrap_or_default() {
                let own: &[(&str, &str)] = if as_user { &[] } else { &ROOT_VARIABLES };
                // The recipe's variables take precedence: the script sets only variables that are unset.
                let words = ["/bin/sh".to_owned(), "-c".to_owned(), defaults(own), "sh".to_owned()];
                let _ = writeln!(text, "RUN {}", list(&words.into_iter().chain(argv).collect::<Vec<_>>()));
            }
            if as_user {
                text.push_str("USER root\n");
            }
        }
    }
    Ok(())
}

/// Returns a script that sets each of these variables unless it is already set, and then executes its
/// arguments.
fn defaults(variables: &[(&str, &str)]) -> String {
    // `HOME` needs no exception. The engine sets it for the user who runs the command, so the default does
    // not apply.
    let set = variables.iter().fold(String::new(), |mut script, (name, value)| {
        let _ = write!(script, ": \"${{{name}:={value}}}\"; export {name}; ");
        script
    });
    format!("{set}exec \"$@\"")
}

/// Returns the words as a JSON list, which no shell interprets.
fn list(words: &[String]) -> String {
    serde_json::to_string(words).unwrap_or_default()
}

/// Quotes a word, so that the Containerfile parser does not interpret anything in it.
fn quoted(value: &str) -> Result<String, Error> {
    if value.contains(['\n', '\r']) {
        return Err(unsound(
            format!("{value:?} has more than one line, which a Containerfile cannot express"),
            "Set the value in the program, or build the template with OCI runtimes.",
        ));
    }
    let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('$', "\\$");
    Ok(format!("\"{escaped}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_recipe_are_words_of_lists() {
        let recipe = r#"
            from = { debian = "trixie" }
            steps = [
              { pip = ["numpy==2.2.1", "x; rm -rf /"] },
              { env = { A = "a $B \"c\" \\" } },
              { copy = { from = "app", to = "/opt/my app" } },
              { user = "sandbox" },
              { run = ["touch", "/workspace/a b"] },
              { apt = ["git"] },
            ]
        "#;
        let recipe = Recipe::parse(recipe).unwrap();
        let text = recipe.containerfile(&Template::of("a"), None).unwrap();
        assert!(text.contains("FROM docker.io/library/debian:trixie-slim\n"), "{text}");
        assert!(text.contains(r#""--","numpy==2.2.1","x; rm -rf /"]"#), "{text}");
        assert!(text.contains(r#"ENV A="a \$B \"c\" \\""#), "{text}");
        assert!(text.contains(r#"COPY ["app","/opt/my app"]"#), "{text}");
        assert!(text.contains("USER 1000\nRUN"), "{text}");
        assert!(text.contains(r#""touch","/workspace/a b"]"#), "{text}");
        // Packages are always installed by root, whichever user runs the steps before and after.
        let (before, _) = text.split_at(text.rfind("apt-get").unwrap());
        assert!(before.contains("/workspace/a b\"]\nUSER root\nRUN"), "{text}");
        assert!(recipe.reaches_out());
    }

    #[test]
    fn what_a_containerfile_cannot_say_is_refused() {
        let recipe = Recipe::parse("from = \"base\"\nsteps = [{ env = { A = \"a\\nb\" } }]").unwrap();
        assert!(recipe.containerfile(&Template::of("a"), None).is_err());
        assert!(!recipe.reaches_out());
    }
}
