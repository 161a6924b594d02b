//! `model::mapping::vma_detail`.

use vmaudit::model::addr::Addr;
use vmaudit::model::addr::AddrRange;
use vmaudit::model::mapping::vma_detail::VmFlags;
use vmaudit::model::mapping::vma_detail::VmaDetail;
use vmaudit::model::mapping::vma_detail::VmaDetails;

#[test]
fn flags_there_and_back() {
    let flags = VmFlags::parse(b" rd wr mr  nr x sd ");
    assert_eq!(flags.to_string(), "rd wr mr nr sd");
    assert_eq!(VmFlags::parse(flags.to_string().as_bytes()), flags);
    assert!(flags.has("nr") && !flags.has("dc") && VmFlags::default().to_string().is_empty());
}

#[test]
fn the_vma_at_an_address() {
    let vma = |start, end| VmaDetail {
        range: AddrRange::new(start, end),
        flags: VmFlags::default(),
        pss: 0,
        page_size: 4096,
        hugetlb: 0,
    };
    let details = VmaDetails { vmas: vec![vma(1, 3), vma(5, 6)], guards: Vec::new() };
    assert_eq!(details.at(Addr(2)).map(|v| v.range.end), Some(Addr(3)));
    assert!(details.at(Addr(3)).is_none() && details.at(Addr(6)).is_none());
}
