// SPDX-License-Identifier: Apache-2.0
//
// The Hopper path of verify_attn as verify_attn.cu sees it.
#ifndef KDTREE_CUDA_VERIFY_ATTN_HOPPER_LAUNCH_H
#define KDTREE_CUDA_VERIFY_ATTN_HOPPER_LAUNCH_H

#include <cstddef>

#include "cuda/cuda_check.h"
#include "kdtree/kdtree.h"

namespace kdt::cuda::verify_attn::hopper {

// Why the Hopper path cannot serve these sizes on the current GPU; nullptr when it can.
const char* why_not(const kdt_verify_attn_params& p, const Device& device);

size_t needed_workspace(const kdt_verify_attn_params& p, const Device& device);

// Checks the workspace and launches.
void launch(const kdt_verify_attn_params& p, const Device& device);

}  // namespace kdt::cuda::verify_attn::hopper

#endif  // KDTREE_CUDA_VERIFY_ATTN_HOPPER_LAUNCH_H
