//! Size classes, with a quantum of 16 bytes (include/jemalloc/internal/sc.h).

/// `SC_NSIZES`: of extents without blocks.
pub const NONE: u64 = 232;

/// `SC_NBINS`: the first class of blocks with extents of their own, 16 KiB.
pub const LARGE: u64 = 36;

/// Bytes of a block: 8; 16, 32, 48, 64; then four between each two powers of two.
pub fn size(class: u64) -> Option<u64> {
    let Some(class) = class.checked_sub(1) else { return Some(8) };
    let (group, step) = (class / 4, class % 4 + 1);
    let base = match group {
        0 => return Some(16 * step),
        group => 64u64.checked_shl(u32::try_from(group - 1).ok()?).filter(|_| group < 58)?,
    };
    base.checked_add(base / 4 * step)
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn as_malloc_stats_print_has_them() {
        let first: Vec<_> = (0..14).filter_map(size).collect();
        assert_eq!(first, [8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320]);
        assert_eq!([35, 36, 39, 40].map(size), [14336, 16384, 28672, 32768].map(Some));
        assert_eq!(size(231), Some(7 << 60));
        assert_eq!((size(300), size(u64::MAX)), (None, None));
    }
}
