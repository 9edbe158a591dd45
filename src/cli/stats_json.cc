#include "cli/stats_json.h"

#include <span>

#include <fmt/core.h>

namespace ddtree {
namespace {

// Up to the last count that is not 0.
void write_counts(JsonWriter& out, std::string_view name, std::span<const int32_t> counts) {
  while (!counts.empty() && counts.back() == 0) counts = counts.first(counts.size() - 1);
  out.key(name).begin_array();
  for (int32_t n : counts) out.value(n);
  out.end_array();
}

}  // namespace

void write_stats(JsonWriter& out, const RequestStats& s) {
  out.member("mode", s.effective_mode).key("not_speculating");
  s.not_speculating.empty() ? out.null() : out.value(s.not_speculating);
  out.key("decision");
  s.decision.empty() ? out.null() : out.value(s.decision);
  out.member("prompt_tokens", s.prompt_tokens).member("output_tokens", s.output_tokens);
  out.member("prefill_rows", s.prefill_tokens).member("preemptions", s.preemptions);
  out.member("trimmed_passes", s.trimmed);
  out.member("steps", s.steps).member("accepted_length", s.accepted_length());
  out.member("drafted_nodes", s.drafted).member("wasted_nodes", s.drafted - (s.committed - s.steps));
  out.member("probes", s.probes);
  write_counts(out, "passes_by_nodes", s.passes_by_nodes);
  write_counts(out, "accepted_histogram", s.accepted_histogram);
  write_counts(out, "accepted_at_depth", s.accepted_at_depth);
  write_counts(out, "accepted_at_rank", s.accepted_at_rank);
  out.key("phase_ms").begin_object();
  for (int p = 0; p < kPhases; ++p) out.member(phase_name(static_cast<Phase>(p)), s.phase_ms[p]);
  out.end_object().member("logits_hash", fmt::format("{:016x}", s.logits_hash));
}

}  // namespace ddtree
