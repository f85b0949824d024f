// What `cairn inspect` says about a model file: metadata and tensor table only, no weight is read.
//
// Threads: pure function.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/status.h"
#include "kernels/attention.h"
#include "model/model_file.h"
#include "state/state_layout.h"

namespace cairn {

struct ModelFacts {
  std::string name;
  std::string architecture;
  std::string quantization;  // the matrix type with the most parameters
  std::map<std::string, int> tensor_count_by_type;
  int layer_count = 0;
  int attention_layers = 0;  // keep KV of every token
  int recurrent_layers = 0;  // keep a state of fixed size
  int hidden_size = 0;
  int ffn_size = 0;
  int vocab_size = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  bool tied_embedding = false;
  int64_t trained_context_length = 0;
  int64_t parameter_count = 0;
  uint64_t file_bytes = 0;
  uint64_t weight_bytes = 0;        // of all tensors, as in the file
  uint64_t state_bytes = 0;         // of fixed size, of one sequence: recurrent, conv, windows
  uint64_t checkpoint_bytes = 0;    // a state buffer: state, alignment and the final hidden row
  uint64_t kv_bytes_per_token = 0;  // over all layers, for the KV type asked for
  bool trimmable = false;           // no layer with a state of fixed size
  StateLayout layout;
};

// Errors: those of LoadModel that need no weights.
Result<ModelFacts> InspectModel(const ModelFile& file, KvType kv_type);

}  // namespace cairn
