"""Fails in the way that its argument names, with the words that libraries have for it."""

import argparse
import atexit
import ctypes
import os
import signal
import socket
import sys
import time


def exit_code():
    print("no images in /dataset", file=sys.stderr)
    sys.exit(3)


def missing_module():
    import flash_attention  # noqa: F401


def crash():  # of several ranks the first alone: torchrun names whichever it sees end first
    ctypes.string_at(0) if os.environ.get("LOCAL_RANK", "0") == "0" else signal.pause()


def nan():
    for epoch, loss in enumerate([0.71, float("nan")], 1):
        print(f"Epoch {epoch}/9 loss: {loss}", flush=True)
    signal.pause()


class OutOfMemoryError(RuntimeError):
    __module__ = "torch"


class DistBackendError(RuntimeError):
    __module__ = "torch.distributed"


def nccl_error():
    raise DistBackendError(
        "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, unhandled system error (run with "
        "NCCL_DEBUG=INFO for details), NCCL version 2.21.5\nncclSystemError: System call (e.g. socket, malloc) or "
        "external library call failed or device error.\nLast error:\nsocketStartConnect: Connect to 10.0.0.7<41379> "
        "failed : Software caused connection abort"
    )


def nccl_timeout():
    print(
        "[rank0]:[E1121 10:00:00.123456789 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=25557032, NumelOut=25557032, Timeout(ms)=600000) ran "
        "for 600029 milliseconds before timing out.",
        file=sys.stderr,
    )
    os.abort()


def cuda_out_of_memory():
    """Worker 1 runs out of memory and can't end; worker 0 loses its peer, waits, times out and ends first."""
    if os.environ["NODE_RANK"] == "0":
        with socket.create_server(("", int(os.environ["MASTER_PORT"]))) as server:
            server.accept()[0].recv(1)
        nccl_timeout()
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    while True:
        try:
            leader = socket.create_connection(address)
            break
        except OSError:
            time.sleep(0.1)

    def hang():
        leader.close()
        time.sleep(30)  # as long as its pod is there, in effect: it is deleted with that of worker 0

    atexit.register(hang)
    raise OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.31 GiB is "
        "free."
    )


def loader_out_of_memory():
    """Raises what PyTorch's DataLoader raises for a worker of its own."""
    import traceback

    try:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
    except OutOfMemoryError:
        told = traceback.format_exc()
    raise OutOfMemoryError("Caught OutOfMemoryError in DataLoader worker process 0.\nOriginal " + told)


def caught():
    """Logs what it catches, and crashes for another reason."""
    import logging

    try:
        missing_module()
    except ImportError:
        logging.exception("going on without it")
    crash()


def own_hook():
    """Raises where a library such as Rich shows what nothing catches in its own way."""
    sys.excepthook = lambda kind, value, traceback: print("Oops:", value, file=sys.stderr)
    raise ValueError("label 11 is not one of the 10 classes")


def wait():
    signal.pause()


cases = [exit_code, missing_module, crash, nan, nccl_error, nccl_timeout, cuda_out_of_memory]
cases += [loader_out_of_memory, caught, own_hook, wait]
parser = argparse.ArgumentParser()
parser.add_argument("case", choices=[case.__name__ for case in cases])
parser.add_argument("--learning-rate", type=float)
parser.add_argument("--marker")
arguments = parser.parse_args()
next(case for case in cases if case.__name__ == arguments.case)()
