// SPDX-License-Identifier: Apache-2.0
//
// The weights of target and drafter in device memory, in the layouts that the operators take: projections of one input
// are stacked, so that one GEMM does them.
#ifndef KDT_ENGINE_WEIGHTS_H
#define KDT_ENGINE_WEIGHTS_H

#include <cstdint>
#include <vector>

#include "engine/config.h"
#include "engine/ops.h"
#include "engine/tensors.h"

namespace kdt::engine {

// SwiGLU. Act.
struct MlpWeights {
    int32_t intermediate = 0;
    Memory gate_up;  // [2 intermediate, hidden]
    Memory down;     // [hidden, intermediate]
};

struct MoeWeights {
    Memory router;      // act [E, hidden]
    Memory bias;        // f32 [E]; empty with softmax scores
    Memory gate_up;     // act [E, 2 I, hidden]
    Memory down;        // act [E, hidden, I]
    MlpWeights shared;  // intermediate 0: none
};

struct TargetLayer {
    Memory input_norm;  // act [hidden]
    Memory first;       // act [q_lora_rank + 576, hidden]: q_a_proj and kv_a_proj; without LoRA q_proj [H * 192] first
    Memory q_norm;      // act [q_lora_rank]
    Memory q_b;         // act [H * 192, q_lora_rank]
    Memory kv_norm;     // act [512]
    Memory w_uk;        // bf16 [H, 128, 512]
    Memory w_uv;        // bf16 [H, 512, 128]
    Memory o;           // act [hidden, H * 128]
    Memory post_norm;   // act [hidden]
    MlpWeights mlp;     // of a dense layer
    MoeWeights moe;     // of the others
};

struct TargetWeights {
    Memory embedding;  // act [vocab, hidden]
    std::vector<TargetLayer> layers;
    Memory norm;  // act [hidden]
    Memory head;  // act [vocab, hidden]; empty when tied
    const void* lm_head() const { return head.bytes() != 0 ? head.data() : embedding.data(); }
};

struct DrafterLayer {
    Memory input_norm;  // act [hidden]
    Memory qkv;         // act [(num_heads + 2 num_kv_heads) * head_dim, hidden]
    Memory q_norm;      // act [head_dim]
    Memory o;           // act [hidden, num_heads * head_dim]
    Memory post_norm;   // act [hidden]
    MlpWeights mlp;
};

struct DrafterWeights {
    Memory fc;           // act [hidden, num_features * hidden]
    Memory hidden_norm;  // act [hidden]
    Memory context_kv;   // act [num_layers * 2 * num_kv_heads * head_dim, hidden]: every layer's k_proj, v_proj
    Memory k_norms;      // act [num_layers, head_dim]
    std::vector<DrafterLayer> layers;
    Memory norm;  // act [hidden]
};

TargetWeights load_target(Queue& queue, const Config& config, TensorSource& source);
DrafterWeights load_drafter(Queue& queue, const Config& config, TensorSource& source);

}  // namespace kdt::engine

#endif  // KDT_ENGINE_WEIGHTS_H
