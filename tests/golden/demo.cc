#include "golden/demo.h"

#include <map>

#include "backend/registry.h"
#include "golden/golden_file.h"

namespace ddtree {
namespace {

const std::string kDemo = DDTREE_SOURCE_DIR "/models/demo";
constexpr int kPrefillRows = 512;
constexpr int kStepRows = 1088;

const GoldenFile& golden_file() {
  static const GoldenFile file("tests/golden/golden.safetensors");
  return file;
}

SchedulerOptions scheduler(int streams) {
  SchedulerOptions options;
  options.max_streams = streams;
  options.max_rows = kStepRows;
  options.prefill_rows = kPrefillRows;
  return options;
}

}  // namespace

std::vector<int32_t> golden_ids(const std::string& name) { return golden_file().ids(name); }
std::vector<float> golden_floats(const std::string& name) { return golden_file().floats(name); }
std::vector<int32_t> golden_prompt(int index) { return golden_ids("p" + std::to_string(index) + ".prompt"); }
std::vector<int32_t> golden_greedy(int index) { return golden_ids("p" + std::to_string(index) + ".greedy"); }

DemoPair& DemoPair::on(const std::string& device, const std::string& isa) {
  static std::map<std::string, std::unique_ptr<DemoPair>> pairs;
  auto& pair = pairs[device + " " + isa];
  if (!pair) pair.reset(new DemoPair(device, isa));
  return *pair;
}

DemoPair::DemoPair(const std::string& device, const std::string& isa)
    : backend_(*make_backend({device, 1, isa})),
      model_(*load_model(*backend_, *locate_model(kDemo, "auto"), {kStepRows, kStreams, kPrefillRows})) {}

std::unique_ptr<EngineCore> DemoPair::engine(int streams, int pages, bool with_drafter, bool reuse_prefixes) {
  EngineOptions options;
  options.scheduler = scheduler(streams);
  options.scheduler.reuse_prefixes = reuse_prefixes;
  options.max_context = 1024;
  options.cache_tokens = pages > 0 ? int64_t{pages} * kPageRows : int64_t{1024} * streams;
  options.eos_ids = model_.config.eos_ids;
  return *EngineCore::create(*backend_, *model_.decoder, with_drafter ? model_.drafter.get() : nullptr, options);
}

std::vector<int32_t> Decoded::ids() const {
  std::vector<int32_t> out;
  for (const OutputToken& token : tokens) out.push_back(token.id);
  return out;
}

std::vector<Decoded> decode(EngineCore& engine, std::vector<Request> requests, int streams) {
  std::vector<Decoded> results(requests.size());
  int active = 0;
  for (size_t next = 0; active > 0 || next < requests.size();) {
    for (; active < streams && next < requests.size(); ++next, ++active) {
      CHECK(engine.validate(requests[next]).ok());
      const Status status = engine.submit(next, std::move(requests[next]), [&](Event&& event) {
        Decoded& to = results[event.request];
        std::move(event.tokens.begin(), event.tokens.end(), std::back_inserter(to.tokens));
        if (event.finish == FinishReason::kNone) return;
        to.finish = event.finish;
        to.error = event.error;
        if (event.stats) to.stats = *event.stats;
        to.trace = std::move(event.trace);
        --active;
      });
      CHECK(status.ok());
    }
    engine.step();
    engine.scheduler().check();
  }
  return results;
}

Decoded decode(EngineCore& engine, Request request) {
  std::vector<Request> one;
  one.push_back(std::move(request));
  return std::move(decode(engine, std::move(one), 1)[0]);
}

Request greedy_request(std::vector<int32_t> prompt, int max_tokens, SpecOptions spec) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  request.spec = spec;
  return request;
}

}  // namespace ddtree
