//! One build step of E2B's API, and its conversion into a step of a recipe.

use std::collections::BTreeMap;

use api::limits::USER;
use node::template::recipe::{Command, Step};
use node::template::sent::SentFiles;
use serde::Deserialize;

/// Build step as the client wrote it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Instruction {
    #[serde(rename = "type")]
    pub kind: String,
    args: Vec<String>,
    files_hash: Option<String>,
    pub force: Option<bool>,
}

/// User, working directory and environment variables after the steps so far.
pub(super) struct Setting {
    pub by_user: bool,
    pub cwd: String,
    /// Environment variables, or `None` if the base is an image, whose variables are unknown before the
    /// build.
    pub env: Option<BTreeMap<String, String>>,
}

impl Instruction {
    /// Converts the step, and applies it to the setting of later steps.
    ///
    /// # Errors
    /// Returns the reason if the step is invalid, as the rest of a sentence about the step.
    pub(super) fn read(&self, setting: &mut Setting) -> Result<Step, String> {
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        match (self.kind.as_str(), args.as_slice()) {
            ("RUN", [command, rest @ ..]) => {
                let by_user = rest.first().map_or(Ok(setting.by_user), |user| setting.user(user))?;
                Ok(if by_user {
                    Step::RunAs(USER.into(), shell(command))
                } else {
                    Step::RunAs("root".into(), as_root(command))
                })
            }
            ("COPY", [from, to, rest @ ..]) => {
                let owner = rest.first().map_or("", |owner| owner.split(':').next().unwrap_or_default());
                Ok(Step::Sent(SentFiles {
                    archive: self
                        .files_hash
                        .clone()
                        .ok_or("has no `filesHash`, which identifies its files")?,
                    from: (*from).to_owned(),
                    to: setting.place(&setting.expanded(to)?),
                    by_user: setting.user(owner)?,
                    mode: (*rest.get(1).unwrap_or(&"")).to_owned(),
                }))
            }
            ("WORKDIR", [path]) => {
                setting.cwd = setting.place(&setting.expanded(path)?);
                Ok(Step::Workdir(setting.cwd.clone()))
            }
            ("USER", [name]) => {
                setting.by_user = setting.user(name)?;
                Ok(Step::User(if setting.by_user { USER } else { "root" }.to_owned()))
            }
            ("ENV", pairs) if !pairs.is_empty() && pairs.len() % 2 == 0 => {
                let mut variables = BTreeMap::new();
                for pair in pairs.chunks(2) {
                    if let [name, value] = pair {
                        variables.insert((*name).to_owned(), setting.expanded(value)?);
                    }
                }
                if let Some(env) = &mut setting.env {
                    env.extend(variables.clone());
                }
                Ok(Step::Env(variables))
            }
            ("RUN" | "COPY" | "WORKDIR" | "USER" | "ENV", _) => {
                Err(format!("has the wrong number of arguments: {}", args.len()))
            }
            _ => Err("is not one of RUN, COPY, WORKDIR, USER and ENV".into()),
        }
    }
}

impl Setting {
    /// Parses a user name. Returns true for the sandbox's user and false for root. An empty name means the
    /// current user.
    fn user(&self, name: &str) -> Result<bool, String> {
        match name {
            "" => Ok(self.by_user),
            "user" => Ok(true),
            "root" => Ok(false),
            other => Err(format!("names the unknown user {other:?}; use `root` or `user`")),
        }
    }

    /// Replaces variables (`$NAME` and `${NAME}`) in a text with their values, and `\$` with a dollar sign.
    fn expanded(&self, text: &str) -> Result<String, String> {
        let mut whole = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('$') {
            if let Some(before) = before.strip_suffix('\\') {
                whole.push_str(&format!("{before}$"));
                rest = after;
                continue;
            }
            whole.push_str(before);
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let (name, left) = match after.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
                Some(both) => both,
                None => after.split_at(after.find(|c| !is_name(c)).unwrap_or(after.len())),
            };
            rest = left;
            if name.is_empty() {
                whole.push('$');
                continue;
            }
            if !name.chars().all(is_name) {
                return Err(format!("uses ${{{name}}}, but only plain variable names are supported"));
            }
            let Some(env) = &self.env else {
                return Err(format!(
                    "uses ${name}, but the variables of an image are unknown until the image is pulled; write the value instead"
                ));
            };
            whole.push_str(env.get(name).map_or("", String::as_str));
        }
        whole.push_str(rest);
        Ok(whole)
    }

    /// Resolves a path against the current working directory.
    fn place(&self, path: &str) -> String {
        let path = path.strip_prefix("./").unwrap_or(path);
        match path {
            "" | "." => format!("{}/", self.cwd.trim_end_matches('/')),
            path if path.starts_with('/') => path.to_owned(),
            path => format!("{}/{path}", self.cwd.trim_end_matches('/')),
        }
    }
}

/// Returns the command line that E2B's agent uses to run a command.
pub(super) fn shell(command: &str) -> Command {
    Command::Argv(["/bin/bash", "-l", "-c", command].map(str::to_owned).to_vec())
}

/// Returns the command line that runs a command as root, with root's home directory and user name in the
/// environment.
pub(super) fn as_root(command: &str) -> Command {
    let words = ["/usr/bin/env", "HOME=/root", "USER=root", "LOGNAME=root", "/bin/bash", "-l", "-c", command]
        .map(str::to_owned);
    Command::Argv(words.to_vec())
}
