#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <functional>
#include <limits>
#include <queue>

#include <fmt/format.h>

namespace ddtree {
namespace {

constexpr size_t kMaxFileBytes = size_t{64} << 20;  // Kimi's is 2.8 MB
constexpr size_t kMaxTokens = size_t{1} << 20;      // Kimi's has 163,584

// Merging looks up candidates of at most this size, which keeps the work per byte bounded. Kimi's longest is 128.
constexpr size_t kMaxTokenBytes = 1024;

// Steps from an entry's place in the table to where it had to go. Real vocabularies need fewer than 100; only tokens
// that were made to collide need more, and would make every lookup slow.
constexpr size_t kMaxProbes = 1000;

// Below this many bytes a scan over all pairs beats a heap.
constexpr size_t kShortPiece = 96;

constexpr int32_t kNoMerge = std::numeric_limits<int32_t>::max();

uint64_t load(const char* p, size_t n) {
  uint64_t word = 0;
  std::memcpy(&word, p, n);
  return word;
}

// The first and last words overlap where the length is no multiple of eight.
uint64_t hash_bytes(std::string_view s) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;
  const char* p = s.data();
  const size_t n = s.size();
  uint64_t h = n * kOdd;
  const auto mix = [&h](uint64_t word) {
    h = (h ^ word) * kOdd;
    h ^= h >> 32;
  };
  if (n >= 8) {
    for (size_t i = 0; i + 8 < n; i += 8) mix(load(p + i, 8));
    mix(load(p + n - 8, 8));
  } else if (n >= 4) {
    mix(load(p, 4) | load(p + n - 4, 4) << 32);
  } else if (n > 0) {
    mix(load(p, 1) | load(p + n / 2, 1) << 8 | load(p + n - 1, 1) << 16);
  }
  return h ^ (h >> 29);
}

int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  if (c == '/') return 63;
  return -1;
}

// Appends the bytes that `text` stands for; false where it is not padded, canonical base64.
bool decode_base64(std::string_view text, std::string& out) {
  if (text.size() % 4 != 0) return false;
  size_t digits = text.size();
  while (digits > 0 && text.size() - digits < 2 && text[digits - 1] == '=') --digits;
  uint32_t pending = 0;
  int pending_bits = 0;
  for (size_t i = 0; i < digits; ++i) {
    const int digit = base64_digit(text[i]);
    if (digit < 0) return false;
    pending = pending << 6 | static_cast<uint32_t>(digit);
    pending_bits += 6;
    if (pending_bits < 8) continue;
    pending_bits -= 8;
    out += static_cast<char>(pending >> pending_bits);
    pending &= (1u << pending_bits) - 1;
  }
  return pending == 0;
}

struct Line {
  int64_t number;
  std::string_view base64;
  int64_t rank;
};

Error line_error(std::string_view name, int64_t number, std::string_view what) {
  return {Code::kCorrupt, fmt::format("{}:{}: {}", name, number, what)};
}

// For messages: the start of what stands in the file, without control bytes.
std::string quoted(std::string_view text) {
  std::string out(text.substr(0, 40));
  for (char& c : out)
    if (c < 0x20 || c == 0x7f) c = '?';
  return fmt::format("\"{}\"{}", out, text.size() > 40 ? "…" : "");
}

Result<std::vector<Line>> read_lines(std::string_view file, std::string_view name) {
  std::vector<Line> lines;
  int64_t number = 0;
  for (size_t at = 0; at < file.size();) {
    const size_t newline = std::min(file.find('\n', at), file.size());
    std::string_view line = file.substr(at, newline - at);
    at = newline + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    if (space == std::string_view::npos)
      return line_error(name, number, "expected \"base64 rank\", with one space between");
    const std::string_view digits = line.substr(space + 1);
    int32_t rank = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (error != std::errc() || end != digits.data() + digits.size() || rank < 0)
      return line_error(name, number, fmt::format("the rank {} is not a number from 0 to 2147483647", quoted(digits)));
    if (lines.size() == kMaxTokens) return line_error(name, number, fmt::format("more than {} tokens", kMaxTokens));
    lines.push_back({number, line.substr(0, space), rank});
  }
  return lines;
}

}  // namespace

Result<Bpe> Bpe::parse(std::string_view file, std::string_view name) {
  if (file.size() > kMaxFileBytes)
    return Error{Code::kUnsupported,
                 fmt::format("{}: {} bytes; at most {} are read", name, file.size(), kMaxFileBytes)};
  TRY_ASSIGN(const std::vector<Line> lines, read_lines(file, name));
  const int64_t n = static_cast<int64_t>(lines.size());
  std::vector<const Line*> by_rank(n, nullptr);
  for (const Line& line : lines) {
    if (line.rank >= n) {
      return line_error(
          name, line.number,
          fmt::format("rank {} leaves a gap: the file has {} tokens, so ranks end at {}", line.rank, n, n - 1));
    }
    const Line*& slot = by_rank[line.rank];
    if (slot != nullptr)
      return line_error(name, line.number,
                        fmt::format("rank {} was given in line {} already", line.rank, slot->number));
    slot = &line;
  }

  Bpe bpe;
  bpe.begin_.push_back(0);
  std::vector<int64_t> line_of_rank;
  for (const Line* line : by_rank) {
    const size_t begin = bpe.bytes_.size();
    if (!decode_base64(line->base64, bpe.bytes_))
      return line_error(name, line->number, fmt::format("{} is not valid base64", quoted(line->base64)));
    const size_t size = bpe.bytes_.size() - begin;
    if (size == 0 || size > kMaxTokenBytes)
      return line_error(name, line->number,
                        fmt::format("a token of {} bytes; 1 to {} are supported", size, kMaxTokenBytes));
    bpe.begin_.push_back(static_cast<uint32_t>(bpe.bytes_.size()));
    bpe.longest_ = std::max(bpe.longest_, size);
    line_of_rank.push_back(line->number);
  }
  TRY(bpe.index(name, line_of_rank));
  return bpe;
}

// The tables for encoding.
Status Bpe::index(std::string_view name, const std::vector<int64_t>& line_of_rank) {
  table_.assign(std::bit_ceil(static_cast<size_t>(size()) * 2 + 2), kNone);
  for (int32_t rank = 0; rank < size(); ++rank) {
    const size_t at = slot(bytes(rank));
    int32_t& entry = table_[at];
    if (((at - hash_bytes(bytes(rank))) & (table_.size() - 1)) > kMaxProbes)
      return line_error(name, line_of_rank[rank],
                        "too many tokens collide in the lookup table; is the file made to be slow?");
    if (entry != kNone)
      return line_error(name, line_of_rank[rank],
                        fmt::format("the same token as in line {}, with another rank", line_of_rank[entry]));
    entry = rank;
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    byte_rank_[byte] = find(std::string_view(&c, 1));
    if (byte_rank_[byte] == kNone)
      return Error{Code::kCorrupt,
                   fmt::format("{}: no token for the single byte 0x{:02x}; all 256 are needed to encode "
                               "any text",
                               name, byte)};
  }
  pair_rank_.assign(256 * 256, kNoMerge);
  for (int32_t rank = 0; rank < size(); ++rank) {
    const std::string_view token = bytes(rank);
    if (token.size() == 2) pair_rank_[static_cast<uint8_t>(token[0]) * 256 + static_cast<uint8_t>(token[1])] = rank;
  }
  return {};
}

// Where `token` is in the table, or the free entry where it would be.
size_t Bpe::slot(std::string_view token) const {
  const size_t mask = table_.size() - 1;
  size_t at = hash_bytes(token) & mask;
  while (table_[at] != kNone && bytes(table_[at]) != token) at = (at + 1) & mask;
  return at;
}

int32_t Bpe::find(std::string_view token) const { return token.size() > longest_ ? kNone : table_[slot(token)]; }

void Bpe::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.empty()) return;
  const int32_t whole = find(piece);
  if (whole != kNone) {
    ids.push_back(whole);
  } else if (piece.size() <= kShortPiece) {
    merge_short(piece, ids);
  } else {
    merge_long(piece, ids);
  }
}

// Parts side by side in arrays; merge[i] is the rank of part i joined with part i + 1.
void Bpe::merge_short(std::string_view piece, std::vector<int32_t>& ids) const {
  std::array<uint8_t, kShortPiece + 1> begin;
  std::array<int32_t, kShortPiece> id;
  std::array<int32_t, kShortPiece> merge;
  int parts = static_cast<int>(piece.size());
  for (int i = 0; i < parts; ++i) {
    const uint8_t byte = static_cast<uint8_t>(piece[i]);
    begin[i] = static_cast<uint8_t>(i);
    id[i] = byte_rank_[byte];
    merge[i] = i + 1 < parts ? pair_rank_[byte * 256 + static_cast<uint8_t>(piece[i + 1])] : kNoMerge;
  }
  begin[parts] = static_cast<uint8_t>(parts);

  const auto rank_with_next = [&](int i) {
    if (i + 1 >= parts) return kNoMerge;
    const int32_t rank = find(piece.substr(begin[i], begin[i + 2] - begin[i]));
    return rank == kNone ? kNoMerge : rank;
  };
  while (true) {
    const int best = static_cast<int>(std::min_element(merge.begin(), merge.begin() + parts) - merge.begin());
    if (merge[best] == kNoMerge) break;
    id[best] = merge[best];
    std::move(begin.begin() + best + 2, begin.begin() + parts + 1, begin.begin() + best + 1);
    std::move(id.begin() + best + 2, id.begin() + parts, id.begin() + best + 1);
    std::move(merge.begin() + best + 2, merge.begin() + parts, merge.begin() + best + 1);
    --parts;
    merge[best] = rank_with_next(best);
    if (best > 0) merge[best - 1] = rank_with_next(best - 1);
  }
  ids.insert(ids.end(), id.begin(), id.begin() + parts);
}

// A linked list of parts, and a heap of candidate merges. A candidate is stale once either of its parts has merged; a
// part only grows, so its merge rank never returns to a value that it had before, and comparing ranks finds the stale
// ones.
void Bpe::merge_long(std::string_view piece, std::vector<int32_t>& ids) const {
  struct Part {
    uint32_t next;
    uint32_t previous;
    int32_t id;
    int32_t merge;  // rank of this part joined with the next one
  };
  struct Candidate {
    int32_t rank;
    uint32_t at;
    auto operator<=>(const Candidate&) const = default;
  };
  const uint32_t n = static_cast<uint32_t>(piece.size());
  std::vector<Part> parts(n);
  std::vector<Candidate> candidates;
  for (uint32_t i = 0; i < n; ++i) {
    const uint8_t byte = static_cast<uint8_t>(piece[i]);
    const int32_t merge = i + 1 < n ? pair_rank_[byte * 256 + static_cast<uint8_t>(piece[i + 1])] : kNoMerge;
    parts[i] = {i + 1, i - 1, byte_rank_[byte], merge};
    if (merge != kNoMerge) candidates.push_back({merge, i});
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>(), std::move(candidates));

  const auto update_merge = [&](uint32_t i) {
    const uint32_t next = parts[i].next;
    const int32_t rank = next == n ? kNone : find(piece.substr(i, parts[next].next - i));
    parts[i].merge = rank == kNone ? kNoMerge : rank;
    if (rank != kNone) queue.push({rank, i});
  };
  while (!queue.empty()) {
    const auto [rank, at] = queue.top();
    queue.pop();
    if (parts[at].merge != rank) continue;
    const uint32_t gone = parts[at].next;
    parts[at].id = rank;
    parts[at].next = parts[gone].next;
    parts[gone].merge = kNoMerge;
    if (parts[at].next != n) parts[parts[at].next].previous = at;
    update_merge(at);
    if (at > 0) update_merge(parts[at].previous);
  }
  for (uint32_t i = 0; i < n; i = parts[i].next) ids.push_back(parts[i].id);
}

}  // namespace ddtree
