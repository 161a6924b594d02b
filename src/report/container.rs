//! The totals of a container's processes.

use super::model::{Container, Process};

/// `found` with the sums over those of `processes` that are in it and live.
pub fn total(found: &Container, processes: &[Process]) -> Container {
    let inside = || processes.iter().filter(|p| p.container.as_deref() == Some(found.name.as_str()));
    let lives = |p: &&Process| p.exit_code.is_none() && p.signal.is_none();
    let sum = |of: fn(&Process) -> u64| inside().filter(lives).map(of).fold(0, u64::saturating_add);
    let count = inside().filter(lives).count() as u64;
    let shares: Option<Vec<u64>> = inside().filter(lives).map(|p| p.pss).collect();
    Container {
        processes: count,
        ended: inside().count() as u64 - count,
        threads: sum(|p| (p.threads.len() as u64).max(1)),
        virt: sum(|p| p.totals.virt),
        rss: sum(|p| p.totals.rss),
        swap: sum(|p| p.totals.swap),
        pss: shares.filter(|shares| !shares.is_empty()).map(|shares| shares.iter().sum()),
        ..found.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::Totals;

    fn process(container: &str, rss: u64, pss: Option<u64>, exit_code: Option<i32>) -> Process {
        let totals = Totals { virt: 10 * rss, rss, ..Totals::default() };
        Process { container: Some(container.to_owned()), totals, pss, exit_code, ..Process::default() }
    }

    #[test]
    fn those_that_live_and_are_inside_count() {
        let web = Container { name: "web".to_owned(), ..Container::default() };
        let mut all = vec![
            process("web", 4, Some(3), None),
            process("web", 6, Some(5), None),
            process("other", 100, Some(100), None),
            process("web", 50, None, Some(0)),
        ];
        let found = total(&web, &all);
        assert_eq!((found.processes, found.ended, found.threads), (2, 1, 2));
        assert_eq!((found.virt, found.rss, found.pss), (100, 10, Some(8)));
        all.push(process("web", 1, None, None));
        assert_eq!(total(&web, &all).pss, None);
        assert_eq!(total(&web, &[]).pss, None);
    }
}
