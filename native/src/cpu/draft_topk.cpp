// SPDX-License-Identifier: Apache-2.0
//
// draft_topk: two passes over a row. The first finds its maximum and what refuses it, the second sums the exponentials
// and keeps the topk best in a heap that lives in the outputs.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "core/checks.h"
#include "cpu/parallel.h"
#include "cpu/simd.h"
#include "kdtree/kdtree.h"

namespace kdt {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kChunk = 512;

// A stretch of a row in f32; bf16 is widened into `buffer`.
KDT_CLONES void widen(const uint16_t* from, int32_t count, float* to) {
    for (int32_t i = 0; i < count; ++i) to[i] = float_from_bf16(from[i]);
}

const float* chunk_of(const kdt_draft_topk_params& p, int64_t at, int32_t count, float* buffer) {
    if (p.logits_dtype == KDT_F32) return static_cast<const float*>(p.logits) + at;
    widen(static_cast<const uint16_t*>(p.logits) + at, count, buffer);
    return buffer;
}

struct Extremes {
    float maximum;  // of what is not NaN
    bool nan;
};

KDT_CLONES Extremes extremes(const float* x, int32_t count) {
    float maximum = -kInfinity;
    int32_t nan = 0;
#pragma omp simd reduction(max : maximum) reduction(| : nan)
    for (int32_t i = 0; i < count; ++i) {
        nan |= x[i] != x[i];
        maximum = x[i] > maximum ? x[i] : maximum;
    }
    return {maximum, nan != 0};
}

KDT_CLONES float exp_sum(const float* x, int32_t count, float maximum) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int32_t i = 0; i < count; ++i) sum += exp_nonpositive(x[i] - maximum);
    return sum;
}

// The best `capacity` (logit, id) pairs so far as a binary heap over two arrays, the worst on top. Ids are offered in
// ascending order, so among equal logits an earlier one stays and a later one never replaces it.
class WorstFirstHeap {
  public:
    WorstFirstHeap(float* logits, int32_t* ids, int32_t capacity) : logits_(logits), ids_(ids), capacity_(capacity) {}

    bool wants(float logit) const { return size_ < capacity_ || logit > logits_[0]; }

    void offer(float logit, int32_t id) {
        if (size_ < capacity_) {
            logits_[size_] = logit;
            ids_[size_] = id;
            sift_up(size_++);
        } else if (logit > logits_[0]) {
            logits_[0] = logit;
            ids_[0] = id;
            sift_down(0, size_);
        }
    }

    // Best first. The heap is spent.
    void sort() {
        for (int32_t end = size_ - 1; end > 0; --end) {
            swap(0, end);
            sift_down(0, end);
        }
    }

  private:
    bool worse(int32_t a, int32_t b) const {
        return logits_[a] != logits_[b] ? logits_[a] < logits_[b] : ids_[a] > ids_[b];
    }

    void swap(int32_t a, int32_t b) {
        std::swap(logits_[a], logits_[b]);
        std::swap(ids_[a], ids_[b]);
    }

    void sift_up(int32_t i) {
        for (; i > 0 && worse(i, (i - 1) / 2); i = (i - 1) / 2) swap(i, (i - 1) / 2);
    }

    void sift_down(int32_t i, int32_t end) {
        for (int32_t child = 2 * i + 1; child < end; child = 2 * i + 1) {
            if (child + 1 < end && worse(child + 1, child)) ++child;
            if (!worse(child, i)) return;
            swap(child, i);
            i = child;
        }
    }

    float* logits_;
    int32_t* ids_;
    int32_t capacity_;
    int32_t size_ = 0;
};

void topk_row(const kdt_draft_topk_params& p, int64_t row) {
    float* const log_probs = p.topk_log_probs + row * p.topk;
    int32_t* const ids = p.topk_token_ids + row * p.topk;
    const int64_t row_at = row * p.vocab_size;
    float buffer[kChunk];

    float maximum = -kInfinity;
    bool nan = false;
    for (int32_t at = 0; at < p.vocab_size; at += kChunk) {
        const int32_t count = std::min(kChunk, p.vocab_size - at);
        const Extremes found = extremes(chunk_of(p, row_at + at, count, buffer), count);
        maximum = std::max(maximum, found.maximum);
        nan = nan || found.nan;
    }
    p.status[row] = (nan ? KDT_REQ_NAN : 0) | (maximum == kInfinity ? KDT_REQ_POSITIVE : 0);
    if (p.status[row] != 0) {
        std::fill_n(log_probs, p.topk, std::numeric_limits<float>::quiet_NaN());
        std::fill_n(ids, p.topk, -1);
        return;
    }

    WorstFirstHeap best(log_probs, ids, p.topk);
    double sum = 0.0;
    for (int32_t at = 0; at < p.vocab_size; at += kChunk) {
        const int32_t count = std::min(kChunk, p.vocab_size - at);
        const float* const x = chunk_of(p, row_at + at, count, buffer);
        if (maximum > -kInfinity) sum += exp_sum(x, count, maximum);
        if (!best.wants(extremes(x, count).maximum)) continue;
        for (int32_t i = 0; i < count; ++i) best.offer(x[i], at + i);
    }
    best.sort();
    // Every logit may be -inf: no token is possible then, and each keeps its -inf.
    if (maximum == -kInfinity) return;
    // The sum counts the maximum itself as 1, so its logarithm is not negative and no log-prob is above zero.
    const float logsumexp = static_cast<float>(maximum + std::log(sum));
    for (int32_t k = 0; k < p.topk; ++k) log_probs[k] -= logsumexp;
}

}  // namespace
}  // namespace kdt

extern "C" kdt_status kdt_draft_topk_workspace_size(const kdt_draft_topk_params* params, size_t* bytes) {
    return kdt::guarded([&] {
        const kdt_draft_topk_params p = kdt::read_params(params);
        kdt::check_bytes_out("draft_topk", bytes);
        kdt::check_draft_topk_sizes(p);
        *bytes = 0;
    });
}

extern "C" kdt_status kdt_draft_topk(const kdt_draft_topk_params* params) {
    return kdt::guarded([&] {
        const kdt_draft_topk_params p = kdt::read_params(params);
        kdt::check_draft_topk(p);
        const double work_ns = 1.0 * p.rows * p.vocab_size;
        kdt::parallel_for(p.rows, kdt::plan_threads(p.rows, work_ns), [&](int64_t row, int) { kdt::topk_row(p, row); });
    });
}
