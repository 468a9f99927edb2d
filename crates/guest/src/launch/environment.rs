//! The environment variables and the default working directory of every process.

use std::collections::BTreeMap;

use api::exec::ExecSpec;
use api::limits;

/// Address of the egress proxy; [`crate::egress`] listens there.
const PROXY: &str = "http://127.0.0.1:3128";
/// Destinations inside the sandbox, which do not need the proxy.
const NO_PROXY: &str = "localhost,127.0.0.1,::1";
/// Environment variables of every exec. None is taken from the host. Both spellings of the proxy variables
/// are set, because some programs read only one of them.
const ENVIRONMENT: [(&str, &str); 16] = [
    ("ALL_PROXY", PROXY),
    ("HTTPS_PROXY", PROXY),
    ("HTTP_PROXY", PROXY),
    ("NODE_USE_ENV_PROXY", "1"),
    ("NO_PROXY", NO_PROXY),
    ("all_proxy", PROXY),
    ("http_proxy", PROXY),
    ("https_proxy", PROXY),
    ("no_proxy", NO_PROXY),
    ("HOME", "/home/sandbox"),
    ("LANG", "C.UTF-8"),
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("SHELL", "/bin/sh"),
    ("TMPDIR", "/tmp"),
    ("TZ", "UTC"),
    ("USER", limits::USER),
];
/// Default terminal type. All current terminal emulators understand it.
const TERM: (&str, &str) = ("TERM", "xterm-256color");
/// Default working directory.
pub const DIRECTORY: &str = "/workspace";

/// Returns all environment variables of a process.
pub fn environment(spec: &ExecSpec) -> BTreeMap<&str, &str> {
    let mut env: BTreeMap<&str, &str> = ENVIRONMENT.into_iter().chain(spec.terminal.map(|_| TERM)).collect();
    env.extend(spec.env.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_pointed_at_the_port_on_which_the_way_out_is() {
        assert_eq!(PROXY, format!("http://127.0.0.1:{}", api::policy::PROXY_PORT));
    }
}
