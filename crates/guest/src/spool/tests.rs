//! Tests of the modes of a spool, with room on the disk and with a full disk.

use proptest::prelude::*;

use super::last::LAST_BYTES;
use super::*;

fn file() -> io::Result<File> {
    tempfile::tempfile()
}

fn full_disk() -> io::Result<File> {
    Err(io::ErrorKind::StorageFull.into())
}

/// Reads everything from `offset` on. Returns the bytes with their offsets, and the number of bytes reported
/// as gaps.
fn drain(spool: &Spool, mut offset: u64, step: usize) -> (Vec<(u64, u8)>, u64) {
    let (mut got, mut gaps) = (Vec::new(), 0);
    let mut buffer = vec![0; step];
    loop {
        match spool.read(offset, &mut buffer) {
            SpoolRead::Data(count) => {
                got.extend(buffer[..count].iter().enumerate().map(|(i, b)| (offset + i as u64, *b)));
                offset += count as u64;
            }
            SpoolRead::Gap { to } => {
                assert!(to > offset);
                gaps += to - offset;
                offset = to;
            }
            SpoolRead::Nothing => return (got, gaps),
        }
    }
}

fn byte(offset: u64) -> u8 {
    (offset.wrapping_mul(31) >> 3) as u8
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn keep_gives_head_and_tail_and_one_exact_gap(
        kept in 2u64..200_000, writes in prop::collection::vec(0usize..60_000, 0..12), step in 1usize..70_000,
    ) {
        let mut spool = Spool::new(OutputMode::Keep, kept, file);
        let mut total = 0;
        for count in writes {
            let bytes: Vec<u8> = (total..total + count as u64).map(byte).collect();
            prop_assert_eq!(spool.write(&bytes), SpoolWrite::All);
            total += count as u64;
        }
        let (got, gaps) = drain(&spool, 0, step);
        prop_assert_eq!(got.len() as u64 + gaps, total);
        prop_assert_eq!(gaps, total.saturating_sub(kept));
        prop_assert_eq!(gaps, spool.dropped());
        prop_assert!(got.iter().all(|(offset, value)| byte(*offset) == *value));
        let head = (kept / 2).min(total);
        prop_assert!((0..head).all(|offset| got[offset as usize].0 == offset));
    }

    #[test]
    fn block_gives_each_byte_once(kept in 1u64..100_000, total in 0u64..300_000, step in 1usize..50_000) {
        let mut spool = Spool::new(OutputMode::Block, kept, file);
        let (mut sent, mut seen) = (0u64, 0u64);
        let mut buffer = vec![0; step];
        while seen < total {
            let bytes: Vec<u8> = (sent..total.min(sent + 40_000)).map(byte).collect();
            match spool.write(&bytes) {
                SpoolWrite::All => sent += bytes.len() as u64,
                SpoolWrite::Part(count) => sent += count as u64,
                SpoolWrite::OverLimit => prop_assert!(false),
            }
            if let SpoolRead::Data(count) = spool.read(seen, &mut buffer) {
                for (index, value) in buffer[..count].iter().enumerate() {
                    prop_assert_eq!(*value, byte(seen + index as u64));
                }
                seen += count as u64;
                spool.consume(seen);
            }
        }
        prop_assert_eq!(spool.written(), total);
        prop_assert_eq!(spool.dropped(), 0);
    }

    #[test]
    fn a_full_disk_loses_bytes_and_says_how_many(kept in 100_000u64..300_000, total in 0usize..900_000) {
        let mut spool = Spool::new(OutputMode::Keep, kept, full_disk);
        let bytes: Vec<u8> = (0..total as u64).map(byte).collect();
        for chunk in bytes.chunks(50_000) {
            prop_assert_eq!(spool.write(chunk), SpoolWrite::All);
        }
        let (got, gaps) = drain(&spool, 0, 10_000);
        prop_assert_eq!(got.len() as u64 + gaps, total as u64);
        prop_assert_eq!(gaps, spool.dropped());
        prop_assert!(got.iter().all(|(offset, value)| byte(*offset) == *value));
        // The last lines are available even with a full disk.
        let last = (total as u64).saturating_sub(LAST_BYTES);
        prop_assert_eq!(got.iter().filter(|(offset, _)| *offset >= last).count() as u64, total as u64 - last);
    }

    #[test]
    fn block_loses_nothing_when_the_disk_is_full_from_some_moment_on(
        kept in 1u64..400_000, total in 0u64..900_000, step in 1usize..50_000, files in 0u64..3,
    ) {
        let mut spool = Spool::new(OutputMode::Block, kept, if files == 0 { full_disk } else { small_disk });
        let (mut sent, mut seen, mut told, mut stuck) = (0u64, 0u64, 0u64, 0);
        let mut buffer = vec![0; step];
        while seen < total {
            let bytes: Vec<u8> = (sent..total.min(sent + 40_000)).map(byte).collect();
            match spool.write(&bytes) {
                SpoolWrite::All => sent += bytes.len() as u64,
                SpoolWrite::Part(count) => sent += count as u64,
                SpoolWrite::OverLimit => prop_assert!(false),
            }
            stuck += 1;
            if let SpoolRead::Data(count) = spool.read(seen, &mut buffer) {
                for (index, value) in buffer[..count].iter().enumerate() {
                    prop_assert_eq!(*value, byte(seen + index as u64));
                }
                (seen, stuck) = (seen + count as u64, 0);
                spool.sent(seen);
                // Acknowledge like a real reader, in steps of a fraction of the requested size. Such a step
                // can be larger than the ring that fits on the disk.
                if seen - told >= kept / 4 {
                    spool.consume(seen);
                    told = seen;
                }
            }
            prop_assert!(stuck < 3, "it goes on: {} of {} sent, {} seen", sent, total, seen);
        }
        prop_assert_eq!((spool.written(), spool.dropped()), (total, 0));
    }
}

/// Creates a file on a disk with little more room than the memory buffer.
fn small_disk() -> io::Result<File> {
    let memory = rustix::fs::memfd_create("disk", rustix::fs::MemfdFlags::ALLOW_SEALING)?;
    let sealed = File::from(memory);
    sealed.set_len(MEMORY_BYTES + 100_000)?;
    rustix::fs::fcntl_add_seals(&sealed, rustix::fs::SealFlags::GROW)?;
    Ok(sealed)
}

#[test]
fn kill_keeps_what_fits_and_then_says_no() {
    let mut spool = Spool::new(OutputMode::Kill, 5000, file);
    assert_eq!(spool.write(&[1; 5000]), SpoolWrite::All);
    assert_eq!(spool.write(&[2]), SpoolWrite::OverLimit);
    assert_eq!(drain(&spool, 0, 999).0.len(), 5000);
}

#[test]
fn kill_ends_at_what_the_disk_takes() {
    let mut spool = Spool::new(OutputMode::Kill, 500_000, full_disk);
    assert_eq!(spool.write(&[1; 60_000]), SpoolWrite::All);
    assert_eq!(spool.write(&[2; 60_000]), SpoolWrite::OverLimit);
    assert_eq!((spool.written(), spool.dropped()), (120_000, 60_000));
}

#[test]
fn a_forgotten_spool_is_one_gap() {
    let mut spool = Spool::new(OutputMode::Keep, 5000, file);
    spool.write(b"hello");
    spool.forget();
    assert_eq!(drain(&spool, 0, 10), (vec![], 5));
}
