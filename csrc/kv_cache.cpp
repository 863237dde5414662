#include "kv_cache.h"

#include <limits.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace lightwell {

KvType kv_type_named(const std::string& name) {
  if (name == "f16") return KvType::F16;
  if (name == "int8") return KvType::Int8;
  throw std::invalid_argument("a KV cache of " + name + ": there are f16 and int8");
}

KvCache::KvCache(KvType type, int64_t layers, int64_t kv_heads, int64_t head_dim)
    : type(type),
      layers(layers),
      kv_heads(kv_heads),
      head_dim(head_dim),
      head_stride(kv_head_bytes(type, head_dim)),
      block_stride(kv_heads * head_stride) {}

KvCache::~KvCache() {
  if (data_) munmap(data_, blocks_ * bytes_per_block());
}

int64_t KvCache::bytes_per_block() const { return layers * block_stride; }

void KvCache::allocate(int64_t blocks) {
  if (data_) throw std::invalid_argument("the KV cache is allocated already");
  if (blocks < 1 || blocks > INT32_MAX)
    throw std::invalid_argument("a KV cache of " + std::to_string(blocks) + " blocks");
  void* memory = mmap(nullptr, blocks * bytes_per_block(), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw std::runtime_error("no address space for a KV cache of " + std::to_string(blocks * bytes_per_block()) +
                             " bytes");
  }
#if defined(MADV_HUGEPAGE)  // a hint: attention jumps from block to block, and small pages cost it a translation each
  madvise(memory, blocks * bytes_per_block(), MADV_HUGEPAGE);
#endif
  data_ = static_cast<uint8_t*>(memory);
  blocks_ = blocks;
}

void KvCache::offload_to(int file, int64_t slots) {
  if (!data_ || slots_) throw std::invalid_argument("offload blocks after the KV cache is allocated, and once");
  if (slots < 1 || slots > INT32_MAX - blocks_)
    throw std::invalid_argument("an offload file of " + std::to_string(slots) + " slots");
  file_ = file;
  slots_ = slots;
}

void KvCache::copy(int64_t source, int64_t target) {
  if (target >= blocks_) return move(pwritev, "written", source, target - blocks_);
  if (source >= blocks_) return move(preadv, "read", target, source - blocks_);
  for (int64_t layer = 0; layer < layers; ++layer)
    std::memcpy(share(layer, target), share(layer, source), block_stride);
}

// Moves all of a block between memory and its slot, in as few calls as the system needs.
template <typename Move>
void KvCache::move(Move move, const char* what, int64_t block, int64_t slot) {
  pieces_.clear();
  for (int64_t layer = 0; layer < layers; ++layer)
    pieces_.push_back({share(layer, block), static_cast<size_t>(block_stride)});
  int64_t offset = slot * bytes_per_block();
  for (size_t first = 0; first < pieces_.size();) {
    const int count = static_cast<int>(std::min<size_t>(pieces_.size() - first, IOV_MAX));
    ssize_t moved = move(file_, &pieces_[first], count, offset);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) {
      const int error = moved < 0 ? errno : EIO;  // nothing moved: the file is shorter than it was made
      throw std::system_error(error, std::generic_category(), std::string("the KV offload file cannot be ") + what);
    }
    offset += moved;
    for (; first < pieces_.size() && moved >= static_cast<ssize_t>(pieces_[first].iov_len); ++first)
      moved -= pieces_[first].iov_len;
    if (moved > 0) {
      pieces_[first].iov_base = static_cast<uint8_t*>(pieces_[first].iov_base) + moved;
      pieces_[first].iov_len -= moved;
    }
  }
}

}  // namespace lightwell
