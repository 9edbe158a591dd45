#!/usr/bin/env python3
"""Adds up JUnit files and prints 'N passed, N failed' as the last line.

usage: test_total.py FILE.xml…     exits 1 if a test failed, a file is missing or broken, or a file holds no test.
"""
import sys
import xml.etree.ElementTree as ElementTree


def outcome(case):
    """ctest marks a test whose program is missing as 'notrun', like a skipped one, but without a <skipped> element;
    GoogleTest calls a disabled one 'suppressed'."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    if case.find("skipped") is not None or case.get("status") == "disabled" or case.get("result") == "suppressed":
        return "skipped"
    return "failed" if case.get("status") == "notrun" else "passed"


def main(paths):
    count = {"passed": 0, "failed": 0, "skipped": 0}
    for path in paths:
        executed = 0
        try:
            for case in ElementTree.parse(path).getroot().iter("testcase"):
                result = outcome(case)
                count[result] += 1
                executed += result != "skipped"
                if result == "failed":
                    print(f"FAILED {path}: {case.get('name')}")
        except (OSError, ElementTree.ParseError) as error:
            print(f"FAILED {path}: {error}")
        if not executed:
            count["failed"] += 1
            print(f"FAILED {path}: no test was executed")
    skipped = f", {count['skipped']} skipped" if count["skipped"] else ""
    print(f"{count['passed']} passed, {count['failed']} failed{skipped}")
    return 1 if count["failed"] or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
