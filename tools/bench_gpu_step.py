"""Training steps of tools/bench_gpu.py, beside Hugging Face's: gpu_step.json."""

import dataclasses
import statistics

import bench_gpu_parts
from bench_gpu_common import GIB, ROOT, Failed, Process, clocks_of, json_of, note, rounded, side

FINE = {"hidden_size": 2048, "intermediate_size": 1024, "num_local_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 4}
# What is not as in the configuration bench_8x7b_layers.
SHAPES = {"8x7b_2l": {}, "fine_64e_4l": FINE}
# The other side's optimizer: bf16 gradients and moments, no masters.
COMPARED = ["grad_dtype=bf16", "adamw_kwargs.state_dtype=bf16", "optimizer_master_weights=false"]
STATE = {
    True: "bf16 parameters, moments and gradients, no masters",
    False: "bf16 weights; fp32 masters, moments and gradients",
}


RECIPES = {"fp8_block": "Float8BlockScaling", "fp8_current": "Float8CurrentScaling", "fp8_delayed": "DelayedScaling", "mxfp8": "MXFP8BlockScaling"}


@dataclasses.dataclass(frozen=True)
class Kind:
    """A step that is timed: ours, and which of Hugging Face's experts beside it."""

    shape: str
    compared: bool = True  # with the other side's optimizer state
    micro_batches: int = 1
    recipe: str = ""  # of low precision: one of RECIPES
    experts: tuple = ("grouped_mm", "eager")

    @property
    def name(self):
        ending = "" if self.compared else ".fp32_state"
        return f"{self.shape}.{self.recipe or 'bf16'}{ending}" + (f".acc{self.micro_batches}" if self.micro_batches > 1 else "")


STEPS = [
    Kind("8x7b_2l"),
    Kind("fine_64e_4l"),
    *(Kind(shape, recipe=recipe, experts=()) for recipe in RECIPES for shape in SHAPES),
    Kind("8x7b_2l", micro_batches=4, experts=("grouped_mm",)),
    Kind("8x7b_2l", recipe="fp8_block", micro_batches=4, experts=()),
    Kind("8x7b_2l", recipe="fp8_block", compared=False, experts=()),
    Kind("8x7b_2l", compared=False, experts=()),
    Kind("fine_64e_4l", compared=False, experts=()),
]


class Steps:
    def __init__(self, bench):
        self.bench = bench
        self.options = bench.options

    def command(self, kind, mode, warm, steps):
        shape = [f"config_kwargs.{key}={value}" for key, value in SHAPES[kind.shape].items()]
        shape += COMPARED if kind.compared else []
        shape += ["fp8_config.enabled=true", f"fp8_config.fp8_recipe={RECIPES[kind.recipe]}"] if kind.recipe else []
        shape += [f"grad_acc_steps={kind.micro_batches}"] if kind.micro_batches > 1 else []
        command = [self.options.bin / "moebius_bench", "train", "--config=bench_8x7b_layers", f"--configs={ROOT / 'configs'}", "--rows=2", "--length=8192"]
        return [*command, f"--warm={warm}", f"--steps={steps}", "dtype=bf16", f"expert_ffn_mode={mode}", *shape]

    def our_step(self, kind, mode):
        program = Process("moebius_bench", self.command(kind, mode, 2 if self.options.quick else 3, self.options.samples))
        came, result = 0.0, None
        while item := program.next(self.bench.deadline):
            line = json_of(item[1])
            if line and "samples" in line:
                came, result = item[0], line
        if result is None:
            raise Failed("moebius_bench gave no result")
        self.bench.built(result)
        return result, self.bench.meter.between(came - sum(result["samples"]), came)

    def our_parts(self, kind, mode):
        """What the step consists of, from a run of its own under the tracer, as warm as the other."""
        steps = 4 if kind.micro_batches > 1 else 11
        events = bench_gpu_parts.traced(self.bench, "moebius_bench", self.command(kind, mode, 5, steps))
        found = bench_gpu_parts.parts(events, steps - 1)
        if found is None:
            raise Failed("the trace shows no step that repeats")
        return found

    def their_step(self, kind):
        """{side: (line, clocks and watts)}"""
        sides = {}
        words = f"step --case {kind.shape} --accumulate {kind.micro_batches} --warmup 3 --samples {self.options.samples}"
        for experts in [name for name in kind.experts if name in self.options.theirs][: 1 if self.options.quick else None]:
            try:
                answers = self.bench.ask_torch(f"{words} --experts {experts}")
            except Failed as error:
                self.bench.fail(f"hf_{experts} in {kind.name}", error)
                continue
            for came, line in answers:
                seconds = (sum(line["samples"]) + line.get("back_to_back", 0) * line["n"]) / 1e3
                sides[line["side"]] = (line, self.bench.meter.between(came - seconds, came))
        return sides

    def run(self):
        bf16 = {}  # (shape, micro-batches): the other sides' steps
        for kind in STEPS:
            ours, case = {}, kind.name
            for mode in self.options.modes:
                try:
                    ours[mode] = self.our_step(kind, mode)
                    result = ours[mode][0]
                    note(f"{case}: ours, {mode}: {1e3 * statistics.median(result['samples']):.2f} ms ({self.bench.seconds()})")
                except Failed as error:
                    self.bench.fail(f"ours, {mode}, in {case}", error)
            # Under a recipe ours stand beside what theirs took in bf16 in this run.
            theirs = self.their_step(kind) or (kind.recipe and kind.compared and bf16.get((kind.shape, kind.micro_batches))) or {}
            bf16.setdefault((kind.shape, kind.micro_batches), theirs)
            for name, (line, _) in theirs.items():
                note(f"{case}: {name}: {line['median']:.2f} ms, {line.get('back_to_back', 0):.2f} queued ({self.bench.seconds()})")
            traced = {}
            for mode in ours:
                try:
                    traced[mode] = self.our_parts(kind, mode)
                except Failed as error:
                    self.bench.fail(f"parts of {case}, {mode}", error)
            for mode, (result, at) in ours.items():
                self.bench.cases["step"] += self.cases_of(kind, mode, result, at, theirs, traced.get(mode))
            self.bench.write("step")

    def cases_of(self, kind, mode, result, at, theirs, traced):
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
                self.bench.fail(f"{name} in {kind.name}", f"it has {line['parameters']} parameters, ours {result['parameters']}")
                del others[name], ratio[name], held[name], rate[name]
        kernels = {row["op"]: row["variant"] for row in result.get("kernels", [])}
        more = {"others": others, "ratio": ratio, "memory_gib": held, "tokens_per_second": rate}
        more["ratio_of"] = "the lesser of their median and back_to_back (the mean of queued steps), to our median of queued steps"
        more["optimizer_state"] = {"ours": STATE[kind.compared], **{name: STATE[True] for name in others}}
        more["model_tflops"] = rounded(flops / median / 1e9)
        owners = memory.get("peak_bytes_by_owner", {})
        # At the peak of all together, then each owner's own peak; what lay in gradients' memory is main_grad's.
        at_peak = memory.get("at_peak_bytes_by_owner", {})
        more["memory_at_peak_by_owner_gib"] = {owner: rounded(b / GIB) for owner, b in at_peak.items() if b >= GIB / 64}
        more["memory_lent_by_gradients_gib"] = rounded(result.get("lent_bytes", 0) / GIB)
        more["memory_by_owner_gib"] = {owner: rounded(b / GIB) for owner, b in owners.items() if b >= GIB / 64}
        more["memory_from_system_gib"] = rounded(memory.get("system_bytes", 0) / GIB)
        shapes = {"config": "bench_8x7b_layers", **SHAPES[kind.shape], "micro_batches": kind.micro_batches, "rows": result["rows"], "length": result["length"]}
        more["shapes"] = {**shapes, "parameters": result["parameters"]}
        more["routing"] = "learned"
        more["kernels"] = kernels
        adamw = (traced or {}).pop("adamw_ms", [])
        more["traced"] = traced or {}
        more["loss"] = [result.get("first_loss"), result.get("last_loss")]
        cases = [self.bench.case(f"train_step.{kind.name}", "ms", "lower", side(samples, variant=mode), at, **more)]
        if len(adamw) >= 10 and not kind.recipe:
            cases.append(self.adamw_case(kind, mode, result["parameters"], adamw))
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
        return [*cases, self.bench.case(f"host_enqueue.{kind.name}", "ms", "lower", host, {}, **nodes)]

    def adamw_case(self, kind, mode, parameters, adamw):
        """AdamW on all parameters, in the step itself: the bytes that its operands have, each read or written once, over its kernels' time."""
        # bf16 weights written; gradients read; masters (here the weights themselves, else fp32), m and v read and written.
        of_one = 2 + 2 + 2 + 4 * 2 if kind.compared else 2 + 4 + 3 * 8
        rates = [parameters * of_one / ms / 1e9 for ms in adamw]
        about = {"shapes": {"parameters": parameters, "bytes_a_parameter": of_one}, "optimizer_state": {"ours": STATE[kind.compared]}}
        return self.bench.case(f"adamw_in_step.{kind.name}", "TB/s", "higher", side(rates, variant=mode), {}, **about)
