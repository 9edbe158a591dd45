import contextlib
import io
import unittest

from support import TreeTest, tool

test_total = tool("test_total")


class TestTotal(TreeTest):
    def run_on(self, *files):
        """(exit status, printed lines) for files of these contents; None stands for a file that is not there."""
        paths = []
        for i, text in enumerate(files):
            paths.append(str(self.root / f"{i}.xml"))
            if text is not None:
                self.write(f"{i}.xml", text)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            status = test_total.main(paths)
        return status, out.getvalue().splitlines()

    def test_sums_ctest_and_pytest_files(self):
        ctest = '<testsuite tests="2"><testcase name="a" status="run"/><testcase name="b" status="run"/></testsuite>'
        pytest = '<testsuites><testsuite><testcase name="c"/></testsuite></testsuites>'
        self.assertEqual(self.run_on(ctest, pytest), (0, ["3 passed, 0 failed"]))

    def test_a_failure_is_named_and_fails(self):
        for failure in ("<failure/>", "<error/>"):
            status, lines = self.run_on(f'<testsuite><testcase name="a"/><testcase name="b">{failure}</testcase></testsuite>')
            self.assertEqual((status, lines[-1]), (1, "1 passed, 1 failed"))
            self.assertTrue(lines[0].endswith("0.xml: b"), lines)

    def test_a_program_that_was_not_built_is_a_failure(self):
        status, lines = self.run_on('<testsuite><testcase name="a"/><testcase name="b_NOT_BUILT" status="notrun"/></testsuite>')
        self.assertEqual((status, lines[-1]), (1, "1 passed, 1 failed"))

    def test_skipped_and_disabled_tests_are_counted(self):
        text = ('<testsuite><testcase name="a"/><testcase name="b" status="notrun"><skipped/></testcase>'
                '<testcase name="c" status="disabled"/><testcase name="d" status="notrun" result="suppressed"/></testsuite>')
        self.assertEqual(self.run_on(text), (0, ["1 passed, 0 failed, 3 skipped"]))

    def test_no_result_is_a_failure(self):
        good = '<testsuite><testcase name="a"/></testsuite>'
        for bad in (None, "", "<testsuite", "<testsuite/>", '<testsuite><testcase><skipped/></testcase></testsuite>'):
            with self.subTest(bad):
                status, lines = self.run_on(good, bad)
                self.assertEqual((status, lines[-1].split(",")[:2]), (1, ["1 passed", " 1 failed"]))

    def test_no_file_at_all_is_a_failure(self):
        self.assertEqual(self.run_on()[0], 1)


if __name__ == "__main__":
    unittest.main()
