// SPDX-License-Identifier: Apache-2.0
#include "clock.h"

#include <algorithm>
#include <chrono>

#include "device_buffer.h"

namespace {

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point start) {
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

}  // namespace

#if defined(KDT_TEST_CUDA)

namespace {

class Graph {
  public:
    Graph(const Launch& launch, int launches, cudaStream_t stream) : stream_(stream) {
        cudaGraph_t graph = nullptr;
        device::require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
        for (int i = 0; i < launches; ++i) launch(stream);
        device::require(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
        device::require(cudaGraphInstantiate(&executable_, graph, 0), "cudaGraphInstantiate");
        cudaGraphDestroy(graph);
        device::require(cudaEventCreate(&start_), "cudaEventCreate");
        device::require(cudaEventCreate(&stop_), "cudaEventCreate");
    }
    ~Graph() {
        cudaGraphExecDestroy(executable_);
        cudaEventDestroy(start_);
        cudaEventDestroy(stop_);
    }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;

    void replay() {
        device::require(cudaEventRecord(start_, stream_), "cudaEventRecord");
        device::require(cudaGraphLaunch(executable_, stream_), "cudaGraphLaunch");
        device::require(cudaEventRecord(stop_, stream_), "cudaEventRecord");
    }

    // Of the last replay, which must have finished.
    double us() const {
        float ms = 0.0f;
        device::require(cudaEventElapsedTime(&ms, start_, stop_), "cudaEventElapsedTime");
        return 1e3 * ms;
    }

  private:
    cudaStream_t stream_;
    cudaGraphExec_t executable_ = nullptr;
    cudaEvent_t start_ = nullptr;
    cudaEvent_t stop_ = nullptr;
};

}  // namespace

std::vector<double> sample_us(const Launch& launch, int count) {
    cudaStream_t stream = nullptr;
    device::require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    // The first launches load modules; the estimate after them sizes the graphs.
    for (int i = 0; i < 3; ++i) launch(stream);
    device::require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < 20; ++i) launch(stream);
    device::require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    const double estimate = us_since(start) / 20;
    // A difference of 4 ms and more makes the events' resolution irrelevant.
    const int difference = std::clamp(static_cast<int>(4000.0 / estimate), 8, 2000);
    const int shorter = std::max(2, difference / 10);
    std::vector<double> samples;
    {
        Graph few(launch, shorter, stream);
        Graph many(launch, shorter + difference, stream);
        const auto slope = [&] {
            few.replay();
            many.replay();
            device::require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
            return (many.us() - few.us()) / difference;
        };
        // Clocks rise under load before they settle: half a second of it comes first.
        for (const Clock::time_point warm = Clock::now(); us_since(warm) < 5e5;) slope();
        for (int i = 0; i < count; ++i) samples.push_back(slope());
    }
    cudaStreamDestroy(stream);
    return samples;
}

#else

std::vector<double> sample_us(const Launch& launch, int count) {
    const auto batch_us = [&](int calls) {
        const Clock::time_point start = Clock::now();
        for (int i = 0; i < calls; ++i) launch(nullptr);
        return us_since(start);
    };
    int calls = 1;
    while (batch_us(calls) < 1000.0 && calls < (1 << 24)) calls *= 2;
    std::vector<double> samples;
    for (int i = 0; i < count; ++i) samples.push_back(batch_us(calls) / calls);
    return samples;
}

#endif
