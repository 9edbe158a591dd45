// Runs the ddtree program as a user would, and hands back what it said.
#pragma once

#include <string>
#include <vector>

namespace ddtree {

struct Ran {
  int status = 0;  // exit status; 128 + n where signal n ended it
  std::string out, err;
};

// `input` goes to its standard input, which is then closed. With `interrupt_after_bytes`, it gets SIGINT once it has
// printed so many.
Ran run_program(const std::vector<std::string>& arguments, const std::string& input = "",
                int interrupt_after_bytes = -1);

// A file with this content below the test's own temporary directory.
std::string temporary_file(const std::string& name, const std::string& content);

extern const std::string kDemo;  // the demo pair's directory

}  // namespace ddtree
