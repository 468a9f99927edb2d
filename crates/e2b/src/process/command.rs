//! The exec of a command: its user, its command line and its options.

use api::exec::{ExecSpec, OutputMode};
use api::limits::DEADLINE_MS_MAX;
use api::terminal::TerminalSize;

use super::StartProcessRequest;
use crate::place::absolute;
use crate::running::{Config, KEPT_BYTES};

/// Time between SIGTERM and SIGKILL for a command that exceeds its deadline. It is short, because the command
/// has already used up its time.
const GRACE_MS: u64 = 500;
/// Script that runs a command as `bash -c` does, except that the shell never replaces itself with the
/// command.
const STAY: &str = "eval \"set --; $1\"; exit $?";

/// User that runs a command.
#[derive(Clone, Copy)]
pub(super) enum Who<'a> {
    /// The user of the sandbox, with this home directory.
    User(&'a str),
    Root,
}

/// Creates the exec request that is sent to the guest.
pub(super) fn spec(
    ask: &StartProcessRequest,
    terminal: Option<TerminalSize>,
    who: Who<'_>,
    deadline_ms: Option<u64>,
) -> ExecSpec {
    let Config { cmd, args, envs, cwd } = &ask.process;
    let mut env = envs.clone();
    let (uid, home) = match who {
        Who::User(home) => (None, home),
        Who::Root => (Some(0), "/root"),
    };
    env.entry("E2B_SANDBOX".into()).or_insert_with(|| "true".into());
    ExecSpec {
        argv: std::iter::once(cmd.clone()).chain(args.iter().cloned()).collect(),
        env,
        uid,
        cwd: Some(absolute(cwd.as_deref().unwrap_or_default(), home)),
        stdin: terminal.is_none() && ask.stdin.unwrap_or(true),
        deadline_ms: deadline_ms.filter(|ms| *ms > 0).map(|ms| ms.min(DEADLINE_MS_MAX)),
        grace_ms: Some(GRACE_MS),
        output: if terminal.is_some() { OutputMode::Keep } else { OutputMode::Block },
        output_bytes: Some(KEPT_BYTES),
        terminal,
        ..ExecSpec::default()
    }
}

/// Returns the command line to execute. The shell that E2B's SDKs start would replace itself with its last
/// command. That command would then lead the process group of the exec, and some programs behave differently
/// as group leaders: `setsid`, for example, forks and returns at once. On E2B's own platform, the command
/// does not lead its group. To get the same behavior here, the script [`STAY`] keeps the shell as the leader
/// of the group.
pub(super) fn argv(cmd: &str, args: &[String]) -> Vec<String> {
    match args {
        [login, run, command] if (cmd, login.as_str(), run.as_str()) == ("/bin/bash", "-l", "-c") => {
            [cmd, login, run, STAY, cmd, command].map(str::to_owned).to_vec()
        }
        _ => std::iter::once(cmd.to_owned()).chain(args.iter().cloned()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Pty;
    use super::*;

    /// Compares a shell that runs [`STAY`] with a shell that replaces itself with its last command. They must
    /// differ only in the leader of the process group.
    #[test]
    fn a_shell_that_stays_behaves_like_any_other() {
        let ran = |argv: &[String]| {
            let output = std::process::Command::new(&argv[0]).args(&argv[1..]).output().unwrap();
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            (output.status.code(), text(output.stdout), text(output.stderr))
        };
        for command in [
            "echo one; exit 3",
            "echo $0 $# \"$@\"",
            "false",
            "cat <<END\n$HOME \\$x\nEND",
            "echo a \\",
            "echo 'it''s' \"quoted\" # a comment",
            "set -e; false; echo not reached",
            "set -u; echo \"${nothing}\"",
            "trap 'echo trapped' EXIT; true",
            "f() { return 7; }; f",
            "exec true",
            "nothing-of-this-name",
            "",
            "(exit 9) | true; echo ${PIPESTATUS[0]}",
        ] {
            let args = ["-l", "-c", command].map(str::to_owned);
            let plain = ran(&[&["/bin/bash".to_owned()][..], &args[..]].concat());
            assert_eq!(ran(&argv("/bin/bash", &args)), plain, "{command}");
        }
        let broken = ["-l", "-c", "echo ("].map(str::to_owned);
        assert_eq!(ran(&argv("/bin/bash", &broken)).0, Some(2));
        let detached = ["-l", "-c", "setsid sh -c 'echo in place'"].map(str::to_owned);
        assert_eq!(ran(&argv("/bin/bash", &detached)).1, "in place\n");
    }

    #[test]
    fn what_is_not_said_is_what_is_usual() {
        let ask: StartProcessRequest =
            serde_json::from_str(r#"{"process":{"cmd":"/bin/bash","args":["-l","-c","x"]}}"#).unwrap();
        let spec = spec(&ask, None, Who::User("/home/user"), None);
        assert_eq!(spec.argv, ["/bin/bash", "-l", "-c", "x"]);
        assert_eq!(argv("/bin/bash", &spec.argv[1..])[3..], [STAY, "/bin/bash", "x"]);
        assert!(spec.stdin && spec.cwd.as_deref() == Some("/home/user") && spec.deadline_ms.is_none());
        assert_eq!(spec.check(), Ok(()));
        let ask: StartProcessRequest = serde_json::from_str(
            r#"{"process":{"cmd":"a","cwd":"b"},"pty":{"size":{"cols":9}},"stdin":false}"#,
        )
        .unwrap();
        let size = ask.pty.as_ref().map(Pty::size);
        let spec = super::spec(&ask, size, Who::User("/home/user"), Some(u64::MAX));
        assert_eq!((size.unwrap().cols, size.unwrap().rows), (9, 24));
        assert!(!spec.stdin && spec.cwd.as_deref() == Some("/home/user/b"));
        assert_eq!(spec.check(), Ok(()));
    }
}
