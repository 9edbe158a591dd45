// Replies of the OpenAI-compatible API as JSON: whole objects, and the chunks of streams.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/json_writer.h"
#include "engine/request.h"
#include "server/choice_text.h"
#include "text/tokenizer.h"

namespace ddtree {

struct ReplyHead {
  bool chat = false;
  std::string id, model, fingerprint;
  int64_t created = 0;  // seconds since 1970
  bool logprobs = false;
  bool tokens_as_ids = false;
  bool return_token_ids = false;
};

struct TokenOutput {
  OutputToken token;
  int64_t text_offset = 0;  // characters of the text before it; completions only
};

// One answer: all of it, or what is new.
struct ChoiceOutput {
  int32_t index = 0;
  ChoiceDelta delta = {};
  std::vector<TokenOutput> tokens = {};
  std::span<const int32_t> prompt = {};                                 // where its ids are to be returned
  std::string_view finish_reason = {};                                  // empty: not finished
  std::variant<std::monostate, std::string, int32_t> stop_reason = {};  // the stop string or stop id that ended it

  void append(ChoiceOutput&& next);
};

struct Usage {
  int64_t prompt = 0, cached = 0, completion = 0, reasoning = 0;
};

// Of all answers to a request together.
struct Timings {
  RequestStats stats;       // sums; mode and reason of the first answer that was speculated, else of the first
  double prompt_ms = 0;     // from the request's arrival to its first token, waiting included
  double predicted_ms = 0;  // from there to its last token
};
void add_stats(RequestStats& sum, const RequestStats& stats);

// What goes with a chunk or a reply besides its choices.
struct Extras {
  const Usage* usage = nullptr;
  bool usage_null = false;  // "usage": null where there is none
  const Timings* timings = nullptr;
};

class ReplyWriter {
 public:
  // The tokenizer must outlive this.
  ReplyWriter(const Tokenizer& tokenizer, ReplyHead head) : tokenizer_(&tokenizer), head_(std::move(head)) {}

  const ReplyHead& head() const { return head_; }

  std::string reply(std::span<const ChoiceOutput> choices, const Extras& extras) const;
  // The first chunk of a chat's choice, which names the role.
  std::string role_chunk(const ChoiceOutput& choice, const Extras& extras) const;
  std::string chunk(const ChoiceOutput& choice, const Extras& extras) const;
  // Without choices: the usage of a stream.
  std::string last_chunk(const Extras& extras) const;

 private:
  std::string object(std::string_view kind, std::span<const ChoiceOutput> choices, const Extras& extras,
                     void (ReplyWriter::*write)(JsonWriter&, const ChoiceOutput&) const) const;
  void write_message(JsonWriter& out, const ChoiceOutput& choice) const;
  void write_role(JsonWriter& out, const ChoiceOutput& choice) const;
  void write_delta(JsonWriter& out, const ChoiceOutput& choice) const;
  void write_completion(JsonWriter& out, const ChoiceOutput& choice) const;
  void write_end(JsonWriter& out, const ChoiceOutput& choice) const;
  void write_logprobs(JsonWriter& out, const ChoiceOutput& choice) const;
  void write_chat_logprobs(JsonWriter& out, const ChoiceOutput& choice) const;
  void write_chat_logprob(JsonWriter& out, const TokenLogprob& entry) const;
  void write_completion_logprobs(JsonWriter& out, const ChoiceOutput& choice) const;
  std::string token_name(int32_t id) const;

  const Tokenizer* tokenizer_;
  ReplyHead head_;
};

}  // namespace ddtree
