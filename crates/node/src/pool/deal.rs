//! Divides the resources of the pool among the kinds of pre-warmed sandboxes.

/// Demand of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// Number of sandboxes that should be ready.
    pub count: u32,
    /// Memory of each sandbox in bytes.
    pub memory_bytes: u64,
    /// Disk of each sandbox in bytes.
    pub disk_bytes: u64,
}

/// Returns the number of sandboxes for each kind. Slots are dealt round-robin until every kind has the number
/// that it wants or nothing more fits. A kind with two hundred simultaneous requests therefore leaves the
/// other kinds their share.
pub fn deal(mut memory_bytes: u64, mut disk_bytes: u64, wants: &[Want]) -> Vec<u32> {
    let mut dealt = vec![0; wants.len()];
    loop {
        let mut any = false;
        for (want, got) in wants.iter().zip(&mut dealt) {
            if *got < want.count && want.memory_bytes <= memory_bytes && want.disk_bytes <= disk_bytes {
                memory_bytes -= want.memory_bytes;
                disk_bytes -= want.disk_bytes;
                *got += 1;
                any = true;
            }
        }
        if !any {
            return dealt;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn want(count: u32, memory_bytes: u64, disk_bytes: u64) -> Want {
        Want { count, memory_bytes, disk_bytes }
    }

    #[test]
    fn one_that_wants_much_leaves_the_others_theirs() {
        let wants = [want(200, 1, 64), want(1, 100, 512), want(2, 100, 512)];
        assert_eq!(deal(1000, 100_000, &wants), [200, 1, 2], "there is enough");
        assert_eq!(deal(350, 100_000, &wants), [50, 1, 2], "memory is short");
        assert_eq!(deal(1000, 1_600, &wants), [9, 1, 1], "the disk is short");
        assert_eq!(deal(100, 1_000, &wants), [15, 0, 0], "what does not fit takes nothing from others");
        assert_eq!(deal(0, 0, &wants), [0, 0, 0]);
    }

    proptest! {
        #[test]
        fn nobody_gets_more_than_wanted_nor_all_more_than_there_is(
            memory in 0..10_000_u64,
            disk in 0..10_000_u64,
            wants in proptest::collection::vec((0..50_u32, 1..500_u64, 1..500_u64), 0..20),
        ) {
            let wants: Vec<_> = wants.into_iter().map(|(count, memory, disk)| want(count, memory, disk)).collect();
            let dealt = deal(memory, disk, &wants);
            let all = |each: fn(&Want) -> u64| -> u64 {
                wants.iter().zip(&dealt).map(|(want, got)| each(want) * u64::from(*got)).sum()
            };
            let (memory_left, disk_left) =
                (memory.checked_sub(all(|want| want.memory_bytes)), disk.checked_sub(all(|want| want.disk_bytes)));
            prop_assert!(memory_left.is_some() && disk_left.is_some());
            for (want, got) in wants.iter().zip(&dealt) {
                prop_assert!(*got <= want.count);
                let fits = Some(want.memory_bytes) <= memory_left && Some(want.disk_bytes) <= disk_left;
                prop_assert!(*got == want.count || !fits, "nothing is left lying that somebody wants");
            }
        }
    }
}
