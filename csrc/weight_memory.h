// Memory for packed weights. Matrices lie side by side in chunks of whole huge pages: a step reads all weights once, and
// with small pages it would wait for an address translation every 4 KiB (and the processor's own prefetching ends there).
#pragma once

#include <cstdint>
#include <memory>

namespace lightwell {

// `bytes` bytes at a 64-byte boundary. A chunk goes back to the system with the last matrix in it. Safe from any thread.
// Throws std::bad_alloc.
std::shared_ptr<uint8_t> weight_memory(int64_t bytes);

}  // namespace lightwell
