"""What the runner prints: one line at a time, each with the seconds since its start."""

import contextlib
import os
import sys
import threading
import time

BEGIN = time.monotonic()
LOCK = threading.Lock()


class Failure(Exception):
    """Ends a step, or the program, with a message that a person can act on."""


def say(text):
    """Prints lines that belong together; the first has the time."""
    lines = text.splitlines() or [""]
    show("\n".join([f"[{time.monotonic() - BEGIN:7.1f} s] {lines[0]}", *lines[1:]]))


def show(text):
    """Prints text as it is. Where it can't, as on a full disk, the run goes on: other threads wait for this one."""
    with LOCK, contextlib.suppress(OSError):
        print(text, flush=True)


def quoted(text, lines=120):
    """The end of an output, indented."""
    found = text.rstrip().splitlines()
    left_out = [f"    ... {len(found) - lines} lines before these"] if len(found) > lines else []
    return "\n".join([*left_out, *(f"    {line}" for line in found[-lines:])])


def duration(seconds):
    """12 s, 3 min 20 s."""
    seconds = round(seconds)
    return f"{seconds // 60} min {seconds % 60} s" if seconds >= 60 else f"{seconds} s"


def table(head, rows):
    """Aligned columns: text to the left, numbers to the right."""
    cells = [[cell(value) for value in row] for row in rows]
    widths = [max(len(row[column]) for row in [list(head), *cells]) for column in range(len(head))]
    right = [bool(rows) and all(isinstance(row[column], (int, float)) or row[column] is None for row in rows)
             for column in range(len(head))]

    def line(row):
        return "  ".join(text.rjust(width) if is_number else text.ljust(width)
                         for text, width, is_number in zip(row, widths, right, strict=True)).rstrip()

    return "\n".join([line(list(head)), *(line(row) for row in cells)])


def cell(value):
    if value is None:
        return "-"
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def clean_environment(**more):
    """This program's environment without what `make` and `cargo` leave in it for programs that they start."""
    kept = {name: value for name, value in os.environ.items()
            if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKE_TERMOUT", "MAKE_TERMERR")}
    return {**kept, **{name: str(value) for name, value in more.items()}}


def fail(text):
    print(f"tests/run: {text}", file=sys.stderr, flush=True)
    sys.exit(1)
