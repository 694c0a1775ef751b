"""What the parts of tools/bench_gpu.py share: the programs that they start, clocks and watts of the card, figures."""

import json
import os
import pathlib
import queue
import statistics
import subprocess
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
GIB = 2**30
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


def clocks_of(line):
    return {key: line[key] for key in ("clocks_mhz", "watts") if line.get(key)}


def limit_of(value, ours, name):
    return {"name": name, "value": value, "unit": "TFLOP/s", "share": rounded(ours / value)}
