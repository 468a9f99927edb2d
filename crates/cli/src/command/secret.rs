//! `bellglass secret`: manages secrets that code in sandboxes can use but cannot read.

use std::io::{self, BufRead, IsTerminal as _, Read as _, Write as _};
use std::process::ExitCode;

use api::Error;
use api::secret::{PutSecret, Secret, VALUE_BYTES, check_name};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};

use crate::command::list;
use crate::connect::{ServerConnection, answer};
use crate::{platform, show};

/// Control characters that the terminal sends for common keys.
const INTERRUPT: u8 = 3;
const END: u8 = 4;
const BACKSPACE: u8 = 8;
const KILL: u8 = 21;
const DELETE: u8 = 127;
/// Upper bits of the second and all further bytes of a UTF-8 character.
const CONTINUATION: u8 = 0b1000_0000;
const CONTINUATION_MASK: u8 = 0b1100_0000;

/// Arguments of `bellglass secret`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  bellglass secret set API_KEY < key.txt\n  bellglass secret list\n  bellglass secret remove API_KEY\n\n\
    A secret is sent only to the destinations that a policy names:\n  \
    bellglass policy s1 --allow api.example.org --allow secret:API_KEY=api.example.org/v1"
)]
pub struct Arguments {
    #[command(subcommand)]
    command: SecretCommand,
}

#[derive(clap::Subcommand)]
enum SecretCommand {
    /// Store a secret, read from standard input or a prompt. The stored value cannot be read back.
    Set {
        /// Name of the secret and of its environment variable in the sandbox. Allowed characters: A to Z, 0 to 9
        /// and _.
        name: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List the secrets, without their values.
    List {
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Remove secrets. Requests that use them are refused from now on.
    Remove {
        /// Names of the secrets.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Print the names as JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Runs `bellglass secret`.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    match arguments.command {
        SecretCommand::Set { name, json } => {
            check_name(&name)?;
            let secret = PutSecret { value: value(&name)? };
            secret.check()?;
            let guessable = secret.guessable().filter(|_| !api::defence::is_off("N-37"));
            let kept = answer(&client, client.put_secret(&name, &secret)).await?;
            if json {
                show::json(&kept)?;
            } else {
                show::note(&format!("stored the secret {name}; a policy controls where the secret is sent"));
            }
            if let Some(why) = guessable {
                show::note(&format!(
                    "warning: the value of {name} is easy to guess ({why}). Code in a sandbox that may use this secret can try values and see which value is masked. \
                     Use a longer, random value."
                ));
            }
        }
        SecretCommand::List { json } => show_secrets(&answer(&client, client.secrets()).await?, json)?,
        SecretCommand::Remove { names, json } => {
            for name in &names {
                answer(&client, client.remove_secret(name)).await?;
            }
            if json {
                show::json(&names)?;
            } else {
                show::note(&format!("removed {}", names.join(", ")));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show_secrets(secrets: &[Secret], json: bool) -> Result<(), Error> {
    if json {
        return show::json(&secrets);
    }
    let row = |secret: &Secret| {
        vec![secret.name.clone(), list::age(secret.created_at_ms), list::age(secret.changed_at_ms)]
    };
    show::table(&["name", "age", "changed"], &secrets.iter().map(row).collect::<Vec<_>>())
}

/// Reads the value from standard input or from a prompt, and removes the final line break.
fn value(name: &str) -> Result<String, Error> {
    let failed = |error: io::Error| platform(format!("cannot read the value: {error}"));
    let stdin = io::stdin();
    let mut bytes = Vec::new();
    if stdin.is_terminal() {
        let hidden = Hidden::begin().map_err(failed)?;
        let mut screen = io::stderr();
        let _ = write!(screen, "value of {name}: ");
        let typed = typed(stdin.lock());
        drop(hidden);
        let _ = writeln!(screen);
        bytes = typed
            .map_err(failed)?
            .ok_or_else(|| Error::invalid("interrupted: nothing was set", "Run the command again."))?;
    } else {
        // Reading slightly more than the maximum length is enough to reject a value that is too long.
        let most = u64::try_from(VALUE_BYTES.end() + 2).unwrap_or(u64::MAX);
        stdin.take(most).read_to_end(&mut bytes).map_err(failed)?;
    }
    // The conversion error is discarded, because it would contain the value.
    let text = String::from_utf8(bytes)
        .map_err(|_| Error::invalid("the value is not valid UTF-8", "Pass one line of UTF-8 text."))?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
}

/// Reads typed keys up to the end of the line. Returns `None` if the user presses Ctrl-C.
fn typed(keys: impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    for key in keys.bytes() {
        match key? {
            b'\n' | b'\r' | END => break,
            INTERRUPT => return Ok(None),
            KILL => line.clear(),
            BACKSPACE | DELETE => line.truncate(last_character(&line)),
            byte if line.len() <= *VALUE_BYTES.end() => line.push(byte),
            _ => {}
        }
    }
    Ok(Some(line))
}

/// Returns the position of the last character of a line, whose bytes need not be valid UTF-8.
fn last_character(line: &[u8]) -> usize {
    line.iter().rposition(|byte| byte & CONTINUATION_MASK != CONTINUATION).unwrap_or(0)
}

/// Terminal with echo off until this value is dropped. While echo is off, this module also handles line
/// editing and interrupts. The kernel's line buffer is too short for some values, and an interrupt would end
/// the process with echo still off.
struct Hidden(Termios);

impl Hidden {
    fn begin() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut without = before.clone();
        without.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        without.special_codes[SpecialCodeIndex::VMIN] = 1;
        without.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(io::stdin(), OptionalActions::Flush, &without)?;
        Ok(Self(before))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_ends_with_its_line() {
        for (keys, line) in [
            (&b"value\nrest"[..], Some(&b"value"[..])),
            (b"valux\x7fe\r", Some(b"value")),
            ("valä\x7fue\n".as_bytes(), Some(b"value")),
            ("valü€🔑\x08\x08\x08ue\n".as_bytes(), Some(b"value")),
            ("ä\x7f\x7fvalue\n".as_bytes(), Some(b"value")),
            (b"wrong\x15value\n", Some(b"value")),
            (b"value\x04", Some(b"value")),
            (b"val\x03ue\n", None),
            (b"", Some(b"")),
        ] {
            assert_eq!(typed(keys).unwrap().as_deref(), line);
        }
    }
}
