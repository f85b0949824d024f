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
#include "model/reference/reference_frame.h"
#include "model/reference/reference_parts.h"

namespace cairn::reference {
namespace {

using States = std::vector<StateTensor>;

struct Attention {
  AttentionWeights net;
  std::optional<Rotary> rotary;  // none: the mask alone orders the keys
  bool permuted = false;         // rows of q and k lie in pairs (2i, 2i + 1)
  double in_factor = 1, key_factor = 1, value_factor = 1, out_factor = 1;

  Rows operator()(const DecoderConfig& c, const Rows& x, const std::string& tag,
                  States& states) const;
};

Rows Attention::operator()(const DecoderConfig& c, const Rows& x, const std::string& tag,
                           States& states) const {
  Rows q_rows = net.q(x), k_rows = net.k(x), v_rows = net.v(x);
  Multiply(q_rows, in_factor);
  Multiply(k_rows, in_factor * key_factor);
  Multiply(v_rows, in_factor * value_factor);
  if (rotary.has_value()) {
    Rotate(q_rows, rotary->inv_freq, c.head_dim, !permuted, rotary->magnitude);
    Rotate(k_rows, rotary->inv_freq, c.head_dim, !permuted, rotary->magnitude);
  }
  Rows y = net.out(CausalAttention(q_rows, k_rows, v_rows, c.heads, c.kv_heads, c.head_dim,
                                   c.attention_scale.value_or(0)));
  Multiply(y, out_factor);
  states.push_back(KvState(tag + "k", permuted ? HalfSplit(k_rows, c.head_dim) : k_rows, c.kv_heads,
                           c.head_dim));
  states.push_back(KvState(tag + "v", v_rows, c.kv_heads, c.head_dim));
  return y;
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
    if (layer.attention) add((*layer.attention)(c, y, LayerTag(index), states), 1);
    if (layer.mamba) add((*layer.mamba)(y, LayerTag(index), states), layer.mamba_factor);
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
  ASSIGN_OR_RETURN(layer.norm,
                   LoadVector(file, LayerPrefix(i) + "attn_norm.weight", c.hidden_size));
  ASSIGN_OR_RETURN(layer.ffn_norm,
                   LoadVector(file, LayerPrefix(i) + "ffn_norm.weight", c.hidden_size));
  if (config.IsAttention(i)) {
    layer.attention.emplace();
    ASSIGN_OR_RETURN(layer.attention->net, LoadAttention(file, LayerPrefix(i), c));
    layer.attention->permuted = true;
    if (config.rotary) layer.attention->rotary = MakeRotary(c.rope);
  } else {
    ASSIGN_OR_RETURN(layer.mamba, LoadMamba2Mixer(file, LayerPrefix(i), config.mixer,
                                                  GateOrder::kGateThenNorm, c));
  }
  if (config.moe.has_value()) {
    ASSIGN_OR_RETURN(layer.moe, LoadMoe(file, LayerPrefix(i), c.hidden_size, *config.moe));
  } else {
    ASSIGN_OR_RETURN(layer.ffn, LoadSwiGlu(file, LayerPrefix(i), c.hidden_size, c.ffn_size));
  }
  return layer;
}

Result<Layer> LoadFalconLayer(const ModelFile& file, const FalconH1Config& config, int i) {
  const DecoderConfig& c = config.decoder;
  const FalconH1Factors& f = config.factors;
  const SsdShape& s = config.mixer.shape;
  Layer layer;
  ASSIGN_OR_RETURN(layer.norm,
                   LoadVector(file, LayerPrefix(i) + "attn_norm.weight", c.hidden_size));
  const std::string ffn_norm = LayerPrefix(i) + "ffn_norm";
  ASSIGN_OR_RETURN(
      layer.ffn_norm,
      LoadVector(file, file.HasTensor(ffn_norm) ? ffn_norm : ffn_norm + ".weight", c.hidden_size));
  ASSIGN_OR_RETURN(layer.mamba,
                   LoadMamba2Mixer(file, LayerPrefix(i), config.mixer, config.gate, c));
  layer.attention.emplace();
  ASSIGN_OR_RETURN(layer.attention->net, LoadAttention(file, LayerPrefix(i), c));
  ASSIGN_OR_RETURN(layer.ffn, LoadSwiGlu(file, LayerPrefix(i), c.hidden_size, c.ffn_size));
  layer.attention->rotary = MakeRotary(c.rope);
  layer.attention->in_factor = f.attention_in;
  layer.attention->key_factor = f.key;
  layer.attention->value_factor = f.value;
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
  ASSIGN_OR_RETURN(layer.norm,
                   LoadVector(file, LayerPrefix(i) + "attn_norm.weight", c.hidden_size));
  switch (config.blocks[i]) {
    case NemotronBlock::kMamba: {
      ASSIGN_OR_RETURN(layer.mamba, LoadMamba2Mixer(file, LayerPrefix(i), config.mixer,
                                                    GateOrder::kGateThenNorm, c));
      break;
    }
    case NemotronBlock::kAttention: {
      layer.attention.emplace();
      ASSIGN_OR_RETURN(layer.attention->net, LoadAttention(file, LayerPrefix(i), c));
      layer.attention->permuted = true;
      break;
    }
    case NemotronBlock::kFfn: {
      if (config.moe.has_value()) {
        ASSIGN_OR_RETURN(layer.block_moe,
                         LoadMoe(file, LayerPrefix(i), c.hidden_size, *config.moe));
        break;
      }
      layer.relu2.emplace();
      const int64_t ffn = config.ffn_sizes[i];
      ASSIGN_OR_RETURN(layer.relu2->up,
                       LoadMatrix(file, LayerPrefix(i) + "ffn_up", ffn, c.hidden_size));
      ASSIGN_OR_RETURN(layer.relu2->down,
                       LoadMatrix(file, LayerPrefix(i) + "ffn_down", c.hidden_size, ffn));
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
                     LoadVector(file, LayerPrefix(i) + "attn_norm.weight", c.hidden_size));
    ASSIGN_OR_RETURN(layers[i].mamba,
                     LoadMamba2Mixer(file, LayerPrefix(i), mixer, GateOrder::kGateThenNorm, c));
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
