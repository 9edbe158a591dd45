#include "cli/program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <fstream>

namespace ddtree {

const std::string kDemo = DDTREE_SOURCE_DIR "/models/demo";

namespace {

struct Pipe {
  int ends[2];
  Pipe() { EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0); }
};

[[noreturn]] void become_program(const std::vector<std::string>& arguments, const Pipe& in, const Pipe& out,
                                 const Pipe& err) {
  dup2(in.ends[0], 0);
  dup2(out.ends[1], 1);
  dup2(err.ends[1], 2);
  std::vector<char*> argv = {const_cast<char*>(DDTREE_PROGRAM)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(127);
}

// Appends what can be read; false at the end of the stream.
bool read_some(int fd, std::string& to) {
  std::array<char, 65536> buffer;
  const ssize_t n = read(fd, buffer.data(), buffer.size());
  if (n > 0) to.append(buffer.data(), static_cast<size_t>(n));
  return n > 0;
}

}  // namespace

Ran run_program(const std::vector<std::string>& arguments, const std::string& input, int interrupt_after_bytes) {
  Pipe in, out, err;
  const pid_t child = fork();
  if (child == 0) become_program(arguments, in, out, err);
  close(in.ends[0]);
  close(out.ends[1]);
  close(err.ends[1]);
  EXPECT_EQ(write(in.ends[1], input.data(), input.size()), static_cast<ssize_t>(input.size()));
  close(in.ends[1]);
  Ran ran;
  std::array<pollfd, 2> fds = {{{out.ends[0], POLLIN, 0}, {err.ends[0], POLLIN, 0}}};
  while (fds[0].fd >= 0 || fds[1].fd >= 0) {
    poll(fds.data(), fds.size(), -1);
    for (int i = 0; i < 2; ++i)
      if (fds[i].fd >= 0 && fds[i].revents != 0 && !read_some(fds[i].fd, i == 0 ? ran.out : ran.err)) {
        close(fds[i].fd);
        fds[i].fd = -1;
      }
    if (interrupt_after_bytes >= 0 && std::ssize(ran.out) >= interrupt_after_bytes) {
      kill(child, SIGINT);
      interrupt_after_bytes = -1;
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  ran.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ran;
}

std::string temporary_file(const std::string& name, const std::string& content) {
  const std::string path = testing::TempDir() + "ddtree_cli_" + std::to_string(getpid()) + "_" + name;
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

}  // namespace ddtree
