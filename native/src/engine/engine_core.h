// SPDX-License-Identifier: Apache-2.0
//
// The engine behind kdt_engine: what admits requests, runs rounds and reports. Methods throw Error.
#ifndef KDT_ENGINE_ENGINE_CORE_H
#define KDT_ENGINE_ENGINE_CORE_H

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/drafter.h"
#include "engine/ops.h"
#include "engine/prefill.h"
#include "engine/round.h"
#include "engine/slots.h"
#include "engine/target.h"
#include "engine/workspaces.h"
#include "kdtree/engine.h"

namespace kdt::engine {

class Engine {
  public:
    explicit Engine(Config config);
    ~Engine();

    int32_t admit(const kdt_engine_request& request);
    void release(int32_t slot);
    void run(const kdt_engine_rounds& rounds);
    void progress(int32_t slot, bool wait, kdt_engine_progress* progress, int32_t* tokens, int32_t first,
                  int32_t capacity);
    // Seconds of each stage since the last call; answers the rounds that they are of. Waits, as the next does.
    int64_t stage_seconds(double* seconds);
    void round_clock(kdt_round_clock* clock);
    int32_t logits(int32_t slot, float* logits, int64_t capacity);
    std::string info() const;
    const Drafter* drafter() const { return drafter_.get(); }  // NULL without one

  private:
    // A recorded round, as long as no scratch block that it names has moved.
    struct Recorded {
        Plan plan;
        int generation;
        std::unique_ptr<Recording> recording;
    };

    void check_request(const kdt_engine_request& request) const;
    Recording& recording_of(const Plan& plan);
    void read_stamps();

    const Config config_;
    Queue queue_;
    Workspaces workspaces_;
    int64_t weight_bytes_ = 0;
    SlotTable slots_;
    std::unique_ptr<Target> target_;
    std::unique_ptr<Drafter> drafter_;
    std::unique_ptr<Round> round_;
    std::unique_ptr<Prefill> prefill_;
    std::vector<Recorded> recorded_;

    // What stamps have come to and nobody has asked for yet.
    std::array<double, KDT_NUM_STAGES> stage_seconds_ = {};
    int64_t profiled_rounds_ = 0;
    kdt_round_clock clock_ = {};
    int32_t logits_rows_ = 0;   // that round_->logits() holds for each slot
    int32_t logits_slot_ = -1;  // whose they are alone, or -1: every slot's
};

}  // namespace kdt::engine

#endif  // KDT_ENGINE_ENGINE_CORE_H
