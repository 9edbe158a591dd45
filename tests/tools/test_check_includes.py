import unittest

from support import TreeTest, tool

includes = tool("check_includes")

ORDER = ("base", "tensor", "spec", "checkpoint", "backend", "model", "engine", "server", "cli")


class CheckIncludes(TreeTest):
    def setUp(self):
        super().setUp()
        for folder in ORDER + ("text",):
            self.write(f"src/{folder}/{folder}.h", "#pragma once\n")

    def include(self, path, *targets):
        self.write(path, "".join(f"#include {t}\n" if t[0] == "<" else f'#include "{t}"\n' for t in targets))

    def test_every_folder_may_include_what_comes_before_it(self):
        for i, folder in enumerate(ORDER):
            self.include(f"src/{folder}/x.cc", *(f"{f}/{f}.h" for f in ORDER[:i + 1]), "<vector>", "<sys/mman.h>", "<fmt/format.h>")
        self.include("src/text/x.cc", "base/base.h", "<cstdio>")
        self.assert_findings(includes.check)

    def test_no_folder_may_include_what_comes_after_it(self):
        for i, folder in enumerate(ORDER):
            for later in ORDER[i + 1:]:
                with self.subTest(f"{folder} -> {later}"):
                    self.include("src/" + folder + "/x.cc", f"{later}/{later}.h")
                    self.assert_findings(includes.check, (f"src/{folder}/x.cc:1", f"{folder} may not depend on {later}"))
            (self.root / "src" / folder / "x.cc").unlink(missing_ok=True)

    def test_text_stands_on_base_alone(self):
        for other in ORDER[1:]:
            with self.subTest(other):
                self.include("src/text/x.cc", "base/base.h", f"{other}/{other}.h")
                self.assert_findings(includes.check, ("src/text/x.cc:2", f"text may not depend on {other}"))
        self.include("src/text/x.cc", "base/base.h")
        self.include("src/engine/x.cc", "text/text.h")
        self.assert_findings(includes.check, ("src/engine/x.cc:1", "engine may not depend on text"))

    def test_backends_are_leaves(self):
        self.write("src/backend/cpu/cpu.h", "#pragma once\n")
        self.write("src/backend/ref/ref.h", "#pragma once\n")
        self.include("src/backend/registry.cc", "backend/cpu/cpu.h", "backend/ref/ref.h")
        self.include("src/backend/cpu/x.cc", "backend/cpu/cpu.h", "backend/backend.h")
        self.include("tests/ops/x.cc", "backend/cpu/cpu.h")
        self.assert_findings(includes.check)
        self.include("src/backend/ref/x.cc", "backend/cpu/cpu.h")
        self.include("src/backend/x.cc", "backend/ref/ref.h")
        self.include("src/engine/x.cc", "backend/cpu/cpu.h")
        self.assert_findings(includes.check, ("src/backend/ref/x.cc:1", "backend/cpu is a leaf"),
                             ("src/backend/x.cc:1", "backend/ref is a leaf"), ("src/engine/x.cc:1", "backend/cpu is a leaf"))

    def test_third_party_headers_stay_in_their_files(self):
        for header, home in (("boost/json.hpp", "src/base/json.cc"), ("oniguruma.h", "src/text/splitter.cc"),
                             ("CLI/CLI.hpp", "src/cli/run.cc"), ("boost/beast.hpp", "src/server/http.cc"),
                             ("boost/asio.hpp", "src/server/http_listener.cc"), ("cuda_runtime.h", "src/backend/cuda/moe/x.cu"),
                             ("gtest/gtest.h", "tests/base/x.cc"), ("rapidcheck/gtest.h", "tests/base/x.cc"),
                             ("benchmark/benchmark.h", "bench/x.cc"), ("fmt/format.h", "src/engine/x.cc")):
            with self.subTest(header):
                self.include(home, f"<{header}>")
                self.assert_findings(includes.check)
                self.include("src/base/thing.h", f"<{header}>")
                self.assert_findings(includes.check, ("src/base/thing.h:1", f"<{header}> belongs in"))
                (self.root / "src/base/thing.h").unlink()
        self.include("src/base/x.cc", "<boost/algorithm/string.hpp>")
        self.assert_findings(includes.check, ("src/base/x.cc:1", "no file of this project"))

    def test_an_include_names_a_file_from_src(self):
        self.include("src/base/x.cc", "base.h", "../tensor/tensor.h")
        self.assert_findings(includes.check, ("src/base/x.cc:1", "not a file of src/"), ("src/base/x.cc:2", "not a file of src/"))

    def test_tests_may_include_their_own_helpers(self):
        self.write("tests/ops/op_cases.h", "#pragma once\n")
        self.include("tests/ops/x.cc", "op_cases.h", "ops/op_cases.h", "base/base.h")
        self.assert_findings(includes.check)

    def test_a_new_folder_needs_a_place_in_the_order(self):
        self.write("src/utils/x.h", "#pragma once\n")
        self.assert_findings(includes.check, ("src/utils", "without a place"))


if __name__ == "__main__":
    unittest.main()
