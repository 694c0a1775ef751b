"""What the documentation tells a user to type, and scripts type: commands resolve, keys and values are known, targets and
files are there."""

import re

import program

PAGES = [program.SOURCE_DIR / "README.md", program.SOURCE_DIR / "CONTRIBUTING.md", *sorted((program.SOURCE_DIR / "docs").glob("*.md"))]
# Names for what a user puts there.
PLACEHOLDER = re.compile(r"\b[A-Z][A-Z0-9]*\b|…")


def fenced_lines(text):
    """Lines of code blocks, those that end in a backslash joined with the next."""
    for block in re.findall(r"(?ms)^```\w*\n(.*?)^```", text):
        yield from (line.strip() for line in block.replace("\\\n", " ").splitlines())


def inline(text):
    """What stands in back quotes in running text."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"(?ms)^```.*?^```", "", text))


class DocumentationTest(program.TestCase):
    def setUp(self):
        super().setUp()
        self.texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
        program.write_fasta(self.folder / "FILE.fa", bases=2000)
        program.write_fasta(self.folder / "yeast.fa", bases=2000)

    def test_commands_of_code_blocks(self):
        run = 0
        for page, text in self.texts.items():
            for line in fenced_lines(text):
                words = line.split()
                if not words or words[0] not in ("moebius", "build/bin/moebius"):
                    continue
                run += 1
                with self.subTest(f"{page.name}: {line}"):
                    if words[1] == "train":  # what it would train
                        self.moebius("config", *words[2:])
                    else:
                        help_text = self.moebius(words[1], "--help").stdout
                        for option in (word for word in words if word.startswith("--")):
                            self.assertIn(option, help_text)
        self.assertGreaterEqual(run, 3)

    def test_configurations_of_code_blocks(self):
        found = 0
        for page, text in self.texts.items():
            for block in re.findall(r"(?ms)^```yaml\n(.*?)^```", text):
                found += 1
                (self.folder / "mine.yaml").write_text(block)
                with self.subTest(page.name):
                    self.moebius("config", "--config", "mine.yaml")
        self.assertGreaterEqual(found, 1)

    def test_overrides_in_running_text(self):
        tried = set()
        for page, text in self.texts.items():
            for code in inline(text):
                for word in code.split():
                    if not re.fullmatch(r"(?!key\b)[a-z][a-z0-9_.]*=[\w.,/-]+", word) or PLACEHOLDER.search(word.split("=")[1]):
                        continue
                    tried.add((page.name, word))
        self.assertGreaterEqual(len(tried), 8)
        self.are_known(tried)

    def test_overrides_of_scripts(self):
        keys = set(re.findall(r"(?m)^\| `([a-z_.0-9]+)` \|", (program.SOURCE_DIR / "docs/configuration.md").read_text(encoding="utf-8")))
        self.assertIn("dataset.path", keys)
        tried = set()
        scripts = [*(program.SOURCE_DIR / "tools").glob("*.*"), *(program.SOURCE_DIR / "bench").rglob("*.py"), program.SOURCE_DIR / ".ci/run"]
        for script in scripts:
            words = re.findall(r"(?<![\w.$-])([a-z][a-z0-9_.]*)=([\w./-]+)", script.read_text(encoding="utf-8"))
            tried |= {(script.name, f"{key}={value}") for key, value in words if key in keys and "." in key}
        self.assertGreaterEqual(len(tried), 8)
        self.are_known(tried)

    def are_known(self, tried):
        for name, word in sorted(tried):
            with self.subTest(f"{name}: {word}"):
                # It may need other keys beside it, and be refused for that; but it is known, and so is its value.
                result = self.call("config", "--config-name", "L0_sanity", word)
                for wrong in ("unknown key", "must be one of", "must be a", "must be true", "must be at"):
                    self.assertNotIn(wrong, result.stderr)

    def test_targets_of_make(self):
        makefile = (program.SOURCE_DIR / "Makefile").read_text(encoding="utf-8")
        targets = set(re.search(r"(?m)^\.PHONY: (.*)$", makefile).group(1).split())
        named = set()
        for text in self.texts.values():
            lines = [*inline(text), *fenced_lines(text)]
            named |= {m.group(1) for line in lines for m in re.finditer(r"(?:^|&& )make ((?!CUDA)[a-z][a-z-]*)", line)}
        self.assertGreater(len(named), 4)
        self.assertEqual(named - targets, set())

    def test_files_of_the_tree(self):
        root = re.compile(r"(?:moebius|tools|tests|configs|bench|docs|cmake)/[\w./*-]+")
        named = 0
        for page, text in self.texts.items():
            for code in inline(text):
                for path in root.findall(code):
                    if not code.startswith(path) or PLACEHOLDER.search(path):
                        continue
                    named += 1
                    with self.subTest(f"{page.name}: {path}"):
                        self.assertTrue(list(program.SOURCE_DIR.glob(path.rstrip("/"))), path)
        self.assertGreater(named, 15)


if __name__ == "__main__":
    program.main()
