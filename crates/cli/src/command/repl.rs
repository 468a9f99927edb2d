//! Interactive prompt: the lines typed at a terminal become the cells of one context.
//!
//! A separate thread reads the input line by line. A cell runs as soon as it is complete. Ctrl-C discards an
//! incomplete cell or interrupts the running cell. Ctrl-D exits, and removes the context if it was created
//! for this prompt.

use std::io::{BufRead as _, Write as _};
use std::process::ExitCode;

use api::code::{Code, ContextSpec, Language};
use api::exec::ExecSpec;
use api::{ContextId, Error, ErrorCode};
use tokio::signal::unix::{Signal, SignalKind};
use tokio::sync::mpsc;

use crate::command::python::Runner;
use crate::connect::answer;
use crate::follow::watch;
use crate::output::Output;
use crate::results::Results;
use crate::show;

/// Maximum number of queued lines while a cell runs. Further lines wait in the terminal's buffer.
const LINES_WAITING: usize = 1;

/// Input event at the prompt.
enum Typed {
    Line(String),
    /// The user pressed Ctrl-C. The incomplete cell is discarded.
    GivenUp,
    /// The user pressed Ctrl-D, or a signal arrived that ends this program.
    Left,
}

/// Input from the terminal, and signals.
struct Prompt {
    lines: mpsc::Receiver<String>,
    ended: [Signal; 2],
}

/// Runs cells until the user exits.
pub async fn run(runner: Runner<'_>, results: Results) -> Result<ExitCode, Error> {
    let (client, sandbox) = (runner.client, runner.sandbox);
    let code = runner.spec.code.clone().unwrap_or_default();
    let own = code.context.is_none();
    let context = match &code.context {
        Some(id) => answer(client, client.context(sandbox, id)).await?,
        None => {
            let spec = ContextSpec { language: code.language.unwrap_or_default(), ..ContextSpec::default() };
            answer(client, client.create_context(sandbox, &spec)).await?
        }
    };
    let (id, language) = (context.id.clone(), context.language);
    let code = Code { language: None, context: Some(id.clone()), ..code };
    let runner = Runner { spec: ExecSpec { code: Some(code), ..runner.spec }, ..runner };
    let done = cells(&runner, &id, language, results).await;
    if own && let Err(error) = answer(client, client.remove_context(sandbox, &id)).await {
        show::note(&format!("context {id} was not removed: {}", error.message));
    }
    done.map(|()| ExitCode::SUCCESS)
}

async fn cells(
    runner: &Runner<'_>,
    id: &ContextId,
    language: Language,
    results: Results,
) -> Result<(), Error> {
    let mut output = Output::showing(false, results);
    let mut prompt = Prompt::open()?;
    show::note(&format!("{} in context {id}; press Ctrl-D to exit", language.name()));
    let mut text = String::new();
    loop {
        match prompt.ask(if text.is_empty() { ">>> " } else { "... " }).await? {
            Typed::Line(line) => {
                if !text.is_empty() {
                    text.push('\n');
                }
                text.push_str(&line);
            }
            Typed::GivenUp => {
                text.clear();
                say("\n");
                continue;
            }
            Typed::Left => {
                say("\n");
                return Ok(());
            }
        }
        if wants_more(&text, language) {
            continue;
        }
        let cell = std::mem::take(&mut text);
        if cell.trim().is_empty() {
            continue;
        }
        match runner.run(cell, &mut output).await {
            Ok(_) => {}
            // The sandbox or its context no longer exists, so no further cell can run.
            Err(error) if matches!(error.code, ErrorCode::SandboxLost | ErrorCode::NotFound) => {
                return Err(error);
            }
            Err(error) => show::error(&error),
        }
    }
}

impl Prompt {
    fn open() -> Result<Self, Error> {
        let ended = [watch(SignalKind::terminate())?, watch(SignalKind::hangup())?];
        let (sender, lines) = mpsc::channel(LINES_WAITING);
        // Only a blocking read works on a terminal that is shared with the parent process.
        std::thread::spawn(move || {
            let mut input = std::io::stdin().lock();
            loop {
                let mut line = String::new();
                match input.read_line(&mut line) {
                    Ok(0) => return,
                    Ok(_) => {
                        if sender.blocking_send(line.trim_end_matches(['\n', '\r']).to_owned()).is_err() {
                            return;
                        }
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                        show::note("the input is not valid UTF-8");
                    }
                    Err(_) => return,
                }
            }
        });
        Ok(Self { lines, ended })
    }

    async fn ask(&mut self, prompt: &str) -> Result<Typed, Error> {
        // Each line gets a new signal watch, so that an interrupt of the previous cell does not discard this
        // line.
        let mut interrupt = watch(SignalKind::interrupt())?;
        say(prompt);
        let [terminate, hangup] = &mut self.ended;
        Ok(tokio::select! {
            line = self.lines.recv() => line.map_or(Typed::Left, Typed::Line),
            _ = interrupt.recv() => Typed::GivenUp,
            _ = terminate.recv() => Typed::Left,
            _ = hangup.recv() => Typed::Left,
        })
    }
}

fn say(text: &str) {
    let mut to = std::io::stderr().lock();
    let _ = to.write_all(text.as_bytes()).and_then(|()| to.flush());
}

/// Returns true if a cell is incomplete: it ends with a backslash, or inside brackets, a triple-quoted string
/// or a block. An empty line ends a block.
fn wants_more(text: &str, language: Language) -> bool {
    if text.ends_with('\\') {
        return true;
    }
    if language != Language::Python {
        return false;
    }
    let Scan { open, block } = scan(text);
    open || (block
        && text.lines().last().is_some_and(|line| !line.trim().is_empty())
        && !text.ends_with('\n'))
}

/// Result of a scan of Python code. The scan does not fully parse the code.
struct Scan {
    /// True if the code ends inside brackets or a triple-quoted string.
    open: bool,
    /// True if any line starts a block or is a decorator.
    block: bool,
}

fn scan(text: &str) -> Scan {
    let (mut depth, mut long, mut block) = (0_usize, None, false);
    for line in text.lines() {
        let mut rest = line;
        if long.is_none() && depth == 0 && line.trim_start().starts_with('@') {
            block = true;
        }
        let mut last = ' ';
        while let Some(c) = rest.chars().next() {
            let after = rest.get(c.len_utf8()..).unwrap_or_default();
            rest = match long {
                Some(quotes) => match rest.strip_prefix(quotes) {
                    Some(after) => {
                        long = None;
                        after
                    }
                    None if c == '\\' => skip(after),
                    None => after,
                },
                None if c == '#' => break,
                None if rest.starts_with("\"\"\"") || rest.starts_with("'''") => {
                    long = Some(if c == '"' { "\"\"\"" } else { "'''" });
                    after.get(2..).unwrap_or_default()
                }
                None if c == '"' || c == '\'' => past_text(after, c),
                None => {
                    match c {
                        '(' | '[' | '{' => depth += 1,
                        ')' | ']' | '}' => depth = depth.saturating_sub(1),
                        _ => {}
                    }
                    after
                }
            };
            if !c.is_whitespace() {
                last = c;
            }
        }
        block |= depth == 0 && long.is_none() && last == ':';
    }
    Scan { open: depth > 0 || long.is_some(), block }
}

/// Returns the text after a one-line string literal whose opening quote has already been read.
fn past_text(mut rest: &str, quote: char) -> &str {
    while let Some(c) = rest.chars().next() {
        rest = skip(rest);
        if c == '\\' {
            rest = skip(rest);
        } else if c == quote {
            break;
        }
    }
    rest
}

/// Returns the text without its first character.
fn skip(text: &str) -> &str {
    let mut chars = text.chars();
    chars.next();
    chars.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_whole_when_nothing_in_it_is_open() {
        for (text, more) in [
            ("1 + 1", false),
            ("x = [1,", true),
            ("x = [1,\n2]", false),
            ("for i in x:", true),
            ("for i in x:\n    print(i)", true),
            ("for i in x:\n    print(i)\n", false),
            ("@cache", true),
            ("s = '''a", true),
            ("s = \"\"\"a\n\nb\"\"\"", false),
            ("print('(')  # (", false),
            ("d = {1: 'a:'}", false),
            ("x = 'it\\'s ['", false),
            ("if x:  # note", true),
            ("total = 1 + \\", true),
            ("'unfinished", false),
        ] {
            assert_eq!(wants_more(text, Language::Python), more, "{text:?}");
        }
        assert!(!wants_more("for i in 1 2:", Language::Bash));
        assert!(wants_more("echo \\", Language::Bash));
    }
}
