//! The requested hash of a file. Only the requested kind of hash is computed, because hashing is most of the
//! cost of a transfer.

use api::files::{Hash, Hashing};
use sha2::{Digest as _, Sha256};

/// A hash in progress.
pub enum Digest {
    Sha256(Sha256),
    /// Boxed, because the hasher is two kilobytes in size.
    Blake3(Box<blake3::Hasher>),
}

impl Digest {
    pub fn new(kind: Hashing) -> Self {
        match kind {
            Hashing::Sha256 => Self::Sha256(Sha256::new()),
            Hashing::Blake3 => Self::Blake3(Box::default()),
        }
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Blake3(hasher) => {
                hasher.update(bytes);
            }
        }
    }

    pub fn finish(self) -> Hash {
        match self {
            Self::Sha256(hasher) => {
                Hash::Sha256(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
            }
            Self::Blake3(hasher) => Hash::Blake3(hasher.finalize().to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_the_hash_that_others_make() {
        for (kind, wanted) in [
            (Hashing::Sha256, "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882"),
            (Hashing::Blake3, "53b63a6fc8605d0c0ce559317a00177d72adb24d669235e4c914f443a8831ca1"),
        ] {
            let mut digest = Digest::new(kind);
            digest.update(b"01234");
            digest.update(b"56789");
            let hash = digest.finish();
            assert_eq!((hash.kind(), hash.digits()), (kind, wanted));
        }
    }
}
