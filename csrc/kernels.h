// The kernels: one table of function pointers for each instruction set, all with the same meaning.
// Everything above this line of the house (plan, pool, bindings) is compiled once for the baseline and calls through it.
//
// Invariance: for one row, the order of additions depends only on the model and the position, never on how many rows
// or tiles a call covers. Every implementation keeps to that; calls may be split in any way.
#pragma once

#include <cstdint>

namespace lightwell {

constexpr int64_t kGroup = 32;             // columns that share one activation scale
constexpr int64_t kTile = 16;              // output rows interleaved in one weight tile
constexpr int64_t kBlock = 32;             // tokens of a KV block
constexpr int64_t kPartition = 256;        // tokens whose attention is merged as one part, whoever computed it
constexpr int64_t kAttentionRows = 16;     // most rows in one attention item
constexpr int64_t kBlocksAhead = 2;        // how far ahead attention fetches; 1 was too late for int8
constexpr int64_t kMostHeadDim = 2048;     // dimensions of a head

// How packed weights are stored. W4: 4 bits with scale and minimum a group. W8: signed 8 bits with a scale (and, where
// has_minimum, a minimum) a group. W8H: the same with one scale for each half group of 16, nested (Q6_K). The others are
// plain. Nested scales are small integers times a float that `span` groups share, as in the K formats, or with that integer
// always 1, where a file's groups are longer.
enum class Form : int32_t { W4 = 0, W8 = 1, W8H = 2, BF16 = 3, F16 = 4, F32 = 5 };

// Packed weights of one matrix. Rows are padded to tiles and columns to groups with zeros. Never changes after packing.
struct Matrix {
  Form form;
  bool has_minimum;
  int64_t span;            // groups that share multipliers where scales are nested, else 0
  int64_t rows, columns;   // as the model has them
  int64_t tiles, groups;   // rounded up: rows / kTile, columns / kGroup
  int64_t tile_bytes;      // bytes from one tile to the next
  const uint8_t* data;     // 64-byte aligned
};

// Activations quantized to int8 in groups of 32 columns, some rows one after another.
struct Quantized {
  int8_t* values;   // [rows][groups * kGroup], in -127..127, zero past the last column
  float* scales;    // [rows][groups]
  float* sums;      // [rows][groups]: scale times the sum of the group's values
  int64_t groups;
};

// ClampedSwiglu is gpt-oss': with g = min(gate, 7) and u = up within -7..7, g * sigmoid(1.702 g) * (u + 1).
enum class Activation : int32_t { Silu = 0, GeluTanh = 1, ClampedSwiglu = 2 };

// What a number in the KV cache is: an IEEE half, or int8 with one float scale for each key and each value of a head.
// All are finite. Only kernels/kv_cells.h and attention.h read and write them.
enum class KvType : int32_t { F16 = 0, Int8 = 1 };

// The KV cache of a layer holds for each block and KV head, one after another,
//   keys    [head_dim / deep][kBlock][deep]
//   values  [kBlock / deep][head_dim][deep]
//   and of int8 the scales of the keys [kBlock] and of the values [kBlock],
// so that both products of attention, of queries with keys and of weights with values, read rows of adjacent outputs.
// deep is 1 for halves and 2 for int8, which are multiplied in pairs.
constexpr int64_t kv_head_bytes(KvType type, int64_t head_dim) {
  return 2 * kBlock * (type == KvType::F16 ? 2 * head_dim : head_dim + static_cast<int64_t>(sizeof(float)));
}

// One piece of attention work: up to kAttentionRows rows of one sequence at following positions, and the query heads
// that share one KV head.
struct AttentionItem {
  const float* q;          // row r, head h: q + r * q_stride + h * head_dim
  int64_t q_stride;        // floats
  int64_t rows;            // 1..kAttentionRows
  int64_t heads;           // query heads of this KV head, any number >= 1
  int64_t head_dim;        // a multiple of 16
  int64_t first_position;  // of row 0; row r sees positions 0..first_position + r
  int64_t window;          // 0: all; else row at position p sees positions p - window + 1..p
  float scale;             // on q . k
  float soft_cap;          // 0: none; else a score x becomes soft_cap * tanh(x / soft_cap)
  const float* sinks;      // null, or for each head a score that takes part in the softmax and brings no value
  const int32_t* blocks;   // the sequence's block table
  const uint8_t* cache;    // this layer's cache, at this KV head's keys in block 0
  int64_t block_stride;    // bytes from a block to the next
  const uint8_t* next[kBlocksAhead];  // KV head's shares that are probably read after this item, fetched on the way
  float* out;              // same layout as q
  int64_t out_stride;
};

struct SampleParams {
  float temperature;
  int32_t top_k;
  float top_p, min_p;
  uint64_t seed;
  int64_t position;
};

// What a draw is held to: edits of single scores and a mask (ScoreEdits and Masks in runtimes/base.py).
struct Constraints {
  int64_t edits;
  const int32_t* tokens;   // [edits], within the vocabulary
  const float* factors;    // [edits], normal numbers above zero
  const float* addends;    // [edits], finite or minus infinity
  const uint32_t* allowed; // bit t % 32 of word t / 32: token t may be drawn; null: all may

  bool any() const { return edits > 0 || allowed; }
};

struct KvKernels {
  // Write one token's key and value [head_dim] of one KV head into slot `slot` of its share of a block: NaN as 0, what
  // is larger than the largest finite half as that, and rounded to nearest even (int8: to -127..127 times amax / 127).
  void (*store)(const float* key, const float* value, int64_t head_dim, uint8_t* head, int64_t slot);
  // Attention of an item over partition `part` (positions [part * kPartition, ...)) only. `partial` receives, for each
  // row and head (row-major: row * heads + head), head_dim accumulated values, then the maximum score, then the sum of
  // exponentials: head_dim + 2 floats. A row that sees nothing of the partition gets zeros, -infinity and 0.
  void (*attention_part)(const AttentionItem& item, int64_t part, float* partial);
};

struct Kernels {
  const char* name;

  // out[r * out_stride + 16 * (t - tile_begin) + j] = dot(weight row 16 * t + j, activation row r), for tiles
  // [tile_begin, tile_end) and rows [0, rows). Rows of the matrix past its last are written as zeros.
  void (*linear_int8)(const Matrix& w, int64_t tile_begin, int64_t tile_end, const Quantized& a, int64_t rows, float* out,
                      int64_t out_stride);
  // The same with float activations x[r * x_stride + column] (x is readable, and zero, up to groups * kGroup): all forms.
  void (*linear_float)(const Matrix& w, int64_t tile_begin, int64_t tile_end, const float* x, int64_t x_stride, int64_t rows,
                       float* out, int64_t out_stride);
  // One row of the matrix as floats, out[0..columns).
  void (*matrix_row)(const Matrix& w, int64_t row, float* out);

  // One row x[0..columns) into row `row` of a: amax / 127 scale, round to nearest even.
  void (*quantize)(const float* x, int64_t columns, const Quantized& a, int64_t row);
  // out[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i]; out may be x.
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* out);
  void (*add)(float* x, const float* y, int64_t n);                       // x += y
  void (*scale)(float* x, float factor, int64_t n);                       // x *= factor
  void (*gated)(const float* gate, const float* up, Activation activation, int64_t n, float* out);  // may alias
  void (*soft_cap)(float* x, float cap, int64_t n);                       // x = cap * tanh(x / cap)
  // Rotate `heads` heads in place, the first `dims` dimensions of each, with cos and sin [dims / 2] of the row's position.
  void (*rotary)(float* x, int64_t heads, int64_t head_dim, int64_t dims, bool interleaved, const float* cos, const float* sin);

  // What reads and writes the cache, by KvType.
  KvKernels kv[2];
  // Merge partials of partitions [part_begin, part_end) in ascending order and write item.out. partials[i] belongs to
  // partition part_begin + i. Here the sinks join.
  void (*attention_merge)(const AttentionItem& item, const float* const* partials, int64_t count);

  // out = scores[0..n), edited, then masked, as sampling/ defines it. No overlap.
  void (*constrain)(const float* scores, int64_t n, const Constraints& constraints, float* out);
  // Draw one token from scores[0..n) as sampling/ defines it. `work` has room for 2 * n floats.
  int32_t (*sample)(const float* scores, int64_t n, const SampleParams& params, float* work);
  // Natural log-probabilities: of `token`, and of the k best in descending order (lowest id first among equals).
  void (*logprobs)(const float* scores, int64_t n, int32_t token, int64_t k, float* chosen, int32_t* top_ids, float* top);
};

// A null pointer where this build or this CPU does not have the instruction set.
const Kernels* portable_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();  // AVX-512 F, BW, VL, VNNI and BF16
const Kernels* amx_kernels();     // these and AMX's tiles and int8, where the compiler has them

// How a tensor of a file becomes a packed matrix (pack.cpp). `format` is the file's name for it ("Q4_1", "BF16", ...).
// packed_layout returns false where the format is unknown.
bool packed_layout(const char* format, int64_t rows, int64_t columns, Matrix* layout);  // fills all but data
// Pack tiles [tile_begin, tile_end) of source rows (row-major, as in the file) into data (layout.tiles * tile_bytes).
void pack_tiles(const char* format, const uint8_t* source, const Matrix& layout, uint8_t* data, int64_t tile_begin,
                int64_t tile_end);

}  // namespace lightwell
