"""Steps that wait for one another: each begins when those are done that it needs, beside all others that can."""

import threading
import time
import traceback
from dataclasses import dataclass, field

from runner.console import Failure, duration, say
from runner.processes import Stopping


@dataclass
class Step:
    """What is done once. `function(step)` raises Failure where it fails."""

    name: str
    what: str
    function: object
    needs: tuple = ()  # done well before this begins
    after: tuple = ()  # ended before this begins, well or not
    usual: float | None = None  # seconds on a quiet machine whose caches are warm
    cold: float | None = None  # seconds where nothing was built yet
    is_lane: bool = False
    state: str = "waiting"  # then running, then done, failed or left out
    begin: float | None = None
    wall: float | None = None
    cpu: float | None = None
    results: dict = field(default_factory=dict)

    @property
    def has_ended(self):
        return self.state in ("done", "failed", "left out")

    @property
    def takes(self):
        if self.usual is None:
            return ""
        first = f", the first time {duration(self.cold)}" if self.cold else ""
        return f" (usually {duration(self.usual)}{first})"


class Schedule:
    def __init__(self, steps):
        self.steps = {step.name: step for step in steps}
        self.changed = threading.Condition()
        check(self.steps)

    def run(self):
        """Returns when every step has ended."""
        for step in self.steps.values():
            if not step.has_ended:  # for an earlier schedule
                threading.Thread(target=self.turn, args=(step,), daemon=True).start()
        with self.changed:
            while not all(step.has_ended for step in self.steps.values()):
                self.changed.wait(1)  # an interrupt of the main thread is seen between two waits

    def wait_for(self, names):
        """Waits until these have ended; returns the first that did not end well, or None."""
        with self.changed:
            self.changed.wait_for(lambda: all(self.steps[name].has_ended for name in names))
        return next((name for name in names if self.steps[name].state != "done"), None)

    def are_done(self, names):
        """Whether all have ended well; None if some may yet."""
        states = [self.steps[name].state for name in names]
        if any(state in ("failed", "left out") for state in states):
            return False
        return True if all(state == "done" for state in states) else None

    def turn(self, step):
        missing = self.wait_for(step.needs)
        if missing:
            self.enter(step, "left out")
            say(f"{step.name}: left out, for {missing} has {self.steps[missing].state}")
            return
        self.wait_for(step.after)
        step.begin = time.monotonic()
        self.enter(step, "running")
        say(f"{step.name}: {step.what}{step.takes}")
        try:
            step.function(step)
            state = "done"
        except Stopping:
            state = "left out"
        except Failure as failure:
            state = "failed"
            say(f"{step.name}: FAILED: {failure}")
        except Exception:
            state = "failed"
            say(f"{step.name}: FAILED by a fault of the runner:\n{traceback.format_exc()}")
        step.wall = time.monotonic() - step.begin
        if state == "done":
            cpu = "" if step.cpu is None else f", {step.cpu:.0f} CPU seconds"
            say(f"{step.name}: done in {duration(step.wall)}{cpu}")
        self.enter(step, state)

    def enter(self, step, state):
        with self.changed:
            step.state = state
            self.changed.notify_all()


def check(steps):
    """Every step that is waited for exists, and none waits for itself."""
    visited, open_ = set(), []

    def visit(name):
        if name not in steps:
            raise ValueError(f"{open_[-1]} waits for {name}, which is no step")
        if name in open_:
            raise ValueError(f"steps wait for one another: {' -> '.join([*open_, name])}")
        if name in visited:
            return
        open_.append(name)
        for other in (*steps[name].needs, *steps[name].after):
            visit(other)
        open_.pop()
        visited.add(name)

    for name in steps:
        visit(name)
