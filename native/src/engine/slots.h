// SPDX-License-Identifier: Apache-2.0
//
// The state of the slots: on the device what rounds read and change, in shared memory what the host may read meanwhile,
// on the host who occupies what. Rows of the device state are written from the host only for one slot, in the order of
// the queue.
#ifndef KDT_ENGINE_SLOTS_H
#define KDT_ENGINE_SLOTS_H

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/config.h"
#include "engine/ops.h"
#include "engine/pages.h"
#include "kdtree/engine.h"

namespace kdt::engine {

class SlotTable {
  public:
    SlotTable(Queue& queue, const Config& config);

    // A free slot and its pages; the slot stays idle until activate(). Throws KDT_UNSUPPORTED, and then nothing has
    // changed.
    int32_t occupy(int32_t tokens);
    // Gives slot and pages back; no work of the slot may be under way.
    void vacate(int32_t slot);
    bool occupied(int32_t slot) const { return occupied_[static_cast<size_t>(slot)]; }
    void check_occupied(const char* call, int32_t slot) const;

    // After prefill: the slot takes part in rounds, from its first token on. Nothing may be under way.
    void activate(int32_t slot, const kdt_engine_request& request, int32_t first_token);
    // temperature and seed, which the draw of the first token needs already.
    void set_sampling(int32_t slot, float temperature, uint64_t seed);

    // A slot that AR rounds have advanced, so that the drafter has not seen all of its tokens, and that has not
    // finished; -1 when there is none.
    int32_t slot_unknown_to_drafter() const;
    void note_ar_rounds();

    void progress(int32_t slot, kdt_engine_progress* to, int32_t* tokens, int32_t first, int32_t capacity) const;

    Slots state() const;
    Outputs outputs() const;  // device addresses
    Golden golden() const;
    const int32_t* block_table(int32_t slot = 0) const;
    const float* temperatures() const { return temperatures_.as<float>(); }
    const uint64_t* seeds() const { return seeds_.as<uint64_t>(); }
    const PageAllocator& pages() const { return pages_; }
    int32_t num_occupied() const;

  private:
    // Addresses of the host-visible outputs inside shared_.
    Outputs outputs_in(void* base) const;
    template <class T>
    void set(const Memory& memory, int64_t index, const T& value);

    Queue& queue_;
    const Config& config_;
    PageAllocator pages_;
    std::vector<char> occupied_;
    std::vector<char> unknown_to_drafter_;
    std::vector<std::vector<int32_t>> pages_of_;
    Memory roots_, seq_lens_, active_, remaining_, stop_tokens_, context_starts_, context_counts_, round_;
    Memory block_table_, temperatures_, seeds_, golden_, golden_counts_, golden_starts_;
    SharedMemory shared_;
};

}  // namespace kdt::engine

#endif  // KDT_ENGINE_SLOTS_H
