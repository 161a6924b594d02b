//! A saved smaps or maps file in the shape of a snapshot of a process.

use crate::model::mapping::is_randomised;
use crate::model::observation::{Residency, ResidencySource, StatusFigures};
use crate::model::path::base_name_bytes;
use crate::model::{Mapping, Observations, VmaDetails};
use crate::procfs::{SavedError, SavedMaps, parse_saved};
use std::io::BufRead;

/// Reads a file's text. What it does not contain is listed in `gaps`.
///
/// # Errors
/// With the number of the first line that makes no sense.
pub fn observations(source: impl BufRead) -> Result<Observations, SavedError> {
    let SavedMaps { mappings, figures, details, torn, cut } = parse_saved(source)?;
    let mut gaps = Vec::new();
    if figures.is_none() {
        gaps.push(
            "a maps file does not say what is in memory: RSS, swap and what is unused are not known \
             (a copy of smaps has it)"
                .to_owned(),
        );
    }
    gaps.push(
        "thread stack pointers and heap headers are not in the file: thread stacks and glibc arenas are recognised \
         by their shape alone, others of their kind may be in the row unknown"
            .to_owned(),
    );
    if cut {
        gaps.push(
            "the file's last line has no end: where it was cut off, what came after is not in the figures"
                .to_owned(),
        );
    }
    if torn > 0 {
        gaps.push(format!("maps changed while it was saved: {torn} mappings printed twice were cut"));
    }
    let randomised = is_randomised(&mappings);
    if randomised.is_none() {
        gaps.push("whether addresses were randomised is not known; taken as on".to_owned());
    }
    let exe = program(&mappings).to_vec();
    let virt = mappings.iter().map(|mapping| mapping.range.len()).sum();
    let residency = Residency {
        source: if figures.is_some() { ResidencySource::SmapsProportion } else { ResidencySource::None },
        per_vma: figures.unwrap_or_default(),
        ..Residency::default()
    };
    let vm_rss = residency.per_vma.iter().map(|vma| vma.1).sum();
    let vm_swap = residency.per_vma.iter().map(|vma| vma.2).sum();
    Ok(Observations {
        comm: base_name_bytes(&exe).to_vec(),
        exe,
        mappings,
        residency,
        details: VmaDetails { vmas: details, guards: Vec::new() },
        status: StatusFigures { vm_size: virt, vm_rss, vm_swap, ..StatusFigures::default() },
        aslr: randomised.unwrap_or(true),
        gaps,
        ..Observations::default()
    })
}

/// The kernel maps the program itself below everything else that is a file, but for programs
/// without a fixed place that were started through the dynamic linker.
fn program(mappings: &[Mapping]) -> &[u8] {
    let is_file = |mapping: &&Mapping| mapping.file.is_some() && mapping.name.first() == Some(&b'/');
    let image = mappings.iter().find(|mapping| is_file(mapping) && mapping.offset == 0);
    let name = image.map_or(&[][..], |mapping| &mapping.name);
    name.strip_suffix(b" (deleted)").unwrap_or(name)
}
