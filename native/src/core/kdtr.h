// SPDX-License-Identifier: Apache-2.0
//
// KDTR: named arrays in one little-endian file, written and read alike by Python (kdbench/kdtr.py) and here.
//
//   0    header, 64 bytes: "KDTR", u32 version, u32 num_arrays, u32 crc32(table), u64 file_size, zeros, and at byte 60
//        u32 crc32(bytes 0..59)
//   64   table, 128 bytes an array: name[48] (UTF-8, NUL padded), u32 dtype, u32 ndim, u64 shape[6] (0 beyond ndim),
//        u64 offset, u64 nbytes, u32 crc32(data), u32 0
//   ...  data, each array on a 64-byte boundary, zeros between; file_size is the end of the last, rounded up to 64
#ifndef KDTREE_CORE_KDTR_H
#define KDTREE_CORE_KDTR_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace kdt {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "KDTR files are mapped as they are: little endian only");

enum class KdtrDtype : uint32_t { f32 = 1, f64 = 2, i32 = 3, i64 = 4, u64 = 5, u8 = 6, bf16 = 7, u32 = 8 };

// Bytes of one value, or 0 for a code that KDTR does not have.
size_t kdtr_itemsize(KdtrDtype dtype);
const char* kdtr_dtype_name(KdtrDtype dtype);

// The dtype of a C++ type; bf16 is held as its bit pattern.
template <class T>
struct KdtrTypeOf;
template <>
struct KdtrTypeOf<float> {
    static constexpr KdtrDtype value = KdtrDtype::f32;
};
template <>
struct KdtrTypeOf<double> {
    static constexpr KdtrDtype value = KdtrDtype::f64;
};
template <>
struct KdtrTypeOf<int32_t> {
    static constexpr KdtrDtype value = KdtrDtype::i32;
};
template <>
struct KdtrTypeOf<int64_t> {
    static constexpr KdtrDtype value = KdtrDtype::i64;
};
template <>
struct KdtrTypeOf<uint64_t> {
    static constexpr KdtrDtype value = KdtrDtype::u64;
};
template <>
struct KdtrTypeOf<uint8_t> {
    static constexpr KdtrDtype value = KdtrDtype::u8;
};
template <>
struct KdtrTypeOf<uint16_t> {
    static constexpr KdtrDtype value = KdtrDtype::bf16;
};
template <>
struct KdtrTypeOf<uint32_t> {
    static constexpr KdtrDtype value = KdtrDtype::u32;
};

// One array: a view, valid as long as the file (when read) or the caller's memory (when written).
struct KdtrArray {
    std::string name;
    KdtrDtype dtype;
    std::vector<uint64_t> shape;
    const void* data;
    size_t nbytes;

    // The values, which must be of type T: anything else throws kdt::Error.
    template <class T>
    const T* as() const {
        require(KdtrTypeOf<T>::value);
        return static_cast<const T*>(data);
    }

    size_t size() const;

  private:
    void require(KdtrDtype wanted) const;
};

// A container mapped into memory. Everything the format promises, checksums included, is checked on opening, and
// whatever does not hold throws kdt::Error with one sentence that starts with the path.
class KdtrFile {
  public:
    explicit KdtrFile(const std::string& path);
    ~KdtrFile();
    KdtrFile(const KdtrFile&) = delete;
    KdtrFile& operator=(const KdtrFile&) = delete;

    const std::vector<KdtrArray>& arrays() const { return arrays_; }
    const KdtrArray* find(const std::string& name) const;
    // As find, but an absent array throws.
    const KdtrArray& at(const std::string& name) const;

  private:
    void map();
    void parse();
    void check_gaps(size_t data_start) const;
    [[noreturn]] void fail(const char* format, ...) const __attribute__((format(printf, 2, 3)));

    std::string path_;
    const unsigned char* bytes_ = nullptr;
    size_t size_ = 0;
    std::vector<KdtrArray> arrays_;
    std::unordered_map<std::string, size_t> index_;
};

// Writes a container. A reader sees the old file or the whole new one.
void kdtr_write(const std::string& path, const std::vector<KdtrArray>& arrays);

// zlib's CRC-32; `crc` continues an earlier one.
uint32_t crc32(const void* data, size_t size, uint32_t crc = 0);

}  // namespace kdt

#endif  // KDTREE_CORE_KDTR_H
