//! What is said about unpacking one layer of an image.

use serde::{Deserialize, Serialize};

/// Layers of one image at most: what container engines allow is 127, and each is one more lookup for every path.
pub const LAYERS_MAX: usize = 64;

/// Compression of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// No compression.
    None,
    /// gzip, possibly with several members.
    Gzip,
    /// Zstandard, possibly with several frames.
    Zstd,
}

/// What came of unpacking one layer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerReport {
    /// The SHA-256 of the archive without its compression, `sha256:` and 64 digits: its diff id.
    pub digest: String,
    /// The size of the archive without its compression.
    pub bytes: u64,
    /// Entries of the archive.
    pub entries: u64,
    /// What was left out.
    pub skipped: Skipped,
}

/// What of a layer was left out, as counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skipped {
    /// Device nodes.
    pub devices: u64,
    /// FIFOs.
    pub fifos: u64,
    /// Files and directories that lost set-user-id, set-group-id or sticky bits.
    pub mode_bits: u64,
    /// Entries at or below paths that belong to the sandbox itself.
    pub reserved: u64,
    /// Whiteouts that hide nothing, and marks that only old union file systems read.
    pub whiteouts: u64,
    /// Extended attributes, file capabilities among them.
    pub attributes: u64,
}

impl Compression {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }

    /// The compression of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::None, Self::Gzip, Self::Zstd].into_iter().find(|compression| compression.name() == name)
    }

    /// What the first bytes of an archive say.
    pub fn sniff(first: &[u8]) -> Self {
        match first {
            [0x1f, 0x8b, ..] => Self::Gzip,
            // A frame, or a frame that is to be skipped.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            _ => Self::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compression_is_known_by_its_name_and_by_its_first_bytes() {
        for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
            assert_eq!(Compression::from_name(compression.name()), Some(compression));
        }
        assert_eq!(Compression::from_name("xz"), None);
        assert_eq!(Compression::sniff(&[0x1f, 0x8b, 8]), Compression::Gzip);
        assert_eq!(Compression::sniff(&[0x28, 0xb5, 0x2f, 0xfd, 0]), Compression::Zstd);
        assert_eq!(Compression::sniff(b"etc/"), Compression::None);
        assert_eq!(Compression::sniff(b""), Compression::None);
    }
}
