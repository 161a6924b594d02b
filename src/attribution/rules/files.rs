//! Mapped files that are no ELF image: data, caches, archives.

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::category::{Category, Evidence, Instance};

pub const FILE: Category =
    Category { id: "file", color: 0x7f644d, name: "mapped files", one: "mapped file", many: "mapped files" };

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

    fn advise(&self, _group: &Group<'_>, _world: &World<'_>) -> Advice {
        Advice::why(
            "what is mapped of a file is read page by page when somebody looks at it; its pages are the \
             page cache's, and can be dropped at any time",
        )
    }
}
