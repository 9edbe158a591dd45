// Numbers for Prometheus: histograms, and its text format 0.0.4.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddtree {

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds);  // ascending upper bounds; one more bucket is without

  void add(double value, int64_t count = 1);

  const std::vector<double>& bounds() const { return bounds_; }
  const std::vector<int64_t>& counts() const { return counts_; }  // by bucket, not cumulative
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<int64_t> counts_;
  double sum_ = 0;
};

std::vector<double> bounds_1_2_5(double first, double last);  // first must be a power of ten
std::vector<double> bounds_of_two(double last);               // 1, 2, 4 …

class MetricsText {
 public:
  using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  // Begins a family; its samples follow.
  MetricsText& family(std::string_view name, std::string_view type, std::string_view help);
  MetricsText& sample(Labels labels, double value) { return line("", labels, value); }

  void counter(std::string_view name, std::string_view help, double value);
  void gauge(std::string_view name, std::string_view help, double value);
  void histogram(std::string_view name, std::string_view help, const Histogram& histogram);

  std::string text() && { return std::move(out_); }

 private:
  MetricsText& line(std::string_view suffix, Labels labels, double value);
  std::string name_, out_;
};

}  // namespace ddtree
