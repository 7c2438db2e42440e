// SPDX-License-Identifier: Apache-2.0
//
// The noise of draws: its values, which are fixed for ever, and how often it lets each token win.
#include <cmath>
#include <cstring>
#include <vector>

#include "check.h"
#include "engine/arrays.h"
#include "engine/keyed_random.h"

using namespace arrays;
using namespace kdt::engine;

namespace {

std::vector<int32_t> drawn(const std::vector<float>& logits, int32_t vocab, const std::vector<int32_t>& positions,
                           const std::vector<float>& temperatures, const std::vector<uint64_t>& seeds) {
    const auto rows = static_cast<int32_t>(positions.size());
    const Memory dl = to_device(logits), dp = to_device(positions), dt = to_device(temperatures), ds = to_device(seeds);
    const Memory tokens(positions.size() * sizeof(int32_t));
    draw(queue(), dl.as<float>(), vocab, dp.as<int32_t>(), dt.as<float>(), ds.as<uint64_t>(),
         rows / static_cast<int32_t>(seeds.size()), tokens.as<int32_t>(), rows);
    return from_device<int32_t>(tokens);
}

uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}

}  // namespace

TEST(the_noise_has_the_bits_of_its_definition) {
    struct Known {
        uint64_t seed, position, token, word;
        uint32_t gumbel;
    };
    constexpr uint64_t kLong = 12345678901234567890ull, kLast = 18446744073709551615ull;
    for (const Known& known :
         {Known{0, 0, 0, 0xb48550626b0b2068, 0x3f869f34}, Known{0, 0, 1, 0xa691b3b6c9264c1c, 0x3f5831f5},
          Known{0, 0, 1023, 0x28888e20beb3266c, 0xbf1c862a}, Known{0, 0, 163839, 0x37c258f50212ff13, 0xbed7c555},
          Known{1, 17, 0, 0x59759780bb661540, 0xbd4d4693}, Known{1, 17, 163839, 0xf3562fe7f131411c, 0x403ecc1e},
          Known{kLong, 4095, 1, 0xf3fc8bb7a3556ddf, 0x404240e6},
          Known{kLong, 4095, 163839, 0x79435ea9f6a29e09, 0x3e9532cc},
          Known{kLast, 2147483647, 0, 0xe0a3f039be7a905a, 0x40023ded},
          Known{kLast, 2147483647, 1023, 0x4b8d2cf383562b6a, 0xbe4bed9e}}) {
        const uint64_t position_word = word(known.seed, known.position);
        CHECK_EQ(word(position_word, known.token), known.word);
        CHECK_EQ(bits_of(gumbel(position_word, known.token)), known.gumbel);
    }
}

TEST(frequencies_are_the_softmax_s) {
    const std::vector<float> row = {0.0f, 1.0f, -1.0f, 2.0f, 0.5f};
    constexpr int kDraws = 20000;
    std::vector<float> logits;
    std::vector<int32_t> positions;
    for (int i = 0; i < kDraws; ++i) {
        logits.insert(logits.end(), row.begin(), row.end());
        positions.push_back(i);
    }
    std::vector<double> counts(row.size(), 0.0);
    for (const int32_t token : drawn(logits, 5, positions, {1.5f}, {77})) counts[static_cast<size_t>(token)] += 1.0;
    double total = 0.0, chi_square = 0.0;
    for (const float value : row) total += std::exp(value / 1.5);
    for (size_t v = 0; v < row.size(); ++v) {
        const double wanted = kDraws * std::exp(row[v] / 1.5) / total;
        chi_square += (counts[v] - wanted) * (counts[v] - wanted) / wanted;
    }
    CHECK(chi_square < 18.47);  // 4 degrees of freedom, one in a thousand
}
