#include "op_cases.h"

namespace ddtree::ops {
namespace {

using Score = MoeRouting::Score;

constexpr MlaSizes kDemoMla = {256, 4, 128, 512, 128, 64, 128};
constexpr MlaSizes kOddMla = {160, 3, 0, 64, 24, 16, 40, false, 1.25f, kF32};
constexpr MlaSizes kPackedMla = {160, 5, 96, 32, 32, 8, 32, true, 1, {DType::kF16, 16}};
constexpr GqaSizes kDemoGqa = {256, 4, 2, 64, 64};
constexpr GqaSizes kOddGqa = {160, 3, 1, 40, 16, true, false, kF16};
constexpr GqaSizes kWideGqa = {96, 6, 3, 48, 48, false, true, kInt4};

constexpr MoeRouting kDemoRouting = {Score::kSigmoid, 4, 1, 1, true, true, 2.5f};
constexpr MoeRouting kKimiRouting = {Score::kSigmoid, 8, 1, 1, true, true, 2.827f};
constexpr MoeRouting kGroupRouting = {Score::kSigmoid, 3, 8, 4, true, true, 1.5f};
constexpr MoeRouting kGroupMaxRouting = {Score::kSoftmax, 3, 4, 2, false, false, 16};
constexpr MoeRouting kLiteRouting = {Score::kSoftmax, 6, 1, 1, true, false, 1};
constexpr MoeRouting kQwenRouting = {Score::kSoftmax, 2, 1, 1, true, true, 1};
constexpr MoeRouting kAllRouting = {Score::kSigmoid, 3, 1, 1, true, true, 1};
constexpr MoeRouting kOnlyRouting = {Score::kSigmoid, 1, 1, 1, true, false, 1};

const std::vector<OpCase> kPointwiseCases = {
    {"rms_norm_256", [] { return rms_norm_verb(256); }},
    {"rms_norm_160", [] { return rms_norm_verb(160); }},
    {"rms_norm_7168", [] { return rms_norm_verb(7168); }},
    {"rms_norm_7", [] { return rms_norm_verb(7); }},
    {"rms_norm_1", [] { return rms_norm_verb(1); }},
    {"add_rms_norm_256", [] { return add_rms_norm_verb(256); }},
    {"add_rms_norm_161", [] { return add_rms_norm_verb(161); }},
    {"add_256", [] { return add_verb(256); }},
    {"add_33", [] { return add_verb(33); }},
    {"embed_demo", [] { return embed_verb(4096, 256, kBF16); }},
    {"embed_f32", [] { return embed_verb(37, 161, kF32); }},
    {"embed_f16", [] { return embed_verb(1, 8, kF16); }},
};

const std::vector<OpCase> kLinearCases = {
    {"linear_bf16_256_768",
     [] {
       return linear_verb(256, {{768, kBF16}});
     }},
    {"linear_f16_160_96",
     [] {
       return linear_verb(160, {{96, kF16}});
     }},
    {"linear_f32_96_160",
     [] {
       return linear_verb(96, {{160, kF32}});
     }},
    {"linear_int4_256_128",
     [] {
       return linear_verb(256, {{128, kInt4}});
     }},
    {"linear_int4_128_256",
     [] {
       return linear_verb(128, {{256, kInt4}});
     }},
    {"linear_int4_group_16_f16",
     [] {
       return linear_verb(160, {{96, {DType::kF16, 16}}});
     }},
    {"linear_int4_group_64_f32",
     [] {
       return linear_verb(192, {{65, {DType::kF32, 64}}});
     }},
    {"linear_int4_group_row",
     [] {
       return linear_verb(96, {{31, {DType::kBF16, 96}}});
     }},
    {"linear_int4_group_8",
     [] {
       return linear_verb(8, {{17, {DType::kBF16, 8}}});
     }},
    {"linear_stacked",
     [] {
       return linear_verb(256, {{128, kBF16}, {96, kInt4}, {1, kF32}, {33, kF16}});
     }},
    {"linear_fc_1024_256",
     [] {
       return linear_verb(1024, {{256, kBF16}});
     }},
    {"linear_33_7",
     [] {
       return linear_verb(33, {{7, kBF16}});
     }},
    {"linear_1_1",
     [] {
       return linear_verb(1, {{1, kF32}});
     }},
    {"linear_7_257",
     [] {
       return linear_verb(7, {{257, kF16}});
     }},
};

const std::vector<OpCase> kAttentionCases = {
    {"mla_project_demo", [] { return mla_project_verb(kDemoMla); }},
    {"mla_project_odd", [] { return mla_project_verb(kOddMla); }},
    {"mla_project_packed", [] { return mla_project_verb(kPackedMla); }},
    {"mla_output_demo", [] { return mla_output_verb(kDemoMla); }},
    {"mla_output_odd", [] { return mla_output_verb(kOddMla); }},
    {"mla_output_packed", [] { return mla_output_verb(kPackedMla); }},
    {"gqa_project_demo", [] { return gqa_project_verb(kDemoGqa); }},
    {"gqa_project_odd", [] { return gqa_project_verb(kOddGqa); }},
    {"gqa_project_wide", [] { return gqa_project_verb(kWideGqa); }},
    {"gqa_context_demo", [] { return gqa_context_verb(kDemoGqa); }},
    {"gqa_context_odd", [] { return gqa_context_verb(kOddGqa); }},
    {"gqa_output_demo", [] { return gqa_output_verb(kDemoGqa); }},
    {"gqa_output_odd", [] { return gqa_output_verb(kOddGqa); }},
};

const std::vector<OpCase> kMlpCases = {
    {"mlp_demo", [] { return mlp_verb(256, 768, kBF16); }},
    {"mlp_f32", [] { return mlp_verb(160, 96, kF32); }},
    {"mlp_int4", [] { return mlp_verb(256, 128, kInt4); }},
    {"mlp_odd", [] { return mlp_verb(33, 17, kF16); }},
};

const std::vector<OpCase> kMoeCases = {
    {"moe_demo",
     [] {
       return moe_verb({256, 128, 128, 32, kDemoRouting});
     }},
    {"moe_kimi_384",
     [] {
       return moe_verb({64, 32, 32, 384, kKimiRouting});
     }},
    {"moe_groups",
     [] {
       return moe_verb({160, 96, 0, 16, kGroupRouting, true, {DType::kF16, 32}, 2});
     }},
    {"moe_group_max",
     [] {
       return moe_verb({96, 32, 64, 12, kGroupMaxRouting, false, kBF16});
     }},
    {"moe_lite",
     [] {
       return moe_verb({64, 32, 96, 64, kLiteRouting, false});
     }},
    {"moe_qwen_5",
     [] {
       return moe_verb({160, 96, 0, 5, kQwenRouting, false, kF32});
     }},
    {"moe_all_experts",
     [] {
       return moe_verb({32, 32, 32, 3, kAllRouting});
     }},
    {"moe_one_expert",
     [] {
       return moe_verb({33, 17, 0, 1, kOnlyRouting, true, kBF16});
     }},
};

const std::vector<OpCase> kHeadCases = {
    {"head_demo", [] { return head_verb(4096, 256, 64, kBF16); }},
    {"head_all", [] { return head_verb(37, 160, 37, kF32); }},
    {"head_argmax", [] { return head_verb(257, 96, 1, kInt4); }},
    {"head_one_token", [] { return head_verb(1, 8, 1, kBF16); }},
};

}  // namespace

const std::vector<OpCase>& op_cases() {
  static const std::vector<OpCase> all = [] {
    std::vector<OpCase> cases;
    for (const auto* part : {&kPointwiseCases, &kLinearCases, &kAttentionCases, &kMlpCases, &kMoeCases, &kHeadCases})
      cases.insert(cases.end(), part->begin(), part->end());
    return cases;
  }();
  return all;
}

}  // namespace ddtree::ops
