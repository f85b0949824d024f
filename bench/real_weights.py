#!/usr/bin/env python3
"""Text and perplexity of real weights beside llama.cpp, on the same model file.

    bench/real_weights.py --model M.gguf [--cairn build/release/bin/cairn] [--llama-server PATH] [--llama-perplexity PATH --text FILE]
                          [--prompts 20] [--tokens 200] [--context 512] [--chunks 8]
                          [--exact F32.gguf --logit-distance build/release/bin/logit_distance --llama-perplexity PATH --text FILE]

With --llama-server: greedy continuations of the prompts below. Both engines quantise activations their own way, so texts part where two tokens
are nearly equal; the table says at which token, and the mean and largest difference of the chosen tokens' log probabilities before that.
With --llama-perplexity: the text is cut into chunks of --context tokens, the first token of each replaced by BOS where the model wants one, and
the second half of each chunk is scored: llama-perplexity's own definition, so the two figures are comparable.
With --exact: both programs run the same weights dequantised to float32 (llama-quantize --allow-requantize M.gguf F32.gguf F32) with float32 keys
and values, which leaves no rounding worth naming; then each runs M.gguf, and the distances to both exact runs are printed: whose error is whose.
The base files take 2 bytes a token of the vocabulary for each scored token (134 MB a chunk of 512 with 262,144), in --scratch.
Standard library only.
"""
import argparse, json, math, os, re, statistics, subprocess, sys, tempfile

from server_process import ServerProcess

PROMPTS = [
    "The capital of France is", "Once upon a time there was a small", "Water boils at", "The three primary colours are",
    "In 1969, the first human", "To make bread you need", "The theory of evolution says that", "A good way to learn a language is",
    "The sun rises in the", "Photosynthesis is the process by which", "My favourite book is about", "The stock market fell today because",
    "def fibonacci(n):", "The best thing about winter is", "Dear Sir or Madam,", "A triangle with three equal sides is",
    "The recipe calls for two cups of", "Scientists have discovered that", "The history of Rome begins with", "If you want to stay healthy,",
]


FLOAT_KV = {"cairn": ["--kv-type", "f32"], "llama.cpp": ["-fa", "off", "-ctk", "f32", "-ctv", "f32"]}


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", required=True)
    p.add_argument("--cairn", default="build/release/bin/cairn")
    p.add_argument("--llama-server")
    p.add_argument("--llama-perplexity")
    p.add_argument("--text", help="a UTF-8 text for the perplexity")
    p.add_argument("--float-kv", action="store_true", help="float32 keys and values in both servers")
    p.add_argument("--exact", help="the same weights as float32")
    p.add_argument("--logit-distance", default="build/release/bin/logit_distance")
    p.add_argument("--scratch", help="folder for base files (default: the system's)")
    p.add_argument("--prompts", type=int, default=len(PROMPTS))
    p.add_argument("--tokens", type=int, default=200)
    p.add_argument("--context", type=int, default=512)
    p.add_argument("--chunks", type=int, default=8)
    p.add_argument("--threads", type=int, default=2)
    return p.parse_args()


def cairn(a):
    return ServerProcess([a.cairn, "serve", "--model", a.model, "--threads", str(a.threads), "--context-length",
                          str(max(a.context, a.tokens + 64) + 64)] + (FLOAT_KV["cairn"] if a.float_kv else []))


def peer(a):
    return ServerProcess([a.llama_server, "-m", a.model, "-t", str(a.threads), "-c", str(max(a.context, a.tokens + 64) + 64), "-np", "1"] +
                         (FLOAT_KV["llama.cpp"] if a.float_kv else []))


def greedy(a):
    """For each prompt: both lists of (token bytes, log probability)."""
    rows = []
    with peer(a) as other:
        prompts = [other.post("/tokenize", {"content": p, "add_special": True})["tokens"] for p in PROMPTS[:a.prompts]]
        theirs = []
        for tokens in prompts:
            reply = other.post("/completion", {"prompt": tokens, "n_predict": a.tokens, "temperature": 0, "n_probs": 1, "cache_prompt": False})
            theirs.append([(bytes(t["bytes"]), t["logprob"]) for t in reply["completion_probabilities"]])
    with cairn(a) as ours:
        for tokens, their in zip(prompts, theirs):
            reply = ours.post("/v1/completions", {"prompt": tokens, "max_tokens": a.tokens, "temperature": 0, "logprobs": 0})
            content = reply["choices"][0]["logprobs"]["content"]
            rows.append(([(bytes(t["bytes"]), t["logprob"]) for t in content], their))
    return rows


def compare_text(a):
    parted, differences = [], []
    for prompt, (our, their) in zip(PROMPTS, greedy(a)):
        same = 0
        while same < min(len(our), len(their)) and our[same][0] == their[same][0]:
            differences.append(abs(our[same][1] - their[same][1]))
            same += 1
        equal = same == len(our) == len(their)
        parted.append(None if equal else same)
        print(f"  {'equal, ' + str(same) + ' tokens' if equal else 'parts at token ' + str(same):24} {prompt!r}")
    ends = [p for p in parted if p is not None]
    print(f"text: {len(parted) - len(ends)} of {len(parted)} equal to the end; the others part at {sorted(ends)}")
    if differences:
        print(f"logprob difference before that: mean {statistics.mean(differences):.4f} max {max(differences):.4f} over {len(differences)} tokens")


def our_perplexity(a):
    text = open(a.text, encoding="utf-8").read()
    negative, count = 0.0, 0
    with cairn(a) as server:
        tokens = server.post("/tokenize", {"content": text, "add_special": True})["tokens"]
        bos = server.post("/tokenize", {"content": "", "add_special": True})["tokens"]
        for i in range(min(a.chunks, len(tokens) // a.context)):
            chunk = tokens[i * a.context:(i + 1) * a.context]
            if bos:
                chunk[0] = bos[0]
            reply = server.post("/v1/completions", {"prompt": chunk, "max_tokens": 1, "temperature": 0, "logprobs": 0, "echo": True})
            scores = reply["choices"][0]["logprobs"]["token_logprobs"][a.context // 2 + 1:a.context]
            negative -= sum(scores)
            count += len(scores)
    return math.exp(negative / count), count


def compare_perplexity(a):
    ours, count = our_perplexity(a)
    done = subprocess.run([a.llama_perplexity, "-m", a.model, "-f", a.text, "-c", str(a.context), "-b", str(a.context), "--chunks", str(a.chunks),
                           "-t", str(a.threads)], capture_output=True, text=True, timeout=3600)
    found = re.search(r"Final estimate: PPL = ([0-9.]+)", done.stdout + done.stderr)
    if not found:
        sys.exit(f"{a.llama_perplexity} gave no estimate:\n{done.stderr[-1500:]}")
    theirs = float(found.group(1))
    print(f"perplexity: cairn {ours:.4f}, llama.cpp {theirs:.4f}, {100 * (ours / theirs - 1):+.3f} % over {count} tokens")


def run(command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=7200)
    if done.returncode != 0:
        sys.exit(f"{command[0]} ended with {done.returncode}:\n{done.stderr[-1500:]}")
    return done.stdout + done.stderr


def peer_command(a, model):
    return [a.llama_perplexity, "-m", model, "-c", a.context, "-b", a.context, "-t", a.threads]


def json_line(text):
    return json.loads(next(line for line in text.splitlines() if line.startswith("{")))


def write_base(a, program, path):
    """Log probabilities of the float32 weights, in llama-perplexity's format, which logit_distance writes too. Returns their perplexity."""
    if program == "cairn":
        out = run([a.logit_distance, "--model", a.exact, "--threads", a.threads, "--write", path, "--text", a.text, "--context", a.context,
                   "--chunks", a.chunks] + FLOAT_KV[program])
        return json_line(out)["perplexity"]
    out = run(peer_command(a, a.exact) + ["-f", a.text, "--chunks", a.chunks, "--kl-divergence-base", path] + FLOAT_KV[program])
    return float(re.search(r"Final estimate: PPL = ([0-9.]+)", out).group(1))


def our_distance(a, model, base, flags):
    d = json_line(run([a.logit_distance, "--model", model, "--threads", a.threads, "--base", base] + flags))
    return [d[k] for k in ("perplexity", "log_ratio_error", "kl_mean", "kl_error", "kl_median", "kl_p99", "kl_max", "same_top")]


def peer_distance(a, model, base, flags):
    out = run(peer_command(a, model) + ["--kl-divergence", "--kl-divergence-base", base] + flags)

    def find(label, group=1):
        words = r"\s+".join(re.escape(word) for word in label.split())
        return float(re.search(words + r"\s*:\s*(-?[0-9.]+)(?: ± *([0-9.]+))?", out).group(group))

    return [find("Mean PPL(Q)"), find("Mean ln(PPL(Q)/PPL(base))", 2), find("Mean KLD"), find("Mean KLD", 2), find("Median KLD"),
            find("99.0% KLD"), find("Maximum KLD"), find("Same top p") / 100]


def compare_exact(a):
    measure = {"cairn": our_distance, "llama.cpp": peer_distance}
    print("| exact by | program | weights | perplexity | beside the exact one, % | KL mean | median | 99 % | max | same first choice |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=a.scratch) as folder:
        for exact in measure:
            base = os.path.join(folder, "base")
            exact_perplexity = write_base(a, exact, base)
            print(f"| {exact} | {exact} | float32 | {exact_perplexity:.4f} | | | | | | |", flush=True)
            for program, distance in measure.items():
                for model, flags in ((a.exact, FLOAT_KV[program]), (a.model, [])):
                    if model == a.exact and program == exact:
                        continue
                    perplexity, error, kl, kl_error, median, p99, largest, top = distance(a, model, base, flags)
                    print(f"| {exact} | {program} | {'float32' if model == a.exact else 'as quantised'} | {perplexity:.4f} | "
                          f"{100 * (perplexity / exact_perplexity - 1):+.3f} ± {100 * error:.3f} | {kl:.6f} ± {kl_error:.6f} | {median:.6f} | "
                          f"{p99:.5f} | {largest:.4f} | {100 * top:.2f} % |", flush=True)


def main():
    a = arguments()
    print(a.model)
    if a.exact:
        if not (a.llama_perplexity and a.text):
            sys.exit("--exact needs --llama-perplexity and --text")
        compare_exact(a)
        return
    if a.llama_server:
        compare_text(a)
    if a.llama_perplexity:
        if not a.text:
            sys.exit("--llama-perplexity needs --text")
        compare_perplexity(a)


if __name__ == "__main__":
    main()
