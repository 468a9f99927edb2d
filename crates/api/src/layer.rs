//! Image layers: compression, and the report on unpacking a layer.

use serde::{Deserialize, Serialize};

/// Maximum number of layers of one image. Container engines allow up to 127, but each layer costs another
/// lookup for every path.
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

/// Report on unpacking one layer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerReport {
    /// Diff ID of the layer: the SHA-256 of the uncompressed archive, as `sha256:` and 64 hexadecimal digits.
    pub digest: String,
    /// Size of the uncompressed archive in bytes.
    pub bytes: u64,
    /// Number of entries in the archive.
    pub entries: u64,
    /// Number of omitted entries and attributes.
    pub skipped: Skipped,
}

/// Number of entries and attributes that were omitted from a layer, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skipped {
    /// Device nodes.
    pub devices: u64,
    /// FIFOs.
    pub fifos: u64,
    /// Files and directories from which set-user-id, set-group-id or sticky bits were removed.
    pub mode_bits: u64,
    /// Entries at or below paths that are reserved for the sandbox itself.
    pub reserved: u64,
    /// Whiteouts that hide nothing, and marker files that only older union file systems use.
    pub whiteouts: u64,
    /// Extended attributes, including file capabilities.
    pub attributes: u64,
}

impl Compression {
    /// Returns the name that the wire protocol uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }

    /// Returns the compression with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::None, Self::Gzip, Self::Zstd].into_iter().find(|compression| compression.name() == name)
    }

    /// Detects the compression from the first bytes of an archive.
    pub fn sniff(first: &[u8]) -> Self {
        match first {
            [0x1f, 0x8b, ..] => Self::Gzip,
            // Magic numbers of data frames and of skippable frames.
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
