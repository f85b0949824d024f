"""Families with Mamba2 layers, and Kimi Linear (see attention_models.py, hybrid_models.py)."""
import numpy as np

from attention_models import Llama, expert_sizes, pick
from hybrid_models import drop
from random_weights import BIAS, NORM, matrix, uniform


class Mixer:
    """A Mamba2 mixer's sizes and tensors."""

    def __init__(self, heads, head_dim, state, groups, conv, conv_bias=True, proj_bias=False, norm=True):
        self.heads, self.inner, self.state, self.groups, self.conv = heads, heads * head_dim, state, groups, conv
        self.conv_bias, self.proj_bias, self.norm = conv_bias, proj_bias, norm

    def tensors(self, q, hidden, in_gain=1.0, out_gain=1.2):
        channels = self.inner + 2 * self.groups * self.state
        width = self.inner + channels + self.heads
        out = [(q + "in_proj.weight", (width, hidden), matrix(in_gain)), (q + "conv1d.weight", (channels, 1, self.conv), matrix(1.3)),
               (q + "dt_bias", (self.heads,), uniform(-2.4, 0.2)), (q + "A_log", (self.heads,), uniform(-3.8, 0.5)),
               (q + "D", (self.heads,), uniform(0.4, 1.6)), (q + "out_proj.weight", (hidden, self.inner), matrix(out_gain))]
        if self.conv_bias:
            out.append((q + "conv1d.bias", (channels,), BIAS))
        if self.proj_bias:
            out += [(q + "in_proj.bias", (width,), BIAS), (q + "out_proj.bias", (hidden,), BIAS)]
        if self.norm:
            out.append((q + "norm.weight", (self.inner,), NORM))
        return out

    def keys(self):
        return {"ssm.conv_kernel": self.conv, "ssm.inner_size": self.inner, "ssm.state_size": self.state,
                "ssm.time_step_rank": self.heads, "ssm.group_count": self.groups}

    def gather(self, w, q, b):
        out = {b + "ssm_conv1d.weight": w[q + "conv1d.weight"][:, 0, :], b + "ssm_dt.bias": w[q + "dt_bias"], b + "ssm_d": w[q + "D"][:, None]}
        for gguf, hf in (("ssm_in", "in_proj"), ("ssm_out", "out_proj"), ("ssm_conv1d", "conv1d")):
            for part in ("weight", "bias"):
                if f"{q}{hf}.{part}" in w and b + f"{gguf}.{part}" not in out:
                    out[f"{b}{gguf}.{part}"] = w[f"{q}{hf}.{part}"]
        if self.norm:
            out[b + "ssm_norm.weight"] = w[q + "norm.weight"].reshape(self.groups, -1)
        return out


def mixer_sizes(vary):
    """heads, head_dim, state"""
    return pick(vary, (8, 16, 16), (6, 16, 32), (5, 32, 16), (4, 24, 64))


class Granite(Llama):
    model_type, class_name, gguf_arch = "granitemoehybrid", "GraniteMoeHybridForCausalLM", "granitehybrid"

    def config(self, vary=None):
        c = drop(super().config(vary), "rope_scaling", "head_dim", "mlp_bias")
        heads, head_dim, state = mixer_sizes(vary)
        _, _, hd = self.heads(super().config(None))
        kinds = pick(vary, "mmamma", "mam", "mmma", "amm")
        hidden, scaling = c["num_attention_heads"] * pick(vary, hd, 32, 24), pick(vary, 3.0, 8.0)
        # The head's rows, which are the embedding's too, are long: the stream must not be all embedding.
        embedding = round(pick(vary, 1.0, 0.6, 1.5) * hidden**0.5 / (3 * scaling), 3)
        return c | {"hidden_size": hidden, "rope_theta": 10000.0,
                    "shared_intermediate_size": c["intermediate_size"], "num_hidden_layers": len(kinds), "attention_bias": pick(vary, False, True),
                    "embedding_multiplier": embedding, "attention_multiplier": pick(vary, 0.125, 0.0625),
                    "logits_scaling": scaling, "residual_multiplier": pick(vary, 0.6, 0.246), "rms_norm_eps": 1e-5,
                    "layer_types": [{"m": "mamba", "a": "attention"}[k] for k in kinds], "num_local_experts": 0, "num_experts_per_tok": 0,
                    "mamba_n_heads": heads, "mamba_d_head": head_dim, "mamba_d_state": state, "mamba_d_conv": 4, "mamba_expand": 2,
                    "mamba_n_groups": 1, "mamba_chunk_size": 256, "mamba_conv_bias": pick(vary, True, True, False), "mamba_proj_bias": False,
                    "position_embedding_type": pick(vary, "nope", "nope", "rope"), "tie_word_embeddings": True,
                    "time_step_limit": [0.0, 1e9]}  # mlx-lm's own default clamps from below at 0.001; the model's code does not

    def mixer(self, c):
        return Mixer(c["mamba_n_heads"], c["mamba_d_head"], c["mamba_d_state"], c["mamba_n_groups"], c["mamba_d_conv"], c["mamba_conv_bias"],
                     c["mamba_proj_bias"])

    def states(self, c):
        return ["kv" if t == "attention" else "ssm" for t in c["layer_types"]]

    def ffn(self, c, p, i):
        f, d = c["shared_intermediate_size"], c["hidden_size"]
        return [(p + "shared_mlp.input_linear.weight", (2 * f, d), matrix()), (p + "shared_mlp.output_linear.weight", (d, f), matrix())]

    def tensors(self, c):
        d = c["hidden_size"]
        out = self.frame(c, gain=3.0 * c["logits_scaling"])
        for i, kind in enumerate(c["layer_types"]):
            p = f"model.layers.{i}."
            out += [(p + n + ".weight", (d,), NORM) for n in ("input_layernorm", "post_attention_layernorm")] + self.ffn(c, p, i)
            out += self.mixer(c).tensors(p + "mamba.", d) if kind == "mamba" else self.attention(c, p + "self_attn.")
        return out

    def gguf_keys(self, c):
        kv = [c["num_key_value_heads"] if t == "attention" else 0 for t in c["layer_types"]]
        keys = drop(self.base_keys(c), "attention.key_length", "attention.value_length") | self.mixer(c).keys()
        return keys | {"attention.head_count_kv": kv, "feed_forward_length": c["shared_intermediate_size"], "rope.freq_base": float(c["rope_theta"]),
                       "attention.scale": float(c["attention_multiplier"]), "embedding_scale": float(c["embedding_multiplier"]),
                       "residual_scale": float(c["residual_multiplier"]), "logit_scale": float(c["logits_scaling"]),
                       "rope.scaling.finetuned": c["position_embedding_type"] == "rope"}

    def ffn_gather(self, c, w, p, b, i, suffix=""):
        f, both = c["shared_intermediate_size"], w[p + "shared_mlp.input_linear.weight"]
        return {f"{b}ffn_gate{suffix}.weight": both[:f], f"{b}ffn_up{suffix}.weight": both[f:],
                f"{b}ffn_down{suffix}.weight": w[p + "shared_mlp.output_linear.weight"]}

    def gguf_gather(self, c, w):
        out = self.frame_gather(w)
        for i, kind in enumerate(c["layer_types"]):
            p, b = f"model.layers.{i}.", f"blk.{i}."
            out |= self.ffn_gather(c, w, p, b, i)
            out |= (self.mixer(c).gather(w, p + "mamba.", b) if kind == "mamba" else self.attention_gather(c, w, p + "self_attn.", b))
        return out

    def gguf_values(self, c, w):
        a = {f"blk.{i}.ssm_a": -np.exp(w[f"model.layers.{i}.mamba.A_log"])[:, None] for i, t in enumerate(c["layer_types"]) if t == "mamba"}
        return super().gguf_values(c, w) | a


class GraniteMoe(Granite):
    def config(self, vary=None):
        e = expert_sizes(vary)
        return super().config(vary) | {"num_local_experts": e["num_experts"], "num_experts_per_tok": e["num_experts_per_tok"],
                                       "intermediate_size": e["moe_intermediate_size"], "shared_intermediate_size": pick(vary, 48, 96)}

    def ffn(self, c, p, i):
        e, f, d, m = c["num_local_experts"], c["intermediate_size"], c["hidden_size"], p + "block_sparse_moe."
        return super().ffn(c, p, i) + [(m + "router.layer.weight", (e, d), matrix(2.0)), (m + "input_linear.weight", (e, 2 * f, d), ("stacked", 1.0)),
                                       (m + "output_linear.weight", (e, d, f), ("stacked", 1.2))]

    def gguf_keys(self, c):
        return super().gguf_keys(c) | {"feed_forward_length": c["intermediate_size"], "expert_count": c["num_local_experts"],
                                       "expert_used_count": c["num_experts_per_tok"],
                                       "expert_shared_feed_forward_length": c["shared_intermediate_size"]}

    def ffn_gather(self, c, w, p, b, i, suffix="_shexp"):
        f, m = c["intermediate_size"], p + "block_sparse_moe."
        both = w[m + "input_linear.weight"]
        return super().ffn_gather(c, w, p, b, i, suffix) | {
            b + "ffn_gate_inp.weight": w[m + "router.layer.weight"], b + "ffn_gate_exps.weight": both[:, :f], b + "ffn_up_exps.weight": both[:, f:],
            b + "ffn_down_exps.weight": w[m + "output_linear.weight"]}


class FalconH1(Llama):
    model_type, class_name, gguf_arch = "falcon_h1", "FalconH1ForCausalLM", "falcon-h1"
    by_pairs = False
    norms = {"input_layernorm": "attn_norm"}

    def config(self, vary=None):
        c = drop(super().config(vary), "rope_scaling")
        heads, head_dim, state = mixer_sizes(vary)
        return c | {"rope_theta": pick(vary, 1e11, 10000.0), "attention_bias": False, "projectors_bias": False, "tie_word_embeddings": False,
                    "embedding_multiplier": pick(vary, 5.656854249492381, 2.5), "lm_head_multiplier": pick(vary, 0.0390625, 0.0195),
                    "key_multiplier": pick(vary, 0.390625, 0.75), "attention_in_multiplier": pick(vary, 1.25, 1.0, 0.8),
                    "attention_out_multiplier": pick(vary, 0.9375, 0.6), "ssm_in_multiplier": pick(vary, 1.25, 0.5),
                    "ssm_out_multiplier": pick(vary, 0.23570226039551587, 0.4),
                    "ssm_multipliers": [0.3535533905932738, 0.25, pick(vary, 0.3535533905932738, 0.7), 0.5, pick(vary, 0.3535533905932738, 1.2)],
                    "mlp_multipliers": [pick(vary, 0.8838834764831844, 0.5), 0.5859375], "mamba_d_ssm": heads * head_dim, "mamba_n_heads": heads,
                    "mamba_d_head": head_dim, "mamba_d_state": state, "mamba_d_conv": 4, "mamba_n_groups": 1, "mamba_expand": 2,
                    "mamba_chunk_size": 128, "mamba_conv_bias": True, "mamba_proj_bias": False, "mamba_rms_norm": pick(vary, False, True),
                    "mamba_norm_before_gate": False, "mamba_use_mlp": True}

    def mixer(self, c):
        return Mixer(c["mamba_n_heads"], c["mamba_d_head"], c["mamba_d_state"], c["mamba_n_groups"], c["mamba_d_conv"], c["mamba_conv_bias"],
                     c["mamba_proj_bias"], c["mamba_rms_norm"])

    def states(self, c):
        return ["ssm+kv"] * c["num_hidden_layers"]

    def tensors(self, c):
        d, v = c["hidden_size"], c["vocab_size"]
        out = [("model.embed_tokens.weight", (v, d), matrix(8.0 / c["embedding_multiplier"])), ("model.final_layernorm.weight", (d,), NORM),
               (self.lm_head, (v, d), matrix(3.0 / c["lm_head_multiplier"]))]
        gains = {"q_proj": 1 / c["attention_in_multiplier"], "k_proj": 2 / (c["attention_in_multiplier"] * c["key_multiplier"]),
                 "v_proj": 1 / c["attention_in_multiplier"], "o_proj": 1.2 / c["attention_out_multiplier"]}
        for i in range(c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            out += [(p + n + ".weight", (d,), NORM) for n in ("input_layernorm", "pre_ff_layernorm")]
            out += self.mixer(c).tensors(p + "mamba.", d, 1 / (c["ssm_in_multiplier"] * c["ssm_multipliers"][1]), 1.2 / c["ssm_out_multiplier"])
            out += [(n, s, matrix(gains[n.split(".")[-2]]) if n.endswith("weight") else init) for n, s, init in self.attention(c, p + "self_attn.")]
            gate, down = c["mlp_multipliers"]
            f = c["intermediate_size"]
            out += [(p + "feed_forward.gate_proj.weight", (f, d), matrix(1 / gate)), (p + "feed_forward.up_proj.weight", (f, d), matrix()),
                    (p + "feed_forward.down_proj.weight", (d, f), matrix(0.8 / down))]
        return out

    def fold(self, c, w):
        """All multipliers inside the weights, as GGUF holds them. (mlx-lm's own folding leaves two out.)"""
        m, a = self.mixer(c), c["attention_in_multiplier"]
        widths = (m.inner, m.inner, m.groups * m.state, m.groups * m.state, m.heads)  # z, x, B, C, dt
        columns = np.concatenate([np.full(n, s) for n, s in zip(widths, c["ssm_multipliers"])])
        gate, down = c["mlp_multipliers"]
        factors = {"self_attn.q_proj.weight": a, "self_attn.k_proj.weight": a * c["key_multiplier"], "self_attn.v_proj.weight": a,
                   "self_attn.o_proj.weight": c["attention_out_multiplier"], "mamba.in_proj.weight": (columns * c["ssm_in_multiplier"])[:, None],
                   "mamba.out_proj.weight": c["ssm_out_multiplier"], "feed_forward.gate_proj.weight": gate, "feed_forward.down_proj.weight": down,
                   "lm_head.weight": c["lm_head_multiplier"], "model.embed_tokens.weight": c["embedding_multiplier"]}
        out = {}
        for name, x in w.items():
            part = name.split(".", 3)[3] if name.startswith("model.layers.") else name
            out[name] = (x.astype(np.float64) * factors[part]).astype(np.float32) if part in factors else x
        return out

    def gguf_keys(self, c):
        return super().gguf_keys(c) | self.mixer(c).keys()

    def ffn_gather(self, c, w, p, b, i):
        return {f"{b}ffn_{n}.weight": w[f"{p}feed_forward.{n}_proj.weight"] for n in ("gate", "up", "down")} | self.mixer(c).gather(w, p + "mamba.", b)

    def gguf_values(self, c, w):
        out = super().gguf_values(c, w | {"model.norm.weight": w["model.final_layernorm.weight"]})
        for i in range(c["num_hidden_layers"]):
            out[f"blk.{i}.ffn_norm"] = w[f"model.layers.{i}.pre_ff_layernorm.weight"]  # this family: without ".weight"
            out[f"blk.{i}.ssm_a"] = -np.exp(w[f"model.layers.{i}.mamba.A_log"])[:, None]
        return out


class Mamba2(Llama):
    model_type, class_name, gguf_arch = "mamba2", "Mamba2ForCausalLM", "mamba2"
    prefix = "backbone."

    def config(self, vary=None):
        heads, head_dim, state = mixer_sizes(vary)
        return {"architectures": [self.class_name], "model_type": self.model_type, "vocab_size": pick(vary, 320, 311), "hidden_size": pick(vary, 64, 96),
                "num_hidden_layers": pick(vary, 3, 4), "num_heads": heads, "head_dim": head_dim, "intermediate_size": heads * head_dim,
                "state_size": state, "n_groups": 1, "conv_kernel": 4, "expand": 2, "chunk_size": 256, "layer_norm_epsilon": 1e-5,
                "use_bias": pick(vary, False, True), "use_conv_bias": pick(vary, True, True, False), "time_step_limit": [0.0, 1e30],
                "time_step_rank": 4, "max_position_embeddings": 4096, "hidden_act": "silu", "tie_word_embeddings": pick(vary, True, False)}

    def mixer(self, c):
        return Mixer(c["num_heads"], c["head_dim"], c["state_size"], c["n_groups"], c["conv_kernel"], c["use_conv_bias"], c["use_bias"])

    def states(self, c):
        return ["ssm"] * c["num_hidden_layers"]

    def frame(self, c, norm="norm_f.weight", gain=3.0):
        return [(n.replace("embed_tokens", "embeddings"), s, init) for n, s, init in super().frame(c, norm, gain)]

    def frame_gather(self, w):
        return super().frame_gather(w | {"backbone.embed_tokens.weight": w["backbone.embeddings.weight"]})

    def tensors(self, c):
        out = self.frame(c)
        for i in range(c["num_hidden_layers"]):
            p = f"backbone.layers.{i}."
            out += [(p + "norm.weight", (c["hidden_size"],), NORM)] + self.mixer(c).tensors(p + "mixer.", c["hidden_size"])
        return out

    def gguf_keys(self, c):
        keys = self.base_keys(c | {"num_attention_heads": 1, "num_key_value_heads": 0, "rms_norm_eps": c["layer_norm_epsilon"]})
        keys = {k: v for k, v in keys.items() if not k.startswith("attention.") or k.endswith("epsilon")}
        return keys | self.mixer(c).keys() | {"attention.head_count": 0, "feed_forward_length": 0}

    def gguf_gather(self, c, w):
        out = self.frame_gather(w)
        for i in range(c["num_hidden_layers"]):
            out |= self.mixer(c).gather(w, f"backbone.layers.{i}.mixer.", f"blk.{i}.")
        return out

    def gguf_values(self, c, w):
        out = {"output_norm.weight": w["backbone.norm_f.weight"]}
        for i in range(c["num_hidden_layers"]):
            out[f"blk.{i}.attn_norm.weight"] = w[f"backbone.layers.{i}.norm.weight"]
            if f"backbone.layers.{i}.mixer.A_log" in w:
                out[f"blk.{i}.ssm_a"] = -np.exp(w[f"backbone.layers.{i}.mixer.A_log"])[:, None]
        return out


class NemotronH(Mamba2):
    model_type, class_name, gguf_arch = "nemotron_h", "NemotronHForCausalLM", "nemotron_h"
    by_pairs = True
    patterns = ("M-M*-M-", "M*-M", "MM-*-")

    def config(self, vary=None):
        c = drop(super().config(vary), "num_heads", "state_size", "use_bias", "time_step_rank", "time_step_limit", "hidden_act")
        pattern = pick(vary, *self.patterns)
        attention = Llama().config(vary)
        heads, head_dim, state = mixer_sizes(vary)
        groups = pick(vary, 2, 1) if heads % 2 == 0 else 1
        return c | {"num_hidden_layers": len(pattern), "hybrid_override_pattern": pattern, "intermediate_size": pick(vary, 96, 160),
                    "num_attention_heads": attention["num_attention_heads"], "num_key_value_heads": attention["num_key_value_heads"],
                    "head_dim": attention["head_dim"], "attention_bias": pick(vary, False, True), "mamba_num_heads": heads,
                    "mamba_head_dim": head_dim, "mamba_proj_bias": False, "ssm_state_size": state, "n_groups": groups, "mlp_bias": False,
                    "mlp_hidden_act": "relu2", "rms_norm_eps": c["layer_norm_epsilon"], "use_bias": False, "tie_word_embeddings": False}

    def mixer(self, c):
        return Mixer(c["mamba_num_heads"], c["mamba_head_dim"], c["ssm_state_size"], c["n_groups"], c["conv_kernel"], c["use_conv_bias"],
                     c["mamba_proj_bias"])

    def states(self, c):
        return [{"M": "ssm", "*": "kv"}.get(k) for k in c["hybrid_override_pattern"]]

    def block(self, c, q, kind):
        d, f = c["hidden_size"], c["intermediate_size"]
        if kind == "M":
            return self.mixer(c).tensors(q, d)
        if kind == "*":
            return self.attention(c, q)
        return [(q + "up_proj.weight", (f, d), matrix()), (q + "down_proj.weight", (d, f), matrix(0.7))]

    def tensors(self, c):
        out = self.frame(c)
        for i, kind in enumerate(c["hybrid_override_pattern"]):
            p = f"backbone.layers.{i}."
            out += [(p + "norm.weight", (c["hidden_size"],), NORM)] + self.block(c, p + "mixer.", kind)
        return out

    def gguf_keys(self, c):
        pattern = c["hybrid_override_pattern"]
        return self.base_keys(c) | self.mixer(c).keys() | {
            "attention.head_count_kv": [c["num_key_value_heads"] if k == "*" else 0 for k in pattern],
            "feed_forward_length": [c["intermediate_size"] if k in "-E" else 0 for k in pattern], "rope.scaling.finetuned": False}

    def block_gather(self, c, w, q, b, kind):
        if kind == "M":
            return self.mixer(c).gather(w, q, b)
        if kind == "*":
            return self.attention_gather(c, w, q, b)
        return {f"{b}ffn_{n}.weight": w[f"{q}{n}_proj.weight"] for n in ("up", "down")}

    def gguf_gather(self, c, w):
        out = self.frame_gather(w)
        for i, kind in enumerate(c["hybrid_override_pattern"]):
            out |= self.block_gather(c, w, f"backbone.layers.{i}.mixer.", f"blk.{i}.", kind)
        return out


class NemotronHMoe(NemotronH):
    gguf_arch = "nemotron_h_moe"
    patterns = ("MEM*EME", "M*EM", "MME*E")

    def config(self, vary=None):
        e = expert_sizes(vary)
        if e["num_experts_per_tok"] == 1:  # mlx-lm then leaves norm_topk_prob out of account, the model's code does not
            e["num_experts_per_tok"] = 2
        return super().config(vary) | {
            "n_routed_experts": e["num_experts"], "num_experts_per_tok": e["num_experts_per_tok"], "moe_intermediate_size": e["moe_intermediate_size"],
            "n_shared_experts": 1, "moe_shared_expert_intermediate_size": pick(vary, 48, 96), "n_group": 1, "topk_group": 1,
            "norm_topk_prob": True, "routed_scaling_factor": pick(vary, 2.5, 1.0)}

    def block(self, c, q, kind):
        if kind != "E":
            return super().block(c, q, kind)
        d, f, s = c["hidden_size"], c["moe_intermediate_size"], c["moe_shared_expert_intermediate_size"]
        out = [(q + "gate.weight", (c["n_routed_experts"], d), matrix(1.5)), (q + "gate.e_score_correction_bias", (c["n_routed_experts"],), BIAS),
               (q + "shared_experts.up_proj.weight", (s, d), matrix()), (q + "shared_experts.down_proj.weight", (d, s), matrix(0.7))]
        for e in range(c["n_routed_experts"]):
            out += [(f"{q}experts.{e}.up_proj.weight", (f, d), matrix()), (f"{q}experts.{e}.down_proj.weight", (d, f), matrix(0.8))]
        return out

    def gguf_keys(self, c):
        return super().gguf_keys(c) | {
            "expert_count": c["n_routed_experts"], "expert_used_count": c["num_experts_per_tok"], "expert_shared_count": c["n_shared_experts"],
            "expert_feed_forward_length": c["moe_intermediate_size"], "expert_weights_norm": c["norm_topk_prob"], "expert_gating_func": 2,
            "expert_shared_feed_forward_length": c["moe_shared_expert_intermediate_size"], "expert_weights_scale": float(c["routed_scaling_factor"])}

    def block_gather(self, c, w, q, b, kind):
        if kind != "E":
            return super().block_gather(c, w, q, b, kind)
        out = {b + "ffn_gate_inp.weight": w[q + "gate.weight"], b + "exp_probs_b.bias": w[q + "gate.e_score_correction_bias"]}
        for n in ("up", "down"):
            out[f"{b}ffn_{n}_shexp.weight"] = w[f"{q}shared_experts.{n}_proj.weight"]
            out[f"{b}ffn_{n}_exps.weight"] = np.stack([w[f"{q}experts.{e}.{n}_proj.weight"] for e in range(c["n_routed_experts"])])
        return out


FAMILIES = (Granite, GraniteMoe, FalconH1, Mamba2, NemotronH, NemotronHMoe)
