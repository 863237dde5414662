// A weight matrix in the layout of kernels/packed.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels.h"

namespace lightwell {

// Bytes of a source row of that many columns. 0 where the format is unknown or the columns are not whole blocks of it.
int64_t source_row_bytes(const char* format, int64_t columns);

class PackedMatrix {
 public:
  // Packs `size` bytes of source rows as they lie in the file; the source is not needed afterwards.
  // Throws std::invalid_argument where format, shape and size do not fit together, std::bad_alloc without memory.
  PackedMatrix(const uint8_t* source, int64_t size, const std::string& format, int64_t rows, int64_t columns);
  // A matrix that was packed before, of these bytes; they must outlive it. Throws std::invalid_argument where they are
  // not as many as format and shape take, or do not begin at a 64-byte boundary.
  static std::unique_ptr<PackedMatrix> of_packed(const uint8_t* packed, int64_t size, const std::string& format,
                                                 int64_t rows, int64_t columns);
  PackedMatrix(const PackedMatrix&) = delete;
  PackedMatrix& operator=(const PackedMatrix&) = delete;

  int64_t bytes() const { return matrix.tiles * matrix.tile_bytes; }

  Matrix matrix;

 private:
  PackedMatrix() = default;

  std::shared_ptr<uint8_t> memory_;
};

}  // namespace lightwell
