import unittest

from support import TreeTest, tool

style = tool("check_style")


def function(lines, head="int f()"):
    """A function of exactly that many lines."""
    return head + " {\n" + "  g();\n" * (lines - 2) + "}\n"


class CheckStyle(TreeTest):
    def test_clean_files_have_no_finding(self):
        self.write("src/base/a.h", "// What it is.\n#pragma once\n\nclass A {\n public:\n  int f() { return 1; }\n};\n")
        self.write("src/base/a.cc", '#include "base/a.h"\n\nnamespace ddtree {\n' + function(80) + "}  // namespace ddtree\n")
        self.assert_findings(style.check)

    def test_line_caps(self):
        for suffix, cap in ((".h", 200), (".cc", 600), (".cu", 900), (".cuh", 900)):
            first = "#pragma once\n" if suffix in (".h", ".cuh") else "int x;\n"
            self.write(f"src/base/fits{suffix}", first + "int x;\n" * (cap - 1))
            self.write(f"src/base/long{suffix}", first + "int x;\n" * cap)
        self.assert_findings(style.check, ("src/base/long.cc:601", "cap of a .cc"), ("src/base/long.cu:901", "cap of a .cu"),
                             ("src/base/long.cuh:901", "cap of a .cuh"), ("src/base/long.h:201", "cap of a .h"))

    def test_function_cap(self):
        self.write("src/base/a.cc", "int x;\n" + function(81))
        self.assert_findings(style.check, ("src/base/a.cc:2", "function of 81 lines"))

    def test_function_forms_are_all_measured(self):
        for head in ("template <class T, class U>\nU f(T t)", "Foo::Foo(int a)\n    : a_{a}, b_(a), c_{}", "TEST(Suite, Name)",
                     "struct S {\n int f() const", "namespace a::b {\nclass T {\n public:\n  T& operator()(int x) noexcept",
                     'extern "C" int entry(const char* p)', "static const auto kF = [](int x)"):
            with self.subTest(head):
                closing = "}\n" * sum(head.count(word) for word in ("struct S {", "namespace a::b {", "class T {"))
                self.write("src/base/a.cc", function(100, head) + closing)
                self.assert_findings(style.check, ("src/base/a.cc", "function of 1"))

    def test_what_is_not_a_function(self):
        table = "constexpr int kTable[] = {\n" + "  1,\n" * 90 + "};\n"
        braces = 'const char* kText = R"({{{)"; /* { */ // {\nconst char kOpen = \'{\';\n'
        self.write("src/base/a.cc", table + braces + "int a;\n" * 90 + function(80) + "class A {\n" + "  int f();\n" * 90 + "};\n")
        self.assert_findings(style.check)

    def test_a_forward_pass_may_be_longer_in_model_only(self):
        self.write("src/model/a.cc", function(250, "TensorView A::forward(int x)"))
        self.assert_findings(style.check)
        self.write("src/model/a.cc", function(251, "TensorView A::forward(int x)"))
        self.assert_findings(style.check, ("src/model/a.cc:1", "the cap is 250"))
        self.write("src/model/a.cc", function(81, "int load(int x)"))
        self.write("src/engine/a.cc", function(81, "TensorView forward(int x)"))
        self.assert_findings(style.check, ("src/engine/a.cc:1", "the cap is 80"), ("src/model/a.cc:1", "the cap is 80"))

    def test_marks(self):
        for mark in ("TO" "DO", "FIX" "ME", "XX" "X", "HA" "CK"):
            with self.subTest(mark):
                self.write("tests/base/a.cc", f"int x;  // {mark}: later\n")
                self.assert_findings(style.check, ("tests/base/a.cc:1", mark))

    def test_conditional_compilation(self):
        for line in ("#if 1", "#ifdef A", "  #  ifndef A", "#elif A"):
            with self.subTest(line):
                self.write("src/base/a.cc", "int x;\n" + line + "\n")
                self.assert_findings(style.check, ("src/base/a.cc:2", "conditional compilation"))

    def test_the_allow_list_is_honoured(self):
        self.write("src/base/a.cc", "#if 1\n#endif\n")
        style.CONDITIONAL_FILES["src/base/a.cc"] = "for this test"
        self.addCleanup(style.CONDITIONAL_FILES.pop, "src/base/a.cc")
        self.assert_findings(style.check)

    def test_pragma_once(self):
        self.write("src/base/a.h", "// Comment.\nint x;\n#pragma once\n")
        self.assert_findings(style.check, ("src/base/a.h:1", "#pragma once"))

    def test_white_space(self):
        self.write("README.md", "text \nmore")
        self.assert_findings(style.check, ("README.md:1", "trailing"), ("README.md:2", "no newline"))


if __name__ == "__main__":
    unittest.main()
