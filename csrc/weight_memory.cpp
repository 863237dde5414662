#include "weight_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

namespace lightwell {

#if defined(__SANITIZE_ADDRESS__)

// Each matrix by itself, so that AddressSanitizer sees what is read or written past its end.
std::shared_ptr<uint8_t> weight_memory(int64_t bytes) {
  const size_t whole = (bytes + 63) / 64 * 64;
  std::shared_ptr<uint8_t> memory(static_cast<uint8_t*>(std::aligned_alloc(64, whole)), std::free);
  if (!memory) throw std::bad_alloc();
  std::memset(memory.get(), 0, whole);
  return memory;
}

#else

namespace {

constexpr int64_t kHugePage = 2 << 20;
constexpr int64_t kChunkBytes = 16 << 20;  // what a chunk leaves unused at its end was never touched, and costs nothing

int64_t round_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

class Chunk {
 public:
  explicit Chunk(int64_t bytes) : bytes_(bytes), mapped_(bytes + kHugePage) {
    memory_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    begin_ = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<int64_t>(memory_), kHugePage));
#if defined(MADV_HUGEPAGE)
    madvise(begin_, bytes_, MADV_HUGEPAGE);  // only a hint: where it fails all works as well
#endif
  }
  ~Chunk() { munmap(memory_, mapped_); }
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;

  // Null where the chunk has no room for so much.
  uint8_t* take(int64_t bytes) {
    if (used_ + bytes > bytes_) return nullptr;
    uint8_t* taken = begin_ + used_;
    used_ += round_up(bytes, 64);
    return taken;
  }

 private:
  const int64_t bytes_, mapped_;
  void* memory_;
  uint8_t* begin_;
  int64_t used_ = 0;
};

std::mutex mutex;
std::weak_ptr<Chunk> current;  // the one being filled

}  // namespace

std::shared_ptr<uint8_t> weight_memory(int64_t bytes) {
  const std::lock_guard lock(mutex);
  std::shared_ptr<Chunk> chunk = current.lock();
  uint8_t* taken = chunk ? chunk->take(bytes) : nullptr;
  if (!taken) {
    chunk = std::make_shared<Chunk>(std::max(kChunkBytes, round_up(bytes, kHugePage)));
    taken = chunk->take(bytes);
    current = chunk;
  }
  return {chunk, taken};
}

#endif

}  // namespace lightwell
