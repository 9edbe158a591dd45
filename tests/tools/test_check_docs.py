import unittest

from support import TreeTest, tool

docs = tool("check_docs")


class CheckDocs(TreeTest):
    def test_links_that_resolve(self):
        self.write("src/engine/step.cc", "int x;\n")
        self.write("docs/a.md", "[step](../src/engine/step.cc#L3) [folder](../src/engine) [web](https://example.org/x) [here](#top)\n")
        self.write("README.md", "[a](docs/a.md) and `[code](missing.md)`\n```\n[sample](missing.md)\n```\n")
        self.assert_findings(docs.check)

    def test_links_that_do_not(self):
        self.write("docs/a.md", "ok\n[gone](missing.md)\n[out](../../other/b.md)\n")
        self.assert_findings(docs.check, ("docs/a.md:2", "missing file: missing.md"), ("docs/a.md:3", "out of the project"))

    def test_paths_of_one_machine(self):
        self.write("src/base/a.cc", f"// see {self.root}/notes\n")
        self.write("docs/b.md", "run " + "/home" + "/someone/ddtree\n")
        self.write("docs/c.md", f"beside {self.root.parent}/other\n")
        self.assert_findings(docs.check, ("docs/b.md:1", "one machine"), ("docs/c.md:1", "one machine"),
                             ("src/base/a.cc:1", "one machine"))

    def test_ordinary_paths_are_fine(self):
        self.write("docs/a.md", "GET /v1/models, /etc/os-release, /usr/bin/python3, /tmp/out.json, src/root/x, ./dev\n")
        self.assert_findings(docs.check)


if __name__ == "__main__":
    unittest.main()
