#!/usr/bin/env python3
"""A search by Optuna behind the same door as bench/tuning: same file, same program, same lines.

Runs in a virtual environment with Optuna; its Gaussian process needs scipy and torch, too. The sampler has Optuna's
defaults. A program that fails is a failed trial.
"""

import argparse
import json
import queue
import subprocess
import threading

import optuna
import torch  # noqa: F401 - of the Gaussian process, before regret.py forks


def main(words=None):
    args = arguments(words)
    with open(args.space, encoding="utf-8") as file:
        space = json.load(file)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    samplers = {"tpe": optuna.samplers.TPESampler, "gp": optuna.samplers.GPSampler}
    study = optuna.create_study(direction=space["metric"]["goal"], sampler=samplers[args.sampler](seed=args.seed))
    ended = queue.Queue()
    running = 0
    started = 0
    while started < min(args.parallel, args.trials):
        start(study, space["parameters"], args.command, ended)
        started += 1
        running += 1
    while running:
        trial, given, value = ended.get()
        running -= 1
        line = {"trial": trial.number + 1, "parameters": given, "value": value}
        if value is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            line["failed"] = "no value"
        else:
            study.tell(trial, value)
        print(json.dumps(line), flush=True)
        if started < args.trials:
            start(study, space["parameters"], args.command, ended)
            started += 1
            running += 1


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sampler", choices=("tpe", "gp"), required=True)
    parser.add_argument("--space", required=True, metavar="FILE")
    parser.add_argument("--trials", type=int, required=True, metavar="N")
    parser.add_argument("--parallel", type=int, default=1, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    return parser.parse_args(words)


def start(study, parameters, command, ended):
    trial = study.ask()
    given = {name: suggest(trial, name, declared) for name, declared in parameters.items()}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wait():
        output, _ = process.communicate(json.dumps(given))
        ended.put((trial, given, float(output.split()[-1]) if process.returncode == 0 else None))

    threading.Thread(target=wait, daemon=True).start()


def suggest(trial, name, declared):
    """The parameters that the functions of bench/regret.py have."""
    if declared["type"] == "categorical":
        return trial.suggest_categorical(name, declared["choices"])
    if "values" in declared:  # their order counts
        return declared["values"][trial.suggest_int(name, 0, len(declared["values"]) - 1)]
    low, high, log = declared["min"], declared["max"], declared.get("scale") == "log"
    if declared["type"] == "int":
        return trial.suggest_int(name, low, high, step=declared.get("step", 1), log=log)
    return trial.suggest_float(name, low, high, step=declared.get("step"), log=log)


if __name__ == "__main__":
    main()
