#!/usr/bin/env python3
"""Checks the links of a book that mdBook has built: each file and each anchor is there. `check.py target/book`"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# mdBook makes them of all pages, or for an address that is not known here.
NOT_CHECKED = ("print.html", "404.html", "toc.html")


class Page(HTMLParser):
    """The anchors of a page, and what it links to."""

    def __init__(self, source):
        super().__init__()
        self.anchors, self.links = set(), []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.anchors |= {attrs[name] for name in ("id", "name") if attrs.get(name)}
        for name in ("href", "src"):
            if attrs.get(name):
                self.links.append(attrs[name])


def broken(folder):
    """A line for each link that leads nowhere."""
    folder = Path(folder).resolve()
    pages = {path: Page(path.read_text(encoding="utf-8", errors="replace")) for path in sorted(folder.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        if path.name in NOT_CHECKED:
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_relative_to(folder) or not target.is_file():
                found.append(f"{path.relative_to(folder)}: {link}: no such file")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{path.relative_to(folder)}: {link}: no such anchor")
    return found, len(pages)


def main():
    if len(sys.argv) != 2:
        print("usage: check.py FOLDER", file=sys.stderr)
        return 2
    found, count = broken(sys.argv[1])
    for line in found:
        print(line)
    if not count:
        print(f"{sys.argv[1]} has no page: build the book first")
        return 1
    print(f"{count} pages, {len(found)} broken links")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
