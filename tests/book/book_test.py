"""The book: its contents, its links to files outside of docs, and the check of the built one.

`python3 -B tests/book/book_test.py` runs it; it needs no mdBook.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path

import check
import outside

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"^\s*(?:- )?\[([^\]]+)\]\(([^)]+)\)$")


def chapter(path, content, *sub_items):
    return {"Chapter": {"name": path, "content": content, "path": path, "source_path": path,
                        "sub_items": list(sub_items)}}


def summary():
    """[(title, page)] of the contents, and the titles of its parts."""
    lines = (DOCS / "SUMMARY.md").read_text().splitlines()
    return ([found.groups() for found in map(LINK.match, lines) if found],
            [line.removeprefix("# ") for line in lines if line.startswith("# ")][1:])


def without_fences(content):
    return re.sub(r"^```.*?^```$", "", content, flags=re.DOTALL | re.MULTILINE)


class Contents(unittest.TestCase):
    def test_every_page_is_in_the_book_once(self):
        pages = [page for _, page in summary()[0]]
        there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {"SUMMARY.md"}
        self.assertEqual(sorted(pages), sorted(there))

    def test_page_has_the_title_by_which_the_contents_name_it(self):
        for title, page in summary()[0]:
            content = (DOCS / page).read_text()
            if mark := outside.MARK.match(content):
                content = (DOCS / mark["path"]).read_text()
            with self.subTest(page=page):
                self.assertEqual(content.splitlines()[0], f"# {title}")

    def test_parts_are_in_order(self):
        self.assertEqual(summary()[1], [
            "Getting started", "Concepts", "Tutorial", "How-to", "Operations", "Reference", "Migration", "FAQ",
            "Support matrix", "Threat model", "Contributing"])

    def test_configuration_is_what_mdbook_knows(self):
        config = tomllib.loads((DOCS / "book.toml").read_text())
        known = {"book": {"title", "description", "language", "src"}, "build": {"build-dir", "create-missing"},
                 "preprocessor": {"outside"}, "output": {"html"}}
        for table, values in config.items():
            self.assertLessEqual(set(values), known[table], table)
        self.assertEqual((DOCS / config["build"]["build-dir"]).resolve(), ROOT / "target" / "book")
        program = config["preprocessor"]["outside"]["command"].split()[-1]
        self.assertEqual((DOCS / program).resolve(), Path(outside.__file__).resolve())

    def test_pages_of_other_files_name_a_file_and_lead_to_it(self):
        named = []
        for path in DOCS.rglob("*.md"):
            if mark := outside.MARK.match(path.read_text()):
                self.assertTrue((path.parent / mark["path"]).is_file(), path)
                self.assertIn(f"]({mark['path']})", path.read_text(), path)
                named.append(mark["path"])
        self.assertEqual(sorted(named),
                         ["../ARCHITECTURE.md", "../CHANGELOG.md", "../CONTRIBUTING.md", "../SECURITY.md"])


    def test_links_of_the_pages_stay_within_the_book(self):
        there = [page for _, page in summary()[0]]
        book = outside.convert({}, {"items": [chapter(page, (DOCS / page).read_text()) for page in there]})
        wrong, known = [], {"index.md", *there}
        for made in book["items"]:
            self.assertNotIn("<!-- book:", made["Chapter"]["content"])
            for found in outside.PIECE.finditer(without_fences(made["Chapter"]["content"])):
                target = (found["target"] or "#").partition("#")[0]
                if target and not re.match("[a-z]+:", target) and target not in known:
                    wrong.append(f"{made['Chapter']['path']}: {found['target']}")
        self.assertEqual(wrong, [])


class Architecture(unittest.TestCase):
    def test_files_that_it_names_are_there(self):
        """`plan/policy.rs` is crates/plan/src/policy.rs, `controller` in src, and `gang/memory.rs` the agent's."""
        page = (ROOT / "ARCHITECTURE.md").read_text()
        named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+(?:\.rs)?)`", page))
        self.assertGreater(len(named), 50)

        def is_there(path):
            crate, _, rest = path.partition("/")
            places = (path, f"crates/{crate}/src/{rest}", f"src/{path}", f"crates/agent/src/{path}")
            return any((ROOT / place).exists() for place in places)

        self.assertEqual([path for path in sorted(named) if not is_there(path)], [])


class Outside(unittest.TestCase):
    def setUp(self):
        self.pages = {"CONTRIBUTING.md": "contributing.md", "docs/README.md": "index.md",
                      **{f"docs/{page}": page for page in ("jobs.md", "operate.md", "fields.md")}}

    def page(self, content, file="docs/jobs.md", repository=None):
        return outside.Outside(ROOT, self.pages, repository).page(content, file)

    def test_links_within_the_book_stay(self):
        for content in ("[a](operate.md#states)", "[a](#here)", "[a](https://example.com/../x.md)",
                        "![a](pictures/x.png)", "[a](mailto:a@example.com)", '[a](jobs.md "title")',
                        "[`a`](fields.md)", "[a](/x.md)", "[a [b]](fields.md)"):
            with self.subTest(content=content):
                self.assertEqual(self.page(content), content)

    def test_code_stays(self):
        for content in ("`[a](../x.md)`", "``[a](../x.md) ` ``", "```\n[a](../x.md)\n```\n", "~~~sh\n[a](../x.md)\n",
                        "- ```\n  [a](../x.md)\n  ```\n", "````\n```\n[a](../x.md)\n````\n", "`a` b `[c](../x.md)`"):
            with self.subTest(content=content):
                self.assertEqual(self.page(content), content)

    def test_links_to_files_of_the_repository_become_their_paths(self):
        self.assertEqual(self.page("See [the trial](../tests/planes/x.rs), [b](../deploy/)."),
                         "See the trial (`tests/planes/x.rs`), b (`deploy`).")
        for text in ("`tests/run.py`", "tests/run.py", "run.py", "`run`"):
            with self.subTest(text=text):
                self.assertEqual(self.page(f"See [{text}](../tests/run.py#L1)."), "See `tests/run.py`.")
        self.assertEqual(self.page("[deploy/](../deploy/)"), "`deploy`")
        self.assertEqual(self.page("[the contents](SUMMARY.md)"), "the contents (`docs/SUMMARY.md`)")

    def test_links_lead_to_the_repository_if_its_address_is_set(self):
        self.assertEqual(self.page("[a](../tests/run#L1) [b](../examples)", repository="https://example.com/r/"),
                         "[a](https://example.com/r/blob/HEAD/tests/run#L1) [b](https://example.com/r/tree/HEAD/examples)")

    def test_links_to_files_that_are_pages_lead_to_these(self):
        self.assertEqual(self.page("[a](../CONTRIBUTING.md#tests) [b](README.md)"),
                         "[a](contributing.md#tests) [b](index.md)")

    def test_what_looks_like_a_tag_is_text(self):
        self.assertEqual(self.page("'(?P<step>[0-9]+)' `<b>` <https://example.com/>"),
                         "'(?P&lt;step>[0-9]+)' `<b>` <https://example.com/>")

    def test_links_of_files_of_the_root_lead_from_their_pages(self):
        content = "[a](docs/jobs.md#x) [b](LICENSE) [c](CONTRIBUTING.md)"
        self.assertEqual(self.page(content, "CONTRIBUTING.md"), "[a](jobs.md#x) b (`LICENSE`) [c](contributing.md)")

    def test_links_and_code_may_have_two_lines_and_no_more_paragraphs(self):
        self.assertEqual(self.page("[the\ntrial](../x) `a\n[b](../x)`"), "the\ntrial (`x`) `a\n[b](../x)`")
        self.assertEqual(self.page("a ` b\n\n[c](../x) ` d\n"), "a ` b\n\nc (`x`) ` d\n")

    def test_text_after_a_fence_is_read_again(self):
        self.assertEqual(self.page("```\n[a](../x)\n```\n[a](../x)\n"), "```\n[a](../x)\n```\na (`x`)\n")


class Preprocessor(unittest.TestCase):
    def setUp(self):
        self.root = Path(tempfile.mkdtemp(prefix="book-test-"))
        self.addCleanup(shutil.rmtree, self.root, True)
        (self.root / "CONTRIBUTING.md").write_text("# Contributing\n\n[a](docs/a.md)\n")

    def test_page_gets_the_content_of_the_file_that_it_names(self):
        stub = "<!-- book: ../CONTRIBUTING.md -->\n# Contributing\n\nSee [CONTRIBUTING.md](../CONTRIBUTING.md).\n"
        book = {"items": [chapter("a.md", "[b](../CONTRIBUTING.md)", chapter("contributing.md", stub)),
                          {"PartTitle": "Part"}, "Separator",
                          {"Chapter": {"name": "draft", "content": "", "path": None, "source_path": None,
                                       "sub_items": []}}]}
        book = outside.convert({}, book, self.root)
        first = book["items"][0]["Chapter"]
        self.assertEqual(first["content"], "[b](contributing.md)")
        self.assertEqual(first["sub_items"][0]["Chapter"]["content"], "# Contributing\n\n[a](a.md)\n")

    def test_mark_below_the_first_line_is_text(self):
        content = "# A\n<!-- book: ../CONTRIBUTING.md -->\n"
        book = outside.convert({}, {"items": [chapter("a.md", content)]}, self.root)
        self.assertEqual(book["items"][0]["Chapter"]["content"], content)

    def test_program_speaks_the_protocol_of_mdbook(self):
        program = [sys.executable, "-B", outside.__file__]
        self.assertEqual(subprocess.run([*program, "supports", "html"], check=False).returncode, 0)
        book = {"items": [chapter("a.md", "[b](../tests/run)")], "__non_exhaustive": None}
        context = {"root": "/", "config": {"book": {}, "output": {"html": {}}}, "renderer": "html",
                   "mdbook_version": "0.5.4"}
        done = subprocess.run(program, input=json.dumps([context, book]), capture_output=True, text=True, check=True)
        self.assertEqual(json.loads(done.stdout)["items"][0]["Chapter"]["content"], "b (`tests/run`)")


class Check(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="book-test-"))
        self.addCleanup(shutil.rmtree, self.folder, True)

    def broken(self, **pages):
        for name, source in pages.items():
            (self.folder / f"{name}.html").write_text(source)
        return check.broken(self.folder)[0]

    def test_files_and_anchors_that_are_there(self):
        self.assertEqual(self.broken(
            a='<h1 id="x">A</h1><a href="b.html#y">b</a><a href="#x">x</a><a href="https://example.com/z">z</a>',
            b='<h2 id="y">B</h2><a href="a.html">a</a><img src="data:image/png;base64,AA">'), [])

    def test_files_and_anchors_that_are_not(self):
        page = '<a href="b.html">b</a><a href="#x">x</a><img src="c.png"><a href="../d">d</a>'
        self.assertEqual(self.broken(a=page), [
            "a.html: b.html: no such file", "a.html: #x: no such anchor", "a.html: c.png: no such file",
            "a.html: ../d: no such file"])

    def test_folder_without_pages_is_no_book(self):
        done = subprocess.run([sys.executable, "-B", check.__file__, self.folder], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("build the book first", done.stdout)


if __name__ == "__main__":
    unittest.main()
