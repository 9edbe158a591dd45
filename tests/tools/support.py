"""A throw-away project tree, and the checkers as modules."""
import importlib
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))


def tool(name):
    return importlib.import_module(name)


class TreeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name) / "checkout"
        self.root.mkdir()

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def assert_findings(self, check, *expected):
        """One finding for each expected (start, fragment), in order, and no other."""
        found = list(check(self.root))
        self.assertEqual(len(found), len(expected), found)
        for finding, (start, fragment) in zip(found, expected):
            self.assertTrue(finding.startswith(start) and fragment in finding, (finding, start, fragment))
