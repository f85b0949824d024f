"""Kimi Linear: Kimi Delta Attention, and latent attention without positions (see attention_models.py)."""
import numpy as np

from attention_models import Llama, expert_sizes, pick
from hybrid_models import drop
from random_weights import NORM, matrix, uniform


class KimiLinear(Llama):
    model_type, class_name, gguf_arch = "kimi_linear", "KimiLinearForCausalLM", "kimi-linear"

    def config(self, vary=None):
        c = drop(super().config(vary), "rope_scaling", "mlp_bias", "attention_bias")
        e = expert_sizes(vary)
        kinds = pick(vary, "kkak", "kak", "kkka", "akk")
        heads = pick(vary, 4, 3, 2)
        layers = {k: [i + 1 for i, x in enumerate(kinds) if x == k] for k in "ka"}  # counted from one
        return c | {"num_hidden_layers": len(kinds), "num_attention_heads": heads, "num_key_value_heads": heads, "rope_theta": 10000.0,
                    "linear_attn_config": {"kda_layers": layers["k"], "full_attn_layers": layers["a"], "head_dim": pick(vary, 16, 32),
                                           "num_heads": heads, "short_conv_kernel_size": 4},
                    "model_max_length": 4096, "kv_lora_rank": pick(vary, 32, 64), "qk_nope_head_dim": pick(vary, 16, 32),
                    "qk_rope_head_dim": pick(vary, 8, 16), "v_head_dim": pick(vary, 16, 32), "q_lora_rank": None, "mla_use_nope": True,
                    "rope_scaling": None, "num_experts": e["num_experts"], "num_experts_per_token": e["num_experts_per_tok"],
                    "num_shared_experts": pick(vary, 1, 2), "moe_intermediate_size": e["moe_intermediate_size"], "tie_word_embeddings": False,
                    "moe_router_activation_func": "sigmoid", "moe_renormalize": True, "routed_scaling_factor": pick(vary, 2.446, 1.0),
                    "first_k_dense_replace": pick(vary, 1, 0, 2), "moe_layer_freq": 1, "use_grouped_topk": True, "num_expert_group": 1, "topk_group": 1}

    def is_delta(self, c, i):
        return i + 1 in c["linear_attn_config"]["kda_layers"]

    def states(self, c):
        return ["delta" if self.is_delta(c, i) else "latent" for i in range(c["num_hidden_layers"])]

    def delta(self, c, a):
        d, linear = c["hidden_size"], c["linear_attn_config"]
        n, hd = linear["num_heads"], linear["head_dim"]
        out = []
        for x in "qkv":
            out += [(f"{a}{x}_proj.weight", (n * hd, d), matrix()), (f"{a}{x}_conv1d.weight", (n * hd, 1, linear["short_conv_kernel_size"]), matrix(1.3))]
        for x, gain in (("f", 0.5), ("g", 1.0)):
            out += [(f"{a}{x}_a_proj.weight", (hd, d), matrix()), (f"{a}{x}_b_proj.weight", (n * hd, hd), matrix(gain))]
        return out + [(a + "b_proj.weight", (n, d), matrix()), (a + "A_log", (1, 1, n, 1), uniform(-3.0, 0.5)),
                      (a + "dt_bias", (n * hd,), uniform(-4.5, -0.5)), (a + "o_norm.weight", (hd,), NORM),
                      (a + "o_proj.weight", (d, n * hd), matrix(1.5))]

    def latent(self, c, a):
        d, h = c["hidden_size"], c["num_attention_heads"]
        nope, rope, v, rank = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
        return [(a + "q_proj.weight", (h * (nope + rope), d), matrix(1.4)), (a + "kv_a_proj_with_mqa.weight", (rank + rope, d), matrix(1.2)),
                (a + "kv_a_layernorm.weight", (rank,), NORM), (a + "kv_b_proj.weight", (h * (nope + v), rank), matrix(1.2)),
                (a + "o_proj.weight", (d, h * v), matrix(1.2))]

    def ffn(self, c, p, i):
        if i < c["first_k_dense_replace"]:
            return super().ffn(c, p, i)
        m, e, d, f = p + "block_sparse_moe.", c["num_experts"], c["hidden_size"], c["moe_intermediate_size"]
        out = [(m + "gate.weight", (e, d), matrix(1.5)), (m + "gate.e_score_correction_bias", (e,), uniform(-0.3, 0.3))]
        out += self.swiglu(m + "shared_experts.", d, f * c["num_shared_experts"])
        for n in range(e):
            out += self.swiglu(f"{m}experts.{n}.", d, f, 0.8, ("w1", "w3", "w2"))
        return out

    def attention(self, c, p, out_name="o_proj", gain=1.4):
        return self.delta(c, p) if self.is_delta(c, int(p.split(".")[2])) else self.latent(c, p)

    def gguf_keys(self, c):
        linear, rope, rank = c["linear_attn_config"], c["qk_rope_head_dim"], c["kv_lora_rank"]
        return self.base_keys(c) | {
            "attention.head_count_kv": [0 if self.is_delta(c, i) else 1 for i in range(c["num_hidden_layers"])],
            "feed_forward_length": c["intermediate_size"], "rope.freq_base": float(c["rope_theta"]), "rope.dimension_count": rope,
            "attention.key_length": rank + rope, "attention.value_length": rank, "attention.kv_lora_rank": rank,
            "attention.key_length_mla": c["qk_nope_head_dim"] + rope, "attention.value_length_mla": c["v_head_dim"],
            "ssm.conv_kernel": linear["short_conv_kernel_size"], "kda.head_dim": linear["head_dim"], "expert_count": c["num_experts"],
            "expert_used_count": c["num_experts_per_token"], "expert_feed_forward_length": c["moe_intermediate_size"],
            "expert_shared_count": c["num_shared_experts"], "leading_dense_block_count": c["first_k_dense_replace"],
            "expert_weights_scale": float(c["routed_scaling_factor"]), "expert_gating_func": 2,
            "expert_weights_norm": c["moe_renormalize"] and c["num_experts_per_token"] > 1}

    def attention_gather(self, c, w, p, b, out_name="o_proj"):
        out = {b + "attn_q.weight": w[p + "q_proj.weight"], b + "attn_output.weight": w[p + "o_proj.weight"]}
        if p + "kv_b_proj.weight" in w:
            nope, both = c["qk_nope_head_dim"], w[p + "kv_b_proj.weight"]
            both = both.reshape(c["num_attention_heads"], -1, both.shape[-1])
            return out | {b + "attn_kv_a_mqa.weight": w[p + "kv_a_proj_with_mqa.weight"], b + "attn_kv_a_norm.weight": w[p + "kv_a_layernorm.weight"],
                          b + "attn_k_b.weight": both[:, :nope].swapaxes(1, 2), b + "attn_v_b.weight": both[:, nope:]}
        out |= {f"{b}attn_{x}.weight": w[f"{p}{x}_proj.weight"] for x in "kv"}
        out |= {f"{b}ssm_conv1d_{x}.weight": w[f"{p}{x}_conv1d.weight"][None] for x in "qkv"}  # [1, C, 1, K]
        out |= {f"{b}ssm_{x}.weight": w[f"{p}{x}_proj.weight"] for x in ("f_a", "f_b", "g_a", "g_b")}
        return out | {b + "ssm_beta.weight": w[p + "b_proj.weight"], b + "ssm_dt.bias": w[p + "dt_bias"], b + "ssm_norm.weight": w[p + "o_norm.weight"]}

    def ffn_gather(self, c, w, p, b, i):
        if i < c["first_k_dense_replace"]:
            return super().ffn_gather(c, w, p, b, i)
        m = p + "block_sparse_moe."
        out = {b + "ffn_gate_inp.weight": w[m + "gate.weight"], b + "exp_probs_b.bias": w[m + "gate.e_score_correction_bias"]}
        for g, n in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
            out[f"{b}ffn_{g}_shexp.weight"] = w[f"{m}shared_experts.{g}_proj.weight"]
            out[f"{b}ffn_{g}_exps.weight"] = np.stack([w[f"{m}experts.{e}.{n}.weight"] for e in range(c["num_experts"])])
        return out

    def gguf_values(self, c, w):
        a = {f"blk.{i}.ssm_a": -np.exp(w[f"model.layers.{i}.self_attn.A_log"]) for i in range(c["num_hidden_layers"]) if self.is_delta(c, i)}
        return super().gguf_values(c, w) | a


FAMILIES = (KimiLinear,)
