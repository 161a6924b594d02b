//! What calls were for whose bytes are no longer mapped: judged by the same rules, each on its own,
//! as if it were mapped in the process as it is now.

use super::category::Category;
use super::category::UNKNOWN;
use super::classify::classify;
use super::world::World;
use super::{AuditInput, Piece};
use crate::ledger::{GoneCall, Origin, OriginId, Reconciled, Region, VmaNames};
use crate::model::mapping::MappingFile;
use crate::model::observation::Residency;
use crate::model::{AddrRange, Mapping, Observations, VmaDetails};

/// Where the calls are put for this: above every user address, far from each other, with the low bits that
/// they had, for rules that check alignment.
const FAR: u64 = 1 << 63;
const APART: u64 = 1 << 44;

/// One category for each of `gone`. `input.symbols` has to name their stacks, too.
pub fn categories_of_gone(input: &AuditInput<'_>, gone: &[&GoneCall]) -> Vec<Category> {
    if gone.is_empty() {
        return Vec::new();
    }
    let seen = input.observations;
    // Which libraries there are decides some rules.
    let mut mappings: Vec<Mapping> = seen.mappings.iter().filter(|m| m.prot.exec).cloned().collect();
    let first = mappings.len();
    let mut reconciled = Reconciled { threads: input.reconciled.threads.clone(), ..Reconciled::default() };
    for (at, call) in gone.iter().enumerate() {
        let start = FAR + at as u64 * APART + (call.record.ret as u64 & (APART - 1));
        let range = AddrRange::new(start, start.saturating_add(call.record.mapped.0.clamp(1, APART)));
        mappings.push(mapping(call, range));
        let mut record = call.record.clone();
        let name = record.anon_names.largest().cloned();
        record.anon_names = VmaNames::default();
        record.anon_names.set(range, name.as_ref());
        reconciled.origins.push(record);
        reconciled.regions.push(Region {
            range,
            prot: call.prot,
            sharing: call.sharing,
            kind: call.kind,
            origin: Origin::Event(OriginId(at as u32)),
            doubt: None,
            file: call.file.clone(),
            vma: first + at,
        });
    }
    let observations = Observations {
        mappings,
        residency: Residency::default(),
        threads: seen.threads.clone(),
        thread_blocks: seen.thread_blocks.clone(),
        details: VmaDetails::default(),
        heap_infos: Vec::new(),
        blocks: Vec::new(),
        code: seen.code.clone(),
        comm: seen.comm.clone(),
        exe: seen.exe.clone(),
        cmdline: seen.cmdline.clone(),
        gaps: Vec::new(),
        ..*seen
    };
    let input = AuditInput { reconciled: &reconciled, observations: &observations, ..*input };
    let pieces = classify(&World::new(&input));
    let of = |at: usize| {
        let parts = pieces.iter().filter(|piece| piece.region == at);
        parts.max_by_key(|piece| piece.range.len()).map_or(UNKNOWN, |piece: &Piece| piece.category)
    };
    (0..gone.len()).map(of).collect()
}

fn mapping(call: &GoneCall, range: AddrRange) -> Mapping {
    let file = call.file.as_ref();
    Mapping {
        range,
        prot: call.prot,
        sharing: call.sharing,
        offset: 0,
        file: file.map(|f| MappingFile { major: f.major, minor: f.minor, inode: f.inode }),
        name: file.map(|f| f.path.clone()).unwrap_or_default(),
    }
}
