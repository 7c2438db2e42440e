// SPDX-License-Identifier: Apache-2.0
//
// The bytes of a KDTR file, as structs: shared by its reader and its writer only.
#ifndef KDTREE_CORE_KDTR_FORMAT_H
#define KDTREE_CORE_KDTR_FORMAT_H

#include <cstddef>
#include <cstdint>

namespace kdt {

constexpr char kKdtrMagic[4] = {'K', 'D', 'T', 'R'};
constexpr uint32_t kKdtrVersion = 1;
constexpr size_t kKdtrAlignment = 64;
constexpr uint32_t kKdtrMaxDims = 6;
constexpr size_t kKdtrMaxName = 47;

struct KdtrHeader {
    char magic[4];
    uint32_t version;
    uint32_t num_arrays;
    uint32_t table_crc;
    uint64_t file_size;
    unsigned char zeros[36];
    uint32_t header_crc;
};
static_assert(sizeof(KdtrHeader) == 64 && offsetof(KdtrHeader, header_crc) == 60, "KDTR header layout");

struct KdtrEntry {
    char name[kKdtrMaxName + 1];
    uint32_t dtype;
    uint32_t ndim;
    uint64_t shape[kKdtrMaxDims];
    uint64_t offset;
    uint64_t nbytes;
    uint32_t data_crc;
    uint32_t zero;
};
static_assert(sizeof(KdtrEntry) == 128 && offsetof(KdtrEntry, offset) == 104, "KDTR table layout");

constexpr uint64_t kdtr_aligned(uint64_t offset) {
    return (offset + kKdtrAlignment - 1) / kKdtrAlignment * kKdtrAlignment;
}

bool kdtr_is_utf8(const char* text, size_t length);

}  // namespace kdt

#endif  // KDTREE_CORE_KDTR_FORMAT_H
