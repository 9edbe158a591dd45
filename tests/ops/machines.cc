#include "machines.h"

#include <gtest/gtest.h>

#include <cstdio>

namespace ddtree::ops {
namespace {

// What the files compiled for AVX-512 use; asked of the CPU itself, not of the backend under test.
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

class Announcement : public testing::Environment {
 public:
  void SetUp() override {
    for (const Machine& machine : machines()) std::printf("[ backend  ] %s\n", machine.name.c_str());
    if (!has_avx512()) std::printf("[ NOT RUN  ] cpu avx512: this processor has no AVX-512\n");
  }
};
const testing::Environment* const kAnnouncement = testing::AddGlobalTestEnvironment(new Announcement);

}  // namespace

std::vector<Machine> machines() {
  std::vector<Machine> all = {{"ref", {"ref", 1, "auto"}}, {"cpu portable", {"cpu", 1, "portable"}}};
  if (has_avx512()) all.push_back({"cpu avx512", {"cpu", 1, "avx512"}});
  return all;
}

std::vector<Machine> judged_machines() {
  std::vector<Machine> all = machines();
  all.erase(all.begin());
  return all;
}

std::unique_ptr<Backend> make(const Machine& machine, int32_t threads) {
  BackendOptions options = machine.options;
  options.threads = threads;
  Result<std::unique_ptr<Backend>> backend = make_backend(options);
  CHECK(backend.ok());
  return *std::move(backend);
}

std::unique_ptr<Backend> make_ref() { return make(machines().front()); }

}  // namespace ddtree::ops
