// What:   one chunk of attention for a few queries that see the same keys: scores, softmax, weighted sum of values.
// Order:  a score is 16 partial sums over d = lane (mod 16), then a fixed tree; a chunk's exponentials are summed by
// key
//         slot; values are added in key order; chunks are folded into the state in ascending order by the caller.
// Mapping: tiles of queries × 4 keys (scores) and queries × 64 dimensions (values) in registers.
// Bound:  queries · keys · (key + value dimensions) multiply-adds; a chunk's keys are read once from memory per call.
#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/kernels_pointwise.h"

namespace ddtree::cpu {

template <class V>
class AttendKernel {
 public:
  static void scores(const float* const* q, int32_t queries, const float* const* keys, int32_t n, int64_t dim,
                     float* scores) {
    for (int32_t j = 0; j < n; j += kKeys) {
      const float *k[kKeys], *next[kKeys];  // these four keys and the four after; the last stands in for missing ones
      for (int i = 0; i < kKeys; ++i) {
        k[i] = keys[j + i < n ? j + i : n - 1];
        next[i] = keys[j + kKeys + i < n ? j + kKeys + i : n - 1];
      }
      const int32_t valid = n - j < kKeys ? n - j : kKeys;
      for_groups(queries, [&]<int Q>(int32_t first) {
        score_tile<Q>(q + first, k, next, valid, dim, scores + first * kChunk + j);
      });
    }
  }

  static void softmax(float* scores, float scale, float* max, float* sum) {
    Float s[4];
    for (int i = 0; i < 4; ++i) s[i] = V::mul(V::load(scores + i * kLanes), V::set(scale));
    const float top = V::max_lane(V::max(V::max(s[0], s[2]), V::max(s[1], s[3])));
    for (int i = 0; i < 4; ++i) {
      s[i] = exp<V>(V::sub(s[i], V::set(top)));
      V::store(scores + i * kLanes, s[i]);
    }
    *max = top;
    *sum = V::sum(V::add(V::add(s[0], s[2]), V::add(s[1], s[3])));
  }

  static void mix(const float* p, int32_t queries, const float* const* values, int32_t n, int64_t dim,
                  const float* alpha, const float* beta, float* const* state) {
    int64_t d = 0;
    for (; d + kWide * kLanes <= dim; d += kWide * kLanes)
      for_groups(queries, [&]<int Q>(int32_t q) {
        mix_tile<Q, kWide>({p + q * kChunk, values, n, d, kLanes, alpha + q, beta + q, state + q});
      });
    for (; d < dim; d += kLanes) {
      const int64_t lanes = dim - d < kLanes ? dim - d : kLanes;
      for_groups(queries, [&]<int Q>(int32_t q) {
        mix_tile<Q, 1>({p + q * kChunk, values, n, d, lanes, alpha + q, beta + q, state + q});
      });
    }
  }

 private:
  using Float = typename V::Float;
  static constexpr int kKeys = 4;
  static constexpr int kWide = 4;

  static Float folded(Float state, Float partial, float alpha, float beta) {
    return V::fma(partial, V::set(beta), V::mul(state, V::set(alpha)));
  }

  // Calls f.operator()<Q>(first) for groups of Q ≤ kTileRows queries, as even as possible.
  template <class F>
  static void for_groups(int32_t queries, F f) {
    const int32_t groups = (queries + V::kTileRows - 1) / V::kTileRows;
    for (int32_t g = 0; g < groups; ++g) {
      const int32_t first = queries * g / groups;
      call_group<V::kTileRows>(queries * (g + 1) / groups - first, first, f);
    }
  }
  template <int Q, class F>
  static void call_group(int32_t count, int32_t first, F& f) {
    if constexpr (Q > 1) {
      if (count < Q) return call_group<Q - 1>(count, first, f);
    }
    f.template operator()<Q>(first);
  }

  template <int Q>
  static void score_tile(const float* const* q, const float* const* k, const float* const* next, int32_t valid,
                         int64_t dim, float* out) {
    Float sums[Q][kKeys];
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < kKeys; ++j) sums[i][j] = V::zero();
    const float* qp[Q];
    for (int i = 0; i < Q; ++i) qp[i] = q[i];
    const float* kp[kKeys] = {k[0], k[1], k[2], k[3]};
    const float* np[kKeys] = {next[0], next[1], next[2], next[3]};
    int64_t d = 0;
    for (; d + kLanes <= dim; d += kLanes) {
      // A key row is too short for the hardware to follow: fetch the next four into the second-level cache meanwhile.
#pragma GCC unroll 4
      for (int j = 0; j < kKeys; ++j) __builtin_prefetch(np[j] + d, 0, 2);
      score_step<Q>(
          sums, [&](int i) { return V::load(qp[i] + d); }, [&](int j) { return V::load(kp[j] + d); });
    }
    if (d < dim)
      score_step<Q>(
          sums, [&](int i) { return V::load(qp[i] + d, dim - d, 0); },
          [&](int j) { return V::load(kp[j] + d, dim - d, 0); });
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i) V::sum4(sums[i], out + i * kChunk, valid);
  }
  template <int Q, class LoadQ, class LoadK>
  static void score_step(Float (&sums)[Q][kKeys], LoadQ load_q, LoadK load_k) {
    Float key[kKeys];
#pragma GCC unroll 4
    for (int j = 0; j < kKeys; ++j) key[j] = load_k(j);
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i) {
      const Float query = load_q(i);
#pragma GCC unroll 4
      for (int j = 0; j < kKeys; ++j) sums[i][j] = V::fma(query, key[j], sums[i][j]);
    }
  }

  struct MixArgs {
    const float* p;
    const float* const* values;
    int32_t n;
    int64_t d, lanes;  // lanes of the last vector
    const float *alpha, *beta;
    float* const* state;
  };
  template <int Q, int W>
  static void mix_tile(const MixArgs& a) {
    Float sums[Q][W];
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i)
#pragma GCC unroll 4
      for (int w = 0; w < W; ++w) sums[i][w] = V::zero();
    for (int32_t j = 0; j < a.n; ++j) {
      Float value[W];
#pragma GCC unroll 4
      for (int w = 0; w < W - 1; ++w) value[w] = V::load(a.values[j] + a.d + w * kLanes);
      value[W - 1] = V::load(a.values[j] + a.d + (W - 1) * kLanes, a.lanes, 0);
#pragma GCC unroll 8
      for (int i = 0; i < Q; ++i) {
        const Float p = V::set(a.p[i * kChunk + j]);
#pragma GCC unroll 4
        for (int w = 0; w < W; ++w) sums[i][w] = V::fma(p, value[w], sums[i][w]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i)
#pragma GCC unroll 4
      for (int w = 0; w < W; ++w) {
        const int64_t lanes = w == W - 1 ? a.lanes : kLanes;
        float* state = a.state[i] + a.d + w * kLanes;
        V::store(state, folded(V::load(state, lanes, 0), sums[i][w], a.alpha[i], a.beta[i]), lanes);
      }
  }
};

}  // namespace ddtree::cpu
