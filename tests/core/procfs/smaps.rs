//! `procfs::smaps`.

use vmaudit::model::AddrRange;
use vmaudit::procfs::LineFault;
use vmaudit::procfs::parse_smaps;

const TWO: &[u8] = b"7f10c0000000-7f10c0021000 rw-p 00000000 00:00 0 \n\
    Size:                132 kB\n\
    KernelPageSize:        4 kB\n\
    MMUPageSize:           4 kB\n\
    Rss:                   8 kB\n\
    Pss:                   7 kB\n\
    Pss_Dirty:             7 kB\n\
    Anonymous:             8 kB\n\
    Swap:                 12 kB\n\
    THPeligible:           0\n\
    ProtectionKey:         0\n\
    VmFlags: rd wr mr mw me nr sd \n\
    7f10c0021000-7f10c4000000 ---p 00000000 08:01 5          /A: b\n\
    Rss:                   0 kB\n\
    VmFlags: mr mw me ht sd \n";

#[test]
fn figures_are_bytes_and_flags_are_kept() {
    let parsed = parse_smaps(TWO);
    assert!(parsed.damaged.is_empty());
    let [first, second] = parsed.entries.as_slice() else { panic!("two entries") };
    assert_eq!(first.mapping.range, AddrRange::new(0x7f10c0000000, 0x7f10c0021000));
    assert_eq!(
        (first.rss, first.pss, first.anonymous, first.swap, first.kernel_page_size),
        (8192, 7168, 8192, 12288, 4096)
    );
    assert!(first.vm_flags.has("nr") && !first.vm_flags.has("ht"));
    assert_eq!(second.mapping.name, b"/A: b");
    assert!(second.vm_flags.has("ht"));
    assert_eq!(second.rss, 0);
}

#[test]
fn damage_is_numbered_and_the_rest_stands() {
    let text = b"Rss:   4 kB\n1000-2000 rw-p 00000000 00:00 0 \nRss:   x kB\nNoColon\nPss:  4 kB\nrubbish\n";
    let parsed = parse_smaps(text);
    let faults: Vec<(usize, LineFault)> = parsed.damaged.iter().map(|d| (d.line, d.fault)).collect();
    assert_eq!(
        faults,
        [(1, LineFault::Orphan), (3, LineFault::Field), (4, LineFault::Field), (6, LineFault::Range)]
    );
    assert_eq!(parsed.entries.len(), 1);
    assert_eq!(parsed.entries[0].pss, 4096);
}

proptest::proptest! {
    #[test]
    fn no_input_panics(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..400)) {
        parse_smaps(&bytes);
    }
}
