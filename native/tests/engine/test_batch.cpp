// SPDX-License-Identifier: Apache-2.0
//
// Requests that share an engine: none sees the others, whoever joins, leaves, finishes or is turned away.
#include <algorithm>

#include "check.h"
#include "engine/model.h"

namespace {

constexpr int32_t kVocab = 97;

struct Request {
    std::vector<int32_t> prompt;
    int32_t max_new_tokens;
    float temperature;
    uint64_t seed;

    kdt_engine_request engine_request() const {
        kdt_engine_request request = request_of(prompt, max_new_tokens);
        request.temperature = temperature;
        request.seed = seed;
        return request;
    }
};

std::vector<Request> ragged_requests(int count) {
    std::vector<Request> requests;
    for (int i = 0; i < count; ++i) {
        const auto key = static_cast<uint64_t>(i);
        requests.push_back(
            {random_prompt(100 + key, 1 + i * 11 % 60, kVocab), 5 + i * 17 % 50, i % 3 == 0 ? 0.8f : 0.0f, key});
    }
    return requests;
}

std::vector<std::vector<int32_t>> alone(const std::vector<Request>& requests) {
    Model model{ModelParams()};
    std::vector<std::vector<int32_t>> texts;
    for (const Request& request : requests)
        texts.push_back(model.generate(request.engine_request(), ar_rounds()).tokens);
    return texts;
}

int32_t field(const std::string& json, const std::string& name) {
    const size_t at = json.find("\"" + name + "\": ");
    if (at == std::string::npos) throw check::Failure("no " + name + " in " + json);
    return std::stoi(json.substr(at + name.size() + 4));
}

}  // namespace

TEST(a_batch_says_what_its_requests_say_alone) {
    const std::vector<Request> requests = ragged_requests(5);
    const std::vector<std::vector<int32_t>> wanted = alone(requests);
    for (const kdt_engine_rounds& rounds : {ar_rounds(), chain_rounds(), tree_rounds(9), tree_rounds(40, 4)}) {
        ModelParams params;
        params.engine.max_batch = 6;  // one slot stays empty
        Model model(params);
        std::vector<int32_t> slots;
        for (const Request& request : requests) slots.push_back(model.admit(request.engine_request()));
        for (const int32_t slot : slots) model.run_until_finished(slot, rounds);
        for (size_t i = 0; i < requests.size(); ++i) CHECK_EQ(model.generated(slots[i]).tokens, wanted[i]);
    }
}

TEST(requests_join_and_leave_and_nothing_leaks) {
    const std::vector<Request> requests = ragged_requests(14);
    const std::vector<std::vector<int32_t>> wanted = alone(requests);
    ModelParams params;
    params.engine.max_batch = 3;
    params.engine.num_pages = 33;  // three of the longest do not fit
    Model model(params);
    std::vector<int32_t> slot_of(requests.size(), -1);
    size_t next = 0, finished = 0;
    int turned_away = 0;
    for (int round = 0; finished < requests.size(); ++round) {
        while (next < requests.size()) {
            const kdt_engine_request request = requests[next].engine_request();
            const kdt_status status = kdt_engine_admit(model.get(), &request, &slot_of[next]);
            if (status != KDT_OK) {
                CHECK_EQ(static_cast<int>(status), static_cast<int>(KDT_UNSUPPORTED));
                CHECK_EQ(slot_of[next], -1);
                ++turned_away;
                break;
            }
            ++next;
        }
        model.run(round % 2 == 0 ? tree_rounds(12) : chain_rounds(), 1);
        for (size_t i = 0; i < next; ++i) {
            if (slot_of[i] < 0) continue;
            const Generated now = model.generated(slot_of[i]);
            CHECK_EQ(now.tokens, std::vector<int32_t>(wanted[i].begin(), wanted[i].begin() + now.progress.num_tokens));
            if (now.progress.finished == 0) continue;
            CHECK_EQ(now.tokens, wanted[i]);
            model.release(slot_of[i]);
            slot_of[i] = -2;
            ++finished;
        }
        CHECK(round < 2000);
    }
    CHECK(turned_away > 0);
    CHECK_EQ(field(model.info(), "pages_free"), 33);
    CHECK_EQ(field(model.info(), "slots_in_use"), 0);
}

TEST(a_request_that_is_refused_leaves_the_others_alone) {
    const std::vector<Request> requests = ragged_requests(3);
    const std::vector<std::vector<int32_t>> wanted = alone(requests);
    ModelParams params;
    params.engine.max_batch = 3;
    params.engine.num_pages = 24;
    Model model(params);
    std::vector<int32_t> slots;
    for (const Request& request : {requests[1], requests[2]}) slots.push_back(model.admit(request.engine_request()));
    const int32_t pages = field(model.info(), "pages_free");
    const auto refused = [&](const kdt_engine_request& request, kdt_status wanted_status, const char* part) {
        model.run(tree_rounds(7), 1);
        int32_t slot = 5;
        CHECK_EQ(static_cast<int>(kdt_engine_admit(model.get(), &request, &slot)), static_cast<int>(wanted_status));
        CHECK_CONTAINS(std::string(kdt_last_error()), part);
        CHECK_EQ(slot, -1);
        CHECK_EQ(field(model.info(), "pages_free"), pages);
        CHECK_EQ(field(model.info(), "slots_in_use"), 2);
    };
    std::vector<int32_t> prompt = random_prompt(9, 100, kVocab);
    refused(request_of(prompt, 61), KDT_INVALID_ARGUMENT, "max_seq_len is 160");
    refused(request_of(prompt, 60), KDT_UNSUPPORTED, "pages");
    refused(request_of({}, 5), KDT_INVALID_ARGUMENT, "empty");
    prompt[50] = kVocab;
    refused(request_of(prompt, 5), KDT_INVALID_ARGUMENT, "prompt[50] is 97");
    prompt[50] = -1;
    refused(request_of(prompt, 5), KDT_INVALID_ARGUMENT, "prompt[50] is -1");
    prompt.resize(3);
    refused(request_of(prompt, 0), KDT_INVALID_ARGUMENT, "max_new_tokens is 0");
    kdt_engine_request odd = request_of(prompt, 5);
    odd.temperature = -1.0f;
    refused(odd, KDT_INVALID_ARGUMENT, "temperature");
    odd = request_of(prompt, 5);
    odd.num_stop_tokens = 9;
    refused(odd, KDT_INVALID_ARGUMENT, "num_stop_tokens");
    for (size_t i = 0; i < 2; ++i) {
        model.run_until_finished(slots[i], tree_rounds(7));
        CHECK_EQ(model.generated(slots[i]).tokens, wanted[i + 1]);
    }
}

TEST(a_request_larger_than_the_cache_never_fits) {
    ModelParams params;
    params.engine.num_pages = 6;
    Model model(params);
    const std::vector<int32_t> prompt = random_prompt(1, 30, kVocab);
    const kdt_engine_request request = request_of(prompt, 10);
    int32_t slot = 0;
    CHECK_EQ(static_cast<int>(kdt_engine_admit(model.get(), &request, &slot)), static_cast<int>(KDT_INVALID_ARGUMENT));
    CHECK_CONTAINS(std::string(kdt_last_error()), "needs 7 pages, and the engine has 6");
}

TEST(generation_ends_behind_a_stop_token_or_at_its_limit) {
    Model model{ModelParams()};
    const std::vector<int32_t> prompt = random_prompt(4, 12, kVocab);
    const std::vector<int32_t> text = model.generate(request_of(prompt, 40), ar_rounds()).tokens;
    CHECK_EQ(text.size(), size_t{40});
    for (const kdt_engine_rounds& rounds : {ar_rounds(), tree_rounds(20)}) {
        for (const int32_t limit : {1, 2, 9})
            CHECK_EQ(model.generate(request_of(prompt, limit), rounds).tokens,
                     std::vector<int32_t>(text.begin(), text.begin() + limit));
        for (const size_t at : {size_t{0}, size_t{7}, size_t{20}}) {
            const std::vector<int32_t> stops = {-1, text[at], 96};
            kdt_engine_request request = request_of(prompt, 40);
            request.stop_tokens = stops.data();
            request.num_stop_tokens = 3;
            const auto end =
                std::find_if(text.begin(), text.end(), [&](int32_t t) { return t == text[at] || t == 96; });
            CHECK_EQ(model.generate(request, rounds).tokens, std::vector<int32_t>(text.begin(), end + 1));
        }
    }
}

TEST(chain_and_tree_are_refused_where_the_drafter_has_missed_tokens) {
    ModelParams params;
    params.engine.max_batch = 2;
    Model model(params);
    const std::vector<int32_t> prompt = random_prompt(4, 12, kVocab);
    const int32_t slot = model.admit(request_of(prompt, 40));
    model.run(tree_rounds(8), 2);
    model.run(ar_rounds(), 1);
    kdt_engine_rounds rounds = chain_rounds();
    rounds.rounds = 1;
    CHECK_EQ(static_cast<int>(kdt_engine_run(model.get(), &rounds)), static_cast<int>(KDT_INVALID_ARGUMENT));
    CHECK_CONTAINS(std::string(kdt_last_error()), "AR rounds have advanced slot");
    model.run_until_finished(slot, ar_rounds());
    const std::vector<int32_t> text = model.generated(slot).tokens;
    model.release(slot);
    CHECK_EQ(model.generate(request_of(prompt, 40), chain_rounds()).tokens, text);
}
