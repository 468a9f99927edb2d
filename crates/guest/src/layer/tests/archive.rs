//! Archives built block by block, so that they can be malformed in any way.

const BLOCK: usize = 512;

/// An archive in progress.
#[derive(Clone, Default)]
pub struct Archive {
    pub bytes: Vec<u8>,
}

/// Fields of a header.
pub struct Head<'a> {
    pub kind: u8,
    pub name: &'a [u8],
    pub target: &'a [u8],
    pub mode: u32,
    pub size: u64,
    pub mtime: u64,
    pub uid: u64,
}

impl Default for Head<'_> {
    fn default() -> Self {
        let uid = rustix::process::getuid().as_raw().into();
        Self { kind: b'0', name: b"", target: b"", mode: 0o644, size: 0, mtime: 1_000_000_000, uid }
    }
}

impl Archive {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn directory(self, name: &str) -> Self {
        self.head(&Head { kind: b'5', name: name.as_bytes(), mode: 0o755, ..Head::default() })
    }

    pub fn file(self, name: &str, content: &str) -> Self {
        self.entry(&Head { name: name.as_bytes(), ..Head::default() }, content.as_bytes())
    }

    pub fn symlink(self, name: &str, target: &str) -> Self {
        let head = Head {
            kind: b'2',
            name: name.as_bytes(),
            target: target.as_bytes(),
            mode: 0o777,
            ..Head::default()
        };
        self.head(&head)
    }

    pub fn link(self, name: &str, target: &str) -> Self {
        self.head(&Head { kind: b'1', name: name.as_bytes(), target: target.as_bytes(), ..Head::default() })
    }

    pub fn kind(self, kind: u8, name: &str) -> Self {
        self.head(&Head { kind, name: name.as_bytes(), ..Head::default() })
    }

    /// Adds a header of type `kind` that describes the next entry.
    pub fn described(self, kind: u8, content: &[u8]) -> Self {
        self.entry(&Head { kind, name: b"././@LongLink", ..Head::default() }, content)
    }

    /// Adds PAX records for the next entry.
    pub fn pax(self, records: &[(&str, &str)]) -> Self {
        let mut content = String::new();
        for (key, value) in records {
            let bare = key.len() + value.len() + 3;
            let mut length = bare + 1;
            while length != bare + length.to_string().len() {
                length = bare + length.to_string().len();
            }
            content.push_str(&format!("{length} {key}={value}\n"));
        }
        self.described(b'x', content.as_bytes())
    }

    pub fn entry(self, head: &Head, content: &[u8]) -> Self {
        let head = Head { size: content.len() as u64, ..*head };
        self.head(&head).blocks(content)
    }

    pub fn head(mut self, head: &Head) -> Self {
        let mut block = [0_u8; BLOCK];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &head.name[..head.name.len().min(100)]);
        put(100, format!("{:07o}", head.mode).as_bytes());
        put(108, &number(head.uid, 8));
        put(116, &number(rustix::process::getgid().as_raw().into(), 8));
        put(124, &number(head.size, 12));
        put(136, &number(head.mtime, 12));
        put(148, b"        ");
        put(156, &[head.kind]);
        put(157, &head.target[..head.target.len().min(100)]);
        put(257, b"ustar  \0");
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.bytes.extend(block);
        self
    }

    /// Adds content, padded to whole blocks.
    pub fn blocks(mut self, content: &[u8]) -> Self {
        self.bytes.extend(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK), 0);
        self
    }

    pub fn end(mut self) -> Self {
        self.bytes.extend([0; 2 * BLOCK]);
        self
    }
}

fn number(value: u64, width: usize) -> Vec<u8> {
    let octal = format!("{value:0width$o}\0", width = width - 1);
    if octal.len() <= width {
        return octal.into_bytes();
    }
    let mut bytes = vec![0; width];
    bytes[0] = 0x80;
    let low = value.to_be_bytes();
    let start = width.saturating_sub(8).max(1);
    bytes[start..].copy_from_slice(&low[low.len() - (width - start)..]);
    bytes
}
