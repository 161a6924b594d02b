//! A container: its totals next to the kernel's own figures, and its processes as it and the host see them.

use super::{TextOptions, WIDTH, note};
use crate::render::style::{Tone, clean, truncated};
use crate::report::model::{CgroupMemory, Container, NamedThread, Process, Report};
use crate::report::units::{size, thousands};

/// Before the processes, which follow one by one.
pub(super) fn containers(report: &Report, options: TextOptions, out: &mut String) {
    for container in &report.containers {
        let inside = report.processes.iter().filter(|p| p.container.as_ref() == Some(&container.name));
        let mut living: Vec<&Process> =
            inside.filter(|p| p.exit_code.is_none() && p.signal.is_none()).collect();
        heading(container, options, out);
        if container.processes > 0 {
            totals(container, options, out);
        } else {
            note("none of its processes lives any more: their last states follow", options, out);
        }
        if let Some(memory) = &container.memory {
            cgroup(container, memory, options, out);
        }
        out.push('\n');
        if !living.is_empty() {
            living.sort_by_key(|p| std::cmp::Reverse(p.pss.unwrap_or(p.totals.rss)));
            processes(&living, options, out);
            out.push('\n');
        }
    }
}

/// `container web · podman · 71ea9a710512 · 3 processes, 9 threads`
fn heading(c: &Container, options: TextOptions, out: &mut String) {
    let what = if c.name.starts_with('/') { "cgroup" } else { "container" };
    let name = options.color.paint(Tone::Heading, &format!("{what} {}", truncated(&clean(&c.name), 60)));
    let mut parts = vec![name];
    parts.extend(c.engine.as_deref().map(clean));
    parts.extend(c.id.as_deref().map(|id| truncated(&clean(id), 13).trim_end_matches('…').to_string()));
    let plural =
        |n: u64, one: &str, many: &str| format!("{} {}", thousands(n), if n == 1 { one } else { many });
    let mut count = plural(c.processes, "process", "processes");
    count += &format!(", {}", plural(c.threads, "thread", "threads"));
    if c.ended > 0 {
        count += &format!(", {} ended", thousands(c.ended));
    }
    parts.push(count);
    *out += &format!("{}\n\n", parts.join(" · "));
}

/// Labels before a figure, and what it means behind it.
fn row(label: &str, figure: &str, remark: &str, options: TextOptions, out: &mut String) {
    let head = options.color.paint(Tone::Heading, &format!("  {label:<20}{figure:>11}"));
    *out += &format!("{}\n", if remark.is_empty() { head } else { format!("{head}   {remark}") });
}

fn totals(c: &Container, options: TextOptions, out: &mut String) {
    row("VIRT of all", &size(c.virt), "", options, out);
    row(
        "RSS, added up",
        &size(c.rss),
        "each process' own: what they share counts several times",
        options,
        out,
    );
    match c.pss {
        Some(pss) => {
            let more = c.rss.saturating_sub(pss);
            let remark = match more {
                0 => "shared pages counted once".to_string(),
                _ => format!("shared pages counted once: {} less", size(more)),
            };
            row("PSS, added up", &size(pss), &remark, options, out);
        }
        None => {
            row("PSS, added up", "not known", "smaps_rollup could not be read of each process", options, out)
        }
    }
    if c.swap > 0 {
        row("swapped, added up", &size(c.swap), "", options, out);
    }
}

/// `34.1 MiB of 512 MiB   anon 20.1 MiB · file 9.8 MiB · kernel 1.3 MiB`
fn cgroup(c: &Container, m: &CgroupMemory, options: TextOptions, out: &mut String) {
    let Some(current) = m.current else { return };
    let parts =
        [("anon", m.anon), ("file", m.file), ("kernel", m.kernel), ("swap", m.swap.filter(|&b| b > 0))];
    let parts: Vec<String> =
        parts.iter().filter_map(|(name, bytes)| Some(format!("{name} {}", size((*bytes)?)))).collect();
    row("charged to cgroup", &size(current), &parts.join(" · "), options, out);
    let limit = m.max.map_or_else(|| "none".to_string(), size);
    let peak = m.peak.map(|bytes| format!("at most {} so far", size(bytes))).unwrap_or_default();
    row("its limit", &limit, &peak, options, out);
    let mapped = c.pss.unwrap_or(c.rss);
    if c.processes > 0 && current > mapped.saturating_add(mapped / 4) {
        let text = format!(
            "{} are charged to the cgroup beyond what its processes have resident: files that were read or \
             written, tmpfs, and kernel memory count there, too",
            size(current - mapped)
        );
        note(&text, options, out);
    } else if c.processes > 0 && mapped > current.saturating_add(current / 4) {
        let text = format!(
            "{} are resident that another cgroup is charged for: pages of files count where they were first \
             read (an image's layers in another container, or when it was unpacked)",
            size(mapped - current)
        );
        note(&text, options, out);
    }
}

/// One row a process, largest first; the names of its threads below it, where they say anything.
fn processes(living: &[&Process], options: TextOptions, out: &mut String) {
    let line = |cells: [&str; 7]| {
        let [pid, inside, name, virt, rss, pss, threads] = cells;
        format!("  {pid:>8} {inside:>7}  {name:<16}{virt:>11}{rss:>11}{pss:>11}{threads:>9}")
    };
    let head = line(["pid", "inside", "process", "VIRT", "RSS", "PSS", "threads"]);
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &head));
    let (shown, rest) = living.split_at(options.top.min(living.len()));
    for p in shown {
        let inside = p.container_pid.map_or_else(|| "–".to_string(), |pid| pid.to_string());
        let pss = p.pss.map_or_else(|| "not known".to_string(), size);
        let (virt, rss) = (size(p.totals.virt), size(p.totals.rss));
        let name = truncated(&clean(&p.comm), 15);
        let (pid, threads) = (p.pid.to_string(), thousands(p.threads.len() as u64));
        *out += &format!("{}\n", line([&pid, &inside, &name, &virt, &rss, &pss, &threads]));
        if p.threads.len() > 1 {
            let text = format!("{:20}{}", "", names(&p.threads));
            *out += &format!("{}\n", options.color.paint(Tone::Dim, &truncated(&text, WIDTH)));
        }
    }
    if !rest.is_empty() {
        let sum = |of: fn(&Process) -> u64| rest.iter().map(|p| of(p)).sum::<u64>();
        let name = format!("{} more", thousands(rest.len() as u64));
        let (virt, rss) = (size(sum(|p| p.totals.virt)), size(sum(|p| p.totals.rss)));
        let pss = size(sum(|p| p.pss.unwrap_or(0)));
        let threads = thousands(sum(|p| p.threads.len() as u64));
        let text = line(["…", "", &name, &virt, &rss, &pss, &threads]);
        *out += &format!("{}\n", options.color.paint(Tone::Dim, &text));
    }
}

/// `redis-server, bio_aof, worker ×8`: equal names once, in order of appearance.
fn names(threads: &[NamedThread]) -> String {
    let mut seen: Vec<(&str, usize)> = Vec::new();
    for thread in threads {
        match seen.iter_mut().find(|(name, _)| *name == thread.comm) {
            Some((_, count)) => *count += 1,
            None => seen.push((&thread.comm, 1)),
        }
    }
    let word = |(name, count): &(&str, usize)| match count {
        1 => clean(name),
        n => format!("{} ×{n}", clean(name)),
    };
    seen.iter().map(word).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::Totals;

    fn thread(tid: i32, comm: &str) -> NamedThread {
        NamedThread { tid, container_tid: Some(tid - 4100), comm: comm.to_owned() }
    }

    #[test]
    fn totals_figures_and_processes_as_both_sides_see_them() {
        let totals = Totals { virt: 64 << 20, rss: 8 << 20, ..Totals::default() };
        let threads = vec![thread(4123, "w\x1b[2J"), thread(4130, "io"), thread(4131, "io")];
        let process = Process {
            pid: 4123,
            comm: "worker".to_owned(),
            container: Some("web".to_owned()),
            container_pid: Some(1),
            pss: Some(5 << 20),
            threads,
            totals,
            ..Process::default()
        };
        let memory = CgroupMemory { current: Some(9 << 20), anon: Some(3 << 20), ..CgroupMemory::default() };
        let container = Container {
            name: "web".to_owned(),
            engine: Some("docker".to_owned()),
            id: Some("af152003872b6910".to_owned()),
            processes: 1,
            threads: 3,
            virt: 64 << 20,
            rss: 8 << 20,
            pss: Some(5 << 20),
            memory: Some(memory),
            ..Container::default()
        };
        let report = Report { containers: vec![container], processes: vec![process], ..Report::default() };
        let mut text = String::new();
        containers(&report, TextOptions::default(), &mut text);
        for part in [
            "container web · docker · af152003872b · 1 process, 3 threads\n",
            "shared pages counted once: 3.0 MiB less\n",
            "  charged to cgroup       9.0 MiB   anon 3.0 MiB\n",
            "  its limit                  none\n",
            "      4123       1  worker             64.0 MiB    8.0 MiB    5.0 MiB        3\n",
            "w\\u{1b}[2J, io ×2\n",
            "4.0 MiB are charged to the cgroup beyond what its processes have resident",
        ] {
            assert!(text.contains(part), "{part}\nis not in\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }
}
