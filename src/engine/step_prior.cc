#include "engine/step_prior.h"

#include <algorithm>

namespace ddtree {
namespace {

constexpr double kPlainBytes = 2;      // of a bf16 weight
constexpr double kInt4Bytes = 0.5625;  // of an INT4 one in groups of 32
constexpr double kFlops = 2;           // of a weight for a row
constexpr double kOverlap = 0.7;       // rows of one text choose experts more alike than chance; see expected_experts()

struct Counts {
  double dense = 0;   // weights that every row uses
  double expert = 0;  // of one expert in all layers that have experts
  double key = 0;     // multiplications of a row for each token before it
};

Counts count(const ModelConfig& c) {
  const double hidden = static_cast<double>(c.hidden_size), heads = static_cast<double>(c.num_heads);
  const double lora = static_cast<double>(c.kv_lora_rank), q_lora = static_cast<double>(c.q_lora_rank);
  const double q_out = heads * static_cast<double>(c.qk_head_dim());
  const double query = q_lora > 0 ? q_lora * (hidden + q_out) : hidden * q_out;
  const double latent = hidden * static_cast<double>(c.kv_row_width()) +
                        lora * heads * static_cast<double>(c.qk_nope_head_dim + c.v_head_dim);
  const double output = heads * static_cast<double>(c.v_head_dim) * hidden;
  Counts out;
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    out.dense += query + latent + output;
    out.key += heads * static_cast<double>(c.kv_row_width() + c.kv_lora_rank);
    if (c.is_moe_layer(layer)) {
      out.dense +=
          3 * hidden * static_cast<double>(c.shared_intermediate_size()) + hidden * static_cast<double>(c.num_experts);
      out.expert += 3 * hidden * static_cast<double>(c.moe_intermediate_size);
    } else {
      out.dense += 3 * hidden * static_cast<double>(c.intermediate_size);
    }
  }
  out.dense += hidden * static_cast<double>(c.vocab_size);
  return out;
}

}  // namespace

// Two cores of a server, measured (docs/benchmarks.md).
MachineSpeed cpu_speed() { return {58e6, 200e6, 32e6, 235e6}; }

// A large accelerator, rounded: its memory at four fifths, its multiplications at half of what is printed on it.
MachineSpeed gpu_speed() { return {4e9, 4e9, 0, 400e9}; }

StepPrior step_prior(const ModelConfig& target, const DrafterConfig* drafter, const MachineSpeed& machine) {
  const Counts counts = count(target);
  const double experts = static_cast<double>(target.num_experts),
               top_k = static_cast<double>(target.num_experts_per_token);
  const double expert_bytes = target.int4_group_size > 0 ? kInt4Bytes : kPlainBytes;
  const double bytes = counts.dense * kPlainBytes + experts * counts.expert * expert_bytes;
  const double speed = bytes < machine.cache_bytes ? machine.cached_bytes_per_ms : machine.bytes_per_ms;
  const auto read_ms = [&](double weights, double each) { return weights * each / speed; };
  const auto row_ms = [&](double weights) { return kFlops * weights / machine.flops_per_ms; };
  StepPrior prior;
  prior.fixed_ms = read_ms(counts.dense, kPlainBytes);
  prior.row_ms = row_ms(counts.dense + top_k * counts.expert);
  prior.expert_ms = read_ms(counts.expert, expert_bytes);
  prior.experts = static_cast<int32_t>(target.num_experts);
  prior.top_k = static_cast<int32_t>(target.num_experts_per_token);
  prior.overlap = kOverlap;
  prior.key_ms = row_ms(counts.key);
  if (drafter == nullptr) return prior;
  const double hidden = static_cast<double>(drafter->hidden_size), layers = static_cast<double>(drafter->num_layers);
  const double heads = static_cast<double>(drafter->num_heads * drafter->head_dim);
  const double keys = 2 * static_cast<double>(drafter->num_kv_heads * drafter->head_dim);
  const double taps = static_cast<double>(drafter->num_taps()) * static_cast<double>(target.hidden_size) * hidden;
  const double block = layers * hidden * (2 * heads + keys + 3 * static_cast<double>(drafter->intermediate_size)) +
                       hidden * static_cast<double>(drafter->vocab_size);
  prior.propose_ms = read_ms(block, kPlainBytes);
  prior.stream_ms = row_ms(block) * static_cast<double>(drafter->block_size);
  prior.observed_ms = row_ms(taps + layers * hidden * keys);
  return prior;
}

}  // namespace ddtree
