// The four architectures with Mamba2 mixers: mamba2, granitehybrid, falcon-h1, nemotron_h.
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/falcon_h1_config.h"
#include "model/granite_hybrid_config.h"
#include "model/nemotron_h_config.h"
#include "model/reference/architectures.h"
#include "model/reference/mamba2_mixer.h"
#include "model/reference/moe_reference.h"

namespace cairn::reference {
namespace {

using States = std::vector<StateTensor>;

std::string Prefix(int layer) { return "blk." + std::to_string(layer) + "."; }
std::string Tag(int layer) { return "layer" + std::to_string(layer) + "_"; }

void Multiply(Rows& x, double factor) {
  for (Row& row : x) {
    for (double& value : row) value *= factor;
  }
}

// Embedding, final norm and head.
struct Frame {
  DecoderConfig config;
  Matrix embedding, head;
  Row final_norm;

  Rows Embed(std::span<const Token> tokens) const {
    Rows x;
    for (const Token token : tokens) {
      const auto row = embedding.w.begin() + int64_t{token} * config.hidden_size;
      x.emplace_back(row, row + config.hidden_size);
    }
    Multiply(x, config.embedding_scale);
    return x;
  }
  ReferenceModel::Output Finish(const Rows& x, std::span<const int> rows, States states) const {
    ReferenceModel::Output output;
    for (const int row : rows) {
      output.logits.push_back(head(RmsNorm(x[row], final_norm, config.norm_eps)));
    }
    Multiply(output.logits, config.logit_scale);
    output.states = std::move(states);
    return output;
  }
};

Result<Frame> LoadFrame(const ModelFile& file, const DecoderConfig& c) {
  Frame frame{.config = c, .embedding = {}, .head = {}, .final_norm = {}};
  ASSIGN_OR_RETURN(frame.embedding, LoadMatrix(file, "token_embd", c.vocab_size, c.hidden_size));
  ASSIGN_OR_RETURN(frame.head,
                   LoadMatrix(file, c.tied ? "token_embd" : "output", c.vocab_size, c.hidden_size));
  ASSIGN_OR_RETURN(frame.final_norm, LoadVector(file, "output_norm.weight", c.hidden_size));
  return frame;
}

struct Attention {
  Matrix q, k, v, out;
  std::optional<Rotary> rotary;  // none: the mask alone orders the keys
  bool permuted = false;         // rows of q and k lie in pairs (2i, 2i + 1)
  double in_factor = 1, key_factor = 1, out_factor = 1;

  Rows operator()(const DecoderConfig& c, const Rows& x, const std::string& tag,
                  States& states) const;
};

// The checkpoint keeps pairs of the rotation half a head apart.
Rows HalfSplit(const Rows& x, int64_t d) {
  Rows y = x;
  for (size_t t = 0; t < x.size(); ++t) {
    for (size_t head = 0; head < x[t].size(); head += d) {
      for (int64_t i = 0; i < d; ++i) y[t][head + i % 2 * (d / 2) + i / 2] = x[t][head + i];
    }
  }
  return y;
}

Rows Attention::operator()(const DecoderConfig& c, const Rows& x, const std::string& tag,
                           States& states) const {
  Rows q_rows = q(x), k_rows = k(x), v_rows = v(x);
  Multiply(q_rows, in_factor);
  Multiply(k_rows, in_factor * key_factor);
  Multiply(v_rows, in_factor);
  if (rotary.has_value()) {
    Rotate(q_rows, rotary->inv_freq, c.head_dim, !permuted, rotary->magnitude);
    Rotate(k_rows, rotary->inv_freq, c.head_dim, !permuted, rotary->magnitude);
  }
  Rows y = out(CausalAttention(q_rows, k_rows, v_rows, c.heads, c.kv_heads, c.head_dim,
                               c.attention_scale.value_or(0)));
  Multiply(y, out_factor);
  states.push_back(KvState(tag + "k", permuted ? HalfSplit(k_rows, c.head_dim) : k_rows, c.kv_heads,
                           c.head_dim));
  states.push_back(KvState(tag + "v", v_rows, c.kv_heads, c.head_dim));
  return y;
}

Result<Attention> LoadAttention(const ModelFile& file, const std::string& p,
                                const DecoderConfig& c) {
  const int64_t q_width = int64_t{c.heads} * c.head_dim,
                kv_width = int64_t{c.kv_heads} * c.head_dim;
  Attention net;
  ASSIGN_OR_RETURN(net.q, LoadMatrix(file, p + "attn_q", q_width, c.hidden_size));
  ASSIGN_OR_RETURN(net.k, LoadMatrix(file, p + "attn_k", kv_width, c.hidden_size));
  ASSIGN_OR_RETURN(net.v, LoadMatrix(file, p + "attn_v", kv_width, c.hidden_size));
  ASSIGN_OR_RETURN(net.out, LoadMatrix(file, p + "attn_output", c.hidden_size, q_width));
  return net;
}

// W_down max(W_up x, 0)^2
struct Relu2 {
  Matrix up, down;
  Rows operator()(const Rows& x) const {
    Rows h = up(x);
    for (Row& row : h) {
      for (double& value : row) value = value > 0 ? value * value : 0.0;
    }
    return down(h);
  }
};

// Any layer of the four: at most one of each, in the order of the residual stream.
struct Layer {
  Row norm;
  std::optional<Mamba2Mixer> mamba;
  std::optional<Attention> attention;  // beside mamba if both are there
  double mamba_factor = 1;             // on the mixer's output
  std::optional<Relu2> relu2;          // in place of a mixer
  std::optional<Moe> block_moe;        // likewise
  Row ffn_norm;
  std::optional<SwiGlu> ffn;
  std::optional<Moe> moe;
  double gate_factor = 1, down_factor = 1;
};

class Mamba2Family final : public ReferenceModel {
 public:
  Mamba2Family(Frame frame, std::vector<Layer> layers)
      : frame_(std::move(frame)), layers_(std::move(layers)) {}

  Output Run(std::span<const Token> tokens, std::span<const int> rows) const override {
    States states;
    Rows x = frame_.Embed(tokens);
    for (size_t i = 0; i < layers_.size(); ++i) RunLayer(static_cast<int>(i), x, states);
    return frame_.Finish(x, rows, std::move(states));
  }

 private:
  void RunLayer(int index, Rows& x, States& states) const {
    const Layer& layer = layers_[index];
    const DecoderConfig& c = frame_.config;
    const auto add = [&](Rows y, double factor) {
      Multiply(y, factor * c.residual_scale);
      Add(x, y);
    };
    const Rows y = RmsNorm(x, layer.norm, c.norm_eps);
    if (layer.attention) add((*layer.attention)(c, y, Tag(index), states), 1);
    if (layer.mamba) add((*layer.mamba)(y, Tag(index), states), layer.mamba_factor);
    if (layer.relu2) add((*layer.relu2)(y), 1);
    if (layer.block_moe) add((*layer.block_moe)(y), 1);
    if (layer.ffn_norm.empty()) return;
    const Rows h = RmsNorm(x, layer.ffn_norm, c.norm_eps);
    if (layer.moe) add((*layer.moe)(h), 1);
    if (layer.ffn) add(GatedFfn(layer, h), layer.down_factor);
  }
  static Rows GatedFfn(const Layer& layer, const Rows& x) {
    Rows h = layer.ffn->gate(x);
    const Rows up = layer.ffn->up(x);
    Multiply(h, layer.gate_factor);
    for (size_t t = 0; t < h.size(); ++t) {
      for (size_t i = 0; i < h[t].size(); ++i) h[t][i] = Silu(h[t][i]) * up[t][i];
    }
    return layer.ffn->down(h);
  }

  Frame frame_;
  std::vector<Layer> layers_;
};

using Loaded = Result<std::unique_ptr<ReferenceModel>>;

Loaded Make(const ModelFile& file, const DecoderConfig& config, std::vector<Layer> layers) {
  ASSIGN_OR_RETURN(Frame frame, LoadFrame(file, config));
  return std::unique_ptr<ReferenceModel>(new Mamba2Family(std::move(frame), std::move(layers)));
}

Result<Layer> LoadGraniteLayer(const ModelFile& file, const GraniteHybridConfig& config, int i) {
  const DecoderConfig& c = config.decoder;
  Layer layer;
  ASSIGN_OR_RETURN(layer.norm, LoadVector(file, Prefix(i) + "attn_norm.weight", c.hidden_size));
  ASSIGN_OR_RETURN(layer.ffn_norm, LoadVector(file, Prefix(i) + "ffn_norm.weight", c.hidden_size));
  if (config.IsAttention(i)) {
    ASSIGN_OR_RETURN(layer.attention, LoadAttention(file, Prefix(i), c));
    layer.attention->permuted = true;
    if (config.rotary) layer.attention->rotary = MakeRotary(c.rope);
  } else {
    ASSIGN_OR_RETURN(layer.mamba,
                     LoadMamba2Mixer(file, Prefix(i), config.mixer, GateOrder::kGateThenNorm, c));
  }
  if (config.moe.has_value()) {
    ASSIGN_OR_RETURN(layer.moe, LoadMoe(file, Prefix(i), c.hidden_size, *config.moe));
  } else {
    ASSIGN_OR_RETURN(layer.ffn, LoadSwiGlu(file, Prefix(i), c.hidden_size, c.ffn_size));
  }
  return layer;
}

Result<Layer> LoadFalconLayer(const ModelFile& file, const FalconH1Config& config, int i) {
  const DecoderConfig& c = config.decoder;
  const FalconH1Factors& f = config.factors;
  const SsdShape& s = config.mixer.shape;
  Layer layer;
  ASSIGN_OR_RETURN(layer.norm, LoadVector(file, Prefix(i) + "attn_norm.weight", c.hidden_size));
  const std::string ffn_norm = Prefix(i) + "ffn_norm";
  ASSIGN_OR_RETURN(
      layer.ffn_norm,
      LoadVector(file, file.HasTensor(ffn_norm) ? ffn_norm : ffn_norm + ".weight", c.hidden_size));
  ASSIGN_OR_RETURN(layer.mamba, LoadMamba2Mixer(file, Prefix(i), config.mixer, config.gate, c));
  ASSIGN_OR_RETURN(layer.attention, LoadAttention(file, Prefix(i), c));
  ASSIGN_OR_RETURN(layer.ffn, LoadSwiGlu(file, Prefix(i), c.hidden_size, c.ffn_size));
  layer.attention->rotary = MakeRotary(c.rope);
  layer.attention->in_factor = f.attention_in;
  layer.attention->key_factor = f.key;
  layer.attention->out_factor = f.attention_out;
  const int64_t widths[] = {s.inner(), s.inner(), s.group_states(), s.group_states(), s.heads};
  for (int part = 0; part < 5; ++part) {
    layer.mamba->in_scale.insert(layer.mamba->in_scale.end(), widths[part],
                                 double{f.ssm_in} * f.ssm[part]);
  }
  layer.mamba_factor = f.ssm_out;
  layer.gate_factor = f.mlp[0];
  layer.down_factor = f.mlp[1];
  return layer;
}

Result<Layer> LoadNemotronLayer(const ModelFile& file, const NemotronHConfig& config, int i) {
  const DecoderConfig& c = config.decoder;
  Layer layer;
  ASSIGN_OR_RETURN(layer.norm, LoadVector(file, Prefix(i) + "attn_norm.weight", c.hidden_size));
  switch (config.blocks[i]) {
    case NemotronBlock::kMamba: {
      ASSIGN_OR_RETURN(layer.mamba,
                       LoadMamba2Mixer(file, Prefix(i), config.mixer, GateOrder::kGateThenNorm, c));
      break;
    }
    case NemotronBlock::kAttention: {
      ASSIGN_OR_RETURN(layer.attention, LoadAttention(file, Prefix(i), c));
      layer.attention->permuted = true;
      break;
    }
    case NemotronBlock::kFfn: {
      if (config.moe.has_value()) {
        ASSIGN_OR_RETURN(layer.block_moe, LoadMoe(file, Prefix(i), c.hidden_size, *config.moe));
        break;
      }
      layer.relu2.emplace();
      const int64_t ffn = config.ffn_sizes[i];
      ASSIGN_OR_RETURN(layer.relu2->up, LoadMatrix(file, Prefix(i) + "ffn_up", ffn, c.hidden_size));
      ASSIGN_OR_RETURN(layer.relu2->down,
                       LoadMatrix(file, Prefix(i) + "ffn_down", c.hidden_size, ffn));
      break;
    }
  }
  return layer;
}

}  // namespace

Loaded LoadMamba2Reference(const ModelFile& file) {
  ASSIGN_OR_RETURN(const DecoderConfig c, ReadDecoderFrame(file, "mamba2"));
  ASSIGN_OR_RETURN(const Mamba2Config mixer, ReadMamba2Config(file, "mamba2"));
  std::vector<Layer> layers(c.layer_count);
  for (int i = 0; i < c.layer_count; ++i) {
    ASSIGN_OR_RETURN(layers[i].norm,
                     LoadVector(file, Prefix(i) + "attn_norm.weight", c.hidden_size));
    ASSIGN_OR_RETURN(layers[i].mamba,
                     LoadMamba2Mixer(file, Prefix(i), mixer, GateOrder::kGateThenNorm, c));
  }
  return Make(file, c, std::move(layers));
}

Loaded LoadGraniteHybridReference(const ModelFile& file) {
  ASSIGN_OR_RETURN(const GraniteHybridConfig config, ReadGraniteHybridConfig(file));
  std::vector<Layer> layers(config.decoder.layer_count);
  for (size_t i = 0; i < layers.size(); ++i) {
    ASSIGN_OR_RETURN(layers[i], LoadGraniteLayer(file, config, static_cast<int>(i)));
  }
  return Make(file, config.decoder, std::move(layers));
}

Loaded LoadFalconH1Reference(const ModelFile& file) {
  ASSIGN_OR_RETURN(const FalconH1Config config, ReadFalconH1Config(file));
  std::vector<Layer> layers(config.decoder.layer_count);
  for (size_t i = 0; i < layers.size(); ++i) {
    ASSIGN_OR_RETURN(layers[i], LoadFalconLayer(file, config, static_cast<int>(i)));
  }
  return Make(file, config.decoder, std::move(layers));
}

Loaded LoadNemotronHReference(const ModelFile& file) {
  ASSIGN_OR_RETURN(const NemotronHConfig config, ReadNemotronHConfig(file));
  std::vector<Layer> layers(config.decoder.layer_count);
  for (size_t i = 0; i < layers.size(); ++i) {
    ASSIGN_OR_RETURN(layers[i], LoadNemotronLayer(file, config, static_cast<int>(i)));
  }
  return Make(file, config.decoder, std::move(layers));
}

}  // namespace cairn::reference
