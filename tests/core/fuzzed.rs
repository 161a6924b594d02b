//! What fuzzing found (scripts/fuzz.sh) in what is made of foreign bytes, each as small as it can be.

use vmaudit::attribution::DataRules;
use vmaudit::model::Addr;
use vmaudit::model::observation::HeapInfo;
use vmaudit::objects::{Cfi, Object};
use vmaudit::session::snapshots::{report_of, saved_snapshot_in};

const HEAP: &[u8] = b"7f0000000000-7f0004000000 rw-p 00000000 00:00 0 \nRss: 8 kB\n";

#[test]
fn a_heap_header_at_the_end_of_all_addresses() {
    let mut snapshot = saved_snapshot_in("smaps", HEAP).expect("sound");
    let at = Addr(!0x3ff_ffff);
    let header = HeapInfo {
        at,
        ar_ptr: Addr(at.0 + 0x30),
        prev: Addr(0),
        size: 4096,
        mprotect_size: 4096,
        pagesize: 4096,
    };
    snapshot.seen.heap_infos.push(header);
    assert_eq!(report_of(&[snapshot], DataRules::built_in()).processes[0].totals.virt, 64 << 20);
}

/// A file of one segment with an `.eh_frame_hdr` and, behind it, an `.eh_frame`; no sections.
fn unwind_tables(header: &[u8], table: &[u8]) -> Vec<u8> {
    const HEADER_AT: u64 = 64 + 2 * 56;
    let size = HEADER_AT + (header.len() + table.len()) as u64;
    let mut out = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec();
    [0, 64, 0u64].iter().for_each(|word| out.extend(word.to_le_bytes()));
    [0u16, 0, 64, 56, 2, 0, 0, 0].iter().for_each(|half| out.extend(half.to_le_bytes()));
    // PT_LOAD with PF_R and PF_X; PT_GNU_EH_FRAME
    for [kind, at, size] in [[1 | 5 << 32, 0, size], [0x6474_e550, HEADER_AT, header.len() as u64]] {
        [kind, at, at, at, size, size, 8].iter().for_each(|word| out.extend(word.to_le_bytes()));
    }
    [&out, header, table].concat()
}

/// gimli multiplies the number of rows by their size.
#[test]
fn a_search_table_of_more_rows_than_bytes_is_not_used() {
    let mut header = vec![1, 3, 4, 3];
    header.extend((64 + 2 * 56 + 16u32).to_le_bytes());
    header.extend(u64::MAX.to_le_bytes());
    let mut table = vec![12, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0x78, 16, 0, 0, 0];
    [20u32, 20].iter().for_each(|word| table.extend(word.to_le_bytes()));
    [0x1000u64, 0x10].iter().for_each(|word| table.extend(word.to_le_bytes()));
    table.extend([0; 4]);
    let object = Object::from_bytes(unwind_tables(&header, &table)).expect("an ELF file");
    assert_eq!(Cfi::read(&object).bounds(0x100f), Some(0x1000..0x1010));
}
