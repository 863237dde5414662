// The paged KV cache: one mapping for all layers, whose pages the system gives when a block is first written; and, if
// asked for, a file with slots for more blocks, which are only copied to and from.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels.h"

namespace lightwell {

inline const KvKernels& kv_kernels(const Kernels& kernels, KvType type) { return kernels.kv[static_cast<int>(type)]; }

// "f16" or "int8". Throws std::invalid_argument for any other name.
KvType kv_type_named(const std::string& name);

// [layer][block][KV head]{keys, values, scales}, each as kernels.h describes.
class KvCache {
 public:
  KvCache(KvType type, int64_t layers, int64_t kv_heads, int64_t head_dim);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  const KvType type;
  const int64_t layers, kv_heads, head_dim;
  const int64_t head_stride, block_stride;  // bytes

  // Once. Throws std::invalid_argument for a count that makes no sense, std::runtime_error where there is no memory.
  void allocate(int64_t blocks);
  int64_t blocks() const { return blocks_; }
  // After allocate, once: `slots` more blocks in this open file, which stays the caller's. A slot has the block's shares of
  // the layers one after another.
  void offload_to(int file, int64_t slots);
  int64_t slots() const { return slots_; }
  // What block or slot `source` holds to `target`; from blocks() on the numbers are slots, and at most one of the two is
  // one. Throws std::system_error where the file cannot be read or written.
  void copy(int64_t source, int64_t target);
  int64_t bytes_per_block() const;

  // A KV head's share of block 0 of a layer.
  uint8_t* head(int64_t layer, int64_t kv_head) const {
    return data_ + layer * blocks_ * block_stride + kv_head * head_stride;
  }

 private:
  uint8_t* share(int64_t layer, int64_t block) const { return data_ + (layer * blocks_ + block) * block_stride; }
  template <typename Move>
  void move(Move move, const char* what, int64_t block, int64_t slot);

  uint8_t* data_ = nullptr;
  int64_t blocks_ = 0, slots_ = 0;
  int file_ = -1;
  std::vector<iovec> pieces_;  // of the block that is being moved
};

}  // namespace lightwell
