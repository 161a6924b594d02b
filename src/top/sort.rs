//! By what rows are sorted.

use clap::ValueEnum;

/// A column to sort by: sizes largest first, names from A on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum SortBy {
    /// What is mapped
    Virt,
    /// What is in memory
    Rss,
    /// What is mapped, and neither in memory nor in swap
    #[default]
    Unused,
    /// How much VIRT has grown since the start of vmaudit
    Growth,
    /// The process' or category's name
    Name,
}

const ALL: [SortBy; 5] = [SortBy::Virt, SortBy::Rss, SortBy::Unused, SortBy::Growth, SortBy::Name];

impl SortBy {
    pub fn next(self) -> SortBy {
        self.step(1)
    }

    pub fn previous(self) -> SortBy {
        self.step(ALL.len() - 1)
    }

    fn step(self, by: usize) -> SortBy {
        let at = ALL.iter().position(|each| *each == self).unwrap_or(0);
        ALL.get((at + by) % ALL.len()).copied().unwrap_or(self)
    }
}

/// What a row is sorted by.
pub(super) struct SortKeys<'a> {
    pub name: &'a str,
    pub virt: u64,
    pub rss: u64,
    pub unused: u64,
    pub growth: i64,
}

impl SortBy {
    /// In the order in which the rows are shown.
    pub(super) fn order(self, a: &SortKeys<'_>, b: &SortKeys<'_>) -> std::cmp::Ordering {
        match self {
            SortBy::Virt => b.virt.cmp(&a.virt),
            SortBy::Rss => b.rss.cmp(&a.rss),
            SortBy::Unused => b.unused.cmp(&a.unused),
            SortBy::Growth => b.growth.cmp(&a.growth),
            SortBy::Name => a.name.to_lowercase().cmp(&b.name.to_lowercase()),
        }
    }
}
