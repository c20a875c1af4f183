#!/usr/bin/env python3
"""A file system that stops answering on command, as an NFS server may: what waits for it can't be killed.

    volume.py SOURCE MOUNT    shows the folder SOURCE at MOUNT, by the kernel's FUSE, and prints `ready`

Lines on its standard input: `hold` answers nothing from then on, `hold NAME` no look-up of this name, and `go` answers
all that was held. At the input's end it unmounts and ends: nothing stays held when a test dies.
"""

import contextlib
import ctypes
import errno
import os
import select
import stat
import struct
import sys
from typing import ClassVar

HEADER = struct.Struct("<IIQQIIII")
ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
SETATTR = struct.Struct("<IIQQQQQQIIIIIIII")
LOOKUP, FORGET, INTERRUPT, DESTROY, BATCH_FORGET = 1, 2, 36, 38, 42
SILENT = (FORGET, INTERRUPT, BATCH_FORGET)
MS_NOSUID, MS_NODEV, MNT_DETACH = 2, 4, 2
PARALLEL_DIROPS = 1 << 18  # a look-up that is held locks no folder
LIBC = ctypes.CDLL(None, use_errno=True)


class Volume:
    def __init__(self, source, mount):
        self.source, self.mount = os.path.realpath(source).encode(), mount.encode()
        self.paths, self.ids, self.listed = {1: b""}, {b"": 1}, {}
        self.fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        self.holds, self.held = None, []
        options = f"fd={self.fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if LIBC.mount(b"volume.py", self.mount, b"fuse", MS_NOSUID | MS_NODEV, options):
            raise OSError(ctypes.get_errno(), f"mount at {mount}")

    def serve(self):
        """Until the standard input ends."""
        os.umask(0)
        commands = b""
        try:
            while True:
                ready, _, _ = select.select([self.fd, 0], [], [])
                if 0 in ready:
                    piece = os.read(0, 4096)
                    if not piece:
                        return
                    *lines, commands = (commands + piece).split(b"\n")
                    for line in lines:
                        self.command(line.split())
                if self.fd in ready:
                    # What asked may have been interrupted before that.
                    with contextlib.suppress(BlockingIOError):
                        self.take(os.read(self.fd, 2**20 + 4096))
        finally:
            LIBC.umount2(self.mount, MNT_DETACH)

    def command(self, words):
        if words[0] == b"hold":
            self.holds = (lambda name: True) if len(words) == 1 else (lambda name: name == words[1])
        else:
            held, self.holds, self.held = self.held, None, []
            for request in held:
                self.answer(*request)
        print("done", flush=True)

    def take(self, data):
        _, op, unique, node, *_ = HEADER.unpack_from(data)
        body = data[HEADER.size :]
        if op in SILENT:
            return
        name = body.rstrip(b"\0") if op == LOOKUP else None
        if self.holds and self.holds(name):
            self.held.append((op, unique, node, body))
        else:
            self.answer(op, unique, node, body)

    def answer(self, op, unique, node, body):
        try:
            if op not in self.OPERATIONS:
                raise OSError(errno.ENOSYS, "")
            error, out = 0, self.OPERATIONS[op](self, node, body) or b""
        except OSError as failed:
            error, out = -failed.errno, b""
        # What asked may have been interrupted.
        with contextlib.suppress(FileNotFoundError):
            os.write(self.fd, struct.pack("<IiQ", 16 + len(out), error, unique) + out)

    # ---- paths

    def path(self, node, name=None):
        """Where it lies in the source."""
        if (path := self.paths.get(node)) is None:
            raise OSError(errno.ESTALE, "")
        return os.path.join(self.source, path if name is None else os.path.join(path, name))

    def entry(self, node, name):
        path = os.path.join(self.paths[node], name)
        found = os.lstat(os.path.join(self.source, path))
        number = self.ids.setdefault(path, max(self.paths) + 1)
        self.paths[number] = path
        return struct.pack("<QQQQII", number, 0, 0, 0, 0, 0) + attributes(number, found)

    def lose(self, path):
        """What had this path keeps its number and has none any more."""
        if (number := self.ids.pop(path, None)) is not None:
            self.paths[number] = None

    # ---- operations

    def init(self, _, body):
        _, minor, readahead, _ = struct.unpack_from("<IIII", body)
        return struct.pack("<IIIIHHIIHHI28x", 7, min(minor, 31), readahead, PARALLEL_DIROPS, 16, 12, 2**17, 1, 0, 0, 0)

    def lookup(self, node, body):
        return self.entry(node, body.rstrip(b"\0"))

    def getattr(self, node, body):
        flags, _, handle = struct.unpack_from("<IIQ", body)
        found = os.fstat(handle) if flags & 1 else os.lstat(self.path(node))
        return struct.pack("<QII", 0, 0, 0) + attributes(node, found)

    def setattr(self, node, body):
        valid, _, _, size, _, atime, mtime, _, ans, mns, _, mode, _, uid, gid, _ = SETATTR.unpack_from(body)
        path = self.path(node)
        if valid & 1:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & 6:
            os.chown(path, uid if valid & 2 else -1, gid if valid & 4 else -1)
        if valid & 8:
            os.truncate(path, size)
        if valid & 0x180:
            os.utime(path)
        elif valid & 0x30:
            now = os.stat(path)
            times = (atime * 10**9 + ans if valid & 0x10 else now.st_atime_ns,
                     mtime * 10**9 + mns if valid & 0x20 else now.st_mtime_ns)
            os.utime(path, ns=times)
        return struct.pack("<QII", 0, 0, 0) + attributes(node, os.lstat(path))

    def readlink(self, node, _):
        return os.readlink(self.path(node))

    def symlink(self, node, body):
        name, target = body.split(b"\0")[:2]
        os.symlink(target, self.path(node, name))
        return self.entry(node, name)

    def mknod(self, node, body):
        mode, device = struct.unpack_from("<II", body)
        name = body[16:].rstrip(b"\0")
        os.mknod(self.path(node, name), mode, device)
        return self.entry(node, name)

    def mkdir(self, node, body):
        name = body[8:].rstrip(b"\0")
        os.mkdir(self.path(node, name), struct.unpack_from("<I", body)[0] & 0o7777)
        return self.entry(node, name)

    def unlink(self, node, body):
        name = body.rstrip(b"\0")
        os.unlink(self.path(node, name))
        self.lose(os.path.join(self.paths[node], name))

    def rmdir(self, node, body):
        name = body.rstrip(b"\0")
        os.rmdir(self.path(node, name))
        self.lose(os.path.join(self.paths[node], name))

    def rename(self, node, body, names=8):
        (folder,) = struct.unpack_from("<Q", body)
        if names == 16 and struct.unpack_from("<I", body, 8)[0]:
            raise OSError(errno.EINVAL, "")
        old, new = body[names:].split(b"\0")[:2]
        os.rename(self.path(node, old), self.path(folder, new))
        old, new = os.path.join(self.paths[node], old), os.path.join(self.paths[folder], new)
        self.lose(new)
        for path in [path for path in self.ids if path == old or path.startswith(old + b"/")]:
            number = self.ids.pop(path)
            self.paths[number] = new + path[len(old) :]
            self.ids[self.paths[number]] = number

    def rename2(self, node, body):
        self.rename(node, body, 16)

    def link(self, node, body):
        name = body[8:].rstrip(b"\0")
        os.link(self.path(struct.unpack_from("<Q", body)[0]), self.path(node, name))
        return self.entry(node, name)

    def open(self, node, body):
        flags = struct.unpack_from("<I", body)[0] & ~(os.O_CREAT | os.O_EXCL | os.O_NOCTTY)
        return struct.pack("<QIi", os.open(self.path(node), flags), 0, 0)

    def create(self, node, body):
        flags, mode = struct.unpack_from("<II", body)
        name = body[16:].rstrip(b"\0")
        handle = os.open(self.path(node, name), flags, mode & 0o7777)
        return self.entry(node, name) + struct.pack("<QIi", handle, 0, 0)

    def read(self, _, body):
        handle, offset, size = struct.unpack_from("<QQI", body)
        return os.pread(handle, size, offset)

    def write(self, _, body):
        handle, offset, size = struct.unpack_from("<QQI", body)
        return struct.pack("<II", os.pwrite(handle, body[40 : 40 + size], offset), 0)

    def release(self, _, body):
        os.close(struct.unpack_from("<Q", body)[0])

    def fsync(self, _, body):
        os.fsync(struct.unpack_from("<Q", body)[0])

    def statfs(self, *_):
        found = os.statvfs(self.source)
        return struct.pack("<QQQQQIIII24x", found.f_blocks, found.f_bfree, found.f_bavail, found.f_files,
                           found.f_ffree, found.f_bsize, found.f_namemax, found.f_frsize, 0)

    def opendir(self, node, _):
        handle = os.open(self.path(node), os.O_RDONLY | os.O_DIRECTORY)
        self.listed[handle] = [b".", b"..", *os.listdir(os.fsencode(self.path(node)))]
        return struct.pack("<QIi", handle, 0, 0)

    def readdir(self, _, body):
        handle, offset, size = struct.unpack_from("<QQI", body)
        out = b""
        for place, name in enumerate(self.listed[handle][offset:], offset + 1):
            one = struct.pack("<QQII", place, place, len(name), 0) + name
            one += bytes(-len(one) % 8)
            if len(out) + len(one) > size:
                break
            out += one
        return out

    def releasedir(self, _, body):
        (handle,) = struct.unpack_from("<Q", body)
        del self.listed[handle]
        os.close(handle)

    def nothing(self, *_):
        pass

    OPERATIONS: ClassVar = {
        1: lookup, 3: getattr, 4: setattr, 5: readlink, 6: symlink, 8: mknod, 9: mkdir, 10: unlink, 11: rmdir,
        12: rename, 13: link, 14: open, 15: read, 16: write, 17: statfs, 18: release, 20: fsync, 25: nothing, 26: init,
        27: opendir, 28: readdir, 29: releasedir, 30: nothing, DESTROY: nothing, 35: create, 45: rename2,
    }


def attributes(number, found):
    times = [found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns]
    return ATTRIBUTES.pack(number, found.st_size, found.st_blocks, *(time // 10**9 for time in times),
                           *(time % 10**9 for time in times), found.st_mode, found.st_nlink, found.st_uid, found.st_gid,
                           found.st_rdev, 4096, 0)


if __name__ == "__main__":
    volume = Volume(*sys.argv[1:])
    print("ready", flush=True)
    volume.serve()
