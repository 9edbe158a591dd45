// The order of scores and logits: descending, equal ones by ascending index, NaN after every number.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace ddtree::ref {

// Indices of the k first values in that order.
inline std::vector<int32_t> largest(std::span<const float> values, int64_t k) {
  std::vector<int32_t> index(values.size());
  std::iota(index.begin(), index.end(), 0);
  std::partial_sort(index.begin(), index.begin() + k, index.end(), [values](int32_t a, int32_t b) {
    if (std::isnan(values[a]) || std::isnan(values[b])) {
      if (std::isnan(values[a]) && std::isnan(values[b])) return a < b;
      return std::isnan(values[b]);
    }
    return values[a] != values[b] ? values[a] > values[b] : a < b;
  });
  index.resize(k);
  return index;
}

}  // namespace ddtree::ref
