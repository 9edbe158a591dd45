#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <vector>

#include "backend/cuda/cuda_status.h"
#include "support/gpu_timing.h"

namespace ddtree::cuda {
namespace {

constexpr int kIdleMicroseconds = 50000;

__global__ void read_all(const uint4* p, int64_t n, unsigned* sink) {
  int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  unsigned all = 0;
  for (; i + 3 * step < n; i += 4 * step) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = __ldcs(p + i + j * step);
#pragma unroll
    for (int j = 0; j < 4; ++j) all ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (all == 0x12345678u) *sink = all;  // never for random data, but the compiler does not know
}

// A captured graph and two events.
struct Timer {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;

  ~Timer() {
    if (exec != nullptr) cudaGraphExecDestroy(exec);
    if (graph != nullptr) cudaGraphDestroy(graph);
    if (begin != nullptr) cudaEventDestroy(begin);
    if (end != nullptr) cudaEventDestroy(end);
  }
  Status capture(const Repetition& body, int repetitions, cudaStream_t stream) {
    TRY(cuda_status(cudaEventCreate(&begin), "cudaEventCreate"));
    TRY(cuda_status(cudaEventCreate(&end), "cudaEventCreate"));
    TRY(cuda_status(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture"));
    for (int i = 0; i < repetitions; ++i) TRY(body(i, stream));
    TRY(cuda_status(cudaStreamEndCapture(stream, &graph), "end of capture"));
    return cuda_status(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  }
  Status launch(cudaStream_t stream) { return cuda_status(cudaGraphLaunch(exec, stream), "cudaGraphLaunch"); }
  // Milliseconds between the events, once the stream is idle.
  Result<double> elapsed(cudaStream_t stream) {
    TRY(cuda_status(cudaStreamSynchronize(stream), "graph replay"));
    float ms = 0;
    TRY(cuda_status(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime"));
    return static_cast<double>(ms);
  }
};

}  // namespace

Result<double> time_burst(const Repetition& body, int repetitions, int samples, cudaStream_t stream) {
  Timer timer;
  TRY(timer.capture(body, repetitions, stream));
  std::vector<double> ms;
  for (int i = 0; i < samples; ++i) {
    TRY(cuda_status(cudaStreamSynchronize(stream), "graph replay"));
    usleep(kIdleMicroseconds);
    TRY(timer.launch(stream));
    TRY(cuda_status(cudaEventRecord(timer.begin, stream), "cudaEventRecord"));
    TRY(timer.launch(stream));
    TRY(cuda_status(cudaEventRecord(timer.end, stream), "cudaEventRecord"));
    TRY_ASSIGN(const double sample, timer.elapsed(stream));
    ms.push_back(sample);
  }
  std::sort(ms.begin(), ms.end());
  return ms[ms.size() / 2] * 1000 / repetitions;
}

Result<double> time_sustained(const Repetition& body, int repetitions, double duration_ms, cudaStream_t stream) {
  Timer timer;
  TRY(timer.capture(body, repetitions, stream));
  int replays = 1;
  double last = 0;
  for (int round = 0; round < 3; ++round) {  // one replay, then half of the time, then the timed half
    TRY(cuda_status(cudaEventRecord(timer.begin, stream), "cudaEventRecord"));
    for (int i = 0; i < replays; ++i) TRY(timer.launch(stream));
    TRY(cuda_status(cudaEventRecord(timer.end, stream), "cudaEventRecord"));
    if (round == 1) continue;  // no gap before the timed half
    TRY_ASSIGN(last, timer.elapsed(stream));
    if (round == 0) replays = std::max(2, static_cast<int>(duration_ms / 2 / last));
  }
  return last * 1000 / replays / repetitions;
}

Result<double> read_ceiling(const void* data, int64_t bytes, cudaStream_t stream) {
  int id = 0, sms = 0;
  TRY(cuda_status(cudaGetDevice(&id), "cudaGetDevice"));
  TRY(cuda_status(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, id), "multiprocessor count"));
  double best = 0;
  for (const int per_sm : {4, 8, 16}) {
    const auto body = [&](int, cudaStream_t s) {
      read_all<<<sms * per_sm, 256, 0, s>>>(static_cast<const uint4*>(data), bytes / 16, nullptr);
      return cuda_status(cudaGetLastError(), "read_all");
    };
    TRY_ASSIGN(const double us, time_burst(body, 2, 5, stream));
    best = std::max(best, static_cast<double>(bytes) / us / 1e3);
  }
  return best;
}

std::string clock_state() {
  const char* command =
      "nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw,clocks_event_reasons.active --format=csv,noheader "
      "2>/dev/null";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command, "r"), pclose);
  std::array<char, 256> line{};
  if (!pipe || fgets(line.data(), line.size(), pipe.get()) == nullptr) return "unknown";
  std::string text(line.data());
  return text.substr(0, text.find('\n'));
}

}  // namespace ddtree::cuda
