//! Mapped files that are no ELF image: data, caches, archives, images of a runtime's heap.

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::category::{Category, CategoryInfo, Evidence, Instance};
use crate::model::Sharing;

pub const FILE: Category = Category(&CategoryInfo {
    id: "file",
    color: 0x7f644d,
    name: "mapped files",
    one: "mapped file",
    many: "mapped files",
});

pub struct FilesRule;

impl Rule for FilesRule {
    fn id(&self) -> &'static str {
        "file"
    }

    fn categories(&self) -> &'static [Category] {
        &[FILE]
    }

    fn as_last(&self, subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        subject.is_file().then(|| {
            let claim = Claim::new(FILE, Evidence::Name, "mapped file");
            if subject.name().is_empty() {
                claim
            } else {
                claim.instance(Instance::Named(subject.name().to_vec()))
            }
        })
    }

    fn advise(&self, group: &Group<'_>, world: &World<'_>) -> Advice {
        let mut why = "what is mapped of a file is read page by page when somebody looks at it; its pages are the page \
                       cache's, and of a file on a disk they can be dropped at any time"
            .to_string();
        let regions = &world.input.reconciled.regions;
        let held = || group.pieces.iter().filter_map(|piece| regions.get(piece.region));
        let written = |sharing| held().any(|region| region.sharing == sharing && region.prot.write);
        if written(Sharing::Shared) {
            why += ", those that were written to once they are in the file again";
        }
        if written(Sharing::Private) {
            why += ", but for those that this process wrote to: where a file is mapped private and writable, these \
                    are copies of its own";
        }
        if group.pieces.iter().any(|p| world.detail_at(p.range.start).is_some_and(|d| d.flags.has("lo"))) {
            why += "; the program has locked them in memory (mlock), and there they stay";
        }
        Advice::why(why)
    }
}
