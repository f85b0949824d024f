"""Decoders whose layers are all attention: configs, tensors under Hugging Face names, the same under GGUF names.

A class per family:
  config(vary)    config.json; `vary` is None for the plain sizes, or a random.Random that draws others
  tensors(c)      [(name, shape, init)]
  gguf_keys(c)    {key: value} without the architecture's prefix
  gguf_gather(c, w)  {GGUF name: rows of w}: only moves values, so it also works on arrays of indices
  gguf_values(c, w)  {GGUF name: array}: tensors whose values change (norms with 1 added, A = -exp(A_log))
"""
import numpy as np

from random_weights import BIAS, NORM, NORM_MINUS_ONE, matrix

VOCAB = 320


def pick(vary, plain, *others):
    return plain if vary is None else vary.choice((plain, *others))


def rows_by_pairs(x, heads):
    """Rotary rows of a head: halves -> pairs side by side (GGUF of llama, granite, nemotron)."""
    d = x.shape[0] // heads
    return x.reshape(heads, 2, d // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def decoder_sizes(vary):
    heads, kv_heads, head_dim = pick(vary, (4, 2, 16), (3, 1, 32), (5, 5, 16), (6, 2, 24), (4, 1, 40), (7, 7, 8), (8, 2, 16))
    return {"vocab_size": pick(vary, VOCAB, 311, 352), "hidden_size": pick(vary, 64, 96, 128),
            "num_hidden_layers": pick(vary, 4, 3, 5), "intermediate_size": pick(vary, 96, 64, 160),
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
            "rms_norm_eps": pick(vary, 1e-5, 1e-6), "max_position_embeddings": 4096, "hidden_act": "silu"}


class Llama:
    model_type, class_name, gguf_arch = "llama", "LlamaForCausalLM", "llama"
    prefix, lm_head = "model.", "lm_head.weight"
    by_pairs = True
    head_norms = False
    norm_init = NORM
    experts_at = "mlp."

    def config(self, vary=None):
        c = {"architectures": [self.class_name], "model_type": self.model_type, **decoder_sizes(vary)}
        c |= {"rope_theta": pick(vary, 10000.0, 500000.0), "attention_bias": pick(vary, False, True),
              "mlp_bias": False, "tie_word_embeddings": pick(vary, False, True)}
        scaling = pick(vary, None, None, {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                          "original_max_position_embeddings": 64},
                       {"rope_type": "linear", "factor": 2.0})
        if scaling:
            c["rope_scaling"] = scaling
        return c

    # --- what the mlx-lm model is built from
    def text(self, c):
        return c.get("text_config", c)

    def heads(self, c):
        return c["num_attention_heads"], c["num_key_value_heads"], c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]

    def biases(self, c):
        """Projections with a bias."""
        return "qkvo" if c.get("attention_bias") else ""

    def frame(self, c, norm="norm.weight", gain=3.0):
        v, d = c["vocab_size"], c["hidden_size"]
        tied = c["tie_word_embeddings"]
        out = [(self.prefix + "embed_tokens.weight", (v, d), matrix(gain if tied else 8.0)),
               (self.prefix + norm, (d,), self.norm_init)]
        return out + ([] if tied else [(self.lm_head, (v, d), matrix(gain))])

    def attention(self, c, p, out_name="o_proj", gain=1.4):
        h, k, hd = self.heads(c)
        d = c["hidden_size"]
        out = []
        for letter, name, rows, cols in (("q", "q_proj", h * hd, d), ("k", "k_proj", k * hd, d), ("v", "v_proj", k * hd, d),
                                         ("o", out_name, d, h * hd)):
            out.append((f"{p}{name}.weight", (rows, cols), matrix(gain if letter in "qk" else 1.1)))
            if letter in self.biases(c):
                out.append((f"{p}{name}.bias", (rows,), BIAS))
        if self.head_norms:
            out += [(p + "q_norm.weight", (hd,), self.norm_init), (p + "k_norm.weight", (hd,), self.norm_init)]
        return out

    def swiglu(self, p, d, f, gain=0.8, names=("gate_proj", "up_proj", "down_proj")):
        gate, up, down = names
        return [(f"{p}{gate}.weight", (f, d), matrix()), (f"{p}{up}.weight", (f, d), matrix()),
                (f"{p}{down}.weight", (d, f), matrix(gain))]

    def ffn(self, c, p, i):
        return self.swiglu(p + "mlp.", c["hidden_size"], c["intermediate_size"])

    def tensors(self, c):
        c = self.text(c)
        out = self.frame(c)
        for i in range(c["num_hidden_layers"]):
            p = f"{self.prefix}layers.{i}."
            out += [(p + "input_layernorm.weight", (c["hidden_size"],), self.norm_init),
                    (p + "post_attention_layernorm.weight", (c["hidden_size"],), self.norm_init)]
            out += self.attention(c, p + "self_attn.") + self.ffn(c, p, i)
        return out

    # --- GGUF
    def base_keys(self, c):
        h, k, hd = self.heads(c)
        return {"block_count": c["num_hidden_layers"], "context_length": c["max_position_embeddings"],
                "embedding_length": c["hidden_size"], "vocab_size": c["vocab_size"], "attention.head_count": h,
                "attention.head_count_kv": k, "attention.key_length": hd, "attention.value_length": hd,
                "attention.layer_norm_rms_epsilon": float(c["rms_norm_eps"])}

    def gguf_keys(self, c):
        c = self.text(c)
        keys = self.base_keys(c) | {"feed_forward_length": c["intermediate_size"], "rope.freq_base": float(c["rope_theta"]),
                                    "rope.dimension_count": self.heads(c)[2]}
        scaling = c.get("rope_scaling") or {}
        if scaling.get("rope_type") == "linear":
            keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(scaling["factor"])}
        return keys

    def frame_gather(self, w):
        out = {"token_embd.weight": w[self.prefix + "embed_tokens.weight"]}
        if self.lm_head in w:
            out["output.weight"] = w[self.lm_head]
        return out

    def attention_gather(self, c, w, p, b, out_name="o_proj"):
        h, k, _ = self.heads(c)
        out = {}
        for part in ("weight", "bias"):
            for hf, gguf, heads in (("q_proj", "attn_q", h), ("k_proj", "attn_k", k), ("v_proj", "attn_v", 0), (out_name, "attn_output", 0)):
                x = w.get(f"{p}{hf}.{part}")
                if x is not None:
                    out[f"{b}{gguf}.{part}"] = rows_by_pairs(x, heads) if heads and self.by_pairs else x
        return out

    def ffn_gather(self, c, w, p, b, i):
        return {f"{b}ffn_{n}.weight": w[f"{p}mlp.{n}_proj.weight"] for n in ("gate", "up", "down")}

    def gguf_gather(self, c, w):
        c = self.text(c)
        out = self.frame_gather(w)
        for i in range(c["num_hidden_layers"]):
            p, b = f"{self.prefix}layers.{i}.", f"blk.{i}."
            out |= self.attention_gather(c, w, p + "self_attn.", b) | self.ffn_gather(c, w, p, b, i)
        return out

    norms = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_norm": "attn_q_norm",
             "self_attn.k_norm": "attn_k_norm"}
    norm_add = 0.0

    def gguf_values(self, c, w):
        c = self.text(c)
        add = np.float32(self.norm_add)
        out = {"output_norm.weight": w[self.prefix + "norm.weight"] + add}
        for i in range(c["num_hidden_layers"]):
            for hf, gguf in self.norms.items():
                x = w.get(f"{self.prefix}layers.{i}.{hf}.weight")
                if x is not None:
                    out[f"blk.{i}.{gguf}.weight"] = x + add
        scaling = c.get("rope_scaling") or {}
        if scaling.get("rope_type") == "llama3":
            out["rope_freqs.weight"] = llama3_divisors(scaling, self.heads(c)[2], c["rope_theta"])
        return out


def llama3_divisors(s, dims, theta):
    """Of the plain frequencies: 1 for fast ones, the factor for slow ones, a ramp between (Llama 3.1)."""
    frequency = theta ** (-np.arange(0, dims, 2) / dims)
    turns = s["original_max_position_embeddings"] * frequency / (2 * np.pi)
    smooth = np.clip((turns - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"]), 0, 1)
    return (1 / (smooth + (1 - smooth) / s["factor"])).astype(np.float32)


class Mistral3(Llama):
    """A text model inside a config that also knows images."""

    model_type, class_name = "mistral3", "Mistral3ForConditionalGeneration"
    prefix, lm_head = "language_model.model.", "language_model.lm_head.weight"

    def config(self, vary=None):
        text = super().config(vary) | {"model_type": "mistral", "attention_bias": False}
        text.pop("architectures")
        return {"architectures": [self.class_name], "model_type": self.model_type, "text_config": text,
                "tie_word_embeddings": text["tie_word_embeddings"]}


class Ministral3(Llama):
    """Queries grow slowly with the position: period = the context before YaRN stretched it."""

    model_type, class_name, gguf_arch = "ministral3", "Ministral3ForCausalLM", "mistral3"

    def config(self, vary=None):
        c = super().config(vary)
        for key in ("rope_scaling", "attention_bias", "mlp_bias"):
            c.pop(key, None)
        theta = c.pop("rope_theta")
        return c | {"rope_parameters": {"rope_type": "yarn", "rope_theta": theta, "factor": pick(vary, 16.0, 4.0), "beta_fast": 32.0,
                                        "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": pick(vary, 0.1, 0.3),
                                        "original_max_position_embeddings": pick(vary, 24, 16)}}

    def gguf_keys(self, c):
        r = c["rope_parameters"]
        return super().gguf_keys(c | {"rope_theta": r["rope_theta"]}) | {
            "rope.scaling.type": "yarn", "rope.scaling.factor": r["factor"], "rope.scaling.yarn_beta_fast": r["beta_fast"],
            "rope.scaling.yarn_beta_slow": r["beta_slow"], "rope.scaling.yarn_log_multiplier": r["mscale_all_dim"],
            "rope.scaling.original_context_length": r["original_max_position_embeddings"],
            "attention.temperature_scale": r["llama_4_scaling_beta"]}


class SmolLm3(Llama):
    model_type, class_name, gguf_arch = "smollm3", "SmolLM3ForCausalLM", "smollm3"

    def config(self, vary=None):
        c = super().config(vary)
        layers = pick(vary, 5, 4, 8)
        return c | {"num_hidden_layers": layers, "no_rope_layer_interval": 4, "no_rope_layers": self.plain(layers)}

    def plain(self, layers):
        return [int((i + 1) % 4 != 0) for i in range(layers)]

    def gguf_keys(self, c):
        """llama.cpp knows the plain pattern only, and no key for it; cairn has one."""
        rotary = c["no_rope_layers"]
        return super().gguf_keys(c) | ({"rope.rotary_layers": rotary} if rotary != self.plain(len(rotary)) else {})


class Qwen2(Llama):
    model_type, class_name, gguf_arch = "qwen2", "Qwen2ForCausalLM", "qwen2"
    by_pairs = False

    def config(self, vary=None):
        c = super().config(vary)
        for key in ("attention_bias", "mlp_bias", "rope_scaling"):
            c.pop(key, None)
        h, _, hd = self.heads(c)
        c["hidden_size"] = h * hd  # mlx-lm's qwen2 knows no head_dim
        c.pop("head_dim")
        return c | {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 2}

    def biases(self, c):
        return "qkv"


class Qwen3(Llama):
    model_type, class_name, gguf_arch = "qwen3", "Qwen3ForCausalLM", "qwen3"
    by_pairs = False
    head_norms = True

    def config(self, vary=None):
        c = super().config(vary)
        c.pop("rope_scaling", None)
        return c | {"attention_bias": False, "rms_norm_eps": 1e-6, "use_sliding_window": False}


def expert_sizes(vary):
    experts, used = pick(vary, (6, 2), (8, 3), (5, 1), (4, 4))
    return {"num_experts": experts, "num_experts_per_tok": used, "moe_intermediate_size": pick(vary, 32, 16, 64)}


class ExpertsOf:
    """The feed-forward part of Qwen's mixtures, for a family that has one."""

    def has_shared(self, c):
        return bool(c.get("shared_expert_intermediate_size"))

    def ffn(self, c, p, i):
        d, m = c["hidden_size"], p + "mlp."
        out = [(m + "gate.weight", (c["num_experts"], d), matrix(2.0))]
        for e in range(c["num_experts"]):
            out += self.swiglu(f"{m}experts.{e}.", d, c["moe_intermediate_size"], 1.2)
        if self.has_shared(c):
            out += [(m + "shared_expert_gate.weight", (1, d), matrix())]
            out += self.swiglu(m + "shared_expert.", d, c["shared_expert_intermediate_size"])
        return out

    def expert_keys(self, c):
        keys = {"expert_count": c["num_experts"], "expert_used_count": c["num_experts_per_tok"],
                "expert_feed_forward_length": c["moe_intermediate_size"]}
        if self.has_shared(c):
            keys["expert_shared_feed_forward_length"] = c["shared_expert_intermediate_size"]
        return keys

    def gguf_keys(self, c):
        return super().gguf_keys(c) | self.expert_keys(self.text(c))

    def ffn_gather(self, c, w, p, b, i):
        m, out = p + "mlp.", {b + "ffn_gate_inp.weight": w[p + "mlp.gate.weight"]}
        for n in ("gate", "up", "down"):
            out[f"{b}ffn_{n}_exps.weight"] = np.stack([w[f"{m}experts.{e}.{n}_proj.weight"] for e in range(c["num_experts"])])
            if self.has_shared(c):
                out[f"{b}ffn_{n}_shexp.weight"] = w[f"{m}shared_expert.{n}_proj.weight"]
        if self.has_shared(c):
            out[b + "ffn_gate_inp_shexp.weight"] = w[m + "shared_expert_gate.weight"][0]
        return out


class Qwen2Moe(ExpertsOf, Qwen2):
    model_type, class_name, gguf_arch = "qwen2_moe", "Qwen2MoeForCausalLM", "qwen2moe"

    def config(self, vary=None):
        return super().config(vary) | expert_sizes(vary) | {
            "shared_expert_intermediate_size": pick(vary, 48, 96), "norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": [],
            "tie_word_embeddings": False}  # mlx-lm knows no tied one


class Qwen3Moe(ExpertsOf, Qwen3):
    model_type, class_name, gguf_arch = "qwen3_moe", "Qwen3MoeForCausalLM", "qwen3moe"

    def config(self, vary=None):
        return super().config(vary) | expert_sizes(vary) | {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}


class Mixtral(Llama):
    model_type, class_name = "mixtral", "MixtralForCausalLM"
    expert_names = {"gate": "w1", "up": "w3", "down": "w2"}

    def config(self, vary=None):
        c = super().config(vary)
        for key in ("attention_bias", "mlp_bias", "rope_scaling"):
            c.pop(key, None)
        h, _, hd = self.heads(c)
        c["hidden_size"] = h * hd
        c.pop("head_dim")
        experts, used = pick(vary, (4, 2), (6, 3), (5, 1))
        return c | {"num_local_experts": experts, "num_experts_per_tok": used, "sliding_window": None}

    def ffn(self, c, p, i):
        m = p + "block_sparse_moe."
        out = [(m + "gate.weight", (c["num_local_experts"], c["hidden_size"]), matrix(2.0))]
        for e in range(c["num_local_experts"]):
            out += self.swiglu(f"{m}experts.{e}.", c["hidden_size"], c["intermediate_size"], 1.2, ("w1", "w3", "w2"))
        return out

    def gguf_keys(self, c):
        return super().gguf_keys(c) | {"expert_count": c["num_local_experts"], "expert_used_count": c["num_experts_per_tok"]}

    def ffn_gather(self, c, w, p, b, i):
        m = p + "block_sparse_moe."
        out = {b + "ffn_gate_inp.weight": w[m + "gate.weight"]}
        for gguf, hf in self.expert_names.items():
            out[f"{b}ffn_{gguf}_exps.weight"] = np.stack([w[f"{m}experts.{e}.{hf}.weight"] for e in range(c["num_local_experts"])])
        return out


class Gemma3(Llama):
    model_type, class_name, gguf_arch = "gemma3_text", "Gemma3ForCausalLM", "gemma3"
    by_pairs = False
    head_norms = True
    norm_init, norm_add = NORM_MINUS_ONE, 1.0
    norms = {"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
             "post_feedforward_layernorm": "post_ffw_norm", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}

    def config(self, vary=None):
        c = super().config(vary)
        for key in ("hidden_act", "rope_scaling", "mlp_bias"):
            c.pop(key, None)
        # A hidden size whose root bfloat16 holds exactly: mlx-lm rounds it.
        return c | {"hidden_size": pick(vary, 64, 144), "num_hidden_layers": pick(vary, 7, 6, 8), "rope_theta": 1000000.0,
                    "rope_local_base_freq": 10000.0, "query_pre_attn_scalar": pick(vary, 16, 32, 24), "sliding_window": pick(vary, 32, 24, 48),
                    "sliding_window_pattern": pick(vary, 6, 6, 3), "hidden_activation": "gelu_pytorch_tanh", "attention_bias": False,
                    "rms_norm_eps": 1e-6, "tie_word_embeddings": True}

    def tensors(self, c):
        extra = [(f"{self.prefix}layers.{i}.{n}.weight", (c["hidden_size"],), self.norm_init) for i in range(c["num_hidden_layers"])
                 for n in ("pre_feedforward_layernorm", "post_feedforward_layernorm")]
        return super().tensors(c) + extra

    def gguf_keys(self, c):
        keys = super().gguf_keys(c) | {"attention.sliding_window": c["sliding_window"], "rope.freq_base_swa": float(c["rope_local_base_freq"]),
                                       "attention.scale": float(c["query_pre_attn_scalar"]) ** -0.5}
        return keys | ({"attention.sliding_window_pattern": c["sliding_window_pattern"]} if c["sliding_window_pattern"] != 6 else {})


FAMILIES = (Llama, Mistral3, Ministral3, SmolLm3, Qwen2, Qwen2Moe, Qwen3, Qwen3Moe, Mixtral, Gemma3)
