use super::super::peek::Maps;
use super::*;
use crate::model::Tid;

fn own_tid() -> Tid {
    std::process::id() as Tid
}

/// This process' own. None without PROCMAP_QUERY: the maps file would have to be parsed.
fn own_maps(mapped: u64) -> Option<Maps> {
    let mut maps = Maps::open(own_tid(), |_| Vec::new()).expect("its own maps");
    maps.at(mapped).is_ok().then_some(maps)
}

#[test]
fn a_replaced_page_is_distinguished_from_a_cut_vma() {
    let file = crate::model::MappingFile { major: 8, minor: 1, inode: 7 };
    let area = |start, end| ShadowVma { start, end, access: 3 };
    let vma = |area, offset, file| Vma { area, offset, file, is_shared: false, name: Vec::new() };
    let whole = vma(area(0x1000, 0x9000), 0x4000, Some(file));
    assert!(vma(area(0x3000, 0x9000), 0x6000, Some(file)).shows_the_same(&whole, 0x3000));
    assert!(!vma(area(0x3000, 0x9000), 0x4000, Some(file)).shows_the_same(&whole, 0x3000));
    assert!(!vma(area(0x3000, 0x9000), 0, None).shows_the_same(&whole, 0x3000));
    let anonymous = vma(area(0x1000, 0x9000), 0, None);
    assert!(vma(area(0x3000, 0x9000), 0, None).shows_the_same(&anonymous, 0x3000));
    let shared = Vma { is_shared: true, ..anonymous.clone() };
    assert!(!shared.shows_the_same(&anonymous, 0x3000));
}

/// mlock and mseal are not notified: they may have divided an attachment before it is examined.
#[test]
fn an_attachment_is_found_whole_where_it_was_divided() {
    use nix::sys::mman::{MapFlags, ProtFlags, mlock, mmap};
    let page = PAGE as usize;
    let file = tempfile::tempfile().expect("a temporary file");
    file.set_len(4 * PAGE).expect("set_len");
    let len = std::num::NonZeroUsize::new(4 * page).expect("not 0");
    // SAFETY: a new mapping, which nothing else knows.
    let start =
        unsafe { mmap(None, len, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, &file, 0) }.expect("mmap");
    // SAFETY: the second of its pages.
    unsafe { mlock(start.add(page), page) }.expect("mlock");
    let place = start.as_ptr() as u64;
    let Some(mut maps) = own_maps(place) else { return };
    let mut shadow = Shadow::default();
    let mut view = View { shadow: &mut shadow, maps: &mut maps, tid: own_tid() };
    let expected = Expected::Appears { name: b"", place: Some(place), inode: None };
    let Outcome::Done(effect) = expected.check(&mut view, Over::NotYet) else { panic!("not found") };
    let whole = AddrRange::new(place, place + 4 * PAGE);
    assert_eq!(effect.mapped.map(|(range, _)| range), Some(whole));
    assert!(shadow.covers(whole));
}

/// A part that is sealed refuses the whole call, and what lies before it looks like the replacement.
#[test]
fn what_was_not_replaced_shows_it_anywhere() {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous};
    let (private, shared) = (MapFlags::MAP_PRIVATE, MapFlags::MAP_SHARED | MapFlags::MAP_FIXED);
    let page = PAGE as usize;
    let len = |pages: usize| std::num::NonZeroUsize::new(pages * page).expect("not 0");
    let rw = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let file = tempfile::tempfile().expect("a temporary file");
    file.set_len(PAGE).expect("set_len");
    // SAFETY: a new mapping, which nothing else knows.
    let start = unsafe { mmap_anonymous(None, len(4), rw, private) }.expect("mmap").as_ptr() as u64;
    let second = std::num::NonZeroUsize::new(start as usize + page);
    // SAFETY: the second of its pages.
    unsafe { mmap(second, len(1), rw, shared, &file, 0) }.expect("mmap");
    let Some(mut maps) = own_maps(start) else { return };
    let mut shadow = Shadow::default();
    let mut view = View { shadow: &mut shadow, maps: &mut maps, tid: own_tid() };
    let range = |from: u64, to: u64| AddrRange::new(start + from * PAGE, start + to * PAGE);
    assert_eq!(view.may_be(Replacement::Anonymous, range(0, 1)), Ok(true));
    assert_eq!(view.may_be(Replacement::Anonymous, range(0, 4)), Ok(false));
    assert_eq!(view.may_be(Replacement::Anonymous, range(2, 4)), Ok(true));
    let replaced = Replacement::File { shared: true, offset: 0, inode: None };
    assert_eq!(view.may_be(replaced, range(1, 2)), Ok(true));
}

/// A move in part, where the rest of the target has the rights that the rest of the source has.
#[test]
fn what_has_not_come_shows_another_page_of_the_file() {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap};
    let page = PAGE as usize;
    let file = tempfile::tempfile().expect("a temporary file");
    file.set_len(4 * PAGE).expect("set_len");
    let map = |at: Option<std::num::NonZeroUsize>, pages: usize, first: i64, flags: MapFlags| {
        let len = std::num::NonZeroUsize::new(pages * page).expect("not 0");
        let offset = first * PAGE as i64;
        // SAFETY: new mappings, which nothing else knows.
        unsafe { mmap(at, len, ProtFlags::PROT_READ, MapFlags::MAP_SHARED | flags, &file, offset) }
            .expect("mmap")
            .as_ptr() as u64
    };
    // Two of the file's pages, and at the target the first one, and not the second.
    let source = map(None, 2, 0, MapFlags::empty());
    let target = map(None, 2, 2, MapFlags::empty());
    map(std::num::NonZeroUsize::new(target as usize), 1, 0, MapFlags::MAP_FIXED);
    let Some(mut maps) = own_maps(source) else { return };
    let mut shadow = Shadow::default();
    let mut view = View { shadow: &mut shadow, maps: &mut maps, tid: own_tid() };
    let range = |at: u64, pages: u64| AddrRange::new(at, at + pages * PAGE);
    assert_eq!(view.all_are_there(range(source, 1), range(target, 1), true), Ok(true));
    assert_eq!(view.all_are_there(range(source, 2), range(target, 2), true), Ok(false));
    assert_eq!(view.copied_until(range(source, 1), range(target, 2), &[]), Ok(source + PAGE));
    assert_eq!(view.copied_until(range(source, 2), range(target, 2), &[]), Ok(source));
}
