// SPDX-License-Identifier: Apache-2.0
//
// Scratch of the kernels of kdtree.h and of the larger operators: one block for each kind of call, grown when a plan
// asks for more. Blocks never grow while work is recorded, and recordings made before a growth are out of date.
#ifndef KDT_ENGINE_WORKSPACES_H
#define KDT_ENGINE_WORKSPACES_H

#include <array>
#include <cstddef>

#include "core/error.h"
#include "engine/ops.h"

namespace kdt::engine {

enum class Scratch { draft_topk, tree_build, tree_accept, verify_mla, kv_compact, draft_attention, experts, count };

class Workspaces {
  public:
    explicit Workspaces(Queue& queue) : queue_(queue) {}

    // The block of this kind holds this many bytes from here on.
    void reserve(Scratch kind, size_t bytes) {
        Memory& block = blocks_[static_cast<size_t>(kind)];
        if (bytes <= block.bytes()) return;
        queue_.wait();  // for whoever uses the old block
        block = Memory();
        block = Memory(bytes);
        ++generation_;
    }
    void* at(Scratch kind) const { return blocks_[static_cast<size_t>(kind)].data(); }
    size_t bytes(Scratch kind) const { return blocks_[static_cast<size_t>(kind)].bytes(); }
    size_t total() const {
        size_t sum = 0;
        for (const Memory& block : blocks_) sum += block.bytes();
        return sum;
    }
    // Changes whenever a block has moved.
    int generation() const { return generation_; }

    // A kernel of kdtree.h: its query, or the call itself with the block that was reserved for it.
    template <class Params>
    void reserve_for(Scratch kind, const Params& params, kdt_status (*query)(const Params*, size_t*)) {
        size_t bytes = 0;
        require(query(&params, &bytes));
        reserve(kind, bytes);
    }
    template <class Params>
    void call(Scratch kind, Params params, kdt_status (*kernel)(const Params*)) const {
        params.workspace = at(kind);
        params.workspace_size = bytes(kind);
        require(kernel(&params));
    }

  private:
    static void require(kdt_status status) {
        if (status != KDT_OK) throw Error(status, last_error());
    }

    Queue& queue_;
    std::array<Memory, static_cast<size_t>(Scratch::count)> blocks_;
    int generation_ = 0;
};

}  // namespace kdt::engine

#endif  // KDT_ENGINE_WORKSPACES_H
