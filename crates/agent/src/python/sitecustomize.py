"""Tells the agent of exceptions that nothing catches, and lets a program outlive its experiment tracker.

Does nothing else, and changes nothing that a program sees.
"""


def _load_shadowed():
    """Runs the sitecustomize that this file stands before, if there is one, as if this one were not there."""
    import os
    import sys

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path != here]
    this = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    finally:
        if this is not None:
            sys.modules.setdefault("sitecustomize", this)


def _install():
    import os
    import sys

    out = os.environ.get("TRAININGJOB_EXCEPTION_FILE")
    if not out or sys.version_info < (3, 8):
        return
    _write(out, b'{"hello": true, "seconds": 0}')
    # The parent as it is now: later it may be an orphan, and a fork's is another.
    started = os.getpid(), os.getppid()
    hook = sys.excepthook
    told = []

    def tell(kind, value, traceback, thread=None):
        told[:] = [value]
        parent = started[1] if os.getpid() == started[0] else os.getppid()
        _tell(out, kind, value, traceback, thread, parent, _is_called_by_python())

    def excepthook(kind, value, traceback):
        tell(kind, value, traceback)
        hook(kind, value, traceback)

    sys.excepthook = excepthook

    # Rich, Typer and others put their own hook there, and call no other. Python keeps what it gave to any. An audit
    # hook would see it too, and make every id(), import and open of the program dearer.
    import atexit

    def at_exit():
        value = getattr(sys, "last_value", None)
        if value is not None and not any(value is known for known in told):
            tell(type(value), value, getattr(sys, "last_traceback", None))
        told.clear()

    atexit.register(at_exit)

    # threading takes its hook from here when it is imported, which is too dear to do for a program that does without.
    import _thread

    threading = sys.modules.get("threading")
    thread_hook = threading.excepthook if threading else getattr(_thread, "_excepthook", None)

    def thread_excepthook(args):
        if args.exc_type is not SystemExit:
            tell(args.exc_type, args.exc_value, args.exc_traceback, getattr(args.thread, "name", "?"))
        thread_hook(args)

    if threading:
        threading.excepthook = thread_excepthook
    elif thread_hook:
        _thread._excepthook = thread_excepthook


def _guard_trackers():
    import os
    import sys

    mlflow, wandb = os.environ.get("MLFLOW_TRACKING_URI"), os.environ.get("WANDB_PROJECT")
    if (mlflow or wandb) and sys.version_info >= (3, 8):
        # At the end: nothing of the program's is shadowed. MLflow finds its part by itself.
        sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "trackers"))
        if wandb:
            try:
                import trainingjob_wandb  # noqa: F401
            except ImportError:
                pass


def _is_called_by_python():
    """Whether nothing of the program is left on the stack: one that calls the hook to print an exception goes on."""
    import sys

    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name not in ("<module>", "_run_module_as_main")


def _tell(out, kind, value, traceback, thread, parent, ends):
    try:
        import json
        import os
        import time

        library = os.path.dirname(os.__file__) + os.sep

        def is_users(file):
            return not (file.startswith((library, "<frozen ")) or "site-packages" in file or "dist-packages" in file)

        # The innermost frame of the user's, or of anybody if none is.
        file = line = None
        while traceback is not None:
            name = traceback.tb_frame.f_code.co_filename
            if file is None or is_users(name) or not is_users(file):
                file, line = name, traceback.tb_lineno
            traceback = traceback.tb_next
        if isinstance(value, SyntaxError) and value.filename:
            file, line = value.filename, value.lineno
        module = getattr(kind, "__module__", None)
        name = getattr(kind, "__qualname__", kind.__name__)
        try:
            message = str(value)
        except Exception:
            message = ""
        names = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "LOCAL_RANK", "NODE_RANK")
        rank = next(filter(None, map(os.environ.get, names)), "")
        # At its end there may be a traceback of another process, and there the end tells most.
        if len(message) > 8000:
            message = message[:1000] + "\n" + message[-7000:]
        line = {
            "type": name if module in (None, "builtins") else "%s.%s" % (module, name),
            "message": message,
            "file": file,
            "line": line,
            "rank": int(rank) if rank.isdigit() else None,
            "thread": thread,
            "parent": parent,
            "ends": ends,
            "seconds": time.time(),
        }
        _write(out, json.dumps(line).encode())
    except BaseException:
        pass


def _write(out, line):
    import os

    try:
        # One write, so that ranks don't write into each other's lines.
        descriptor = os.open(out, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, line + b"\n")
        finally:
            os.close(descriptor)
    except BaseException:
        pass


try:
    _load_shadowed()
finally:
    _install()
    _guard_trackers()
