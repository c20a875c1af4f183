"""docs/documents.toml: each item has something that shows it, which exists.

`python3 -B tests/book/documents_test.py` runs it.
"""

import re
import tomllib
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# How many items each of the documents has.
ITEMS = {"0": 41, "1": 52, "2": 22, "3": 34, "4": 15}
KUBECTL = re.compile(r"kubectl (get|describe|delete|logs|apply|create|scale|annotate|label|patch|port-forward|exec) \S")


def anchors(page):
    """The names by which headings of a page are linked."""
    heads = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def is_test(function, text, path):
    """Whether a file has a test of that name."""
    if path.endswith(".py"):
        return f"\n    def {function}(" in text
    before, found, _ = text.partition(f"fn {function}(")
    # What stands between the end of the function before and this one.
    head = re.split(r"\n\s*\}\n", before)[-1]
    return bool(found) and ("#[test]" in head or "#[tokio::test" in head)


def missing(shown):
    """What is wrong with something that shows an item; None if it exists."""
    if shown.startswith("kubectl trainingjob "):
        return None  # crates/kubectl/src/pages.rs parses it
    if shown.startswith("kubectl "):
        return None if KUBECTL.match(shown) else "is no command of kubectl"
    path, _, function = shown.partition("::")
    path, _, section = path.partition("#")
    if not (ROOT / path).exists():
        return "does not exist"
    if function and not is_test(function, (ROOT / path).read_text(), path):
        return "is no test there"
    if section and section not in anchors((ROOT / path).read_text()):
        return "is no section of the page"
    return None


class Documents(unittest.TestCase):
    def setUp(self):
        self.items = tomllib.loads((ROOT / "docs" / "documents.toml").read_text())["item"]

    def test_every_item_of_the_documents_is_there_once(self):
        wanted = [f"{document}.{number + 1}" for document, count in ITEMS.items() for number in range(count)]
        self.assertEqual([item["id"] for item in self.items], wanted)

    def test_every_item_is_shown_or_says_why_not(self):
        for item in self.items:
            with self.subTest(item["id"]):
                self.assertTrue(item["wants"].endswith((".", "?")))
                self.assertNotEqual(bool(item.get("shown")), bool(item.get("not")), "either `shown` or `not`")

    def test_what_shows_an_item_exists(self):
        wrong = [f"{item['id']}: {shown} {why}" for item in self.items for shown in item.get("shown", [])
                 if (why := missing(shown))]
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))

    def test_what_does_not_exist_is_found(self):
        for shown in ("kubectl paint job", "docs/no-page.md", "docs/operate.md#no-section", "tests/api.rs::no_test",
                      "tests/api.rs::yaml_files", "tests/book/documents_test.py::anchors"):
            self.assertIsNotNone(missing(shown), shown)


if __name__ == "__main__":
    unittest.main()
