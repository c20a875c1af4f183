"""A preprocessor of mdBook: pages of the book may link to files outside of `docs`, as they do on GitHub.

mdBook renders only what is in its source folder, and takes each link to a `.md` file for a page of the book. So
- a page whose first line is `<!-- book: ../FILE.md -->` gets the content of that file: a short page on GitHub leads to
  it, where the file is better known by its own place;
- a link to such a file leads to its page of the book;
- a link to any other file outside of `docs` leads to the repository, if `git-repository-url` is set in book.toml, and
  else becomes its path, after its text if that says more;
- the pages have no HTML, so that `(?P<step>...)` in a message is text and not a tag that never ends.

https://rust-lang.github.io/mdBook/for_developers/preprocessors.html has the protocol.
"""

import json
import posixpath
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = "docs"
MARK = re.compile(r"\A<!-- book: (?P<path>\S+) -->\n")
FENCE = re.compile(r"^\s*(?:(?:[-*+]|\d+[.)])\s+)?(`{3,}|~{3,})")
# A code span, which stays as it is; what looks like a tag; or a link or image, whose text may have code and brackets.
PIECE = re.compile(
    r"(?P<code>(`+)(?!`).+?(?<!`)\2(?!`))"
    r"|<(?P<tag>/?[A-Za-z][^<>:\s]*)>"
    r"|(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]"
    r"\((?P<target>[^()\s]+)(?P<title>\s+\"[^\"]*\")?\)", re.DOTALL)


class Outside:
    def __init__(self, root, pages, repository=None):
        """`pages`: which page of the book has the content of which file of the repository."""
        self.root, self.pages = Path(root), pages
        self.repository = repository.rstrip("/") if repository else None

    def page(self, content, file):
        """The content of a page that stands in this file of the repository."""
        fence, made, paragraph = None, [], []

        def end():
            made.append(PIECE.sub(lambda found: self.piece(found, file), "".join(paragraph)))
            paragraph.clear()

        for line in content.splitlines(keepends=True):
            opened = FENCE.match(line)
            if fence:
                is_end = opened and opened[1].startswith(fence) and not line.strip().strip(fence[0])
                fence = None if is_end else fence
                made.append(line)
            elif opened:
                fence = opened[1]
                end()
                made.append(line)
            else:
                paragraph.append(line)
                if not line.strip():  # no code and no link goes on beyond it
                    end()
        end()
        return "".join(made)

    def piece(self, found, file):
        if found["code"]:
            return found.group()
        if found["tag"]:
            return f"&lt;{found['tag']}>"
        target, _, anchor = found["target"].partition("#")
        if not target or re.match(r"[a-z][a-z0-9+.-]*:", target) or target.startswith("/"):
            return found.group()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(file), target))
        anchor = f"#{anchor}" if anchor else ""
        if path in self.pages:
            return f"{found['image']}[{found['text']}]({self.pages[path]}{anchor}{found['title'] or ''})"
        if path.startswith(f"{DOCS}/") and not path.endswith(".md"):
            return found.group()  # mdBook copies it, such as an image
        if self.repository:
            kind = "tree" if (self.root / path).is_dir() else "blob"
            return f"[{found['text']}]({self.repository}/{kind}/HEAD/{path}{anchor})"
        plain = found["text"].strip("`").rstrip("/")
        says_no_more = plain == path or plain in (Path(path).name, Path(path).stem)
        return f"`{path}`" if says_no_more else f"{found['text']} (`{path}`)"


def chapters(items):
    for item in items:
        if isinstance(item, dict) and "Chapter" in item:
            yield item["Chapter"]
            yield from chapters(item["Chapter"]["sub_items"])


def convert(context, book, root=ROOT):
    """The book with links that lead somewhere."""
    # mdBook 0.4 has another name for it.
    found = [chapter for chapter in chapters(book.get("items") or book.get("sections") or [])
             if chapter.get("source_path")]
    files = {}
    for chapter in found:
        if mark := MARK.match(chapter["content"]):
            files[chapter["source_path"]] = posixpath.normpath(posixpath.join(DOCS, mark["path"]))
    html = context.get("config", {}).get("output", {}).get("html", {})
    # mdBook makes the index of a README. A file that stands in no page leads to the page that names it.
    pages = {f"{DOCS}/{chapter['source_path']}": chapter["source_path"].replace("README.md", "index.md")
             for chapter in found}
    pages |= {file: page for page, file in files.items()}
    outside = Outside(root, pages, html.get("git-repository-url"))
    for chapter in found:
        file = files.get(chapter["source_path"])
        if file:
            chapter["content"] = (Path(root) / file).read_text(encoding="utf-8")
        chapter["content"] = outside.page(chapter["content"], file or f"{DOCS}/{chapter['source_path']}")
    return book


def main():
    if sys.argv[1:2] == ["supports"]:
        return 0  # every renderer
    context, book = json.load(sys.stdin)
    json.dump(convert(context, book), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
