#!/usr/bin/env python3
"""Measures Moebius on a GPU beside torch and Hugging Face and writes bench/results/gpu_*.json: run by tools/bench.sh --gpu.

    tools/bench_gpu.py [--only step,gemm] [--bin DIR] [--python FILE] [--out DIR] [--samples N] [--quick] [--limit SECONDS]

  step  training steps of two layers of Mixtral-8x7B and four fine-grained ones, beside Hugging Face's    gpu_step.json
  gemm  grouped products beside torch's, the experts' MLP                                                  gpu_gemm.json

Both sides take turns on one card (CUDA_VISIBLE_DEVICES chooses it); torch's process stays, imported and idle, while ours
runs. A part that fails is left out and its reason printed. --quick tries everything in small and writes to build/bench/quick.
"""

import argparse
import datetime
import json
import os
import pathlib
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
GIB = 2**30
FINE = {"hidden_size": 2048, "intermediate_size": 1024, "num_local_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 4}
# case: what is not as in the configuration bench_8x7b_layers.
STEPS = {"8x7b_2l": {}, "fine_64e_4l": FINE}
EXPERTS = ["grouped_mm", "eager"]
# case of torch_step.py: the part of our cases' names that holds splits and sizes.
PRODUCTS = {"8x7b": ("8_experts", "28672x4096"), "e128": ("128_experts", "1536x2048")}
KINDS = {"fwd": "forward", "dgrad": "dgrad", "wgrad": "wgrad"}
MLPS = {"8x7b": "bf16.8_experts.4096x14336", "fine_64e": "bf16.64_experts.2048x1024"}
STATE = {
    "ours": "bf16 weights; fp32 masters, moments and gradients",
    "hf": "bf16 parameters, moments and gradients, no masters",
}
HEAT = 0.5  # seconds that a product runs before its samples, on both sides


class Failed(Exception):
    pass


def note(text):
    print(f"bench: {text}", flush=True)


def rounded(value):
    return float(f"{value:.6g}")


def side(samples, scale=1.0, **more):
    values = [rounded(scale * s) for s in samples]
    result = {"median": rounded(statistics.median(values)), "min": min(values), "max": max(values), "n": len(values)}
    return {**result, **more, "samples": values}


def last_words(text):
    lines = [line.strip() for line in text.splitlines() if line.strip(" ^~\t")]
    return " / ".join(lines[-2:])[-400:] if lines else "it said nothing"


class Process:
    """A program's lines of output with the times at which they came: (time, line), None at its end."""

    def __init__(self, label, command, environment=None):
        self.label = label
        self.errors = tempfile.TemporaryFile("w+", errors="replace")
        self.lines = queue.Queue()
        try:
            self.process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                text=True,
                errors="replace",
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
            )
        except OSError as error:
            raise Failed(f"{label}: {error}") from None
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put((time.monotonic(), line.rstrip("\n")))
        self.lines.put(None)

    def next(self, deadline):
        """The next line; None at the end of a program that ended well."""
        try:
            item = self.lines.get(timeout=max(0.1, deadline - time.monotonic()))
        except queue.Empty:
            self.end()
            raise Failed(f"{self.label}: no time left for it") from None
        if item is None:
            code = self.process.wait()
            self.lines.put(None)  # whoever asks again gets the same answer
            if code != 0:
                self.errors.seek(0)
                raise Failed(f"{self.label} ended with {code}: {last_words(self.errors.read())}")
        return item

    def say(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except (OSError, ValueError):
            pass  # it has ended; next() says why

    def end(self):
        try:
            self.process.stdin.close()
        except OSError:
            pass
        self.process.kill()
        self.process.wait()


def json_of(line):
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


class Meter:
    """Clocks and watts of the card: what nvidia-smi says every 100 ms."""

    def __init__(self, card):
        self.rows = []
        fields = "clocks.sm,clocks.mem,power.draw"
        command = ["nvidia-smi", f"--id={card}", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-lms", "100"]
        try:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError as error:
            note(f"no clocks and watts: {error}")
            self.process = None
            return
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            try:
                self.rows.append((time.monotonic(), *(float(word) for word in line.split(","))))
            except ValueError:
                pass

    def between(self, begin, end):
        rows = [row[1:] for row in list(self.rows) if begin <= row[0] <= end + 0.05]
        if not rows:
            return {}
        sm, memory, watts = (statistics.median(column) for column in zip(*rows))
        return {"clocks_mhz": {"sm": round(sm), "memory": round(memory)}, "watts": round(watts)}

    def end(self):
        if self.process:
            self.process.terminate()
            self.process.wait()


def card_of_machine(card):
    query = ["nvidia-smi", f"--id={card}", "--query-gpu=name,driver_version,uuid", "--format=csv,noheader"]
    try:
        text = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout
        name, driver, uuid = (word.strip() for word in text.strip().splitlines()[0].split(","))
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        note(f"nvidia-smi does not name the card: {error}")
        return {"device": "", "driver": ""}
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id")
    return {"device": name, "driver": driver, "uuid": uuid, "boot": boot.read_text().strip() if boot.is_file() else ""}


def head_commit():
    try:
        git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return git.stdout.strip()


class Bench:
    def __init__(self, options):
        self.options = options
        self.begin = time.monotonic()
        self.deadline = self.begin + options.limit
        card = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
        self.card = card_of_machine(card)
        self.meter = Meter(card)
        self.builds = {}  # (commit, dirty): None, of our programs
        self.toolkit = ""
        self.torch = None
        self.torch_ready = False
        self.torch_failed = ""  # why it is not asked any more
        self.dense = {}  # kind of product: cuBLAS's TFLOP/s at 8x7b's shapes
        self.cases = {"step": [], "gemm": []}
        self.failures = []

    def fail(self, what, error):
        self.failures.append(f"{what}: {error}")
        note(f"left out: {self.failures[-1]}")

    # --- both sides

    def start_torch(self):
        try:
            command = [self.options.python, ROOT / "bench/baselines/torch_step.py", "serve"]
            self.torch = Process("torch", command, {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"})
        except Failed as error:
            self.torch_failed = str(error)

    def ask_torch(self, words):
        """[(time, line)] of torch_step.py for that command line."""
        if self.torch_failed:
            raise Failed(self.torch_failed)
        answers = []
        try:
            self.torch.say(words + f" --no-meter --heat {HEAT}")
            while True:
                item = self.torch.next(self.deadline)
                if item is None:
                    raise Failed("torch ended early")
                line = json_of(item[1]) or {}
                self.torch_ready = self.torch_ready or "ready" in line
                if "done" in line:
                    return answers
                if "error" in line:
                    self.fail(f"{line.get('side', 'torch')} in {line.get('case', words)}", line["error"])
                elif "samples" in line:
                    answers.append((item[0], line))
        except Failed as error:
            # One that never came up, or has no time left, is not tried again.
            if self.torch_ready and time.monotonic() < self.deadline:
                self.torch_ready = False
                self.start_torch()
            else:
                self.torch_failed = str(error)
            if not answers:
                raise
            self.fail(words, error)  # what came before counts
            return answers

    def built(self, line):
        self.builds[(line.get("commit", ""), bool(line.get("dirty")))] = None
        self.toolkit = line.get("toolkit") or self.toolkit

    def case(self, name, unit, better, ours, at, **more):
        """`at`: clocks and watts during our samples."""
        return {"case": name, "unit": unit, "better": better, "ours": ours, **more, **at}

    # --- step

    def our_step(self, case, mode):
        shape = [f"config_kwargs.{key}={value}" for key, value in STEPS[case].items()]
        command = [self.options.bin / "moebius_bench", "train", "--config=bench_8x7b_layers", "--rows=2", "--length=8192"]
        command += [f"--warm={2 if self.options.quick else 3}", f"--steps={self.options.samples}"]
        command += ["dtype=bf16", f"expert_ffn_mode={mode}", *shape]
        program = Process("moebius_bench", command)
        came, result = 0.0, None
        while item := program.next(self.deadline):
            line = json_of(item[1])
            if line and "samples" in line:
                came, result = item[0], line
        if result is None:
            raise Failed("moebius_bench gave no result")
        self.built(result)
        return result, self.meter.between(came - sum(result["samples"]), came)

    def their_step(self, case):
        """{side: (line, clocks and watts)}"""
        sides = {}
        for experts in EXPERTS[:1] if self.options.quick else EXPERTS:
            try:
                answers = self.ask_torch(f"step --case {case} --experts {experts} --warmup 3 --samples {self.options.samples}")
            except Failed as error:
                self.fail(f"hf_{experts} in {case}", error)
                continue
            for came, line in answers:
                seconds = (sum(line["samples"]) + line.get("back_to_back", 0) * line["n"]) / 1e3
                sides[line["side"]] = (line, self.meter.between(came - seconds, came))
        return sides

    def step(self):
        for case in STEPS:
            ours = {}
            for mode in self.options.modes:
                try:
                    ours[mode] = self.our_step(case, mode)
                    result = ours[mode][0]
                    note(f"{case}: ours, {mode}: {1e3 * statistics.median(result['samples']):.2f} ms ({self.seconds()})")
                except Failed as error:
                    self.fail(f"ours, {mode}, in {case}", error)
            theirs = self.their_step(case)
            for name, (line, _) in theirs.items():
                note(f"{case}: {name}: {line['median']:.2f} ms, {line.get('back_to_back', 0):.2f} queued ({self.seconds()})")
            for mode, (result, at) in ours.items():
                self.cases["step"] += self.step_cases(case, mode, result, at, theirs)
            self.write("step")

    def step_cases(self, case, mode, result, at, theirs):
        samples = [1e3 * s for s in result["samples"]]
        median = statistics.median(samples)
        memory = result.get("memory", {})
        held = {"ours": rounded(memory.get("peak_bytes", 0) / GIB)}
        others, ratio = {}, {}
        tokens = result["rows"] * result["length"] * result.get("micro_batches", 1)
        rate, flops = {"ours": round(1e3 * tokens / median)}, result.get("model_flops", 0)
        for name, (line, there) in theirs.items():
            # Ours are queued one behind the other; their better way counts.
            best = min(line["median"], line.get("back_to_back") or line["median"])
            queued = {"back_to_back": line.get("back_to_back"), "model_tflops": rounded(flops / best / 1e9)}
            others[name] = side(line["samples"], version=line["version"], **queued, **(there or clocks_of(line)))
            ratio[name] = rounded(best / median)
            held[name] = line["memory_gib"]
            rate[name] = round(1e3 * tokens / best)
            if abs(line["parameters"] / result["parameters"] - 1) > 1e-3:
                self.fail(f"{name} in {case}", f"it has {line['parameters']} parameters, ours {result['parameters']}")
                del others[name], ratio[name], held[name], rate[name]
        kernels = {row["op"]: row["variant"] for row in result.get("kernels", [])}
        more = {"others": others, "ratio": ratio, "memory_gib": held, "tokens_per_second": rate}
        more["ratio_of"] = "the lesser of their median and back_to_back (the mean of queued steps), to our median of queued steps"
        more["optimizer_state"] = {name: STATE["ours" if name == "ours" else "hf"] for name in ("ours", *others)}
        more["model_tflops"] = rounded(flops / median / 1e9)
        owners = memory.get("peak_bytes_by_owner", {})
        more["memory_by_owner_gib"] = {owner: rounded(b / GIB) for owner, b in owners.items() if b >= GIB / 64}
        more["memory_from_system_gib"] = rounded(memory.get("system_bytes", 0) / GIB)
        shapes = {"config": "bench_8x7b_layers", **STEPS[case], "rows": result["rows"], "length": result["length"]}
        more["shapes"] = {**shapes, "parameters": result["parameters"]}
        more["routing"] = "learned"
        more["kernels"] = kernels
        more["loss"] = [result.get("first_loss"), result.get("last_loss")]
        name = f"train_step.{case}.bf16"
        cases = [self.case(name, "ms", "lower", side(samples, variant=mode), at, **more)]
        spread = result.get("enqueue_seconds", {})
        enqueue = result.get("enqueue_samples")
        if enqueue:
            host = side(enqueue, 1e3, variant=mode)
        elif spread:
            host = {key: rounded(1e3 * spread[of]) for key, of in (("median", "median"), ("min", "least"), ("max", "most"))}
            host = {**host, "n": len(samples), "variant": mode}
        else:
            return cases
        nodes = {"graph_nodes": result.get("graph_nodes"), "shapes": more["shapes"], "routing": "learned"}
        return [*cases, self.case(f"host_enqueue.{case}", "ms", "lower", host, {}, **nodes)]

    # --- products

    def our_products(self, part):
        """{case: (line, clocks and watts)} of moebius_kernel_bench for the cases with that in their name."""
        program = self.options.bin / "moebius_kernel_bench"
        with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as file:
            command = [program, part, "--runs", max(3 if self.options.quick else 20, self.options.samples), "--json", file.name]
            command += ["--warm", HEAT] if self.warms else []
            running = Process("moebius_kernel_bench", command)
            came, failed = {}, None
            try:
                while item := running.next(self.deadline):
                    came[item[1].split(" ", 1)[0]] = item[0]
                    if " skipped: " in item[1]:
                        self.fail(item[1].split(" ", 1)[0], item[1].split(" skipped: ", 1)[1])
            except Failed as error:
                failed = error
            lines = [line for line in map(json_of, file.read().splitlines()) if line]
        if failed and not lines:
            raise failed
        if failed:
            self.fail(f"the rest of *{part}*", failed)
        result = {}
        for line in lines:
            self.built(line)
            runs = line.get("samples") or [line["median_seconds"]] * line["runs"]
            end = came.get(line["case"])
            window = (end - sum(runs) - (HEAT if self.warms else 0), end) if end else (0, 0)
            result[line["case"]] = (line, self.meter.between(*window))
        return result

    def their_products(self, case):
        """{(kind, routing): {side: (line, clocks and watts)}}"""
        routing = "balanced" if self.options.quick else "balanced,skewed"
        result = {}
        for came, line in self.ask_torch(f"gemm --case {case} --routing {routing} --samples {self.options.samples}"):
            key = (line["case"].split(".")[2], line["routing"])
            result.setdefault(key, {})[line["side"]] = (line, self.meter.between(came - HEAT, came))
        return result

    def gemm(self):
        try:
            words = [str(self.options.bin / "moebius_kernel_bench"), "--help"]
            self.warms = "--warm" in subprocess.run(words, capture_output=True, text=True, timeout=60).stdout
        except (OSError, subprocess.SubprocessError) as error:
            self.fail("ours, products", error)
            return
        mlps = {}
        for case, (experts, sizes) in PRODUCTS.items():
            try:
                ours = self.our_products(f".{experts}")
            except Failed as error:
                self.fail(f"ours in grouped_gemm.{case}", error)
                continue
            mlps.update(ours)
            note(f"products {case}: ours: {len(ours)} cases ({self.seconds()})")
            theirs = {}
            try:
                theirs = self.their_products(case)
                note(f"products {case}: torch: {sum(map(len, theirs.values()))} cases ({self.seconds()})")
            except Failed as error:
                self.fail(f"torch in grouped_gemm.{case}", error)
            self.product_cases(case, experts, sizes, ours, theirs)
            self.write("gemm")
            if self.options.quick:
                break
        if not self.options.quick:
            try:
                mlps.update(self.our_products(".64_experts"))
                note(f"MLPs: ours ({self.seconds()})")
            except Failed as error:
                self.fail("ours in mlp.fine_64e", error)
        self.mlp_cases(mlps)
        self.write("gemm")
        self.add_limits()

    def product_cases(self, case, experts, sizes, ours, theirs):
        rows = {"8x7b": 32768, "e128": 65536}[case]
        outer, inner = (int(word) for word in sizes.split("x"))
        shapes = {"experts": int(experts.split("_")[0]), "rows": rows, "in": inner, "out": outer}
        for routing in ("balanced", "skewed"):
            for kind, word in KINDS.items():
                dense = theirs.get((kind, "dense"), {}).get("cublas")
                torch = theirs.get((kind, routing), {}).get("torch")
                if dense and case == "8x7b":
                    self.dense[kind] = dense[0]["median"]
                for out in ("bf16", "f32") if kind == "wgrad" else ("bf16",):
                    splits = experts + ("_skewed" if routing == "skewed" else "")
                    found = ours.get(f"grouped_gemm/{word}.bf16_{out}.{splits}.{sizes}")
                    if not found:
                        continue
                    line, at = found
                    runs = line.get("samples") or [line["median_seconds"]]
                    rates = side([line["flops"] / s / 1e12 for s in runs], variant=line["variant"])
                    others, ratio, more = {}, {}, {}
                    if torch and out == "bf16":
                        others["torch"] = side(torch[0]["samples"], version=torch[0]["version"], **(torch[1] or clocks_of(torch[0])))
                        ratio["torch"] = rounded(rates["median"] / others["torch"]["median"])
                    if dense:
                        more["limit"] = limit_of(dense[0]["median"], rates["median"], "dense bf16 cuBLAS product of the same FLOPs")
                        more["limit"].update(dense[1] or clocks_of(dense[0]))
                    name = f"grouped_gemm.{case}.{kind}.bf16" + (".fp32_out" if out == "f32" else "")
                    name += ".skewed" if routing == "skewed" else ""
                    more = {"others": others, "ratio": ratio, **more, "shapes": shapes, "routing": routing}
                    self.cases["gemm"].append(self.case(name, "TFLOP/s", "higher", rates, at, **more))

    def mlp_cases(self, found):
        for case, sizes in MLPS.items():
            pair = [found.get(f"grouped_mlp{way}/{sizes}") for way in ("", "_backward")]
            if None in pair:
                continue
            runs = [line.get("samples") or [line["median_seconds"]] for line, _ in pair]
            ways = {name: side(s, 1e3, variant=p[0]["variant"]) for name, s, p in zip(("forward", "backward"), runs, pair)}
            both = side([f + b for f, b in zip(*runs)], 1e3, variant=" + ".join(p[0]["variant"] for p in pair))
            flops = [line["flops"] for line, _ in pair]
            more = {**ways, "tflops": rounded(sum(flops) / both["median"] / 1e9), "flops": sum(flops)}
            for way, count in zip(ways, flops):
                more[way]["tflops"] = rounded(count / more[way]["median"] / 1e9)
            experts, rows = (8, 32768) if case == "8x7b" else (64, 131072)
            hidden, intermediate = (int(word) for word in sizes.rsplit(".", 1)[1].split("x"))
            more["shapes"] = {"experts": experts, "rows": rows, "hidden": hidden, "intermediate": intermediate}
            more["routing"] = "balanced"
            self.cases["gemm"].append(self.case(f"mlp.{case}.bf16", "ms", "lower", both, pair[1][1], **more))

    def add_limits(self):
        """Steps and MLPs beside the dense product of this run."""
        if "fwd" not in self.dense:
            return
        for case in self.cases["step"] + self.cases["gemm"]:
            rate = case.get("model_tflops") or case.get("tflops")
            if rate:
                name = "dense bf16 cuBLAS 32768 x 28672 x 4096" + (", by the model's FLOPs" if "model_tflops" in case else "")
                case["limit"] = limit_of(self.dense["fwd"], rate, name)
        for topic, cases in self.cases.items():
            if cases:
                self.write(topic, silent=True)

    # --- results

    def seconds(self):
        return f"{time.monotonic() - self.begin:.0f} s"

    def common(self):
        commits = list(self.builds) or [("", False)]
        commit = self.options.commit or commits[0][0] or head_commit() or "unknown"
        more = {"dirty": True} if any(dirty for _, dirty in commits) else {}
        date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
        return {**self.card, "toolkit": self.toolkit, "threads": len(os.sched_getaffinity(0)), "commit": commit, **more, "date": date}

    def write(self, topic, silent=False):
        cases = self.cases[topic]
        if not cases:
            return
        path = self.options.out / f"gpu_{topic}.json"
        text = "[\n" + ",\n".join(json.dumps({**c, **self.common()}) for c in cases) + "\n]\n"
        path.with_suffix(".part").write_text(text, encoding="utf-8")
        os.replace(path.with_suffix(".part"), path)
        if not silent:
            note(f"{path}: {len(cases)} cases so far")

    def table(self):
        head = ("case", "unit", "ours", "min", "max", "other", "theirs", "ratio", "of limit", "MHz", "W", "GiB")
        rows = [head]
        for case in self.cases["step"] + self.cases["gemm"]:
            ours, limit = case["ours"], case.get("limit")
            clocks = case.get("clocks_mhz", {}).get("sm", "")
            gib = case.get("memory_gib", {}).get("ours")
            tail = (f"{100 * limit['share']:.0f}%" if limit else "", f"{clocks}", f"{case.get('watts', '')}", f"{gib:.1f}" if gib else "")
            name = case["case"] + ("" if len(self.options.modes) == 1 or case["unit"] != "ms" else f" {ours['variant']}")
            first = (name, case["unit"], *(f"{ours[key]:.4g}" for key in ("median", "min", "max")))
            others = list(case.get("others", {}).items()) or [(None, None)]
            for number, (other, theirs) in enumerate(others):
                figures = (other, f"{theirs['median']:.4g}", f"{case['ratio'][other]:.3f}") if other else ("–", "", "")
                rows.append((*first, *figures, *tail) if number == 0 else ("", "", "", "", "", *figures, "", "", "", ""))
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        for row in rows:
            cells = [c.ljust(w) if i in (0, 1, 5) else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))]
            print("  ".join(cells).rstrip())

    def run(self):
        self.start_torch()
        try:
            for topic in self.options.only:
                try:
                    getattr(self, topic)()
                except Exception as error:  # one topic's trouble is not the other's
                    self.fail(topic, f"{type(error).__name__}: {error}")
        finally:
            self.meter.end()
            if self.torch:
                self.torch.end()
        self.table()
        head = head_commit()
        for commit, dirty in self.builds:
            if dirty or (head and commit and commit != head):
                print(f"NOT OF HEAD: built from {commit}{', with changes' if dirty else ''}; HEAD is {head or 'not known here'}")
        for failure in self.failures:
            print(f"LEFT OUT {failure}")
        print(f"bench: {self.seconds()}")
        return 0 if any(self.cases.values()) else 1


def clocks_of(line):
    return {key: line[key] for key in ("clocks_mhz", "watts") if line.get(key)}


def limit_of(value, ours, name):
    return {"name": name, "value": value, "unit": "TFLOP/s", "share": rounded(ours / value)}


def arguments():
    topics = ["step", "gemm"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(topics), help="of " + ", ".join(topics))
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/cuda/bin", help="where moebius_bench and moebius_kernel_bench lie")
    parser.add_argument("--python", default=sys.executable, help="with torch and transformers")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--samples", type=int, default=12)
    parser.add_argument("--modes", default="fused_grouped_mlp", help="of expert_ffn_mode, with commas")
    parser.add_argument("--commit", default="", help="of the programs, where they do not say")
    parser.add_argument("--limit", type=float, default=280, help="seconds; what has not come by then is left out")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    options.only = options.only.split(",")
    unknown = [topic for topic in options.only if topic not in topics]
    if unknown:
        parser.error(f"--only: {unknown[0]} is not one of {', '.join(topics)}")
    options.modes = options.modes.split(",")
    options.bin = options.bin.resolve()
    if options.quick:
        options.samples = 3
    elif options.samples < 10:
        parser.error("--samples: at least 10")
    options.out = options.out or ROOT / ("build/bench/quick" if options.quick else "bench/results")
    options.out.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    sys.exit(Bench(arguments()).run())
