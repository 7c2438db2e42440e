// SPDX-License-Identifier: Apache-2.0
#ifndef KDTREE_ENGINE_CUDA_ROWS_H
#define KDTREE_ENGINE_CUDA_ROWS_H

#include "engine/ops.h"

namespace kdt::engine {

// add_rmsnorm with the sum in another place than the residual.
void add_rmsnorm_apart(Queue&, Dtype, const NormInput& input, int32_t rows, int32_t hidden);

}  // namespace kdt::engine

#endif  // KDTREE_ENGINE_CUDA_ROWS_H
