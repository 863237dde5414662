#include "kv_cache.h"

#include <sys/mman.h>

#include <stdexcept>

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

}  // namespace lightwell
