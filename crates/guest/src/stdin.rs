//! The standard input of an exec. Each byte has an offset, so that a write can be repeated safely.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use api::{Error, ErrorCode, Layer, Ran, Retry};
use tokio::sync::Notify;

use crate::watched::Watched;

/// Standard input: the guest's end of the pipe or the terminal, while it is open.
#[derive(Default)]
pub struct Stdin {
    pipe: RefCell<Option<Rc<Watched>>>,
    received: Cell<u64>,
    /// Notified when standard input is closed, so that writers stop waiting for the process to read.
    closing: Notify,
}

impl Stdin {
    /// Takes ownership of the guest's end of the pipe or the terminal.
    pub fn open(&self, pipe: Option<Rc<Watched>>) {
        self.pipe.replace(pipe);
    }

    /// Returns how many bytes the process's pipe has accepted. The next write starts at this offset.
    pub fn received(&self) -> u64 {
        self.received.get()
    }

    /// Writes bytes, starting at this offset. Skips bytes that were accepted before, and waits while the pipe
    /// is full.
    pub async fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let known = self.received.get();
        if offset > known {
            return Err(closed(format!("standard input is at offset {known}, not {offset}")));
        }
        // Compute the rest again after every wait: two connections may send the same bytes, and the other
        // connection may have written some of them meanwhile.
        let rest = || {
            let skip = usize::try_from(self.received.get() - offset).unwrap_or(usize::MAX);
            bytes.get(skip..).unwrap_or_default()
        };
        while !rest().is_empty() {
            let closing = self.closing.notified();
            tokio::pin!(closing);
            closing.as_mut().enable();
            let pipe = self.pipe.borrow().clone();
            let Some(pipe) = pipe else { return Err(closed("standard input is closed".into())) };
            let ready = tokio::select! {
                ready = pipe.writable() => ready,
                () = closing => continue,
            };
            let Ok(mut ready) = ready else { return Err(self.gone()) };
            match ready.try_io(|pipe| Ok(rustix::io::write(pipe.get_ref(), rest())?)) {
                Ok(Ok(count)) => self.received.set(self.received.get() + count as u64),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(_)) => return Err(self.gone()),
                Err(_would_block) => {}
            }
        }
        Ok(())
    }

    /// Closes standard input. After the last byte, the process reads an end of file.
    pub fn close(&self) {
        self.pipe.replace(None);
        self.closing.notify_waiters();
    }

    fn gone(&self) -> Error {
        self.close();
        closed("the process no longer reads its standard input".into())
    }
}

fn closed(message: String) -> Error {
    Error {
        code: ErrorCode::Conflict,
        message,
        layer: Layer::UserCode,
        ran: Ran::Yes,
        retry: Retry::Useless,
        fix: "Read the exec's output to see the state of the process.".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;

    use tokio::io::Interest;

    use super::*;
    use crate::watched::watch;

    /// Number of bytes to write. It exceeds a pipe's buffer, so that a writer must wait in the middle.
    const LONG: usize = 200_000;

    #[tokio::test(flavor = "current_thread")]
    async fn bytes_that_two_connections_send_at_once_arrive_once() {
        let (reader, writer) = std::io::pipe().unwrap();
        let stdin = Stdin::default();
        stdin.open(Some(Rc::new(watch(OwnedFd::from(writer), Interest::WRITABLE).unwrap())));
        let bytes: Vec<u8> = (0..LONG).map(|at| (at / 7) as u8).collect();
        let reading = std::thread::spawn(move || {
            let (mut reader, mut seen) = (reader, Vec::new());
            std::thread::sleep(std::time::Duration::from_millis(50));
            reader.read_to_end(&mut seen).unwrap();
            seen
        });
        let (first, second) = tokio::join!(stdin.write(0, &bytes), stdin.write(0, &bytes));
        assert_eq!((first, second), (Ok(()), Ok(())));
        assert!(stdin.write(LONG as u64 + 1, b"x").await.is_err(), "there is no hole to write behind");
        stdin.close();
        assert!(reading.join().unwrap() == bytes, "a byte was lost, or came twice");
    }
}
