#include "server/random_id.h"

#include <random>
#include <string_view>

namespace ddtree {

std::string random_id() {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  constexpr int kLength = 22, kPerWord = 5;  // 6 bits each of 32
  std::random_device device;
  std::string id;
  for (uint32_t bits = 0; id.size() < kLength; bits >>= 6) {
    if (id.size() % kPerWord == 0) bits = device();
    id += kAlphabet[bits & 63];
  }
  return id;
}

uint64_t random_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace ddtree
