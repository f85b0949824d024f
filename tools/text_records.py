"""Talks to build/release/bin/text_batch: records of byte fields in, one record out for each."""
import struct
import subprocess


def run(binary, arguments, records):
    """The answers to `records` (lists of str or bytes), in order. RuntimeError with what the program said if it refused."""
    data = b"".join(map(_packed, records))
    done = subprocess.run([binary, *arguments], input=data, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.decode(errors="replace").strip() or f"exit status {done.returncode}")
    answers = list(_unpacked(done.stdout))
    if len(answers) != len(records):
        raise RuntimeError(f"{len(answers)} answers to {len(records)} records")
    return answers


def _packed(fields):
    raw = [f.encode() if isinstance(f, str) else f for f in fields]
    return struct.pack("<I", len(raw)) + b"".join(struct.pack("<I", len(f)) + f for f in raw)


def _unpacked(data):
    at = 0
    while at < len(data):
        (count,) = struct.unpack_from("<I", data, at)
        at += 4
        fields = []
        for _ in range(count):
            (size,) = struct.unpack_from("<I", data, at)
            fields.append(data[at + 4:at + 4 + size])
            at += 4 + size
        yield fields
