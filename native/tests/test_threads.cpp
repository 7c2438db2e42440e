// SPDX-License-Identifier: Apache-2.0
//
// The CPU library's threads: they change no bit, and a forked child does not wait for its parent's.
#if defined(_OPENMP) && !defined(KDT_TEST_CUDA)

#include <omp.h>
#include <sys/wait.h>
#include <unistd.h>

#include "calls.h"
#include "check.h"
#include "oracle.h"

namespace {

// Inputs whose work is well above what starts a team.
struct Inputs {
    TreeBuildInput build;
    TreeAcceptInput accept;
    VerifyAttnInput attn;
    DraftTopkInput topk;
};

Inputs inputs() {
    Random random(5);
    Inputs all = {};
    all.build = random_tree_input(random, 16, 15, 32, 512, 2.0f, 8);
    all.accept = {400, 1025, 15, {}, {}, std::vector<int32_t>(400, 1025), {}};
    for (int32_t i = 0; i < 400 * 1025; ++i) {
        all.accept.parents.push_back(i % 1025 == 0 ? -1 : random.below(i % 1025));
        all.accept.token_ids.push_back(random.below(3));
        all.accept.target_tokens.push_back(random.below(3));
    }
    all.attn = {2, 9, 8, 16, 16, 8, 0.07f, {}, {}, {}, {}, {100, 60}, {}, {9, 7}};
    for (int32_t page = 0; page < 16; ++page) all.attn.block_table.push_back(15 - page);
    for (int32_t row = 0; row < 18; ++row) all.attn.tree_mask.push_back((uint64_t{2} << (row % 9)) - 1);
    const auto normals = [&](size_t count) {
        std::vector<uint16_t> values(count);
        for (uint16_t& value : values) value = bf16(random.normal());
        return values;
    };
    all.attn.q_nope = normals(18 * 8 * KDT_KV_LORA_RANK);
    all.attn.q_pe = normals(18 * 8 * KDT_QK_ROPE_HEAD_DIM);
    all.attn.kv_cache = normals(16 * 16 * (KDT_KV_LORA_RANK + KDT_QK_ROPE_HEAD_DIM));
    all.topk = {8, 100000, 50, {}, normals(8 * 100000)};
    return all;
}

}  // namespace

TEST(threads_change_no_bit) {
    const Inputs in = inputs();
    const int before = omp_get_max_threads();
    omp_set_num_threads(1);
    const TreeBuildOutput tree = run(in.build);
    const TreeAcceptOutput path = run(in.accept);
    const VerifyAttnOutput attn = run(in.attn);
    const DraftTopkOutput topk = run(in.topk);
    for (const int threads : {2, 3, 8}) {
        omp_set_num_threads(threads);
        CHECK(run(in.build) == tree);
        CHECK(run(in.accept) == path);
        CHECK(run(in.attn) == attn);
        CHECK(run(in.topk) == topk);
    }
    omp_set_num_threads(before);
}

TEST(threads_survive_fork) {
    const Inputs in = inputs();
    const int before = omp_get_max_threads();
    omp_set_num_threads(2);
    const TreeBuildOutput tree = run(in.build);
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);  // a child that waits for a team it does not have is killed, and so fails the test
        _exit(run(in.build) == tree ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    omp_set_num_threads(before);
}

#endif
