#include "backend/cuda/moe/moe.h"

#include <string>

#include "backend/cuda/cuda_status.h"
#include "base/check.h"
#include "base/checked.h"

namespace ddtree::cuda {
namespace {

// Byte offsets. Router and shared expert have a workspace each, as they may run side by side.
struct Layout {
  int64_t router, mlp, ids, weights, shared, experts, bytes;
};

Layout layout_of(const MoeShape& shape, int32_t rows) {
  const int64_t slots = static_cast<int64_t>(rows) * shape.experts.top_k;
  Layout at{};
  at.mlp = round_up(router_workspace_bytes(shape.router, rows), 256);
  const int64_t mlp = shape.shared_inter > 0 ? mlp_workspace_bytes(shared_shape(shape), rows) : 0;
  at.ids = at.mlp + round_up(mlp, 256);
  at.weights = at.ids + round_up(4 * slots, 256);
  at.shared = at.weights + round_up(4 * slots, 256);
  const int64_t shared = shape.shared_inter > 0 ? 2 * static_cast<int64_t>(rows) * shape.experts.hidden : 0;
  at.experts = at.shared + round_up(shared, 256);
  at.bytes = at.experts + expert_workspace_bytes(shape.experts, rows);
  return at;
}

// What comes on `stream` waits for what is on `other`.
Status follow(cudaStream_t stream, cudaStream_t other, cudaEvent_t event) {
  TRY(cuda_status(cudaEventRecord(event, other), "recording an event for the shared expert"));
  return cuda_status(cudaStreamWaitEvent(stream, event), "waiting for an event of the shared expert");
}

}  // namespace

MlpShape shared_shape(const MoeShape& shape) { return {shape.experts.hidden, shape.shared_inter}; }

Status check_moe_shape(const MoeShape& shape) {
  TRY(check_expert_shape(shape.experts));
  TRY(check_router_shape(shape.router));
  const ExpertShape& e = shape.experts;
  if (e.experts != shape.router.experts || e.hidden != shape.router.hidden || e.top_k != shape.router.routing.top_k)
    return Error{Code::kInvalidArgument,
                 "mixture of experts on the GPU: the router has " + std::to_string(shape.router.experts) +
                     " experts, hidden " + std::to_string(shape.router.hidden) + ", " +
                     std::to_string(shape.router.routing.top_k) + " a row; the experts " + std::to_string(e.experts) +
                     ", " + std::to_string(e.hidden) + ", " + std::to_string(e.top_k)};
  if (shape.shared_inter > 0) TRY(check_mlp_shape(shared_shape(shape)));
  return {};
}

int64_t moe_workspace_bytes(const MoeShape& shape, int32_t max_rows) { return layout_of(shape, max_rows).bytes; }

Status init_moe_workspace(const MoeShape& shape, int32_t max_rows, void* workspace, cudaStream_t stream) {
  const Layout at = layout_of(shape, max_rows);
  uint8_t* memory = static_cast<uint8_t*>(workspace);
  TRY(init_gemm_workspace(memory + at.router, stream));
  if (shape.shared_inter > 0) TRY(init_gemm_workspace(memory + at.mlp, stream));
  return init_expert_workspace(shape.experts, max_rows, memory + at.experts, stream);
}

Status run_moe(const MoeShape& shape, const ExpertDevice& device, const MoeArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return {};
  const Gpu gpu{device.sms, device.shared_bytes};
  CHECK(args.rows <= args.max_rows);
  const Layout at = layout_of(shape, args.max_rows);  // the counters stay where they were cleared
  uint8_t* memory = static_cast<uint8_t*>(args.workspace);
  auto* ids = reinterpret_cast<int32_t*>(memory + at.ids);
  auto* weights = reinterpret_cast<float*>(memory + at.weights);
  void* shared = shape.shared_inter > 0 ? memory + at.shared : nullptr;
  const MoeWeights& w = args.weights;
  const MoeSide* side = shared != nullptr ? args.side : nullptr;
  if (side != nullptr) TRY(follow(side->stream, stream, side->begin));
  if (shared != nullptr)
    TRY(run_mlp(shared_shape(shape), gpu, {w.shared_gate_up, w.shared_down, args.x, shared, args.rows, memory + at.mlp},
                side != nullptr ? side->stream : stream));
  TRY(run_router(shape.router, gpu,
                 {w.router, w.bias, args.x, ids, weights, args.rows, args.live_rows, memory + at.router}, stream));
  if (side != nullptr) TRY(follow(stream, side->stream, side->end));
  ExpertsArgs experts{w.gate_up, w.down, args.x, ids, weights, args.out, args.rows, memory + at.experts, args.mode};
  experts.shared = shared;
  return run_experts(shape.experts, device, experts, stream);
}

}  // namespace ddtree::cuda
