//! `bellglass --help`: the commands, grouped by task.
//!
//! clap shows all subcommands in one list. A help template for the root command shows them in groups instead.
//! Names, aliases and summaries come from the subcommands themselves.

use std::fmt::Write as _;

use clap::{Command, CommandFactory as _, FromArgMatches as _};

use crate::Arguments;

/// Commands by task, in the order in which the help shows them.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Run code", &["run", "exec", "attach", "logs", "python", "context", "shell"]),
    ("Sandboxes", &["create", "list", "stop", "pause", "resume", "top", "events", "trace"]),
    ("Templates", &["template", "build-sandbox", "sandbox-status", "sandbox-test"]),
    ("Files", &["cp", "ls", "cat", "edit", "watch"]),
    ("Network", &["policy", "packages", "secret", "forward"]),
    ("Agents", &["session", "tools", "mcp", "e2b"]),
    ("Operate", &["serve", "drain", "key", "project", "audit", "doctor", "completions", "man"]),
];
/// Beginning of the help template, up to the list of commands.
const HEAD: &str = "{before-help}{about-with-newline}\n{usage-heading} {usage}\n\n";
/// End of the help template, after the heading of the options. `{options}` includes options that have their
/// own heading.
const TAIL: &str = "{options}{after-help}";

/// Parses the command line. Like [`clap::Parser::parse`], prints help, the version or an error and exits when
/// necessary.
pub fn parse() -> Arguments {
    let mut command = grouped(Arguments::command());
    let mut matches = command.get_matches_mut();
    Arguments::from_arg_matches_mut(&mut matches).unwrap_or_else(|error| error.format(&mut command).exit())
}

/// Adds a help template that lists the subcommands by task.
fn grouped(command: Command) -> Command {
    let (header, literal) = (command.get_styles().get_header(), command.get_styles().get_literal());
    let width = command.get_subcommands().map(|one| one.get_name().len()).max().unwrap_or_default();
    let mut list = String::new();
    for (heading, names) in GROUPS {
        let _ = writeln!(list, "{header}{heading}:{header:#}");
        for one in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let name = one.get_name();
            let gap = width.saturating_sub(name.len()) + 2;
            let about = one.get_about().map(ToString::to_string).unwrap_or_default();
            let aliases: Vec<&str> = one.get_visible_aliases().collect();
            let _ = write!(list, "  {literal}{name}{literal:#}{:gap$}{about}", "");
            match aliases.as_slice() {
                [] => {}
                [alias] => list.push_str(&format!(" [alias: {alias}]")),
                aliases => list.push_str(&format!(" [aliases: {}]", aliases.join(", "))),
            }
            list.push('\n');
        }
        list.push('\n');
    }
    let template = format!("{HEAD}{list}{header}Options:{header:#}\n{TAIL}");
    command.help_template(template)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_is_in_exactly_one_group() {
        let command = Arguments::command();
        let visible = command.get_subcommands().filter(|one| !one.is_hide_set());
        let mut visible: Vec<&str> = visible.map(Command::get_name).collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        visible.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, visible);
    }

    #[test]
    fn every_form_of_help_shows_each_group_and_summary_once() {
        for form in ["-h", "--help", "help"] {
            let shown = grouped(Arguments::command()).try_get_matches_from(["bellglass", form]).unwrap_err();
            let help = shown.to_string();
            for (heading, _) in GROUPS {
                assert_eq!(help.matches(&format!("\n{heading}:\n")).count(), 1, "{form}, {heading}:\n{help}");
            }
            for one in Arguments::command().get_subcommands() {
                let (name, about) = (one.get_name(), one.get_about().unwrap().to_string());
                let is_its = |line: &&str| line.starts_with(&format!("  {name} ")) && line.contains(&about);
                assert_eq!(help.lines().filter(is_its).count(), 1, "{form}, {name}:\n{help}");
            }
            assert!(help.contains("\nOptions:\n") && help.contains("--server <URL>"), "{form}:\n{help}");
        }
    }

    #[test]
    fn the_help_of_a_command_has_no_groups() {
        let shown =
            grouped(Arguments::command()).try_get_matches_from(["bellglass", "help", "run"]).unwrap_err();
        assert!(!shown.to_string().contains("Sandboxes:"), "{shown}");
    }
}
