// The declaration of tools that Kimi K2.5 and K2.6 are trained on: TypeScript types made of JSON schemas.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "text/chat.h"

namespace ddtree {

// nullopt where a schema has something that the format has no words for: the tools are then declared as JSON.
std::optional<std::string> typescript_declaration(const std::vector<ChatTool>& tools);

}  // namespace ddtree
