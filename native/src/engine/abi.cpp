// SPDX-License-Identifier: Apache-2.0
//
// engine.h: handles, structs of any version, and no exception beyond this file.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "core/error.h"
#include "engine/engine_core.h"
#include "engine/structs.h"
#include "kdtree/engine.h"

struct kdt_engine {
    explicit kdt_engine(kdt::engine::Config config) : engine(std::move(config)) {}
    kdt::engine::Engine engine;
};

namespace {

kdt::engine::Engine& of(const char* call, kdt_engine* engine) {
    if (engine == nullptr) kdt::fail_argument("%s: engine is NULL", call);
    return engine->engine;
}

template <class T>
void check_answer(const char* call, const char* name, const T* answer) {
    if (answer == nullptr) kdt::fail_argument("%s: %s is NULL, wanted a place for the answer", call, name);
}

}  // namespace

extern "C" {

kdt_status kdt_engine_create(const kdt_engine_params* params, kdt_engine** engine) {
    return kdt::guarded([&] {
        check_answer("engine_create", "engine", engine);
        *engine = nullptr;
        *engine = std::make_unique<kdt_engine>(kdt::engine::read_config(params)).release();
    });
}

void kdt_engine_destroy(kdt_engine* engine) {
    delete engine;
}

kdt_status kdt_engine_admit(kdt_engine* engine, const kdt_engine_request* request, int32_t* slot) {
    return kdt::guarded([&] {
        kdt::engine::Engine& e = of("engine_admit", engine);
        check_answer("engine_admit", "slot", slot);
        *slot = -1;
        *slot = e.admit(kdt::engine::read_struct(request));
    });
}

kdt_status kdt_engine_release(kdt_engine* engine, int32_t slot) {
    return kdt::guarded([&] { of("engine_release", engine).release(slot); });
}

kdt_status kdt_engine_run(kdt_engine* engine, const kdt_engine_rounds* rounds) {
    return kdt::guarded([&] { of("engine_run", engine).run(kdt::engine::read_struct(rounds)); });
}

kdt_status kdt_engine_progress_of(kdt_engine* engine, int32_t slot, int32_t wait, kdt_engine_progress* progress,
                                  int32_t* tokens, int32_t first, int32_t capacity) {
    return kdt::guarded([&] {
        kdt::engine::Engine& e = of("engine_progress_of", engine);
        kdt_engine_progress now = kdt::engine::read_struct(progress);
        const uint32_t given = progress->struct_size;
        e.progress(slot, wait != 0, &now, tokens, first, capacity);
        std::memcpy(static_cast<void*>(progress), &now, std::min<size_t>(given, sizeof(now)));
        progress->struct_size = given;
    });
}

kdt_status kdt_engine_stage_seconds(kdt_engine* engine, double seconds[KDT_NUM_STAGES], int64_t* rounds) {
    return kdt::guarded([&] {
        kdt::engine::Engine& e = of("engine_stage_seconds", engine);
        check_answer("engine_stage_seconds", "seconds", seconds);
        check_answer("engine_stage_seconds", "rounds", rounds);
        *rounds = e.stage_seconds(seconds);
    });
}

kdt_status kdt_engine_round_clock(kdt_engine* engine, kdt_round_clock* clock) {
    return kdt::guarded([&] {
        kdt::engine::Engine& e = of("engine_round_clock", engine);
        kdt_round_clock now = kdt::engine::read_struct(clock);
        const uint32_t given = clock->struct_size;
        e.round_clock(&now);
        std::memcpy(static_cast<void*>(clock), &now, std::min<size_t>(given, sizeof(now)));
        clock->struct_size = given;
    });
}

kdt_status kdt_engine_logits(kdt_engine* engine, int32_t slot, float* logits, int64_t capacity, int32_t* rows) {
    return kdt::guarded([&] {
        kdt::engine::Engine& e = of("engine_logits", engine);
        check_answer("engine_logits", "rows", rows);
        *rows = e.logits(slot, logits, capacity);
    });
}

kdt_status kdt_engine_info(kdt_engine* engine, char* text, size_t capacity) {
    return kdt::guarded([&] {
        const std::string json = of("engine_info", engine).info();
        check_answer("engine_info", "text", text);
        if (json.size() + 1 > capacity)
            kdt::fail_argument("engine_info: capacity is %zu, and the text has %zu bytes", capacity, json.size() + 1);
        std::memcpy(text, json.c_str(), json.size() + 1);
    });
}

}  // extern "C"
