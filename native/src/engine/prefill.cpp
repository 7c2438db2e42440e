// SPDX-License-Identifier: Apache-2.0
#include "engine/prefill.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/checks.h"

namespace kdt::engine {

Prefill::Prefill(Queue& queue, const Config& config, Target& target, Drafter* drafter, SlotTable& slots, Round& round)
    : queue_(queue),
      config_(config),
      target_(target),
      drafter_(drafter),
      slots_(slots),
      round_(round),
      token_ids_(static_cast<size_t>(config.prefill_chunk) * sizeof(int32_t)),
      positions_(static_cast<size_t>(config.prefill_chunk) * sizeof(int32_t)),
      tree_mask_(static_cast<size_t>(config.prefill_chunk) * mask_words(config.prefill_chunk) * sizeof(uint64_t)),
      start_(sizeof(int32_t)),
      count_(sizeof(int32_t)),
      status_(sizeof(int32_t)),
      first_token_(sizeof(int32_t)) {
    target_.reserve(1, config.prefill_chunk);
}

void Prefill::piece(int32_t slot, const int32_t* tokens, int32_t first, int32_t count) {
    std::vector<int32_t> positions(static_cast<size_t>(count));
    std::iota(positions.begin(), positions.end(), first);
    const int32_t words = mask_words(count);
    std::vector<uint64_t> mask(static_cast<size_t>(count) * words, 0);
    for (int32_t i = 0; i < count; ++i) {
        uint64_t* const row = mask.data() + int64_t{i} * words;
        std::fill_n(row, (i + 1) / 64, ~uint64_t{0});
        if ((i + 1) % 64 != 0) row[i / 64] = (uint64_t{1} << ((i + 1) % 64)) - 1;
    }
    queue_.upload(token_ids_.data(), tokens + first, positions.size() * sizeof(int32_t));
    queue_.upload(positions_.data(), positions.data(), positions.size() * sizeof(int32_t));
    queue_.upload(tree_mask_.data(), mask.data(), mask.size() * sizeof(uint64_t));
    queue_.upload(start_.data(), &first, sizeof(first));
    queue_.upload(count_.data(), &count, sizeof(count));

    Trees trees = {};
    trees.token_ids = token_ids_.as<int32_t>();
    trees.positions = positions_.as<int32_t>();
    trees.seq_lens = start_.as<int32_t>();
    trees.num_nodes = count_.as<int32_t>();
    trees.tree_mask = tree_mask_.as<uint64_t>();
    trees.block_table = slots_.block_table(slot);
    trees.status = status_.as<int32_t>();
    trees.batch = 1;
    trees.max_nodes = count;
    target_.reserve(1, count);
    target_.forward(trees, round_.features());
    if (drafter_ != nullptr)
        drafter_->context(round_.features(), start_.as<int32_t>(), count_.as<int32_t>(), slot, 1, count);
}

int32_t Prefill::run(int32_t slot, const int32_t* prompt, int32_t length) {
    int32_t count = 0;
    for (int32_t first = 0; first < length; first += count) {
        count = std::min(config_.prefill_chunk, length - first);
        piece(slot, prompt, first, count);
    }
    target_.head(count - 1, 1, round_.logits());
    draw(queue_, round_.logits(), config_.target.vocab_size, positions_.as<int32_t>() + count - 1,
         slots_.temperatures() + slot, slots_.seeds() + slot, 1, first_token_.as<int32_t>(), 1);
    int32_t token = 0;
    queue_.download(&token, first_token_.data(), sizeof(token));
    return token;
}

}  // namespace kdt::engine
