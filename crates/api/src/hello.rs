//! The fixed-size greeting that opens every connection between guest and node, before HTTP/2 begins.
//!
//! Each side sends [`HELLO_BYTES`] bytes: eight magic bytes, the version, the kind of connection, and the
//! number of file descriptors that accompany the greeting. The node sends the descriptors that the guest
//! needs to move its children into the cgroup of user code. The guest sends none.
//!
//! If the guest dials the node, both sides send a token after their greetings. On the first connection, which
//! is made before any user code runs, the node issues the token to the guest. The guest acknowledges the
//! token with [`TOKEN_TAKEN`] and sends it on every later connection. The token lets the node identify
//! process 1 even where the kernel does not report the identity of the peer. A guest without a token sends
//! [`NO_TOKEN`].

/// Size of a greeting.
pub const HELLO_BYTES: usize = 16;
/// Size of a token: 256 bits, so that it cannot be guessed.
pub const TOKEN_BYTES: usize = 32;
/// Placeholder that a guest without a token sends.
pub const NO_TOKEN: [u8; TOKEN_BYTES] = [0; TOKEN_BYTES];
/// Acknowledgement that a guest has stored its token.
pub const TOKEN_TAKEN: u8 = b't';
/// Version of the channel protocol. Both sides must use the same version.
pub const VERSION: u16 = 1;
/// Maximum number of descriptors that a greeting may carry: one for each controller on a cgroup v1 host, and
/// a few in reserve.
pub const DESCRIPTORS_MAX: usize = 8;

const MAGIC: [u8; 8] = *b"b-glass\n";

/// Kind of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Connection on which the guest serves requests: execs, files, posture.
    Serve,
    /// Same as [`Kind::Serve`], but a token follows the greeting.
    ServeKnown,
}

/// Greeting of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Kind of the connection.
    pub kind: Kind,
    /// Number of descriptors for entering cgroups. They precede all other descriptors.
    pub cgroups: u8,
    /// True if a descriptor for reading the number of OOM kills is sent.
    pub oom_count: bool,
    /// True if a descriptor is sent that becomes readable when an OOM kill occurs.
    pub oom_event: bool,
}

/// Error for bytes that are not a valid greeting.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHello {
    /// The magic does not match: the peer does not speak this protocol.
    #[error("the peer does not speak Bellglass's channel protocol")]
    Magic,
    /// The peer speaks a different version of the protocol.
    #[error("the peer speaks version {theirs} of the channel protocol, this side speaks version {VERSION}")]
    Version {
        /// Version of the peer.
        theirs: u16,
    },
    /// The magic and the version match, but the rest is invalid.
    #[error("the greeting names an unknown kind of connection or too many descriptors")]
    Content,
}

impl Hello {
    /// Encodes the greeting.
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

    /// Decodes a greeting.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a greeting that this version of [`Hello::encode`] would write.
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

    /// Returns the number of descriptors that accompany this greeting.
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
