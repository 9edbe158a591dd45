// From a chat request to what the engine runs: the prompt's ids, the parser of the reply, and the beginning of the
// reply where a tool must be called.
#pragma once

#include "server/generation.h"
#include "server/openai_request.h"

namespace ddtree {

// Leaves the plan's head, options and limits to the caller.
Result<GenerationPlan> plan_chat(const ChatRenderer& renderer, const Tokenizer& tokenizer, bool split_reasoning,
                                 ChatRequest& request);

}  // namespace ddtree
