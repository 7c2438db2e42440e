// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/error.h"
#include "core/kdtr.h"
#include "core/kdtr_format.h"

namespace kdt {

void kdtr_write(const std::string& path, const std::vector<KdtrArray>& arrays) {
    std::vector<KdtrEntry> table;
    uint64_t end = sizeof(KdtrHeader) + sizeof(KdtrEntry) * arrays.size();
    for (const KdtrArray& array : arrays) {
        if (array.name.empty() || array.name.size() > kKdtrMaxName || array.name.find('\0') != std::string::npos ||
            !kdtr_is_utf8(array.name.data(), array.name.size()))
            fail_argument("array name '%s' must be 1 to %zu bytes of UTF-8 without NUL", array.name.c_str(),
                          kKdtrMaxName);
        if (array.shape.size() > kKdtrMaxDims)
            fail_argument("array '%s' has %zu dimensions, and KDTR holds at most %u", array.name.c_str(),
                          array.shape.size(), kKdtrMaxDims);
        KdtrEntry entry = {};
        std::memcpy(entry.name, array.name.data(), array.name.size());
        entry.dtype = static_cast<uint32_t>(array.dtype);
        entry.ndim = static_cast<uint32_t>(array.shape.size());
        entry.nbytes = kdtr_itemsize(array.dtype);
        for (size_t d = 0; d < array.shape.size(); ++d) {
            entry.shape[d] = array.shape[d];
            entry.nbytes *= array.shape[d];
        }
        if (entry.nbytes != array.nbytes)
            fail_argument("array '%s' has %zu bytes, and its shape and dtype need %llu", array.name.c_str(),
                          array.nbytes, static_cast<unsigned long long>(entry.nbytes));
        entry.offset = kdtr_aligned(end);
        entry.data_crc = crc32(array.data, array.nbytes);
        end = entry.offset + entry.nbytes;
        table.push_back(entry);
    }
    KdtrHeader header = {};
    std::memcpy(header.magic, kKdtrMagic, sizeof(kKdtrMagic));
    header.version = kKdtrVersion;
    header.num_arrays = static_cast<uint32_t>(arrays.size());
    header.table_crc = crc32(table.data(), table.size() * sizeof(KdtrEntry));
    header.file_size = kdtr_aligned(end);
    header.header_crc = crc32(&header, offsetof(KdtrHeader, header_crc));

    const std::string partial = path + "." + std::to_string(getpid()) + ".partial";
    std::FILE* const file = std::fopen(partial.c_str(), "wb");
    if (file == nullptr) fail_argument("%.512s: cannot be written: %s", partial.c_str(), std::strerror(errno));
    uint64_t written = 0;
    bool good = true;
    const auto put = [&](const void* data, size_t size) {
        good = good && (size == 0 || std::fwrite(data, 1, size, file) == size);
        written += size;
    };
    const char zeros[kKdtrAlignment] = {};
    put(&header, sizeof(header));
    put(table.data(), table.size() * sizeof(KdtrEntry));
    for (size_t i = 0; i < arrays.size(); ++i) {
        put(zeros, table[i].offset - written);
        put(arrays[i].data, arrays[i].nbytes);
    }
    put(zeros, header.file_size - written);
    good = std::fclose(file) == 0 && good;
    if (!good || std::rename(partial.c_str(), path.c_str()) != 0) {
        const int error = errno;
        std::remove(partial.c_str());
        fail_argument("%.512s: cannot be written: %s", path.c_str(), std::strerror(error));
    }
}

}  // namespace kdt
