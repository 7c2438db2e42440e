// SPDX-License-Identifier: Apache-2.0
//
// The KDTR container: round trip, and one clear sentence for each way in which a file can be wrong.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "check.h"
#include "core/error.h"
#include "core/kdtr.h"
#include "core/kdtr_format.h"

namespace {

using Bytes = std::vector<unsigned char>;

// A path of its own, removed at the end.
class TemporaryFile {
  public:
    TemporaryFile() {
        const char* const folder = std::getenv("TMPDIR");
        path = std::string(folder != nullptr ? folder : "/tmp") + "/kdtr_test_XXXXXX";
        const int file = mkstemp(path.data());
        CHECK(file >= 0);
        close(file);
    }
    ~TemporaryFile() { std::remove(path.c_str()); }

    void write(const Bytes& bytes) const {
        std::FILE* const file = std::fopen(path.c_str(), "wb");
        CHECK(file != nullptr);
        if (!bytes.empty()) std::fwrite(bytes.data(), 1, bytes.size(), file);
        std::fclose(file);
    }

    Bytes read() const {
        std::FILE* const file = std::fopen(path.c_str(), "rb");
        CHECK(file != nullptr);
        Bytes bytes(1 << 16);
        bytes.resize(std::fread(bytes.data(), 1, bytes.size(), file));
        std::fclose(file);
        return bytes;
    }

    std::string path;
};

const std::vector<int32_t> kInts = {1, -2, 3, -4, 5, -6};
const std::vector<uint16_t> kBf16 = {0x3F80, 0x7FC0, 0};
const double kScalar = 0.125;

// [2, 3] ints, 3 bf16, nothing and a scalar.
Bytes sample() {
    const TemporaryFile file;
    kdt::kdtr_write(file.path, {{"tree/0/ints", kdt::KdtrDtype::i32, {2, 3}, kInts.data(), 24},
                                {"größe", kdt::KdtrDtype::bf16, {3}, kBf16.data(), 6},
                                {"empty", kdt::KdtrDtype::f32, {0, 7}, nullptr, 0},
                                {"scalar", kdt::KdtrDtype::f64, {}, &kScalar, 8}});
    return file.read();
}

kdt::KdtrHeader& header_of(Bytes& bytes) {
    return *reinterpret_cast<kdt::KdtrHeader*>(bytes.data());
}
kdt::KdtrEntry& entry_of(Bytes& bytes, size_t index) {
    return reinterpret_cast<kdt::KdtrEntry*>(bytes.data() + sizeof(kdt::KdtrHeader))[index];
}

// Makes the checksums of header and table right again, so that a test reaches the check behind them.
void seal(Bytes& bytes) {
    kdt::KdtrHeader& header = header_of(bytes);
    header.table_crc = kdt::crc32(bytes.data() + sizeof(header), header.num_arrays * sizeof(kdt::KdtrEntry));
    header.header_crc = kdt::crc32(&header, offsetof(kdt::KdtrHeader, header_crc));
}

std::string error_of(const std::string& path) {
    try {
        const kdt::KdtrFile file(path);
    } catch (const kdt::Error& error) {
        CHECK_EQ(error.status(), KDT_INVALID_ARGUMENT);
        CHECK_CONTAINS(error.what(), path + ": ");
        return error.what();
    }
    return "the file was accepted";
}

void refused(const Bytes& bytes, const std::string& sentence) {
    const TemporaryFile file;
    file.write(bytes);
    CHECK_CONTAINS(error_of(file.path), sentence);
}

void refused_after(const std::function<void(Bytes&)>& damage, const std::string& sentence) {
    Bytes bytes = sample();
    damage(bytes);
    seal(bytes);
    refused(bytes, sentence);
}

}  // namespace

HOST_TEST(kdtr_crc32_is_zlibs) {
    CHECK_EQ(kdt::crc32("123456789", 9), 0xCBF43926u);
    CHECK_EQ(kdt::crc32("6789", 4, kdt::crc32("12345", 5)), 0xCBF43926u);
    CHECK_EQ(kdt::crc32("", 0), 0u);
}

HOST_TEST(kdtr_round_trip) {
    const TemporaryFile file;
    file.write(sample());
    const kdt::KdtrFile read(file.path);
    CHECK_EQ(read.arrays().size(), size_t{4});
    const kdt::KdtrArray& ints = read.at("tree/0/ints");
    CHECK_EQ(ints.shape, (std::vector<uint64_t>{2, 3}));
    CHECK_EQ(std::vector<int32_t>(ints.as<int32_t>(), ints.as<int32_t>() + ints.size()), kInts);
    CHECK_EQ(reinterpret_cast<uintptr_t>(ints.data) % 64, uintptr_t{0});
    CHECK_EQ(read.at("größe").as<uint16_t>()[1], 0x7FC0);
    CHECK_EQ(read.at("scalar").as<double>()[0], kScalar);
    CHECK_EQ(read.at("scalar").shape.size(), size_t{0});
    CHECK_EQ(read.at("empty").size(), size_t{0});
    CHECK(read.find("absent") == nullptr);
}

HOST_TEST(kdtr_no_arrays) {
    const TemporaryFile file;
    kdt::kdtr_write(file.path, {});
    CHECK_EQ(file.read().size(), size_t{64});
    CHECK(kdt::KdtrFile(file.path).arrays().empty());
}

HOST_TEST(kdtr_wrong_name_or_type_is_said) {
    const TemporaryFile file;
    file.write(sample());
    const kdt::KdtrFile read(file.path);
    try {
        read.at("absent");
        CHECK(false);
    } catch (const kdt::Error& error) {
        CHECK_CONTAINS(error.what(), "has no array 'absent'");
    }
    try {
        read.at("scalar").as<float>();
        CHECK(false);
    } catch (const kdt::Error& error) {
        CHECK_CONTAINS(error.what(), "array 'scalar' holds f64, wanted f32");
    }
}

HOST_TEST(kdtr_truncated_files) {
    const Bytes whole = sample();
    for (size_t size = 0; size < whole.size(); size += size < 64 ? 1 : 32)
        refused(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)),
                size < 64 ? "a KDTR file has at least 64 bytes" : "bytes, and the file has " + std::to_string(size));
    Bytes longer = whole;
    longer.resize(whole.size() + 64);
    refused(longer, "bytes, and the file has");
}

HOST_TEST(kdtr_every_flipped_bit_is_found) {
    const Bytes whole = sample();
    const TemporaryFile file;
    for (size_t at = 0; at < whole.size(); ++at) {
        Bytes bytes = whole;
        bytes[at] ^= static_cast<unsigned char>(1u << at % 8);
        file.write(bytes);
        CHECK(error_of(file.path) != "the file was accepted");
    }
}

HOST_TEST(kdtr_foreign_files) {
    CHECK_CONTAINS(error_of("/nonexistent/file.kdtr"), "cannot be opened");
    CHECK_CONTAINS(error_of("/tmp"), "is not a regular file");
    refused(Bytes(4096, 0), "it is no KDTR container");
    const std::string numpy =
        "\x93NUMPY, padded to more than the size of a header so that its start is what is looked at";
    refused(Bytes(numpy.begin(), numpy.end()), "it is no KDTR container");
    refused_after([](Bytes& bytes) { header_of(bytes).version = 2; }, "has version 2, and version 1 is read");
}

HOST_TEST(kdtr_corrupt_header_table_or_data) {
    Bytes bytes = sample();
    header_of(bytes).file_size ^= 64;
    refused(bytes, "the checksum of the header does not match");
    bytes = sample();
    entry_of(bytes, 1).offset ^= 64;
    refused(bytes, "the checksum of the table does not match");
    bytes = sample();
    bytes[entry_of(bytes, 0).offset] ^= 1;
    refused(bytes, "the checksum of array 'tree/0/ints' does not match");
    refused_after([](Bytes& b) { header_of(b).zeros[3] = 1; }, "reserved header bytes are not zero");
    // The table's checksum cannot be computed for a table beyond the file.
    bytes = sample();
    header_of(bytes).num_arrays = 1000000;
    header_of(bytes).header_crc = kdt::crc32(bytes.data(), offsetof(kdt::KdtrHeader, header_crc));
    refused(bytes, "a table of 1000000 arrays does not fit");
}

HOST_TEST(kdtr_impossible_tables) {
    const char* const misplaced = "misaligned or outside the data";
    refused_after([](Bytes& b) { entry_of(b, 0).dtype = 9; }, "unknown dtype code 9");
    refused_after([](Bytes& b) { entry_of(b, 0).dtype = 0; }, "unknown dtype code 0");
    refused_after([](Bytes& b) { entry_of(b, 0).ndim = 7; }, "malformed table entry: 7 dimensions");
    refused_after([](Bytes& b) { entry_of(b, 0).shape[2] = 1; }, "malformed table entry");
    refused_after([](Bytes& b) { entry_of(b, 0).zero = 1; }, "malformed table entry");
    refused_after([](Bytes& b) { entry_of(b, 0).shape[0] = 3; }, "has 24 bytes, which is not what its shape needs");
    refused_after([](Bytes& b) { entry_of(b, 0).shape[0] = entry_of(b, 0).shape[1] = uint64_t{1} << 33; },
                  "which is not what its shape needs");
    refused_after([](Bytes& b) { entry_of(b, 0).offset += 4; }, misplaced);
    refused_after([](Bytes& b) { entry_of(b, 0).offset = 64; }, misplaced);
    refused_after([](Bytes& b) { entry_of(b, 0).offset = b.size(); }, misplaced);
    refused_after([](Bytes& b) { entry_of(b, 0).offset = ~uint64_t{0} - 63; }, misplaced);
    refused_after([](Bytes& b) { std::memset(entry_of(b, 0).name, 0, 48); }, "is empty, too long or not padded");
    refused_after([](Bytes& b) { std::memset(entry_of(b, 0).name, 'x', 48); }, "is empty, too long or not padded");
    refused_after([](Bytes& b) { entry_of(b, 0).name[40] = 'x'; }, "is empty, too long or not padded");
    refused_after([](Bytes& b) { entry_of(b, 0).name[0] = '\xFF'; }, "name of array 0 is not UTF-8");
    refused_after([](Bytes& b) { std::memcpy(entry_of(b, 3).name, entry_of(b, 0).name, 48); },
                  "two arrays are called 'tree/0/ints'");
    refused_after(
        [](Bytes& b) {
            entry_of(b, 3).offset = entry_of(b, 0).offset;
            entry_of(b, 3).data_crc = kdt::crc32(b.data() + entry_of(b, 0).offset, 8);
        },
        "overlaps the one before it");
    refused_after([](Bytes& b) { b[entry_of(b, 0).offset + 24] = 1; }, "the padding before array");
    refused_after([](Bytes& b) { b.back() = 1; }, "goes on after its last array");
    refused_after(
        [](Bytes& b) {
            b.resize(b.size() + 64);
            header_of(b).file_size += 64;
        },
        "goes on after its last array");
}

HOST_TEST(kdtr_writer_refuses) {
    const TemporaryFile file;
    const auto error = [&](const kdt::KdtrArray& array) -> std::string {
        try {
            kdt::kdtr_write(file.path, {array});
        } catch (const kdt::Error& caught) {
            return caught.what();
        }
        return "";
    };
    CHECK_CONTAINS(error({"", kdt::KdtrDtype::i32, {6}, kInts.data(), 24}), "must be 1 to 47 bytes");
    CHECK_CONTAINS(error({std::string(48, 'x'), kdt::KdtrDtype::i32, {6}, kInts.data(), 24}), "must be 1 to 47 bytes");
    CHECK_CONTAINS(error({"\xC3", kdt::KdtrDtype::i32, {6}, kInts.data(), 24}), "must be 1 to 47 bytes of UTF-8");
    CHECK_CONTAINS(error({"x", kdt::KdtrDtype::i32, {5}, kInts.data(), 24}), "its shape and dtype need 20");
    CHECK_CONTAINS(error({"x", kdt::KdtrDtype::i32, {1, 1, 1, 1, 1, 1, 6}, kInts.data(), 24}), "at most 6");
    CHECK_EQ(error({std::string(47, 'x'), kdt::KdtrDtype::i32, {1, 1, 1, 1, 2, 3}, kInts.data(), 24}), std::string());
}
