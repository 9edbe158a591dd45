#include "server/server_metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>

namespace ddtree {
namespace {

constexpr double kMaxTokens = 262144;

std::vector<double> whole_numbers(int last) {
  std::vector<double> bounds;
  for (int i = 1; i <= last; ++i) bounds.push_back(i);
  return bounds;
}

double resident_bytes() {
  int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double open_descriptors() {
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  double count = -3;  // ".", ".." and the folder itself
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

double cpu_seconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

const double kStarted = static_cast<double>(std::time(nullptr));

void write_process(MetricsText& out) {
  out.gauge("process_resident_memory_bytes", "Memory that is resident.", resident_bytes());
  out.gauge("process_open_fds", "Open descriptors.", open_descriptors());
  out.counter("process_cpu_seconds_total", "Processor time, of user and system.", cpu_seconds());
  out.gauge("process_start_time_seconds", "When the process began, in seconds since 1970.", kStarted);
}

}  // namespace

ServerMetrics::ServerMetrics()
    : first_token_(bounds_1_2_5(1e-3, 100)),
      between_tokens_(bounds_1_2_5(1e-3, 10)),
      http_(bounds_1_2_5(1e-3, 1000)),
      prompt_(bounds_1_2_5(1e-3, 100)),
      decode_(bounds_1_2_5(1e-3, 1000)),
      prompt_length_(bounds_of_two(kMaxTokens)),
      length_(bounds_of_two(kMaxTokens)),
      step_tokens_(whole_numbers(kMaxDepth + 1)),
      accepted_length_(whole_numbers(kMaxDepth + 1)) {}

void ServerMetrics::on_http(const HttpDone& done) {
  const std::lock_guard lock(mutex_);
  ++by_route_[{done.route, done.status}];
  gone_ += done.gone;
  http_.add(done.seconds);
}

void ServerMetrics::on_first_token(double seconds) {
  const std::lock_guard lock(mutex_);
  first_token_.add(seconds);
}

void ServerMetrics::on_step(double seconds, int tokens) {
  const std::lock_guard lock(mutex_);
  between_tokens_.add(seconds);
  step_tokens_.add(tokens);
}

void ServerMetrics::on_end(const GenerationReport& report) {
  const RequestStats& stats = report.timings.stats;
  const std::lock_guard lock(mutex_);
  ++by_outcome_[std::string(report.outcome)];
  prompt_tokens_ += report.usage.prompt;
  cached_tokens_ += report.usage.cached;
  tokens_ += report.usage.completion;
  preemptions_ += stats.preemptions;
  prompt_length_.add(static_cast<double>(report.usage.prompt));
  length_.add(static_cast<double>(report.usage.completion));
  prompt_.add(report.timings.prompt_ms / 1000);
  decode_.add(report.timings.predicted_ms / 1000);
  not_speculated_ += stats.drafted == 0;
  if (stats.drafted == 0) return;
  spec_.passes += stats.steps;
  spec_.drafted += stats.drafted;
  spec_.trimmed += stats.trimmed;
  for (size_t depth = 1; depth < spec_.at_depth.size(); ++depth) {
    spec_.at_depth[depth] += stats.accepted_at_depth[depth];
    spec_.accepted += stats.accepted_at_depth[depth];
  }
  for (size_t rank = 0; rank < spec_.at_rank.size(); ++rank) spec_.at_rank[rank] += stats.accepted_at_rank[rank];
  for (size_t tokens = 1; tokens < stats.accepted_histogram.size(); ++tokens)
    accepted_length_.add(static_cast<double>(tokens), stats.accepted_histogram[tokens]);
}

std::string ServerMetrics::text(const MetricsSnapshot& snapshot) const {
  MetricsText out;
  {
    const std::lock_guard lock(mutex_);
    write_requests(out);
    write_engine(out, snapshot);
    write_speculation(out);
    write_aliases(out);
  }
  write_process(out);
  return std::move(out).text();
}

void ServerMetrics::write_requests(MetricsText& out) const {
  out.family("ddtree_requests_total", "counter", "HTTP requests by route and status; 0: gone before it was known.");
  for (const auto& [key, count] : by_route_)
    out.sample({{"route", key.first}, {"status", std::to_string(key.second)}}, static_cast<double>(count));
  out.family("ddtree_request_finish_total", "counter", "Generations by how they ended.");
  for (const auto& [outcome, count] : by_outcome_) out.sample({{"reason", outcome}}, static_cast<double>(count));
  const auto counter = [&](std::string_view name, std::string_view help, int64_t value) {
    out.counter(name, help, static_cast<double>(value));
  };
  counter("ddtree_clients_gone_total", "Requests whose client left or read too slowly.", gone_);
  counter("ddtree_prompt_tokens_total", "Tokens of prompts.", prompt_tokens_);
  counter("ddtree_prompt_tokens_cached_total", "Of these, tokens whose rows the prefix cache had.", cached_tokens_);
  counter("ddtree_generation_tokens_total", "Tokens generated.", tokens_);
  counter("ddtree_preemptions_total", "Times a request gave its pages to an older one.", preemptions_);
  out.histogram("ddtree_time_to_first_token_seconds", "From a request's arrival to its first token.", first_token_);
  out.histogram("ddtree_inter_token_seconds", "Between the steps that gave a request tokens.", between_tokens_);
  out.histogram("ddtree_step_tokens", "Tokens a request got by one step.", step_tokens_);
  out.histogram("ddtree_http_request_seconds", "From a request's first byte to its reply's last.", http_);
  out.histogram("ddtree_prefill_seconds", "To the first token, waiting included.", prompt_);
  out.histogram("ddtree_decode_seconds", "From the first token to the last.", decode_);
  out.histogram("ddtree_request_prompt_tokens", "Tokens of a request's prompts.", prompt_length_);
  out.histogram("ddtree_request_generation_tokens", "Tokens generated for a request.", length_);
}

void ServerMetrics::write_engine(MetricsText& out, const MetricsSnapshot& snapshot) const {
  const EngineLoad& load = snapshot.load;
  out.gauge("ddtree_requests_running", "Sequences that decode or run their prompts.", load.running);
  out.gauge("ddtree_requests_waiting", "Sequences that wait for a place.", load.waiting);
  out.gauge("ddtree_kv_pages_total", "Pages of the cache.", load.pages);
  out.gauge("ddtree_kv_pages_used", "Pages in use, those kept for prompts to come included.",
            load.pages - load.unused_pages);
  out.counter("ddtree_steps_total", "Passes of the target.", static_cast<double>(load.totals.steps));
  out.counter("ddtree_step_rows_total", "Rows of these passes.", static_cast<double>(load.totals.rows));
  out.counter("ddtree_forward_bytes_total", "Bytes of weights they read.",
              static_cast<double>(load.totals.weight_bytes));
  out.family("ddtree_step_seconds_total", "counter", "Time of the steps by phase.");
  for (int phase = 0; phase < kPhases; ++phase)
    out.sample({{"phase", phase_name(static_cast<Phase>(phase))}},
               load.totals.phase_ms[static_cast<size_t>(phase)] / 1000);
  out.family("ddtree_engine_state", "gauge", "1 for the state that the server is in.");
  for (const std::string_view state : {"loading", "ready", "draining", "stalled"})
    out.sample({{"state", state}}, state == snapshot.state);
  out.family("ddtree_build_info", "gauge", "Always 1.");
  out.sample({{"version", snapshot.version}, {"backend", snapshot.backend}}, 1);
}

void ServerMetrics::write_speculation(MetricsText& out) const {
  const auto counter = [&](std::string_view name, std::string_view help, int64_t value) {
    out.counter(name, help, static_cast<double>(value));
  };
  counter("ddtree_spec_steps_total", "Verification passes of requests that were speculated.", spec_.passes);
  counter("ddtree_spec_draft_tokens_total", "Drafted nodes verified, roots not counted.", spec_.drafted);
  counter("ddtree_spec_accepted_tokens_total", "Drafted nodes accepted.", spec_.accepted);
  counter("ddtree_spec_trimmed_total", "Passes whose tree was cut to fit the step.", spec_.trimmed);
  counter("ddtree_spec_off_requests_total", "Generations that ended without a drafted node.", not_speculated_);
  out.family("ddtree_spec_accepted_at_depth_total", "counter", "Accepted nodes by their depth, from 1.");
  for (size_t depth = 1; depth < spec_.at_depth.size(); ++depth)
    out.sample({{"depth", std::to_string(depth)}}, static_cast<double>(spec_.at_depth[depth]));
  out.family("ddtree_spec_accepted_at_rank_total", "counter", "Accepted nodes by rank among siblings, from 0.");
  for (size_t rank = 0; rank < spec_.at_rank.size(); ++rank)
    out.sample({{"rank", std::to_string(rank)}}, static_cast<double>(spec_.at_rank[rank]));
  out.histogram("ddtree_spec_accept_length", "Tokens a verification pass yielded, its own included.", accepted_length_);
}

// Under the names that load clients of vLLM read: they print 1 + accepted ÷ drafts as the accepted length.
void ServerMetrics::write_aliases(MetricsText& out) const {
  out.counter("vllm:spec_decode_num_drafts_total", "As ddtree_spec_steps_total.", static_cast<double>(spec_.passes));
  out.counter("vllm:spec_decode_num_draft_tokens_total", "As ddtree_spec_draft_tokens_total.",
              static_cast<double>(spec_.drafted));
  out.counter("vllm:spec_decode_num_accepted_tokens_total", "As ddtree_spec_accepted_tokens_total.",
              static_cast<double>(spec_.accepted));
  out.family("vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter", "By depth, from 0.");
  for (size_t depth = 1; depth < spec_.at_depth.size(); ++depth)
    out.sample({{"position", std::to_string(depth - 1)}}, static_cast<double>(spec_.at_depth[depth]));
}

}  // namespace ddtree
