// ddtree run, from outside.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/json.h"
#include "cli/program.h"

namespace ddtree {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::vector<int32_t> ints(const JsonValue& array) {
  std::vector<int32_t> out;
  const JsonElements elements = *array.elements();  // a range-for would let go of the Result
  for (const JsonValue v : elements) out.push_back(static_cast<int32_t>(*v.as_int()));
  return out;
}

std::string joined(const std::vector<int32_t>& ids) {
  std::string out;
  for (int32_t id : ids) out += (out.empty() ? "" : ",") + std::to_string(id);
  return out;
}

// Prompt 2 of golden.json: "\tdef _unschedule" and what transformers continues it with.
const std::vector<int32_t> kIds = {3766, 365, 326, 115, 1507, 569};
const std::string kPrompt = "\tdef _unschedule";
const std::string kContinuation = "d\n        self._unscheduled = unscheduled\n";

std::vector<std::string> with(std::vector<std::string> more) {
  std::vector<std::string> all = {"run", kDemo, "--max-tokens", "24"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(Run, PrintsTheTextAndNothingElseOnStandardOutput) {
  const Ran ran = run_program(with({"--prompt", kPrompt}));
  EXPECT_EQ(ran.status, 0);
  EXPECT_THAT(ran.out, StartsWith(kContinuation));
  EXPECT_THAT(ran.err, HasSubstr("tokens/s"));
}

TEST(Run, JsonHasIdsTextAndStatistics) {
  const Ran ran = run_program(with({"--json", "--ids", joined(kIds), "--temperature", "0", "--cpu-mode", "exact"}));
  ASSERT_EQ(ran.status, 0) << ran.err;
  const JsonDocument document = *parse_json(ran.out, "output");
  const JsonValue root = document.root();
  EXPECT_EQ(ints(*root.get("prompt_ids")), kIds);
  EXPECT_EQ(ints(*root.get("ids")).size(), 24u);
  EXPECT_THAT(std::string(*root.get_string("text")), StartsWith(kContinuation));
  EXPECT_EQ(*root.get_string("finish_reason"), "length");
  const JsonValue stats = *root.get("stats");
  EXPECT_GT(*stats.get_double("tokens_per_second"), 0);
  EXPECT_GT(*stats.get_int("steps"), 0);
  EXPECT_GT(*stats.get_double("accepted_length"), 1);
  EXPECT_GT(*stats.get_double("weight_gb_per_second"), 0);
  EXPECT_GT(*stats.get("phase_ms")->get_double("experts"), 0);
  EXPECT_EQ(stats.get_string("logits_hash")->size(), 16u);
}

TEST(Run, EveryModeGivesTheSameIdsAndLogits) {
  std::string ids, hash;
  for (const char* mode : {"off", "chain", "tree", "auto"}) {
    const Ran ran = run_program(with({"--json", "--prompt", kPrompt, "--spec", mode, "--budget", "15"}));
    ASSERT_EQ(ran.status, 0) << ran.err;
    const JsonDocument document = *parse_json(ran.out, "output");
    const std::string text = document.root().get("ids")->text(),
                      bits(*document.root().get("stats")->get_string("logits_hash"));
    if (ids.empty()) ids = text, hash = bits;
    EXPECT_EQ(text, ids) << mode;
    EXPECT_EQ(bits, hash) << mode;
  }
}

TEST(Run, AutoSaysWhatItDecidedAndWhy) {
  const Ran ran = run_program(with({"--json", "--prompt", kPrompt, "--spec", "auto", "--budget", "32"}));
  ASSERT_EQ(ran.status, 0) << ran.err;
  const JsonDocument document = *parse_json(ran.out, "output");
  const JsonValue stats = *document.root().get("stats");
  EXPECT_THAT(std::string(*stats.get_string("decision")), StartsWith("auto: "));
  int64_t passes = 0;
  for (int32_t n : ints(*stats.get("passes_by_nodes"))) passes += n;
  EXPECT_EQ(passes, *stats.get_int("steps"));
}

TEST(Run, ReadsThePromptFromAPipeOrAFile) {
  EXPECT_THAT(run_program(with({}), kPrompt).out, StartsWith(kContinuation));
  EXPECT_THAT(run_program(with({"--prompt-file", temporary_file("prompt", kPrompt)})).out, StartsWith(kContinuation));
}

TEST(Run, BeginsWithBosAndReadsControlTokensOnlyWhenAsked) {
  const auto prompt_ids = [](const std::vector<std::string>& more) {
    const Ran ran = run_program(with(more));
    const JsonDocument document = *parse_json(ran.out, "output");
    return ints(*document.root().get("prompt_ids"));
  };
  EXPECT_EQ(prompt_ids({"--json", "--prompt", "[BOS]import", "--special"}), (std::vector<int32_t>{4076, 666}));
  EXPECT_EQ(prompt_ids({"--json", "--prompt", "import", "--bos"}), (std::vector<int32_t>{4076, 666}));
  EXPECT_EQ(prompt_ids({"--json", "--prompt", "[BOS]import"}).front(), 91);  // text: no control token
}

TEST(Run, EndsBeforeAStopString) {
  const Ran ran = run_program(with({"--json", "--prompt", kPrompt, "--stop", "no such text", "--stop", "._un"}));
  const JsonDocument document = *parse_json(ran.out, "output");
  EXPECT_EQ(*document.root().get_string("text"), "d\n        self");
  EXPECT_EQ(*document.root().get_string("finish_reason"), "stop");
}

TEST(Run, AStopStringCutsIdsCountsAndLogitsAlikeInEveryMode) {
  std::string ids, hash;
  for (const char* mode : {"off", "chain", "tree"}) {
    const Ran ran =
        run_program(with({"--json", "--prompt", kPrompt, "--stop", "._un", "--spec", mode, "--budget", "32"}));
    const JsonDocument document = *parse_json(ran.out, "output");
    const JsonValue stats = *document.root().get("stats");
    const std::string text = document.root().get("ids")->text(), bits(*stats.get_string("logits_hash"));
    if (ids.empty()) ids = text, hash = bits;
    EXPECT_EQ(text, ids) << mode;
    EXPECT_EQ(bits, hash) << mode;
    EXPECT_EQ(*stats.get_int("output_tokens"), std::ssize(ints(*document.root().get("ids")))) << mode;
  }
}

TEST(Run, FindsTheDrafterHoweverTheModelIsSpelt) {
  for (const std::string& dir : std::vector<std::string>{kDemo, kDemo + "/", kDemo + "/target", kDemo + "/target/",
                                                         kDemo + "/drafter/../target/."}) {
    const Ran ran = run_program({"run", dir, "--json", "--prompt", kPrompt, "--max-tokens", "12"});
    const JsonDocument document = *parse_json(ran.out, "output");
    EXPECT_EQ(*document.root().get("stats")->get_string("mode"), "tree") << dir;
  }
}

TEST(Run, AnInterruptEndsItCleanly) {
  const Ran ran = run_program({"run", kDemo, "--prompt", kPrompt, "--max-tokens", "8000", "--ignore-eos"}, "", 200);
  EXPECT_EQ(ran.status, 130);
  EXPECT_THAT(ran.out, StartsWith(kContinuation));
  EXPECT_THAT(ran.err, HasSubstr("tokens/s"));
}

struct Refusal {
  std::vector<std::string> arguments;
  int status;
  std::string says;
  std::string input = "";
};

TEST(Run, RefusesWhatItCannotDoAndSaysWhy) {
  const std::string empty = temporary_file("empty", ""), latin = temporary_file("latin", "caf\xe9");
  std::string many = "7";
  for (int i = 0; i < 8192; ++i) many += ",7";
  const std::vector<Refusal> refusals = {
      {{"run", "/nowhere"}, 1, "/nowhere", "x"},
      {{"run", kDemo, "--prompt", ""}, 2, "prompt"},
      {{"run", kDemo, "--prompt-file", empty}, 2, "prompt"},
      {{"run", kDemo, "--prompt-file", "/nowhere"}, 1, "/nowhere"},
      {{"run", kDemo, "--prompt-file", latin}, 2, "UTF-8"},
      {{"run", kDemo, "--ids", "4096"}, 2, "4096"},
      {{"run", kDemo, "--ids", "-1"}, 2, "-1"},
      {{"run", kDemo, "--ids", many}, 2, "8192"},
      {{"run", kDemo, "--prompt", "x", "--max-tokens", "0"}, 2, "max_tokens"},
      {{"run", kDemo, "--prompt", "x", "--budget", "256"}, 2, "256"},
      {{"run", kDemo, "--prompt", "x", "--spec", "magic"}, 2, "magic"},
      {{"run", kDemo, "--prompt", "x", "--device", "tpu"}, 2, "tpu"},
      {{"run", kDemo, "--prompt", "x", "--temperature", "-1"}, 2, "temperature"},
      {{"run", kDemo, "--prompt", "x", "--top-p", "2"}, 2, "top_p"},
      {{"run", kDemo, "--prompt", "x", "--stop", ""}, 2, "stop"},
      {{"run", kDemo, "--prompt", "x", "--draft", "/nowhere"}, 1, "/nowhere"},
      {{"run", kDemo, "--prompt", "x", "--draft", kDemo + "/target"}, 2, "architecture"},
      {{"run", kDemo, "--prompt-file", testing::TempDir()}, 2, "directory"},
      {{"run", kDemo, "--prompt", "x", "--max-tokens", "abc"}, 2, "abc"},
      {{"run", kDemo, "--prompt", "x", "--seed", "-1"}, 2, "seed"},
      {{"run", kDemo, "--prompt", "x", "--threads", "5000"}, 2, "threads"},
      {{"run", kDemo, "--no-such-flag"}, 2, "no-such-flag"},
      {{"run", kDemo, "--prompt", "x", "--draft-yarn", "loud"}, 2, "loud"},
      {{"verify", kDemo}, 2, "prompts"},
      {{"verify", kDemo, "--prompts", testing::TempDir()}, 2, "directory"},
      {{"verify", kDemo, "--prompts", temporary_file("one.jsonl", "{\"ids\":[7]}"), "--draft", "none"}, 2, "drafter"},
      {{}, 2, "subcommand"},
      {{"inspect", kDemo, "--tp", "3"}, 2, "3"},
      {{"tokenize", kDemo, "--decode", "5000"}, 2, "5000"},
  };
  for (const Refusal& refusal : refusals) {
    const Ran ran = run_program(refusal.arguments, refusal.input);
    EXPECT_EQ(ran.status, refusal.status) << testing::PrintToString(refusal.arguments) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(refusal.says)) << testing::PrintToString(refusal.arguments);
    EXPECT_EQ(ran.out, "");
  }
}

// A copy of the demo's target that a test may break.
std::filesystem::path broken_copy(const std::string& name) {
  namespace fs = std::filesystem;
  const fs::path dir = testing::TempDir() + "ddtree_cli_" + std::to_string(getpid()) + "_" + name;
  fs::remove_all(dir);
  fs::copy(kDemo + "/target", dir);
  for (const auto& entry : fs::directory_iterator(dir))
    fs::permissions(entry, fs::perms::owner_write, fs::perm_options::add);
  return dir;
}

void expect_refused(const std::filesystem::path& dir, const std::string& says) {
  const Ran ran = run_program({"run", dir, "--prompt", "x"});
  EXPECT_THAT(ran.status, testing::AnyOf(1, 2)) << says;
  EXPECT_THAT(ran.err, HasSubstr(says));
  EXPECT_EQ(ran.out, "");
}

TEST(Run, RefusesBrokenShards) {
  const std::filesystem::path dir = broken_copy("shards"), shard = dir / "model-00002-of-00002.safetensors";
  const auto size = std::filesystem::file_size(shard);
  for (uint64_t missing : {uint64_t{1}, uint64_t{4096}, size}) {
    std::filesystem::resize_file(shard, size - missing);
    expect_refused(dir, "model-00002-of-00002.safetensors");
  }
  std::ofstream(shard) << "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 11530640\n";
  expect_refused(dir, "LFS");
  std::filesystem::remove_all(dir);
}

TEST(Run, RefusesABrokenConfigurationOrTokenizer) {
  const std::filesystem::path dir = broken_copy("files");
  const auto text_of = [&](const char* name) {
    std::ifstream file(dir / name);
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  const std::string config = text_of("config.json"), ranks = text_of("tiktoken.model");
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"\"hidden_size\": 256", "\"hidden_size\": 0"},
      {"\"hidden_size\": 256", "\"hidden_size\": -256"},
      {"\"hidden_size\": 256", "\"hidden_size\": 4611686018427387904"},
      {"\"kimi_k2\"", "\"parrot\""}};
  for (const auto& [from, to] : changes) {
    std::string broken = config;
    broken.replace(broken.find(from), from.size(), to);
    std::ofstream(dir / "config.json") << broken;
    expect_refused(dir, "config.json");
  }
  std::ofstream(dir / "config.json") << config;
  std::ofstream(dir / "tiktoken.model") << ranks << "AA== 0\n";
  expect_refused(dir, "tiktoken.model");
  std::filesystem::remove_all(dir);
}

TEST(Verify, FindsEveryModeIdentical) {
  const std::string prompts =
      temporary_file("prompts.jsonl", "{\"genre\":\"code\",\"prompt\":\"def f(x):\\n\"}\n\n{\"ids\":[4076,343,66]}\n");
  const Ran text = run_program(
      {"verify", kDemo, "--prompts", prompts, "--max-tokens", "24", "--budgets", "8,33", "--streams", "1,2"});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("identical: "));
  const Ran json = run_program({"verify", kDemo, "--prompts", prompts, "--max-tokens", "24", "--budgets", "8",
                                "--streams", "2", "--json", "--temperature", "0.9", "--seed", "7"});
  EXPECT_EQ(json.status, 0) << json.err;
  const JsonDocument document = *parse_json(json.out, "output");
  EXPECT_TRUE(*document.root().get_bool("identical"));
  EXPECT_GT(*document.root().get_int("tokens"), 0);
  EXPECT_EQ(document.root().get("divergences")->elements()->size(), 0u);
}

TEST(Verify, SaysWhatAutoDid) {
  const std::string prompts = temporary_file("auto.jsonl", "{\"prompt\":\"def f(x):\\n\"}\n{\"ids\":[4076,343,66]}\n");
  const Ran json = run_program({"verify", kDemo, "--prompts", prompts, "--max-tokens", "24", "--modes", "auto",
                                "--budgets", "32", "--streams", "1,2", "--json"});
  EXPECT_EQ(json.status, 0) << json.err;
  const JsonDocument document = *parse_json(json.out, "output");
  EXPECT_TRUE(*document.root().get_bool("identical"));
  const JsonElements arms = *document.root().get("auto")->elements();
  ASSERT_EQ(arms.size(), 2u);
  for (const JsonValue arm : arms) {
    EXPECT_GT(*arm.get_int("passes"), 0);
    EXPECT_LE(*arm.get_int("drafted_passes"), *arm.get_int("passes"));
    EXPECT_THAT(std::string(*arm.get_string("decision")), StartsWith("auto: "));
  }
}

TEST(Verify, RefusesBadPromptFiles) {
  for (const auto& [content, says] :
       std::vector<std::pair<std::string, std::string>>{{"", "no prompt"},
                                                        {"{\"prompt\":\"a\"}\n{oops\n", ":2"},
                                                        {"{\"genre\":\"x\"}", "prompt"},
                                                        {"{\"ids\":[-4]}", "ids"},
                                                        {"{\"ids\":[]}", "empty"}}) {
    const Ran ran = run_program({"verify", kDemo, "--prompts", temporary_file("bad.jsonl", content)});
    EXPECT_THAT(ran.status, testing::AnyOf(1, 2));
    EXPECT_THAT(ran.err, HasSubstr(says)) << content;
  }
}

TEST(Tokenize, RoundTrips) {
  const Ran ids = run_program({"tokenize", kDemo, "--text", kPrompt});
  const JsonDocument document = *parse_json(ids.out, "output");
  EXPECT_EQ(ints(*document.root().get("ids")), kIds);
  const Ran text = run_program({"tokenize", kDemo, "--decode", joined(kIds)});
  const JsonDocument back = *parse_json(text.out, "output");
  EXPECT_EQ(*back.root().get_string("text"), kPrompt);
}

TEST(Inspect, ShowsTheDemoAsTextAndJson) {
  EXPECT_EQ(run_program({"inspect", kDemo}).status, 0);
  const Ran json = run_program({"inspect", kDemo, "--json", "--tp", "2"});
  EXPECT_EQ(json.status, 0) << json.err;
  EXPECT_TRUE(parse_json(json.out, "output").ok());
}

}  // namespace
}  // namespace ddtree
