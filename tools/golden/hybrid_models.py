"""Hybrid families: configs, tensors under Hugging Face names, the same under GGUF names (see attention_models.py).

`states(c)` says what each layer remembers: "delta" (convolution and matrix), "ssm", "conv", "kv", "latent" or None.
"""
import numpy as np

from attention_models import ExpertsOf, Llama, decoder_sizes, expert_sizes, pick
from random_weights import BIAS, NORM, NORM_MINUS_ONE, matrix, uniform


def drop(config, *keys):
    return {k: v for k, v in config.items() if k not in keys}


class Lfm2(Llama):
    model_type, class_name, gguf_arch = "lfm2", "Lfm2ForCausalLM", "lfm2"
    by_pairs = False
    ffn_names = {"gate": "w1", "up": "w3", "down": "w2"}
    norms = {"operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "self_attn.q_layernorm": "attn_q_norm",
             "self_attn.k_layernorm": "attn_k_norm"}

    def config(self, vary=None):
        c = drop(super().config(vary), "rope_scaling", "rms_norm_eps", "mlp_bias", "attention_bias", "head_dim", "hidden_act")
        h, _, hd = self.heads(decoder_sizes(None) | c | {"head_dim": pick(vary, 16, 32, 24)})
        kinds = pick(vary, "ccacac", "cacca", "ccca", "cac")
        return c | {"hidden_size": h * hd, "num_hidden_layers": len(kinds), "norm_eps": 1e-5, "conv_bias": False,
                    "conv_L_cache": pick(vary, 3, 4), "rope_theta": 1000000.0, "tie_word_embeddings": True,
                    "layer_types": [{"c": "conv", "a": "full_attention"}[k] for k in kinds], **self.ffn_config(vary, h * hd)}

    def ffn_config(self, vary, hidden):
        adjust = pick(vary, True, False)
        return {"block_dim": hidden, "block_ff_dim": pick(vary, 90, 144), "block_multiple_of": 32, "block_ffn_dim_multiplier": 1.0,
                "block_auto_adjust_ff_dim": adjust}

    def ffn_width(self, c):
        f = c["block_ff_dim"]
        if c["block_auto_adjust_ff_dim"]:
            f = int(c["block_ffn_dim_multiplier"] * int(2 * f / 3))
            f = -(-f // c["block_multiple_of"]) * c["block_multiple_of"]
        return f

    def states(self, c):
        return ["kv" if t == "full_attention" else "conv" for t in c["layer_types"]]

    def ffn(self, c, p, i):
        return self.swiglu(p + "feed_forward.", c["hidden_size"], self.ffn_width(c), names=("w1", "w3", "w2"))

    def tensors(self, c):
        d, (_, _, hd) = c["hidden_size"], self.heads(c)
        out = self.frame(c, "embedding_norm.weight")
        for i, kind in enumerate(c["layer_types"]):
            p = f"model.layers.{i}."
            out += [(p + "operator_norm.weight", (d,), NORM), (p + "ffn_norm.weight", (d,), NORM)]
            if kind == "conv":
                out += [(p + "conv.conv.weight", (d, 1, c["conv_L_cache"]), matrix(1.3)), (p + "conv.in_proj.weight", (3 * d, d), matrix()),
                        (p + "conv.out_proj.weight", (d, d), matrix())]
            else:
                out += self.attention(c, p + "self_attn.", "out_proj", 1.0)
                out += [(p + "self_attn.q_layernorm.weight", (hd,), NORM), (p + "self_attn.k_layernorm.weight", (hd,), NORM)]
            out += self.ffn(c, p, i)
        return out

    def gguf_keys(self, c):
        kv = [c["num_key_value_heads"] if t == "full_attention" else 0 for t in c["layer_types"]]
        keys = drop(self.base_keys(c | {"rms_norm_eps": c["norm_eps"]}), "attention.key_length", "attention.value_length")
        return keys | {"attention.head_count_kv": kv, "rope.freq_base": float(c["rope_theta"]), "shortconv.l_cache": c["conv_L_cache"],
                       "feed_forward_length": self.ffn_width(c)}

    def ffn_gather(self, c, w, p, b, i):
        return {f"{b}ffn_{g}.weight": w[f"{p}feed_forward.{n}.weight"] for g, n in self.ffn_names.items()}

    def gguf_gather(self, c, w):
        out = self.frame_gather(w)
        for i, kind in enumerate(c["layer_types"]):
            p, b = f"model.layers.{i}.", f"blk.{i}."
            if kind == "conv":
                out |= {f"{b}shortconv.{n}.weight": w[f"{p}conv.{n}.weight"] for n in ("in_proj", "out_proj")}
                out[b + "shortconv.conv.weight"] = w[p + "conv.conv.weight"][:, 0, :]
            else:
                out |= self.attention_gather(c, w, p + "self_attn.", b, "out_proj")
            out |= self.ffn_gather(c, w, p, b, i)
        return out

    def gguf_values(self, c, w):
        out = super().gguf_values(c, w | {"model.norm.weight": w["model.embedding_norm.weight"]})
        out["token_embd_norm.weight"] = out.pop("output_norm.weight")
        return out


class Lfm2Moe(Lfm2):
    model_type, class_name, gguf_arch = "lfm2_moe", "Lfm2MoeForCausalLM", "lfm2moe"

    def ffn_config(self, vary, hidden):
        return {"intermediate_size": pick(vary, 96, 64), **expert_sizes(vary), "num_dense_layers": pick(vary, 1, 2, 0), "use_expert_bias": True,
                "norm_topk_prob": True, "routed_scaling_factor": pick(vary, 1.0, 1.5)}

    def ffn_width(self, c):
        return c["intermediate_size"]

    def ffn(self, c, p, i):
        if i < c["num_dense_layers"]:
            return super().ffn(c, p, i)
        f = p + "feed_forward."
        out = [(f + "gate.weight", (c["num_experts"], c["hidden_size"]), matrix(1.5)), (f + "expert_bias", (c["num_experts"],), BIAS)]
        for e in range(c["num_experts"]):
            out += self.swiglu(f"{f}experts.{e}.", c["hidden_size"], c["moe_intermediate_size"], 1.2, ("w1", "w3", "w2"))
        return out

    def gguf_keys(self, c):
        return super().gguf_keys(c) | {
            "expert_count": c["num_experts"], "expert_used_count": c["num_experts_per_tok"], "expert_gating_func": 2,
            "expert_feed_forward_length": c["moe_intermediate_size"], "leading_dense_block_count": c["num_dense_layers"],
            "expert_weights_scale": float(c["routed_scaling_factor"]), "expert_weights_norm": True}

    def ffn_gather(self, c, w, p, b, i):
        if i < c["num_dense_layers"]:
            return super().ffn_gather(c, w, p, b, i)
        f = p + "feed_forward."
        out = {b + "ffn_gate_inp.weight": w[f + "gate.weight"], b + "exp_probs_b.bias": w[f + "expert_bias"]}
        for g, n in self.ffn_names.items():
            out[f"{b}ffn_{g}_exps.weight"] = np.stack([w[f"{f}experts.{e}.{n}.weight"] for e in range(c["num_experts"])])
        return out


def value_heads_tiled(x, axis, key_heads, d):
    """Value heads grouped by key head -> tiled over the key heads (GGUF of qwen35)."""
    s = x.shape
    per_key = s[axis] // (key_heads * d)
    return x.reshape(*s[:axis], key_heads, per_key, d, *s[axis + 1 :]).swapaxes(axis, axis + 1).reshape(s)


class Qwen35(Llama):
    model_type, class_name, gguf_arch = "qwen3_5", "Qwen3_5ForConditionalGeneration", "qwen35"
    prefix = "model.language_model."
    by_pairs = False
    head_norms = True
    norm_init, norm_add = NORM_MINUS_ONE, 1.0
    norms = Llama.norms | {"post_attention_layernorm": "post_attention_norm"}
    text_type = "qwen3_5_text"

    def text_config(self, vary):
        c = drop(decoder_sizes(vary), "rms_norm_eps")
        key_heads, value_heads, dk, dv = pick(vary, (2, 4, 16, 16), (2, 2, 32, 32), (3, 6, 16, 16), (1, 3, 32, 32), (4, 4, 16, 16))
        interval, layers = pick(vary, (4, 5), (3, 4), (2, 3))
        return c | {"model_type": self.text_type, "rms_norm_eps": 1e-6, "num_hidden_layers": layers, "head_dim": pick(vary, 32, 16, 64),
                    "attn_output_gate": True, "attention_bias": False, "linear_num_key_heads": key_heads, "linear_num_value_heads": value_heads,
                    "linear_key_head_dim": dk, "linear_value_head_dim": dv, "linear_conv_kernel_dim": 4, "full_attention_interval": interval,
                    "layer_types": ["full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(layers)],
                    "tie_word_embeddings": pick(vary, False, True), **self.rope(vary)}

    def rope(self, vary):
        return {"rope_parameters": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [2, 1, 1],
                                    "rope_theta": pick(vary, 10000.0, 10000000.0), "partial_rotary_factor": pick(vary, 0.25, 0.5)}}

    def config(self, vary=None):
        text = self.text_config(vary)
        return {"architectures": [self.class_name], "model_type": self.model_type, "text_config": text,
                "tie_word_embeddings": text["tie_word_embeddings"]}

    def sizes(self, c):
        nk, nv = c["linear_num_key_heads"], c["linear_num_value_heads"]
        dk, dv = c["linear_key_head_dim"], c["linear_value_head_dim"]
        return nk, nv, dk, dv, nk * dk, nv * dv

    def states(self, c):
        return ["kv" if t == "full_attention" else "delta" for t in self.text(c)["layer_types"]]

    def projections(self, c, q):
        d, (_, nv, _, _, keys, values) = c["hidden_size"], self.sizes(c)
        return [(q + "in_proj_qkv.weight", (2 * keys + values, d), matrix()), (q + "in_proj_z.weight", (values, d), matrix()),
                (q + "in_proj_b.weight", (nv, d), matrix()), (q + "in_proj_a.weight", (nv, d), matrix(0.5))]

    def attention(self, c, p, out_name="o_proj", gain=1.0):
        out = super().attention(c, p, out_name, gain)  # q_proj: query and gate of each head
        return [(n, (2 * s[0], s[1]) if n.endswith("q_proj.weight") else s, init) for n, s, init in out]

    def tensors(self, c):
        c = self.text(c)
        d, (_, nv, _, dv, keys, values) = c["hidden_size"], self.sizes(c)
        out = self.frame(c)
        for i, kind in enumerate(c["layer_types"]):
            p = f"{self.prefix}layers.{i}."
            out += [(p + n + ".weight", (d,), self.norm_init) for n in ("input_layernorm", "post_attention_layernorm")] + self.ffn(c, p, i)
            if kind == "full_attention":
                out += self.attention(c, p + "self_attn.")
                continue
            q = p + "linear_attn."
            out += self.projections(c, q)
            out += [(q + "conv1d.weight", (2 * keys + values, 1, c["linear_conv_kernel_dim"]), matrix(1.3)),
                    (q + "dt_bias", (nv,), uniform(-4.5, -0.5)), (q + "A_log", (nv,), uniform(-3.0, 0.7)),
                    (q + "norm.weight", (dv,), NORM), (q + "out_proj.weight", (d, values), matrix(1.2))]
        return out

    def gguf_keys(self, c):
        c = self.text(c)
        nk, nv, dk, _, _, values = self.sizes(c)
        rope = c.get("rope_parameters") or c
        return self.base_keys(c) | {
            "feed_forward_length": c["intermediate_size"], "rope.freq_base": float(rope["rope_theta"]),
            "rope.dimension_count": int(c["head_dim"] * rope["partial_rotary_factor"]), "ssm.conv_kernel": c["linear_conv_kernel_dim"],
            "ssm.state_size": dk, "ssm.group_count": nk, "ssm.time_step_rank": nv, "ssm.inner_size": values,
            "full_attention_interval": c["full_attention_interval"]}

    def mixer_gather(self, c, w, q, b):
        nk, _, _, dv, keys, _ = self.sizes(c)

        def qkv(x):
            return np.concatenate([x[: 2 * keys], value_heads_tiled(x[2 * keys :], 0, nk, dv)])

        return {b + "attn_qkv.weight": qkv(w[q + "in_proj_qkv.weight"]), b + "ssm_conv1d.weight": qkv(w[q + "conv1d.weight"][:, 0, :]),
                b + "attn_gate.weight": value_heads_tiled(w[q + "in_proj_z.weight"], 0, nk, dv),
                b + "ssm_beta.weight": value_heads_tiled(w[q + "in_proj_b.weight"], 0, nk, 1),
                b + "ssm_alpha.weight": value_heads_tiled(w[q + "in_proj_a.weight"], 0, nk, 1),
                b + "ssm_dt.bias": value_heads_tiled(w[q + "dt_bias"], 0, nk, 1), b + "ssm_norm.weight": w[q + "norm.weight"],
                b + "ssm_out.weight": value_heads_tiled(w[q + "out_proj.weight"], 1, nk, dv)}

    def decay(self, c, a_log):
        return value_heads_tiled(-np.exp(a_log), 0, self.sizes(c)[0], 1)

    def gguf_gather(self, c, w):
        c = self.text(c)
        out = self.frame_gather(w)
        for i, kind in enumerate(c["layer_types"]):
            p, b = f"{self.prefix}layers.{i}.", f"blk.{i}."
            out |= self.ffn_gather(c, w, p, b, i)
            out |= (self.attention_gather(c, w, p + "self_attn.", b) if kind == "full_attention"
                    else self.mixer_gather(c, w, p + "linear_attn.", b))
        return out

    def gguf_values(self, c, w):
        out, c = super().gguf_values(c, w), self.text(c)
        for i, kind in enumerate(c["layer_types"]):
            if kind != "full_attention":
                out[f"blk.{i}.ssm_a"] = self.decay(c, w[f"{self.prefix}layers.{i}.linear_attn.A_log"])
        return out


class Qwen35Moe(ExpertsOf, Qwen35):
    model_type, class_name, gguf_arch = "qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "qwen35moe"
    text_type = "qwen3_5_moe_text"
    fused = True  # the published checkpoints hold gate and up of all experts in one tensor

    def text_config(self, vary):
        return super().text_config(vary) | expert_sizes(vary) | {"shared_expert_intermediate_size": pick(vary, 48, 96), "norm_topk_prob": True}

    def ffn(self, c, p, i):
        e, f, d, m = c["num_experts"], c["moe_intermediate_size"], c["hidden_size"], p + "mlp."
        out = [t for t in super().ffn(c, p, i) if ".experts." not in t[0]]
        return out + [(m + "experts.gate_up_proj", (e, 2 * f, d), ("stacked", 1.0)), (m + "experts.down_proj", (e, d, f), ("stacked", 1.2))]

    def ffn_gather(self, c, w, p, b, i):
        f, m = c["moe_intermediate_size"], p + "mlp.experts."
        apart = {f"{m}{e}.{n}_proj.weight": x for e in range(c["num_experts"]) for n, x in
                 (("gate", w[m + "gate_up_proj"][e, :f]), ("up", w[m + "gate_up_proj"][e, f:]), ("down", w[m + "down_proj"][e]))}
        return super().ffn_gather(c, w | apart, p, b, i)


class Qwen3Next(ExpertsOf, Qwen35):
    model_type, class_name, gguf_arch = "qwen3_next", "Qwen3NextForCausalLM", "qwen3next"
    prefix = "model."

    def rope(self, vary):
        return {"rope_theta": 10000000.0, "partial_rotary_factor": pick(vary, 0.25, 0.5), "rope_scaling": None}

    def config(self, vary=None):
        return drop(self.text_config(vary), "model_type", "layer_types") | expert_sizes(vary) | {
            "architectures": [self.class_name], "model_type": self.model_type, "norm_topk_prob": True, "decoder_sparse_step": 1,
            "mlp_only_layers": [], "shared_expert_intermediate_size": pick(vary, 32, 64)}

    def text(self, c):
        n = c["full_attention_interval"]
        return c | {"layer_types": ["full_attention" if (i + 1) % n == 0 else "linear_attention" for i in range(c["num_hidden_layers"])]}

    def projections(self, c, q):
        d, (_, nv, _, _, keys, values) = c["hidden_size"], self.sizes(c)
        return [(q + "in_proj_qkvz.weight", (2 * keys + 2 * values, d), matrix()), (q + "in_proj_ba.weight", (2 * nv, d), matrix(0.7))]

    def mixer_gather(self, c, w, q, b):
        nk, _, dk, dv, _, values = self.sizes(c)
        x = w[q + "in_proj_qkvz.weight"]
        parts = np.split(x.reshape(nk, -1, x.shape[-1]), [dk, 2 * dk, 2 * dk + values // nk], axis=1)
        query, key, value, z = (y.reshape(-1, x.shape[-1]) for y in parts)
        return {b + "attn_qkv.weight": np.concatenate([query, key, value]), b + "attn_gate.weight": z,
                b + "ssm_ba.weight": w[q + "in_proj_ba.weight"], b + "ssm_conv1d.weight": w[q + "conv1d.weight"][:, 0, :],
                b + "ssm_dt.bias": w[q + "dt_bias"], b + "ssm_norm.weight": w[q + "norm.weight"], b + "ssm_out.weight": w[q + "out_proj.weight"]}

    def decay(self, c, a_log):
        return -np.exp(a_log)


FAMILIES = (Lfm2, Lfm2Moe, Qwen35, Qwen35Moe, Qwen3Next)
