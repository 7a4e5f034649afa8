"""GPUs of this machine, for runs that go on beside each other."""

import concurrent.futures
import contextlib
import os
import re
import threading


def ranks_of(words):
    """Ranks of a plan's line: "tp2 sp dp2 gbs8" has 4."""
    ranks = 1
    for count in re.findall(r"\b(?:tp|pp|cp|dp)(\d+)\b", words):
        ranks *= int(count)
    return ranks


class GpuPool:
    def __init__(self, count, runs=1):
        """`runs` may have the same GPU at once: 1 where times matter."""
        self.places, self.changed = [runs] * count, threading.Condition()

    @contextlib.contextmanager
    def lend(self, count):
        """Waits for that many GPUs; the environment of a process that sees no others."""
        with self.changed:
            self.changed.wait_for(lambda: sum(p > 0 for p in self.places) >= count)
            emptiest = sorted(range(len(self.places)), key=lambda gpu: -self.places[gpu])
            own = sorted(emptiest[:count])
            for gpu in own:
                self.places[gpu] -= 1
        try:
            yield {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(map(str, own))}
        finally:
            with self.changed:
                for gpu in own:
                    self.places[gpu] += 1
                self.changed.notify_all()

    def run(self, jobs):
        """Of (GPUs, function of an environment): their futures, in that order. Those that want
        as many GPUs run beside each other, the most GPUs first."""
        futures = [None] * len(jobs)
        for count in sorted({gpus for gpus, _ in jobs}, reverse=True):
            at_once = max(sum(self.places) // count, 1)
            with concurrent.futures.ThreadPoolExecutor(at_once) as threads:
                for i, (gpus, function) in enumerate(jobs):
                    if gpus == count:
                        futures[i] = threads.submit(self._one, gpus, function)
        return futures

    def _one(self, gpus, function):
        with self.lend(gpus) as environment:
            return function(environment)
