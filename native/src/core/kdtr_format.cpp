// SPDX-License-Identifier: Apache-2.0
#include "core/kdtr_format.h"

#include "core/kdtr.h"

namespace kdt {
namespace {

struct CrcTable {
    uint32_t of[256];
    CrcTable() {
        for (uint32_t i = 0; i < 256; ++i) {
            uint32_t c = i;
            for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
            of[i] = c;
        }
    }
};

}  // namespace

uint32_t crc32(const void* data, size_t size, uint32_t crc) {
    static const CrcTable table;
    const unsigned char* byte = static_cast<const unsigned char*>(data);
    crc = ~crc;
    for (size_t i = 0; i < size; ++i) crc = table.of[(crc ^ byte[i]) & 0xFF] ^ (crc >> 8);
    return ~crc;
}

size_t kdtr_itemsize(KdtrDtype dtype) {
    switch (dtype) {
        case KdtrDtype::u8:
            return 1;
        case KdtrDtype::bf16:
            return 2;
        case KdtrDtype::f32:
        case KdtrDtype::i32:
        case KdtrDtype::u32:
            return 4;
        case KdtrDtype::f64:
        case KdtrDtype::i64:
        case KdtrDtype::u64:
            return 8;
    }
    return 0;
}

const char* kdtr_dtype_name(KdtrDtype dtype) {
    static const char* const names[] = {"?", "f32", "f64", "i32", "i64", "u64", "u8", "bf16", "u32"};
    return kdtr_itemsize(dtype) == 0 ? names[0] : names[static_cast<uint32_t>(dtype)];
}

// Strict UTF-8: no overlong form, no surrogate, nothing above U+10FFFF.
bool kdtr_is_utf8(const char* text, size_t length) {
    const unsigned char* const s = reinterpret_cast<const unsigned char*>(text);
    for (size_t i = 0; i < length;) {
        const unsigned char lead = s[i];
        const size_t extra = lead < 0x80 ? 0 : lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
        if ((lead >= 0x80 && lead < 0xC2) || lead > 0xF4 || i + extra >= length) return false;
        uint32_t code = extra == 0 ? lead : lead & (0x3Fu >> extra);
        for (size_t k = 1; k <= extra; ++k) {
            if ((s[i + k] & 0xC0) != 0x80) return false;
            code = code << 6 | (s[i + k] & 0x3Fu);
        }
        if ((extra == 2 && code < 0x800) || (extra == 3 && (code < 0x10000 || code > 0x10FFFF))) return false;
        if (code >= 0xD800 && code < 0xE000) return false;
        i += extra + 1;
    }
    return true;
}

}  // namespace kdt
