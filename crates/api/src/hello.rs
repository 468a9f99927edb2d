//! The fixed greeting that opens every connection between guest and node, before HTTP/2 begins.
//!
//! Each side sends [`HELLO_BYTES`] bytes: eight of magic, the version, the kind of connection, and how many
//! descriptors travel with it. The node's greeting carries the descriptors by which the guest moves its children
//! into the cgroup of user code; the guest's carries none.
//!
//! A guest that dials shows a token after its greeting, and the node's answer is followed by one. The first answer, before any user
//! code exists, gives the guest its token; it confirms that with [`TOKEN_TAKEN`], and shows it whenever it dials again. So a node
//! knows process 1 where the kernel does not vouch for who dials. Until it has one, a guest shows [`NO_TOKEN`].

/// The size of a greeting.
pub const HELLO_BYTES: usize = 16;
/// The size of a token: nobody guesses it.
pub const TOKEN_BYTES: usize = 32;
/// What a guest shows that has none.
pub const NO_TOKEN: [u8; TOKEN_BYTES] = [0; TOKEN_BYTES];
/// What a guest says when it has taken its token.
pub const TOKEN_TAKEN: u8 = b't';
/// The version of everything said on the channel. Both sides must say the same.
pub const VERSION: u16 = 1;
/// Descriptors that a greeting may carry: the controllers of a cgroup version 1 host, and a little room.
pub const DESCRIPTORS_MAX: usize = 8;

const MAGIC: [u8; 8] = *b"b-glass\n";

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The guest serves on it: exec, files, posture.
    Serve,
    /// The same, and a token follows.
    ServeKnown,
}

/// One side's greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What the connection is for.
    pub kind: Kind,
    /// How many descriptors of cgroups to enter travel with it, first in the list.
    pub cgroups: u8,
    /// Whether a descriptor follows from which the count of memory kills can be read.
    pub oom_count: bool,
    /// Whether a descriptor follows that becomes readable at a memory kill.
    pub oom_event: bool,
}

/// Why bytes are not a greeting.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHello {
    /// Not ours at all.
    #[error("the peer does not speak Bellglass's channel protocol")]
    Magic,
    /// Ours, of another version.
    #[error("the peer speaks version {theirs} of the channel protocol, this side speaks version {VERSION}")]
    Version {
        /// The version the other side speaks.
        theirs: u16,
    },
    /// Ours, and wrong.
    #[error("the greeting names an unknown kind of connection or too many descriptors")]
    Content,
}

impl Hello {
    /// The greeting as bytes.
    pub fn encode(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        let version = VERSION.to_be_bytes();
        let kind = match self.kind {
            Kind::Serve => 1,
            Kind::ServeKnown => 2,
        };
        let fields =
            [version[0], version[1], kind, self.cgroups, u8::from(self.oom_count), u8::from(self.oom_event)];
        for (to, from) in bytes.iter_mut().zip(MAGIC.into_iter().chain(fields)) {
            *to = from;
        }
        bytes
    }

    /// Reads a greeting.
    ///
    /// # Errors
    /// [`BadHello`] for anything that [`Hello::encode`] of this version would not have written.
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, BadHello> {
        let [m0, m1, m2, m3, m4, m5, m6, m7, v0, v1, kind, cgroups, oom_count, oom_event, z0, z1] = *bytes;
        if [m0, m1, m2, m3, m4, m5, m6, m7] != MAGIC {
            return Err(BadHello::Magic);
        }
        let theirs = u16::from_be_bytes([v0, v1]);
        if theirs != VERSION {
            return Err(BadHello::Version { theirs });
        }
        let count = usize::from(cgroups) + usize::from(oom_count) + usize::from(oom_event);
        let kind = match kind {
            1 => Kind::Serve,
            2 => Kind::ServeKnown,
            _ => return Err(BadHello::Content),
        };
        if oom_count > 1 || oom_event > 1 || [z0, z1] != [0, 0] || count > DESCRIPTORS_MAX {
            return Err(BadHello::Content);
        }
        Ok(Self { kind, cgroups, oom_count: oom_count == 1, oom_event: oom_event == 1 })
    }

    /// How many descriptors travel with this greeting.
    pub fn descriptors(self) -> usize {
        usize::from(self.cgroups) + usize::from(self.oom_count) + usize::from(self.oom_event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_survives_the_wire() {
        for cgroups in 0..6 {
            for kind in [Kind::Serve, Kind::ServeKnown] {
                let hello = Hello { kind, cgroups, oom_count: cgroups > 0, oom_event: cgroups > 1 };
                assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
            }
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = Hello { kind: Kind::Serve, cgroups: 0, oom_count: false, oom_event: false }.encode();
        bytes[9] = 9;
        assert_eq!(Hello::decode(&bytes), Err(BadHello::Version { theirs: 9 }));
        assert_eq!(Hello::decode(b"GET / HTTP/1.1\r\n"), Err(BadHello::Magic));
    }
}
