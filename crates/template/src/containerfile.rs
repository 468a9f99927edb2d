//! A recipe as a Containerfile, for engines and for people who build with their own tools.
//!
//! Every word of the recipe is a word of a list in JSON here, so that nothing of it means something else to a shell or to whoever reads
//! the file; what a shell is to read, its author wrote for one.

use std::fmt::Write as _;

use api::limits::{UID, USER};
use host::error::Error;

use crate::note::{LABEL, Note};
use crate::recipe::{Ground, Recipe, Step};
use crate::step::{ROOT_VARIABLES, programs};
use crate::{Template, base, unsound};

/// Gives an image the user of sandboxes, in the place of whoever has that name or number.
const USERS: &str = "for list in passwd group; do \\
 touch /etc/$list && sed -i -e '/^USER:/d' -e '/^[^:]*:[^:]*:UID:/d' /etc/$list; done; \\
 echo 'USER:x:UID:UID:USER:/home/USER:/bin/sh' >> /etc/passwd; echo 'USER:x:UID:' >> /etc/group; \\
 mkdir -p /workspace /home/USER; chown UID:UID /workspace /home/USER";

/// The name that people and recipes have for the image of a template.
pub(super) fn named(template: &str) -> String {
    format!("localhost/bellglass/{template}:latest")
}

impl Recipe {
    /// The recipe as a Containerfile whose image is this template's, from `ground` where that is given. Files are copied from beside
    /// the recipe.
    ///
    /// # Errors
    /// Something in the recipe cannot be said in a Containerfile.
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

    /// The template of this machine that it begins with, if it does.
    pub(super) fn ground(&self) -> Option<&str> {
        match &self.from {
            Ground::Named(template) if !template.contains(['/', ':']) => Some(template),
            Ground::Named(_) | Ground::Debian(_) => None,
        }
    }

    /// Whether building it takes a network.
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
                // What the recipe sets stands before ours: `env` is asked only for what is not there.
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

/// A script that sets these variables where they are not set, and becomes its arguments.
fn defaults(variables: &[(&str, &str)]) -> String {
    // An engine sets HOME by the user, and nobody's recipe does.
    let set = variables.iter().fold(String::new(), |mut script, (name, value)| {
        let _ = write!(script, ": \"${{{name}:={value}}}\"; export {name}; ");
        script
    });
    format!("{set}exec \"$@\"")
}

/// Words as a list that no shell reads.
fn list(words: &[String]) -> String {
    serde_json::to_string(words).unwrap_or_default()
}

/// One word, with nothing in it that a Containerfile would read as its own.
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
        // Packages are root's to install, whoever runs what comes before and after.
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
