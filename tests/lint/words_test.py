"""The lint of words, and how it tells prose from what only looks like it. `python3 -B tests/lint/words_test.py`."""

import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

import texts
import words

ROOT = Path(__file__).resolve().parents[2]

# By rule: lines that it finds, and lines that look as if it did.
LINES = {
    "go on from": (
        ["An attempt goes on  from a checkpoint.", "It went on\nfrom there.", "Going on from step 9 is possible."],
        [
            "An attempt resumes from the newest checkpoint.",
            "The log has `goes on from step 9`.",
            "```\nit goes on from step 9\n```",
            "See [the example](https://example.com/go on from.html), and [another](going-on from.md).",
            "The cargo on from Hamburg, and to undergo on from; it goes on fromage.",
            "The programs go on. From there the agent leads.",
            "The training goes on, from time to time with a warning.",
            "    goes on from step 9",
        ],
    ),
    "told": (
        ["The status told it.", "| a | is told |\n|---|---|", "> **Told** is emphasis."],
        [
            "It is untold, and was retold.",
            "The program prints `told you so`.",
            "~~~text\ntold\n~~~",
            "TOLD_BY is a variable in `TOLD` mode, and a fold.",
            "[text](docs/told.md), <https://told.example.com>, http://localhost/told, [text][told]",
            "<!-- what was told\nand told again -->",
            "---\ntitle: told\n---\nText.",
        ],
    ),
    "tell of": (
        ["The events tell  of it.", "An event tells\nof it."],
        [
            "The hotels of the town foretells of nothing.",
            "It prints `tells of 3 ranks`.",
            "An event tells often how far it is.",
            "It tells off-line workers apart.",
            "```sh\necho tell of it\n```",
            "Tell. Of all workers one leads.",
        ],
    ),
    "come to": (
        ["What a job comes  to is printed.", "It may come to that."],
        [
            "Two workers come together, and come too late.",
            "The outcome to expect; incomes to outcomes to come today.",
            "`comes to`",
            "It becomes total, and becomes to the reader a rule.",
            "The worker comes. To start it, write this.",
            "```\ncomes to\n```",
        ],
    ),
    "mend": (
        ["Mend the template.", "It starts once that is mended."],
        [
            "We recommend it, amend it and commend it.",
            "Mendel, Mendoza, a mendicant and tremendous vendors.",
            "`mend` is a command.",
            "[amendments](mend.md)",
            "```\nmend the net\n```",
            "An emended text is a commendation.",
        ],
    ),
    "heed": (
        ["The option is not heeded.", "Heed the limit."],
        [
            "It succeeded, proceeded and exceeded the limit; a wheedler, with heedfulness.",
            "`heed` is a key.",
            "<b title=heed>Text</b>",
            "```\nheed\n```",
            "The cheed-fs driver and sheedy.",
            "[text]: https://example.com/heed",
        ],
    ),
    "as ever": (
        ["Then all is as  ever.", "It is as\never."],
        [
            "It is as every other, and was ever so.",
            "The gang is as everybody knows it.",
            "`as ever`",
            "```\nas ever\n```",
            "As everything grows, so do as ever-larger models.",
            "It has ever been; alias everywhere.",
        ],
    ),
    "some 5": (
        ["It takes some  50 seconds.", "Some 1,200 pods run.", "After some 10-20 MB it ends."],
        [
            "It uses some 3rd-party code, and some 2D arrays.",
            "Handsome 5 and awesome 3 are names.",
            "`some 5`",
            "Some workers run: 5 of 8.",
            "```\nsome 5\n```",
            "It prints some. 5 workers run.",
            "Use some 8-bit integers.",
        ],
    ),
    "is no number": (
        ["Its loss is  no  number.", "The port is no value of the list."],
        [
            "There is no number in it, and there is no value.",
            "It is not a number.",
            "`is no number`",
            "This no value is; it is no numbering, and is no valued guest.",
            "```\nis no number\n```",
            "It is no. Number 5 is next.",
        ],
    ),
    "who": (
        ["Who writes it?", "For whoever trains.", "A person who\nreads it."],
        [
            "The whole gang, whose leader answers to whom it may.",
            "The WHO publishes data.",
            "`who` prints names, and so does ``who am i``.",
            "A wholesale change, and a whodunit by showho.",
            "```console\n$ who\n```",
            "[a page](https://example.com/who/whoever?who=1)",
            "| `who` | <who@example.com> |\n|---|---|",
        ],
    ),
    "nobody": (
        ["Nobody reads it.", "It is nobody's."],
        [
            "It runs as `nobody`.",
            "NOBODY_UID is 65534, and the claim nobodys-claim exists.",
            "```yaml\nuser: nobody\n```",
            "[users](nobody.md)",
            "No body of a request is read.",
            "The image is built by nobodyd and xnobody.",
        ],
    ),
    "somebody": (
        ["Somebody deleted it.", "It is somebody's pod."],
        [
            "The log says `somebody deleted it`.",
            "```\nsomebody\n```",
            "Some body of text, somebodies of a novel, somebodyelse and xsomebody.",
            "    > somebody",
            "<!-- somebody --> text",
            "<img alt=somebody>",
        ],
    ),
    "for nothing": (
        ["The GPUs are held for  nothing.", "It waits for\nnothing.", "It waits for nothing otherwise."],
        [
            "It waits for nothing else, and for nothing but a node.",
            "A preparation for nothingness.",
            "`for nothing`",
            "```\nfor nothing\n```",
            "It is looked for. Nothing is found.",
            "Therefor nothing happens.",
        ],
    ),
    "anew": (
        ["It begins anew.", "Anew, all pods are made."],
        [
            "A new pod is made.",
            "`anewline`, and anewline or Anewton in prose.",
            "```\nanew\n```",
            "[text](anew.md#anew)",
            "It renews, and a newer one follows xanew.",
            "The host anew.example.com is `anew.example.com`; see https://anew.example.com.",
        ],
    ),
}
# The limit of words, with 25 in each sentence at most.
TWENTY_FIVE = " ".join(["word"] * 25)
SHORT_ENOUGH = [
    f"{TWENTY_FIVE}.",
    f"It ends here. {TWENTY_FIVE.capitalize()}.",
    f"(It ends here.) {TWENTY_FIVE.capitalize()}.",
    f"**It ends here.** {TWENTY_FIVE.capitalize()}.",
    f"It ends here. `{TWENTY_FIVE}` is {' '.join(['word'] * 23)}.",
    f"Is it \"the end?\" {TWENTY_FIVE.capitalize()}!",
    f"```\n{TWENTY_FIVE} {TWENTY_FIVE}\n```",
    f"# {TWENTY_FIVE} {TWENTY_FIVE}",
    f"{TWENTY_FIVE} {TWENTY_FIVE}\n===",
    f"- {TWENTY_FIVE}\n- {TWENTY_FIVE}\n1. {TWENTY_FIVE}",
    f"| {TWENTY_FIVE} | {TWENTY_FIVE} |\n|---|---|\n| a \\| b | {TWENTY_FIVE} |",
    f"---\ntitle: {TWENTY_FIVE} {TWENTY_FIVE}\n---",
    f"Text.\n\n    {TWENTY_FIVE} {TWENTY_FIVE}",
    f"<!-- {TWENTY_FIVE}\n{TWENTY_FIVE} -->",
    f"{' '.join(['word'] * 24)} [text](https://example.com/a/b \"{TWENTY_FIVE}\").",
    f"{' '.join(['word'] * 24)} https://example.com/{'-'.join(['word'] * 30)}",
]
LONG = [
    f"{TWENTY_FIVE} more.",
    f"A sentence, e.g. One of this kind, {' '.join(['word'] * 19)}.",
    f"Version 1.5 and 0.2.0 of it: {' '.join(['word'] * 20)}.",
    f"| short | {TWENTY_FIVE} more |\n|---|---|",
    f"- {TWENTY_FIVE}\n  more",
    f"> {TWENTY_FIVE}\n> more",
    f"`a` {TWENTY_FIVE}",
]


def found(source, path="docs/page.md"):
    return [finding for text in texts.markdown(path, source) for finding in words.find_in(text)]


def rules(source):
    return [finding.rule for finding in found(source)]


class Rules(unittest.TestCase):
    def test_every_rule_has_lines_that_look_like_findings(self):
        self.assertEqual(sorted(LINES), sorted(rule.name for rule in words.RULES))
        for name, (finds, harmless) in LINES.items():
            self.assertGreaterEqual(len(harmless), 5, name)
            self.assertGreaterEqual(len(finds), 2, name)

    def test_rules_find_their_words(self):
        for name, (lines, _) in LINES.items():
            for line in lines:
                with self.subTest(rule=name, line=line):
                    self.assertEqual(rules(line), [name])

    def test_rules_pass_what_looks_like_their_words(self):
        for name, (_, lines) in LINES.items():
            for line in lines:
                with self.subTest(rule=name, line=line):
                    self.assertEqual(rules(line), [])

    def test_finding_names_place_word_part_and_remedy(self):
        finding, = found("# Title\n\nOne line,\nand the status\ntold it to all.\n")
        self.assertEqual(str(finding), 'docs/page.md:5: "told": One line, and the status told it to all.; '
                                       "write instead: reported, sent, logged or set, by meaning")

    def test_part_is_cut_around_the_word(self):
        finding, = found("aaaaaaaaa " * 10 + "told " + "bbbbbbbbb " * 10)
        self.assertTrue(finding.part.startswith("... a") and finding.part.endswith("b ..."), finding.part)
        self.assertLess(len(finding.part), 100)


class Sentences(unittest.TestCase):
    def test_short_sentences_pass(self):
        for line in SHORT_ENOUGH:
            with self.subTest(line=line):
                self.assertEqual(rules(line), [])

    def test_long_sentences_are_found(self):
        for line in LONG:
            with self.subTest(line=line):
                self.assertEqual(rules(line), [words.TOO_LONG])

    def test_long_sentence_names_its_first_line_and_its_length(self):
        finding, = found(f"Short.\nLong one\n{TWENTY_FIVE}.")
        self.assertEqual((finding.line, finding.word), (2, "27 words"))

    def test_words_are_counted_as_a_reader_does(self):
        for source, count in (("a `b c d` e", 3), ("[a b](c) e", 3), ("1.5 GB - no", 3), ("**a** b", 2), ("", 0),
                              ("read-only a/b", 2)):
            with self.subTest(source=source):
                self.assertEqual(words.count_words(texts.mask(source)), count)


class Pages(unittest.TestCase):
    def test_fence_ends_with_its_own_kind_and_length(self):
        self.assertEqual(rules("````\n```\ntold\n````\ntold"), ["told"])
        self.assertEqual(rules("~~~\n```\ntold\n~~~\ntold"), ["told"])
        self.assertEqual(rules("- item\n  ```sh\n  told\n  ```\n  told"), ["told"])
        self.assertEqual(rules("```\ntold"), [], "a fence that is left open ends with the page")
        self.assertEqual(rules("``` told ``` is told"), ["told"], "code within a line opens no fence")

    def test_indented_text_of_a_list_is_prose(self):
        self.assertEqual(rules("- item\n\n    It is told."), ["told"])
        self.assertEqual(rules("Text.\n\n    It is told."), [])

    def test_code_spans_may_have_two_lines_and_two_signs(self):
        self.assertEqual(rules("a `told\ntold` b ``told ` told`` c"), [])
        self.assertEqual(rules("a ` told"), ["told"], "a sign alone opens nothing")
        self.assertEqual(rules("\\`told\\`"), ["told"])

    def test_comment_within_code_is_no_comment(self):
        self.assertEqual(rules("Write `<!-- x` first.\n\nIt is told."), ["told"])
        self.assertEqual(rules("a <!-- told --> told <!-- told"), ["told"])

    def test_line_that_only_looks_like_front_matter_ends_nothing(self):
        self.assertEqual(rules("---\nIt is told."), ["told"])
        self.assertEqual(rules("Text\n\n---\nIt is told.\n\n---\n"), ["told"])

    def test_cells_are_read_one_by_one(self):
        table = "| a \\| told | `|` | who |\n|---|---|---|"
        self.assertEqual(rules(table), ["told", "who"])


class RustSources(unittest.TestCase):
    SOURCE = textwrap.dedent('''
        //! It is told.
        #![allow(dead_code, reason = "told to nobody at all")]
        /// It is told.
        fn first<'a>(x: &'a str) -> char {
            // "It is told."
            /* "told" /* nested "it is told" */ "it is told" */
            let quote = '"'; let other = '\\'';
            let plain = "it is \\"told\\" here";
            let long = "a line that \\
                        goes on from here";
            let raw = r#"a "raw" one: nobody is here"#;
            let pattern = r"(?i)who \\d+ told";
            let word = "told"; let key = "nobody";
            let format = format!("{told} is {nobody:?} and {who}");
            b'"'
        }
        #[command(after_help = "It is told to all.")]
        struct Args;
        #[cfg(test)]
        #[allow(clippy::x)]
        mod tests {
            const TOLD: &str = "it is told { by a brace";
            fn f() { g("nobody is here"); }
            fn h() { if true { g("who is here") } }
        }
        #[cfg(test)] mod histories;
        #[cfg(all(test, unix))]
        fn g() { "who is it" }
        fn after() { "as ever and ever" }
        #[cfg(feature = "test")]
        fn other() { "somebody is here" }
    ''')

    def found(self, source=SOURCE):
        texts_ = texts.rust_strings("src/x.rs", source)
        return [(finding.line, finding.word) for text in texts_ for finding in words.find_in(text)]

    def test_literals_are_read_outside_of_tests_comments_and_patterns(self):
        lines = self.SOURCE.splitlines()
        self.assertEqual([(lines[line - 1].strip()[:12], word) for line, word in self.found()], [
            ("let plain = ", "told"), ("goes on from", "goes on from"), ("let raw = r#", "nobody"),
            ("#[command(af", "told"), ("fn after() {", "as ever"), ('fn other() {', "somebody"),
        ])

    def test_file_for_tests_alone_has_none(self):
        self.assertEqual(self.found('#![cfg(test)]\nfn f() { "it is told" }'), [])

    def test_unfinished_literals_end_with_the_file(self):
        for source in ('fn f() { "it is', 'fn f() { r#"it is', "/* it is", "#[cfg(test)] mod x {", "#[cfg(test)]"):
            with self.subTest(source=source):
                self.assertEqual(self.found(source), [])

    def test_modules_for_tests_are_found_by_their_names(self):
        folder = Path(tempfile.mkdtemp(prefix="words-test-"))
        self.addCleanup(shutil.rmtree, folder, True)
        (folder / "keep").mkdir()
        (folder / "tests").mkdir()
        for name, source in {"lib.rs": "#[cfg(test)]\nmod a;\nmod keep;", "a.rs": "", "keep.rs": "#[cfg(test)] mod b;",
                             "keep/b.rs": "", "keep/c.rs": "", "tests/d.rs": "", "tests.rs": ""}.items():
            (folder / name).write_text(source)
        kept = {str(path.relative_to(folder)) for path in folder.rglob("*.rs")} - {
            str(path.relative_to(folder)) for path in texts.test_files(folder)}
        self.assertEqual(kept, {"lib.rs", "keep.rs", "keep/c.rs"})

    def test_help_is_the_doc_comments_of_what_clap_reads(self):
        source = textwrap.dedent('''
            /// Not told: no part of a command.
            struct Other { /// Nor told here.
                field: u8 }
            /// Prints what is told.
            ///
            /// And who reads it.
            #[derive(Parser)]
            #[command(name = "x")]
            struct Args {
                /// Name, told by a
                /// person.
                name: String,
                // It is told.
                other: u8,
            }
            /// Told after it.
            fn main() {}
        ''')
        texts_ = texts.rust_help("src/main.rs", source)
        self.assertEqual([text.shown for text in texts_],
                         ["Prints what is told.", "And who reads it.", "Name, told by a person."])
        self.assertTrue(all(text.is_limited for text in texts_))
        self.assertEqual(texts.rust_help("src/lib.rs", "/// told\nfn f() {}"), [])


    def test_comments_are_read_line_after_line_outside_of_literals_and_examples(self):
        source = textwrap.dedent('''
            //! A page of
            //! two lines.
            //!
            //! ```
            //! it_is("told");
            //! ```
            /// It goes
            /// on from here.
            fn f() { "it is // told" } // behind it
            // "http://somebody" has a scheme
            const URL: &str = r"//nobody"; /* told */
            #[cfg(test)]
            mod tests {
                // told `told` by // it
                fn g() {}
                //
                // alone
            }
        ''')
        texts_ = texts.rust_comments("src/x.rs", source)
        self.assertEqual([text.shown for text in texts_], [
            "A page of two lines.", "It goes on from here. behind it \"http://somebody\" has a scheme",
            "told `told` by // it", "alone"])
        self.assertEqual([(finding.line, finding.word) for text in texts_ for finding in words.find_in(text)],
                         [(8, "goes on from"), (15, "told")])
        self.assertFalse(any(text.is_limited for text in texts_))


class PythonSources(unittest.TestCase):
    def test_comments_and_docstrings_are_read(self):
        source = textwrap.dedent('''
            #!/usr/bin/env python3
            """What it does.

            It goes
            on from here."""

            LINES = """told
            nobody"""  # a constant
            # told
            # later

            #
            def f():
                """Who knows."""
                return "# told"
        ''').lstrip()
        texts_ = texts.python_comments("x.py", source)
        self.assertEqual(sorted(text.shown for text in texts_), [
            "It goes on from here.", "What it does.", "Who knows.", "a constant told later"])
        self.assertEqual(sorted((finding.line, finding.word) for text in texts_ for finding in words.find_in(text)),
                         [(4, "goes on from"), (9, "told"), (14, "Who")])


class Manifests(unittest.TestCase):
    def test_comments_are_read_outside_of_blocks_strings_and_commands(self):
        source = textwrap.dedent('''
            # It is told
            # in two lines.
            #   kubectl told nobody
            #!told
            a: "b # told"  # who writes it
            b: it's # somebody
            c: 'it''s # told'
            d: x#told
            args:
              - |
                # told
                code  # told

                # told
              - --x  # anew
            e: >-
              # told
            f: # nobody
        ''')
        texts_ = texts.yaml_comments("deploy/x.yaml", source)
        self.assertEqual([text.shown for text in texts_],
                         ["It is told in two lines.", "who writes it", "somebody", "anew", "nobody"])

    def test_descriptions_are_read_in_each_form(self):
        source = textwrap.dedent('''
            properties:
              a:
                description: Plain, `told`,
                  in two lines.
                type: string
              b:
                description: "Quoted: who \\"it\\" is."
              c:
                description: >-
                  A block,
                  of two paragraphs.

                  The second.
              env:
                description: Ours.
                items:
                  description: Theirs.
                  properties:
                    name:
                      description: Theirs, too.
                  x-kubernetes-validations:
                    - message: "a is wrong: write b; or c"
                      rule: "who"
              d:
                description: Ours again.
        ''')
        texts_ = texts.yaml_values("crds/x.yaml", source, ("description", "message"), foreign=("env",))
        self.assertEqual([text.shown for text in texts_], [
            "Plain, `told`, in two lines.", 'Quoted: who \\"it\\" is.', "A block, of two paragraphs.", "The second.",
            "Ours.", "a is wrong:", "write b;", "or c", "Ours again."])

    def test_templates_of_alerts_are_words(self):
        text, = texts.yaml_values("x.yaml", 'summary: It {{ $labels.who | printf "told" }} runs', ("summary",))
        self.assertEqual(words.find_in(text), [])
        self.assertEqual(words.count_words(text.masked), 3)

    def test_dashboards_have_titles_and_descriptions(self):
        source = '{\n  "title": "Told",\n  "expr": "told",\n  "description": "Who \\"it\\" is",\n  "x": {"title": 1}\n}'
        self.assertEqual([text.shown for text in texts.json_values("x.json", source)], ["Told", 'Who "it" is'])

    def test_snapshot_is_read_below_its_head(self):
        source = "---\nsource: told\nexpression: who\n---\n  It is told.\n\n"
        self.assertEqual([text.shown for text in texts.snapshot("x.snap", source)], ["It is told."])


class Allow(unittest.TestCase):
    def setUp(self):
        self.root = Path(tempfile.mkdtemp(prefix="words-test-"))
        self.addCleanup(shutil.rmtree, self.root, True)
        (self.root / "docs").mkdir()
        (self.root / "docs" / "a.md").write_text("It is told. Nobody is here, and nobody else.\n")

    def check(self, allow, **more):
        result = words.check(self.root, allow=allow, **more)
        return [finding.word for findings in result.findings.values() for finding in findings], result.wrong

    def test_nothing_is_allowed_by_itself(self):
        self.assertEqual(self.check("# a comment\n\n"), (["told", "Nobody", "nobody"], []))

    def test_rule_allows_all_its_words_in_a_file(self):
        self.assertEqual(self.check("docs/*.md | nobody | a reason"), (["told"], []))

    def test_text_allows_the_word_within_it(self):
        self.assertEqual(self.check("docs/a.md | and nobody else | a reason"), (["told", "Nobody"], []))

    def test_text_allows_no_other_word_of_its_sentence(self):
        found, wrong = self.check("docs/a.md | is here | a reason")
        self.assertEqual(found, ["told", "Nobody", "nobody"])
        self.assertEqual(len(wrong), 1)

    def test_entry_of_another_file_allows_nothing_and_is_wrong(self):
        found, wrong = self.check("docs/b.md | nobody | a reason")
        self.assertEqual(found, ["told", "Nobody", "nobody"])
        self.assertIn("no file is called docs/b.md", wrong[0])

    def test_entry_that_is_not_needed_is_wrong(self):
        _, wrong = self.check("docs/a.md | told | a reason\ndocs/a.md | anew | a reason")
        self.assertEqual(wrong, ["tests/lint/words.allow:2: this entry allows nothing that is there: remove it"])

    def test_entry_of_a_group_that_is_not_read_is_not_judged(self):
        entry = "src/main.rs | told | a reason"
        self.assertEqual(self.check(entry, groups=("docs",))[1], [])
        self.assertEqual(self.check("docs/a.md | anew | a reason", only_paths=["docs/a"])[1], [])

    def test_entry_needs_three_parts(self):
        for entry in ("docs/a.md | told", "docs/a.md | told | ", "told", "docs/a.md | told | a | b", " | told | a"):
            with self.subTest(entry=entry):
                self.assertIn("an entry is", self.check(entry)[1][0])

    def test_at_most_twenty_entries(self):
        entry = "docs/a.md | told | a reason\n"
        self.assertEqual(self.check(entry * 20)[1], [])
        self.assertIn("at most 20", self.check(entry * 21)[1][0])

    def test_long_sentence_is_allowed_by_its_words(self):
        (self.root / "docs" / "a.md").write_text(f"{TWENTY_FIVE} more.\n")
        self.assertEqual(self.check("docs/a.md | word more. | a reason"), ([], []))


class Repository(unittest.TestCase):
    def test_every_group_has_texts(self):
        for group, least in {"docs": 500, "crds": 150, "help": 80, "sources": 1000, "comments": 2000, "deploy": 100,
                             "examples": 30}.items():
            with self.subTest(group=group):
                self.assertGreater(sum(1 for _ in words.texts_of(ROOT, group)), least)

    def test_allow_file_is_in_form(self):
        self.assertEqual(words.read_allowed(words.ALLOW.read_text())[1], [])

    def test_tests_and_programs_for_tests_are_not_read(self):
        paths = {text.path for text in words.texts_of(ROOT, "sources")}
        self.assertTrue(any(path.startswith("crates/kubectl/src/") for path in paths))
        wrong = [path for path in paths if "/tests/" in path or path.endswith("tests.rs") or "testkit" in path]
        self.assertEqual(wrong, [])

    def test_program_prints_its_findings_and_counts(self):
        done = subprocess.run([sys.executable, "-B", str(ROOT / "tests/lint/words.py"), "--only", "examples"],
                              capture_output=True, text=True, check=False)
        self.assertRegex(done.stdout.splitlines()[-1], r"^examples \d+: \d+ findings$")
        self.assertEqual(done.returncode, int(not done.stdout.endswith(": 0 findings\n")), done.stderr)


if __name__ == "__main__":
    unittest.main()
