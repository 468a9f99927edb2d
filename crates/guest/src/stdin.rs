//! The standard input of an exec: bytes with offsets, so that a write can be repeated.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use api::{Error, ErrorCode, Layer, Ran, Retry};
use tokio::io::Interest;

use crate::watched::{Watched, watch};

/// Our end of the pipe, if there is one.
pub struct Stdin {
    pipe: RefCell<Option<Rc<Watched>>>,
    received: Cell<u64>,
}

impl Stdin {
    /// Takes over our end of the pipe.
    pub fn new(pipe: Option<OwnedFd>) -> Self {
        let pipe = pipe.and_then(|pipe| watch(pipe, Interest::WRITABLE).ok()).map(Rc::new);
        Self { pipe: RefCell::new(pipe), received: Cell::new(0) }
    }

    /// How many bytes the process's pipe has taken. The next write begins here.
    pub fn received(&self) -> u64 {
        self.received.get()
    }

    /// Writes bytes whose first has this offset; what was taken before is skipped. Waits while the pipe is full.
    pub async fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let known = self.received.get();
        if offset > known {
            return Err(closed(format!("standard input is at offset {known}, not at {offset}")));
        }
        let skip = usize::try_from(known - offset).unwrap_or(usize::MAX);
        let mut bytes = bytes.get(skip..).unwrap_or_default();
        while !bytes.is_empty() {
            let pipe = self.pipe.borrow().clone();
            let Some(pipe) = pipe else { return Err(closed("standard input is closed".into())) };
            let Ok(mut ready) = pipe.writable().await else { return Err(self.gone()) };
            match ready.try_io(|pipe| Ok(rustix::io::write(pipe.get_ref(), bytes)?)) {
                Ok(Ok(count)) => {
                    self.received.set(self.received.get() + count as u64);
                    bytes = bytes.get(count..).unwrap_or_default();
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(_)) => return Err(self.gone()),
                Err(_would_block) => {}
            }
        }
        Ok(())
    }

    /// Closes it: the process reads the end of file after the last byte.
    pub fn close(&self) {
        self.pipe.replace(None);
    }

    fn gone(&self) -> Error {
        self.close();
        closed("the process does not read its standard input any more".into())
    }
}

fn closed(message: String) -> Error {
    Error {
        code: ErrorCode::Conflict,
        message,
        layer: Layer::UserCode,
        ran: Ran::Yes,
        retry: Retry::Useless,
        fix: "Read the exec's output: it says how the process is doing.".into(),
    }
}
