// Scratch memory.
#pragma once

#include <cstdlib>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "common.h"

namespace laplex::LAPLEX_ISA {

// Ask the system to back `data` with large pages. This reduces page faults on the first write and address-translation
// (TLB) misses on random access.
inline void use_large_pages(void* data, int64_t bytes) {
#ifdef __linux__
    constexpr int64_t PAGE = 1 << 21;
    const int64_t begin = (reinterpret_cast<int64_t>(data) + PAGE - 1) / PAGE * PAGE;
    const int64_t end = (reinterpret_cast<int64_t>(data) + bytes) / PAGE * PAGE;
    if (data != nullptr && end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
    (void)data, (void)bytes;
#endif
}

// Free memory blocks that one thread keeps for its next call. The first write to a new page costs more than a scan over
// it.
class BlockCache {
public:
    ~BlockCache() {
        for (const Block& block : blocks_) std::free(block.data);
    }
    // A block of at least `bytes` bytes, or null. `size` becomes its size: the smallest cached block that fits, or a
    // new one.
    void* take(int64_t bytes, int64_t& size) {
        Block* best = nullptr;
        for (Block& block : blocks_)
            if (block.data && block.bytes >= bytes && (!best || block.bytes < best->bytes)) best = &block;
        if (best) {
            void* data = best->data;
            size = best->bytes;
            cached_ -= size;
            *best = Block{};
            return data;
        }
        void* data = std::malloc(size = bytes);
        use_large_pages(data, bytes);
        return data;
    }
    // Cache the block if there is room for it, otherwise free it.
    void give_back(void* data, int64_t bytes) {
        if (!data) return;
        for (Block& block : blocks_)
            if (!block.data && cached_ + bytes <= CAPACITY) {
                block = Block{data, bytes};
                cached_ += bytes;
                return;
            }
        std::free(data);
    }

private:
    struct Block {
        void* data = nullptr;
        int64_t bytes = 0;
    };
    static constexpr int64_t CAPACITY = 64 << 20;  // bytes
    Block blocks_[8];
    int64_t cached_ = 0;  // bytes in blocks_
};

inline BlockCache& block_cache() {
    static thread_local BlockCache cache;
    return cache;
}

// Uninitialised scratch memory for `size` elements. If the allocation fails, the pointer is null: an exception must not
// leave a parallel region.
template <class T>
class Buffer {
public:
    explicit Buffer(int64_t size) {
        data_ = static_cast<T*>(block_cache().take(sizeof(T) * larger<int64_t>(size, 1), bytes_));
    }
    ~Buffer() { block_cache().give_back(data_, bytes_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    T* get() const { return data_; }
    T& operator[](int64_t i) const { return data_[i]; }
    explicit operator bool() const { return data_ != nullptr; }

private:
    T* data_;
    int64_t bytes_;
};

}  // namespace laplex::LAPLEX_ISA
