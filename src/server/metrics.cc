#include "server/metrics.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/check.h"

namespace ddtree {
namespace {

// Whole numbers in full: a counter must not lose its last digits.
std::string number(double value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  if (std::isnan(value)) return "NaN";
  if (std::floor(value) == value && std::abs(value) <= kExact) return fmt::format("{}", static_cast<int64_t>(value));
  return fmt::format("{}", value);
}

std::string escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {
  CHECK(std::is_sorted(bounds_.begin(), bounds_.end()));
}

void Histogram::add(double value, int64_t count) {
  counts_[static_cast<size_t>(std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin())] += count;
  sum_ += value * static_cast<double>(count);
}

std::vector<double> bounds_1_2_5(double first, double last) {
  std::vector<double> bounds;
  for (double decade = first; decade <= last * 1.001; decade *= 10)
    for (const double step : {1.0, 2.0, 5.0})
      if (decade * step <= last * 1.001) bounds.push_back(decade * step);
  return bounds;
}

std::vector<double> bounds_of_two(double last) {
  std::vector<double> bounds;
  for (double bound = 1; bound <= last; bound *= 2) bounds.push_back(bound);
  return bounds;
}

MetricsText& MetricsText::family(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  out_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  return *this;
}

MetricsText& MetricsText::line(std::string_view suffix, Labels labels, double value) {
  out_ += name_;
  out_ += suffix;
  if (labels.size() > 0) {
    char before = '{';
    for (const auto& [name, text] : labels) {
      out_ += fmt::format("{}{}=\"{}\"", before, name, escaped(text));
      before = ',';
    }
    out_ += '}';
  }
  out_ += ' ' + number(value) + '\n';
  return *this;
}

void MetricsText::counter(std::string_view name, std::string_view help, double value) {
  family(name, "counter", help).sample({}, value);
}

void MetricsText::gauge(std::string_view name, std::string_view help, double value) {
  family(name, "gauge", help).sample({}, value);
}

void MetricsText::histogram(std::string_view name, std::string_view help, const Histogram& histogram) {
  family(name, "histogram", help);
  int64_t below = 0;
  for (size_t i = 0; i < histogram.counts().size(); ++i) {
    below += histogram.counts()[i];
    const std::string bound = i < histogram.bounds().size() ? fmt::format("{:.10g}", histogram.bounds()[i]) : "+Inf";
    line("_bucket", {{"le", bound}}, static_cast<double>(below));
  }
  line("_sum", {}, histogram.sum());
  line("_count", {}, static_cast<double>(below));
}

}  // namespace ddtree
