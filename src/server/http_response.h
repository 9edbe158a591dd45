// What a response begins with.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/http.h"

namespace ddtree {

struct ResponseHead {
  int status = 200;
  std::string_view content_type;         // empty: none
  std::optional<size_t> content_length;  // none: chunked, or to the end of the connection
  bool chunked = false;
  bool close = false;     // the connection ends with this response
  bool http_1_0 = false;  // the client speaks HTTP/1.0, where connections end unless both sides say otherwise
};

std::string response_head(const ResponseHead& head, std::string_view request_id, const HttpHeaders& headers,
                          const HttpHeaders& more);

// `data` as one chunk; nothing for nothing, as that would end the body.
std::string chunk(std::string_view data);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

// A request id: what the client sent, if it is 1 to 128 visible ASCII characters, else "req-" and 22 random ones.
std::string request_id(const std::string* sent);

}  // namespace ddtree
