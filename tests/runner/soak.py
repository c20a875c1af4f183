"""The soak: trials that take hours, and the slice of them that one run of `make test` takes.

Each trial has a short form in `make test`. A test that only the soak runs is `#[ignore = "soak: ..."]`. A trial without
names runs every such test of its program that no other trial names, or, on another version of Kubernetes, all others.
"""

from dataclasses import dataclass, field, replace

from runner.records import Records


@dataclass(frozen=True)
class Trial:
    """A test program with what makes it long, a command, or a command and then a program."""

    name: str
    what: str
    program: str | None = None
    tests: tuple = ()  # parts of names
    env: dict = field(default_factory=dict, hash=False)
    needs: tuple = ()  # beside those of the program
    is_release: bool = False  # compiled with full optimisation
    command: tuple = ()
    kubernetes: str | None = None  # the version on which the tests of `make test` run again
    threads: int = 2
    limit: int = 4 * 3600  # seconds, after which it is ended: it hangs


NODE_IMAGES = ("examples-image", "trainers", "small-frameworks", "large-frameworks")
TRIALS = (
    Trial("fuzz", "every parser of crates/fuzz, a minute each", command=("tests/fuzz/run",)),
    Trial("storm", "200 jobs in a storm of 10 minutes", "wire", ("storm",),
          {"STORM_JOBS": 200, "STORM_SECONDS": 600, "STORM_SEED": "random"}),
    Trial("crash", "the operator is ended at each of its writes, in every way", "wire", ("crash",),
          {"TRAININGJOB_CRASH": "all"}),
    Trial("gang-schedulers", "gangs placed by Volcano and by the coscheduling plugin", "planes", ("gang_scheduling",),
          {}, ("gang-schedulers",)),
    Trial("gang-model", "the gang's rules: seeds, walks and a model with faults", "lib-gang", ("tests::",),
          {"TRAININGJOB_GANG_SEEDS": 2000, "TRAININGJOB_WALKS": 4000, "TRAININGJOB_MODEL_FAULTS": 1}, is_release=True),
    Trial("histories", "100,000 histories of folders with checkpoints", "lib-checkpoint", ("histories::",),
          {"HISTORIES": 100000}, is_release=True),
    Trial("judges", "100,000 ends of attempts, judged by leader and operator", "lib-lifecycle", ("judges::",),
          {"TRAININGJOB_ENDS": 100000}),
    Trial("walks", "500,000 looks at jobs to which anything happens, and whether they come out of it",
          "lib-lifecycle", ("walks::",), {"WALK_STEPS": 500000, "WALK_CALM_EVERY": 10, "WALK_SEED": 7},
          is_release=True),
    Trial("kills", "50 kills in a save", "node", ("kills_during_a_save",), {"KILLS": 50}, ("release-image",)),
    Trial("hostile", "a hostile volume of 1,000,000 files for each of two workers", "node", ("hostile::",),
          {"FILES": 1000000}, ("release-image",)),
    Trial("trainers", "programs of Hugging Face and Lightning, unchanged", "node", ("unchanged_trainers",),
          {}, ("release-image", "trainers")),
    Trial("lost-node", "a node that is away for two minutes", "node", ("lost::lost_node",), {"CUT_SECONDS": 120},
          ("release-image",)),
    Trial("search", "24 trials over a lost node and two killed operators", "node", ("large_search",), {},
          ("release-image",)),
    Trial("outage", "an API server that is away for three minutes", "node", ("without_the_api_server",),
          {"AWAY_SECONDS": 180}, ("release-image",)),
    Trial("gang-storm", "20 minutes of faults on real nodes", "node", ("through_a_storm",),
          {"GANG_STORM_SECONDS": 1200}, ("release-image",)),
    Trial("stalls", "a stopped rank, a hang, an unkillable process and a volume that does not answer", "node",
          ("stalled_programs",), {}, ("release-image",)),
    Trial("upgrade", "an operator of an older commit is upgraded while jobs run", "node",
          ("operator_upgrade",), {}, ("release-image", "older-image")),
    Trial("helm", "a Helm release is upgraded from the tag before, rolled back and uninstalled while jobs run", "node",
          ("helm_release",), {}, ("release-image", "tag-image", "helm")),
    Trial("stranger", "from the folder of a release to a finished training, without Rust or Go",
          command=("tests/release/stranger",)),
    Trial("stranger-helm", "the same by the chart of the release", command=("tests/release/stranger", "--helm")),
    Trial("kubernetes-1.34", "the demo and the tests on a control plane, on the oldest version that is supported",
          "plane", command=("tests/release/kubernetes", "1.34"), kubernetes="1.34", threads=8),
    Trial("kubernetes-1.37", "the same on the newest version", "plane",
          command=("tests/release/kubernetes", "1.37"), kubernetes="1.37", threads=8),
    Trial("examples", "every example that runs as it is shipped", "node", ("examples::",), {},
          ("release-image", "examples-image", "kueue")),
    Trial("incidents", "what an engineer on call types and sees", "node", ("each_incident",), {}, ("release-image",)),
    Trial("alerts", "every alert fires and resolves by the series of real nodes", "node", ("every_alert",), {},
          ("release-image",)),
    Trial("frameworks", "TensorFlow, Paddle, MXNet and the newest XGBoost", "node", ("frameworks::",),
          {}, ("release-image", "small-frameworks", "large-frameworks")),
    Trial("clients", "the clients of the hub and of object stores, with our servers and our agent",
          command=("tests/fetch/clients_test.py",)),
    Trial("libraries", "what TensorFlow, JAX and Orbax load of 1,000 damaged checkpoints", "files",
          ("libraries_load",), {}, ("checkpoint-libraries",)),
    Trial("long-lists", "lists of more files than a fetch accepts", "hostile", ("lists_of_more_files",)),
    Trial("million-keys", "1,000,000 keys, of which the fetch is stopped, resumed and verified", "cache",
          ("a_million_keys",)),
    Trial("moved-node", "all other tests on real nodes that only the soak runs", "node", (), {},
          ("release-image", *NODE_IMAGES)),
    Trial("moved-planes", "those on control planes", "planes"),
    Trial("moved-plane", "those on one control plane", "plane"),
    Trial("moved-wire", "those of every crash and change", "wire"),
    Trial("moved-agents", "those of agents as processes", "agents", (), {}, ("languages",)),
    Trial("moved-files", "those of files and stores", "files"),
)


@dataclass(frozen=True)
class Slice:
    """What one run of `make test` takes of the soak: some two minutes. `{seed}` in a value is a number of the commit's.

    One that joins runs within the program's run in its lane, whose cluster it shares; others are a lane of their own.
    """

    name: str
    program: str
    tests: tuple
    env: dict = field(default_factory=dict, hash=False)
    joins: bool = False


SLICES = (
    Slice("gang-walks", "lib-gang", ("tests::",), {"TRAININGJOB_GANG_SEEDS": 100, "TRAININGJOB_WALKS": 200}),
    Slice("storm", "wire", ("storm",), {"STORM_JOBS": 60, "STORM_SECONDS": 60, "STORM_SEED": "{seed}"}),
    Slice("damages", "files", ("checkpoints::",), {"DAMAGES": 6000}),
    Slice("kills", "node", ("kills_during_a_save",), {"KILLS": 10}, joins=True),
)


def slice_of(commit, slices):
    """The slice of a commit: always the same one for it, and each as likely."""
    number = int(commit[:12], 16)
    chosen = slices[number % len(slices)]
    seed = number // len(slices) % 1_000_000
    env = {name: str(value).replace("{seed}", str(seed)) for name, value in chosen.env.items()}
    return replace(chosen, env=env)


def names_of(trial, ignored, trials):
    """The tests of a trial that has no names: those that are ignored, and that no other trial names."""
    named = [part for other in trials if other.program == trial.program for part in other.tests]
    return [name for name in ignored if not any(part in name for part in named)]


class Results:
    """What has passed, by commit, so that a soak that was cut short resumes."""

    def __init__(self, file, commit):
        self.records, self.commit = Records(file, "commit", "trial", "result", "seconds"), commit

    def passed(self):
        """Trial -> its seconds."""
        return {row["trial"]: float(row["seconds"]) for row in self.records.rows()
                if row["commit"] == self.commit and row["result"] == "passed"}

    def add(self, trial, result, seconds):
        self.records.add(self.commit, trial, result, float(seconds))
