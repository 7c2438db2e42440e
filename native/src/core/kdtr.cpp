// SPDX-License-Identifier: Apache-2.0
#include "core/kdtr.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "core/error.h"
#include "core/kdtr_format.h"

namespace kdt {
namespace {

bool all_zero(const unsigned char* from, const unsigned char* to) {
    return std::all_of(from, to, [](unsigned char byte) { return byte == 0; });
}

}  // namespace

size_t KdtrArray::size() const {
    return nbytes / kdtr_itemsize(dtype);
}

void KdtrArray::require(KdtrDtype wanted) const {
    if (dtype != wanted)
        fail_argument("array '%s' holds %s, wanted %s", name.c_str(), kdtr_dtype_name(dtype), kdtr_dtype_name(wanted));
}

KdtrFile::KdtrFile(const std::string& path) : path_(path) {
    map();
    try {
        parse();
    } catch (...) {
        munmap(const_cast<unsigned char*>(bytes_), size_);
        throw;
    }
}

KdtrFile::~KdtrFile() {
    munmap(const_cast<unsigned char*>(bytes_), size_);
}

const KdtrArray* KdtrFile::find(const std::string& name) const {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : &arrays_[found->second];
}

const KdtrArray& KdtrFile::at(const std::string& name) const {
    const KdtrArray* const array = find(name);
    if (array == nullptr) fail("the container has no array '%s'", name.c_str());
    return *array;
}

void KdtrFile::fail(const char* format, ...) const {
    char text[kMaxErrorLength];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    fail_argument("%.512s: %s", path_.c_str(), text);
}

void KdtrFile::map() {
    const int file = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) fail("cannot be opened: %s", std::strerror(errno));
    struct stat status;
    if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
        close(file);
        fail("is not a regular file");
    }
    size_ = static_cast<size_t>(status.st_size);
    if (size_ < sizeof(KdtrHeader)) {
        close(file);
        fail("a KDTR file has at least %zu bytes, and this one has %zu", sizeof(KdtrHeader), size_);
    }
    void* const memory = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    const int error = errno;
    close(file);
    if (memory == MAP_FAILED) fail("cannot be mapped: %s", std::strerror(error));
    bytes_ = static_cast<const unsigned char*>(memory);
}

void KdtrFile::parse() {
    KdtrHeader header;
    std::memcpy(&header, bytes_, sizeof(header));
    if (std::memcmp(header.magic, kKdtrMagic, sizeof(kKdtrMagic)) != 0)
        fail("the file does not start with 'KDTR': it is no KDTR container");
    if (header.version != kKdtrVersion)
        fail("the container has version %u, and version %u is read", header.version, kKdtrVersion);
    if (crc32(bytes_, offsetof(KdtrHeader, header_crc)) != header.header_crc)
        fail("the checksum of the header does not match");
    if (header.file_size != size_ || size_ % kKdtrAlignment != 0)
        fail("the header speaks of %llu bytes, and the file has %zu", static_cast<unsigned long long>(header.file_size),
             size_);
    if (!all_zero(header.zeros, header.zeros + sizeof(header.zeros))) fail("reserved header bytes are not zero");
    const uint64_t data_start = sizeof(KdtrHeader) + uint64_t{sizeof(KdtrEntry)} * header.num_arrays;
    if (data_start > size_) fail("a table of %u arrays does not fit into %zu bytes", header.num_arrays, size_);
    if (crc32(bytes_ + sizeof(KdtrHeader), data_start - sizeof(KdtrHeader)) != header.table_crc)
        fail("the checksum of the table does not match");

    arrays_.reserve(header.num_arrays);
    for (uint32_t index = 0; index < header.num_arrays; ++index) {
        KdtrEntry entry;
        std::memcpy(&entry, bytes_ + sizeof(KdtrHeader) + index * sizeof(KdtrEntry), sizeof(entry));
        const size_t length = strnlen(entry.name, sizeof(entry.name));
        const unsigned char* const raw_name = reinterpret_cast<const unsigned char*>(entry.name);
        if (length == 0 || length > kKdtrMaxName || !all_zero(raw_name + length, raw_name + sizeof(entry.name)))
            fail("the name of array %u is empty, too long or not padded with NUL", index);
        if (!kdtr_is_utf8(entry.name, length)) fail("the name of array %u is not UTF-8", index);
        const std::string name(entry.name, length);
        const KdtrDtype dtype = static_cast<KdtrDtype>(entry.dtype);
        const size_t itemsize = kdtr_itemsize(dtype);
        if (itemsize == 0) fail("array '%s' has unknown dtype code %u", name.c_str(), entry.dtype);
        bool well_formed = entry.ndim <= kKdtrMaxDims && entry.zero == 0;
        for (uint32_t d = well_formed ? entry.ndim : kKdtrMaxDims; d < kKdtrMaxDims; ++d)
            well_formed = well_formed && entry.shape[d] == 0;
        if (!well_formed) fail("array '%s' has a malformed table entry: %u dimensions", name.c_str(), entry.ndim);
        // An empty array may have any other sizes, so zeros are looked for before the product can overflow.
        const std::vector<uint64_t> shape(entry.shape, entry.shape + entry.ndim);
        uint64_t nbytes = itemsize;
        bool overflow = false;
        if (std::find(shape.begin(), shape.end(), 0u) != shape.end()) nbytes = 0;
        for (size_t d = 0; nbytes != 0 && d < shape.size(); ++d)
            overflow = __builtin_mul_overflow(nbytes, shape[d], &nbytes) || overflow;
        if (overflow || nbytes != entry.nbytes)
            fail("array '%s' has %llu bytes, which is not what its shape needs", name.c_str(),
                 static_cast<unsigned long long>(entry.nbytes));
        if (entry.offset % kKdtrAlignment != 0 || entry.offset < data_start || entry.offset > size_ ||
            entry.nbytes > size_ - entry.offset)
            fail("array '%s' at byte %llu is misaligned or outside the data", name.c_str(),
                 static_cast<unsigned long long>(entry.offset));
        if (crc32(bytes_ + entry.offset, entry.nbytes) != entry.data_crc)
            fail("the checksum of array '%s' does not match", name.c_str());
        if (!index_.emplace(name, index).second) fail("two arrays are called '%s'", name.c_str());
        arrays_.push_back({name, dtype, shape, bytes_ + entry.offset, static_cast<size_t>(nbytes)});
    }
    check_gaps(data_start);
}

void KdtrFile::check_gaps(size_t data_start) const {
    std::vector<const KdtrArray*> by_offset;
    for (const KdtrArray& array : arrays_) by_offset.push_back(&array);
    std::sort(by_offset.begin(), by_offset.end(), [](const KdtrArray* a, const KdtrArray* b) {
        return a->data != b->data ? a->data < b->data : a->nbytes < b->nbytes;
    });
    const unsigned char* cursor = bytes_ + data_start;
    for (const KdtrArray* const array : by_offset) {
        const unsigned char* const begin = static_cast<const unsigned char*>(array->data);
        if (begin < cursor && array->nbytes > 0) fail("array '%s' overlaps the one before it", array->name.c_str());
        if (begin > cursor && !all_zero(cursor, begin))
            fail("the padding before array '%s' is not zero", array->name.c_str());
        cursor = std::max(cursor, begin + array->nbytes);
    }
    if (!all_zero(cursor, bytes_ + size_) || kdtr_aligned(static_cast<uint64_t>(cursor - bytes_)) != size_)
        fail("the file goes on after its last array");
}

}  // namespace kdt
