//! Shows results of code at a terminal, or saves them: values as text, images as files or on the screen, and
//! reports about the run as notes.
//!
//! All results are untrusted. The name of an image file always consists of plain characters and the extension
//! of the image type, and never belongs to an existing file. An image is sent to a terminal only after its
//! base64 was decoded and encoded again.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use api::Error;
use api::code::{Bundle, Loss, ResultLine, RunResult};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use crate::{quantity, show};

/// Supported image types, in order of preference, and their file extensions.
const PICTURES: [(&str, &str); 5] = [
    ("image/png", "png"),
    ("image/jpeg", "jpg"),
    ("image/svg+xml", "svg"),
    ("image/gif", "gif"),
    ("image/webp", "webp"),
];
/// Maximum length of a file name without its extension.
const NAME_CHARS_MAX: usize = 64;
/// Maximum number of file names that are tried for one image.
const NAMES_MAX: u32 = 10_000;
/// Size of a chunk in kitty's image protocol, in bytes.
const KITTY_PIECE_BYTES: usize = 4096;

/// Destination for results.
pub struct Results {
    /// Directory for images. If `None`, only the text form of an image is shown.
    images: Option<PathBuf>,
    screen: Option<Screen>,
    /// Number of images without a usable name so far.
    nameless: u32,
}

/// Protocol of a terminal that can display images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Screen {
    Kitty,
    Iterm,
}

/// Image decoded from base64.
struct Picture {
    ending: &'static str,
    bytes: Vec<u8>,
}

impl Results {
    /// Creates a destination that shows only text and notes.
    pub fn naming() -> Self {
        Self { images: None, screen: None, nameless: 0 }
    }

    /// Creates a destination that saves images in this directory. Without a directory, images are displayed
    /// if the terminal supports this, and otherwise saved in the current directory.
    pub fn keeping(images: Option<PathBuf>) -> Self {
        let screen = if images.is_none() && io::stdout().is_terminal() { Screen::ours() } else { None };
        Self { images: Some(images.unwrap_or_default()), screen, nameless: 0 }
    }

    /// Shows a result.
    ///
    /// # Errors
    /// Returns an error if an image or a line cannot be written.
    pub fn show(&mut self, line: &ResultLine) -> Result<(), Error> {
        if let RunResult::Value(bundle) | RunResult::Display(bundle) = &line.result {
            return self.bundle(bundle);
        }
        if let Some(text) = note(&line.result) {
            show::note(&text);
        }
        Ok(())
    }

    fn bundle(&mut self, bundle: &Bundle) -> Result<(), Error> {
        if let Some(images) = self.images.clone()
            && let Some(picture) = Picture::of(bundle)
        {
            return self.picture(&images, &picture, bundle.name.as_deref());
        }
        let text = bundle.data.get("text/plain").and_then(|text| text.as_str());
        match text {
            Some(text) => show::line(text),
            None => {
                let types: Vec<_> = bundle.data.keys().map(String::as_str).collect();
                show::note(&format!(
                    "the cell displayed a value that has no text representation: {}",
                    types.join(", ")
                ));
                Ok(())
            }
        }
    }

    fn picture(&mut self, images: &Path, picture: &Picture, name: Option<&str>) -> Result<(), Error> {
        if let Some(screen) = self.screen
            && let Some(text) = screen.draws(picture)
        {
            return show::line(&text);
        }
        let stem = name.and_then(stem).unwrap_or_else(|| {
            self.nameless += 1;
            format!("image_{}", self.nameless)
        });
        let failed = |error: io::Error| {
            Error::invalid(
                format!(
                    "cannot write {stem}.{} to {:?}: {error}",
                    picture.ending,
                    images.display().to_string()
                ),
                "Set --images to an existing directory with free disk space.",
            )
        };
        let (mut file, written) = create(images, &stem, picture.ending).map_err(failed)?;
        file.write_all(&picture.bytes).map_err(failed)?;
        let size = quantity::show_bytes(picture.bytes.len() as u64);
        show::note(&format!("saved {} ({size})", written.display()));
        Ok(())
    }
}

impl Picture {
    /// Returns the preferred image of a result, or `None` if the result has no image that can be decoded.
    fn of(bundle: &Bundle) -> Option<Self> {
        PICTURES.into_iter().find_map(|(kind, ending)| {
            let text = bundle.data.get(kind)?.as_str()?;
            let bytes = match ending {
                "svg" => text.as_bytes().to_vec(),
                // Some encoders insert line breaks into base64.
                _ => BASE64_STANDARD.decode(text.split_ascii_whitespace().collect::<String>()).ok()?,
            };
            Some(Self { ending, bytes })
        })
    }
}

impl Screen {
    /// Returns the image protocol of the current terminal, or `None` if it cannot display images.
    fn ours() -> Option<Self> {
        let said = |name| std::env::var(name).unwrap_or_default();
        Self::of(&said("TERM"), &said("KITTY_WINDOW_ID"), &said("TERM_PROGRAM"))
    }

    fn of(term: &str, kitty_window: &str, program: &str) -> Option<Self> {
        if term.contains("kitty") || !kitty_window.is_empty() {
            return Some(Self::Kitty);
        }
        matches!(program, "iTerm.app" | "WezTerm").then_some(Self::Iterm)
    }

    /// Returns the control sequence that displays an image, or `None` if the terminal does not support the
    /// image type.
    fn draws(self, picture: &Picture) -> Option<String> {
        let encoded = BASE64_STANDARD.encode(&picture.bytes);
        match self {
            Self::Kitty if picture.ending == "png" => {
                let mut text = String::new();
                let mut rest = encoded.as_str();
                let mut control = "f=100,a=T,";
                while !rest.is_empty() {
                    let (piece, after) = rest.split_at(KITTY_PIECE_BYTES.min(rest.len()));
                    let more = u8::from(!after.is_empty());
                    text.push_str(&format!("\u{1b}_G{control}m={more};{piece}\u{1b}\\"));
                    (rest, control) = (after, "");
                }
                Some(text)
            }
            Self::Iterm if picture.ending != "svg" => {
                let size = picture.bytes.len();
                Some(format!("\u{1b}]1337;File=inline=1;size={size};preserveAspectRatio=1:{encoded}\u{7}"))
            }
            Self::Kitty | Self::Iterm => None,
        }
    }
}

/// Returns a one-line note about the run, or `None` if this kind of result needs no note.
fn note(said: &RunResult) -> Option<String> {
    Some(match said {
        RunResult::Installed { packages } => {
            let names: Vec<_> = packages.iter().map(|one| one.package.as_str()).collect();
            format!("installed {}", names.join(", "))
        }
        RunResult::NotInstalled { module, package, why } => {
            format!("could not install {package} for the import of {module}: {}", why.trim())
        }
        RunResult::Plain { shadowed } => {
            format!(
                "started a new interpreter without preloaded modules, because the sandbox has its own versions of: {}",
                shadowed.join(", ")
            )
        }
        RunResult::Restarted { because } => {
            let why = match because {
                Loss::Ended => "its process had exited",
                Loss::Killed => "a cell ignored an interrupt",
                Loss::Oom => "out of memory",
                Loss::Restarted => "a restart was requested",
            };
            format!("the context restarted ({why}): variables of earlier cells are lost")
        }
        RunResult::Late { stdout, stderr } => {
            format!(
                "output that arrived between two cells: {}",
                [stdout.trim_end(), stderr.trim_end()].join(" ").trim()
            )
        }
        RunResult::Omitted { bytes, types } => {
            let size = quantity::show_bytes(*bytes);
            format!("the cell displayed a value that is too large to store: {size} {}", types.join(", "))
                .trim_end()
                .to_owned()
        }
        RunResult::Refused { error } => format!("the cell could not start: {}. {}", error.message, error.fix),
        // The text of an error is already on standard error. A `Clear` request is ignored, because earlier
        // output on a terminal cannot be cleared.
        RunResult::Value(_) | RunResult::Display(_) | RunResult::Error(_) | RunResult::Clear { .. } => {
            return None;
        }
    })
}

/// Returns a file name without its extension, or `None` if the name would not be safe in every directory.
fn stem(name: &str) -> Option<String> {
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let good =
        !stem.is_empty() && stem.len() <= NAME_CHARS_MAX && !stem.starts_with('-') && stem.chars().all(fits);
    good.then(|| stem.to_owned())
}

/// Creates a new file. If a file with this name exists, adds a number to the name. Returns the file and its
/// path.
fn create(directory: &Path, stem: &str, ending: &str) -> io::Result<(File, PathBuf)> {
    for number in 1..=NAMES_MAX {
        let name = if number == 1 { format!("{stem}.{ending}") } else { format!("{stem}-{number}.{ending}") };
        let path = directory.join(name);
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((file, path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(kind: &str, text: &str, name: Option<&str>) -> ResultLine {
        let data = [(kind.to_owned(), text.into()), ("text/plain".to_owned(), "<Figure>".into())].into();
        let result = RunResult::Display(Bundle { data, name: name.map(str::to_owned), ..Bundle::default() });
        ResultLine { stdout: 0, stderr: 0, result }
    }

    #[test]
    fn a_picture_never_takes_the_place_of_a_file() {
        let place = tempfile::tempdir().unwrap();
        let mut results = Results::keeping(Some(place.path().to_owned()));
        std::os::unix::fs::symlink("/nowhere", place.path().join("figure_1-2.png")).unwrap();
        for _ in 0..2 {
            results.show(&bundle("image/png", "YWJj", Some("figure_1.png"))).unwrap();
        }
        results.show(&bundle("image/jpeg", "YWJj", None)).unwrap();
        let mut names: Vec<_> = place
            .path()
            .read_dir()
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["figure_1-2.png", "figure_1-3.png", "figure_1.png", "image_1.jpg"]);
        assert_eq!(std::fs::read(place.path().join("figure_1-3.png")).unwrap(), b"abc");
    }

    #[test]
    fn a_name_that_could_do_harm_is_none() {
        assert_eq!(stem("figure_1.png").as_deref(), Some("figure_1"));
        assert_eq!(stem("figure_1").as_deref(), Some("figure_1"));
        for name in
            ["", ".bashrc", "../x.png", "/etc/x.png", "a b.png", "-rf.png", "a\u{1b}.png", "x.tar.png"]
        {
            assert_eq!(stem(name), None, "{name}");
        }
        assert_eq!(stem(&"x".repeat(NAME_CHARS_MAX + 1)), None);
    }

    #[test]
    fn a_terminal_gets_nothing_but_what_was_decoded() {
        assert_eq!(Screen::of("xterm-kitty", "", ""), Some(Screen::Kitty));
        assert_eq!(Screen::of("xterm", "1", ""), Some(Screen::Kitty));
        assert_eq!(Screen::of("xterm", "", "WezTerm"), Some(Screen::Iterm));
        assert_eq!(Screen::of("xterm", "", ""), None);
        let RunResult::Display(hostile) = bundle("image/png", "YWJj\u{1b}[2J", None).result else { panic!() };
        assert!(Picture::of(&hostile).is_none());
        let picture = Picture { ending: "png", bytes: vec![7; 5000] };
        let text = Screen::Kitty.draws(&picture).unwrap();
        assert_eq!(text.matches("\u{1b}_G").count(), 2);
        assert!(text.starts_with("\u{1b}_Gf=100,a=T,m=1;") && text.contains("\u{1b}_Gm=0;"));
        assert!(Screen::Iterm.draws(&picture).unwrap().starts_with("\u{1b}]1337;File=inline=1;size=5000;"));
    }

    #[test]
    fn what_is_said_about_a_run_is_one_line() {
        let lost = RunResult::Restarted { because: Loss::Oom };
        assert!(note(&lost).unwrap().contains("(out of memory)"));
        let late = RunResult::Late { stdout: "tick\n".into(), stderr: String::new() };
        assert_eq!(note(&late).unwrap(), "output that arrived between two cells: tick");
    }
}
