// What a client may ask for and how long it may take: every limit of the server, with its default. Flags of
// `ddtree serve` change those that operators tune.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace ddtree {

struct HttpLimits {
  size_t head_bytes = 16 << 10;  // request line and headers
  int headers = 64;
  size_t body_bytes = 8 << 20;  // chunked bodies too
  size_t chunk_line = 4 << 10;  // size line of a chunk with its extensions; a trailer
  int connections = 1024;
  int connections_per_address = 64;  // loopback is exempt: a proxy's clients all come from there
  int requests_per_connection = 100;
  size_t outbound_bytes = 1 << 20;  // of a stream, buffered for a client that reads too slowly
  int kernel_bytes = 256 << 10;     // for a connection, in the kernel's buffer of what is to be sent
  std::chrono::milliseconds head_time{10'000};
  std::chrono::milliseconds body_time{30'000};
  std::chrono::milliseconds idle_time{60'000};   // between two requests of a connection
  std::chrono::milliseconds write_time{30'000};  // for the client to take 64 KiB
  std::chrono::milliseconds keep_alive{15'000};  // silence of a stream before a comment is sent
  std::chrono::milliseconds linger_time{2'000};  // for a refused client to read why
};

struct ApiLimits {
  int json_depth = 32;
  int messages = 2048;
  int tools = 128;
  size_t tools_bytes = 256 << 10;
  int stop_strings = 16;
  size_t stop_bytes = 256;  // each
  int choices = 8;          // n
  int prompts = 64;         // of one completions request
  int top_logprobs = 20;
  int logit_bias = 1024;
};

}  // namespace ddtree
