#!/usr/bin/env python3
"""The tables of docs/kernels.md: what was measured, and what is written there.

  table.py print|compare|update DOCUMENT RESULTS ROW...

A row is KERNEL or KERNEL.VARIANT as "7.3/full"; RESULTS/ROW/cells has lines "COLUMN<TAB>WORD".
compare: exit 1 and the differences where a row is another one or not there. update: writes the rows.
"""

import os
import re
import sys

COLUMNS = ["preempt", "doctor", "bpf", "perf", "notify", "snapshot", "attach", "touch", "heap", "combined", "probe",
           "recording", "residency", "seeds", "panics"]
HEADS = {"plain": ["kernel"] + COLUMNS, "variants": ["kernel", "variant", "result"]}


def order(row):
    kernel, _, variant = row.partition("/")
    return [int(part) for part in kernel.split(".")], variant


def line_of(results, row):
    """The row as it stands in the table."""
    kernel, _, variant = row.partition("/")
    with open(os.path.join(results, row, "cells"), encoding="utf-8") as file:
        cells = dict(line.rstrip("\n").split("\t") for line in file)
    if not variant:
        return "| " + " | ".join([kernel] + [cells.get(column, "–") for column in COLUMNS]) + " |"
    listed = "; ".join(f"{name} {word}" for name, word in cells.items())
    return f"| {kernel} | {variant} | {listed} |"


def key_of(line, table):
    fields = [field.strip() for field in line.strip("|\n ").split("|")]
    return fields[0] if table == "plain" else f"{fields[0]}/{fields[1]}"


def marks(table):
    return f"<!-- kernels: {table} -->\n", "<!-- end -->\n"


def parts(text, table):
    begin, end = marks(table)
    before, rest = text.split(begin, 1)
    inside, after = rest.split(end, 1)
    return before + begin, inside, end + after


def rows_in(text, table):
    _, inside, _ = parts(text, table)
    lines = [line for line in inside.splitlines() if re.match(r"\| *[0-9]", line)]
    return {key_of(line, table): line for line in lines}


def table_text(table, rows):
    head = HEADS[table]
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join(["---"] * len(head)) + " |"]
    return "\n".join(lines + [rows[key] for key in sorted(rows, key=order)]) + "\n"


def main():
    action, document, results, rows = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
    with open(document, encoding="utf-8") as file:
        text = file.read()
    measured = {row: line_of(results, row) for row in rows}
    different = 0
    for table in HEADS:
        mine = {row: line for row, line in measured.items() if ("/" in row) == (table == "variants")}
        if not mine:
            continue
        written = rows_in(text, table)
        if action == "print":
            print(table_text(table, mine))
        elif action == "update":
            before, _, after = parts(text, table)
            text = before + "\n" + table_text(table, {**written, **mine}) + "\n" + after
        else:
            for row, line in mine.items():
                if written.get(row) != line:
                    different += 1
                    print(f"{row}:\n  written   {written.get(row, 'nothing')}\n  measured  {line}")
    if action == "update":
        with open(document, "w", encoding="utf-8") as file:
            file.write(text)
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
