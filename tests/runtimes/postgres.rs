//! A leak in a PostgreSQL backend, which has its own allocator: by stack and by memory context.

use crate::support::heap::{Watching, first, frames};
use crate::support::postgres::{Postgres, Session};
use crate::support::report::{list, number};
use crate::support::{skip, skip_without_bpf};
use serde_json::Value;

const STATEMENTS: u64 = 200;

/// Statements that are prepared and never deallocated live as long as the session: the parser's copy and
/// the plan of each have a context of their own below CacheMemoryContext.
fn prepare(session: &mut Session) {
    session.query(&format!(
        "do $$ begin for i in 1..{STATEMENTS} loop execute format('prepare s%s as select relname, relkind \
         from pg_class where oid = $1 and relname like ''%%x%s''', i, i); end loop; end $$;"
    ));
}

/// Contexts whose innermost name is one of these: bytes and blocks.
fn in_contexts(report: &Value, names: &[&str]) -> (u64, u64) {
    let rows = list(first(report), "contexts").iter();
    let own = rows.filter(|row| {
        list(row, "path").last().and_then(Value::as_str).is_some_and(|name| names.contains(&name))
    });
    own.fold((0, 0), |(bytes, blocks), row| (bytes + number(row, "bytes"), blocks + number(row, "blocks")))
}

const NAMES: [&str; 2] = ["CachedPlanSource", "CachedPlanQuery"];

#[test]
fn what_a_session_keeps_by_stack_and_by_context() {
    if skip_without_bpf("heap_postgres") {
        return;
    }
    let server = match Postgres::start() {
        Ok(server) => server,
        Err(why) => return skip("heap_postgres", why),
    };
    let mut session = server.session();
    // The catalogue's caches, so that they are of before.
    session.query("prepare warm as select relname from pg_class where oid = $1; deallocate warm;");
    // A backend's stacks are deep: with the usual 64 MiB a slow machine finds no space for some of them.
    let options = ["--allocator", "postgres", "--no-follow-forks", "--ring-bytes", "268435456"];

    let watching = Watching::of(session.pid, &options);
    prepare(&mut session);
    let own = session.query(
        "select sum(total_bytes - free_bytes), count(*) from pg_backend_memory_contexts where name in \
         ('CachedPlanSource', 'CachedPlanQuery');",
    );
    let report = watching.stop();
    let [used, contexts] =
        own[0].split('|').map(|n| n.parse::<u64>().expect("a number")).collect::<Vec<_>>()[..]
    else {
        panic!("{own:?}")
    };
    let (bytes, blocks) = in_contexts(&report, &NAMES);
    println!(
        "{contexts} contexts: {bytes} bytes in {blocks} chunks outstanding, {used} in use as PostgreSQL says; \
         {} events, {} lost, {} without stack",
        number(&report["events"], "seen"),
        number(&report["events"], "lost"),
        number(&report, "without_stack")
    );
    assert_eq!(number(&report["events"], "lost"), 0);
    assert!(contexts >= 2 * STATEMENTS);
    // What is requested is in use; beyond it, AllocSet rounds a chunk up to a power of two (less than twice),
    // puts 16 bytes before it (8 since 16), and a context has its own descriptor in its first block
    // (AllocSetContext: 200 bytes) and one header for each of a few blocks (40 bytes each).
    assert!(bytes <= used, "{bytes} requested, {used} in use");
    let most = 2 * bytes + (16 + 8) * blocks + contexts * (200 + 5 * 40);
    assert!(used <= most, "{used} in use, at most {most}");
    // Rows of contexts add up, and the stacks lead to what prepares.
    let all: u64 = list(first(&report), "contexts").iter().map(|row| number(row, "bytes")).sum();
    assert_eq!(all, number(&first(&report)["shown"], "bytes"));
    let through = |symbol: &str| -> u64 {
        let rows = list(first(&report), "rows").iter();
        let own = rows.filter(|row| frames(&report, row).iter().any(|frame| frame["symbol"] == symbol));
        own.map(|row| number(row, "bytes")).sum()
    };
    let bare: u64 = {
        let rows = list(first(&report), "rows").iter().filter(|row| row["no_stack"] == "lost");
        rows.map(|row| number(row, "bytes")).sum()
    };
    let known = through("PrepareQuery");
    println!("{known} bytes through PrepareQuery, {bare} without a stack");
    assert!(known + bare >= bytes * 98 / 100, "{known} and {bare} of {bytes}");
    assert!(bare == 0 || number(&report, "without_stack") > 0, "what has no stack is reported");
    assert!(known > bytes / 2, "{known} of {bytes}");

    // Deletions free what they cover: nothing of what is prepared now outlives the deallocation.
    let watching = Watching::of(session.pid, &options);
    session.query("deallocate all;");
    prepare(&mut session);
    session.query("deallocate all;");
    let report = watching.stop();
    assert_eq!(in_contexts(&report, &NAMES), (0, 0), "{:#}", first(&report)["contexts"]);
    // A query's own contexts end with it: of 100 MB that a sort goes through nothing stays.
    let watching = Watching::of(session.pid, &options);
    session.query(
        "select count(*) from (select md5(i::text) m from generate_series(1, 100000) i order by m) t;",
    );
    let report = watching.stop();
    let totals = &first(&report)["totals"];
    println!("a sort: {totals}");
    assert!(number(totals, "allocated_bytes") > 5 << 20, "{totals}");
    assert!(number(totals, "outstanding_bytes") < 1 << 20, "{totals}");
}
