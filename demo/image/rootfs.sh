#!/usr/bin/env bash
# rootfs.sh DIR: the file system of the demo image's lower layer: Debian trixie with torchrun (torch 2.6, CPU, gloo),
# a shell, and the handwritten digits that scikit-learn carries (1,797 images of 8x8 pixels, UCI, CC BY 4.0).
# Packages are unpacked, not installed: no maintainer script runs, which takes 20 s instead of two minutes.
set -euo pipefail
root=$1
# The digits come out of one package without what it depends on (SciPy alone is 100 MB).
digits='cd "$1" && mkdir -p tmp/d usr/share/digits && cd tmp/d && chmod 777 . && APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get download -qq python3-sklearn &&
  dpkg-deb --fsys-tarfile python3-sklearn_*.deb | tar -xO ./usr/lib/python3/dist-packages/sklearn/datasets/data/digits.csv.gz > "$1/usr/share/digits/digits.csv.gz" &&
  cd / && rm -r "$1/tmp/d"'
mmdebstrap --quiet --variant=extract \
  --include=python3-torch,bash,coreutils,dash,findutils,grep,gzip,mawk,procps,sed,tar,base-files,base-passwd,libc-bin,netbase \
  --extract-hook="$digits" trixie "$root"

# What maintainer scripts would have done: who provides BLAS and LAPACK, the users, the loader's cache.
lib=$(basename "$(dirname "$root"/usr/lib/*/libc.so.6)")
printf '%s\n' "/usr/lib/$lib/blas" "/usr/lib/$lib/lapack" > "$root/etc/ld.so.conf.d/00-blas.conf"
cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
ln -sf mawk "$root/usr/bin/awk"
chroot "$root" /sbin/ldconfig

# Debian builds torch without libuv, which TCPStore wants by default; USE_LIBUV=0 alone does not reach every caller.
python3 - "$root/usr/lib/python3/dist-packages/torch/distributed/__init__.py" <<'P'
import sys
path = sys.argv[1]
text = open(path).read()
at = text.index("    from .device_mesh import")
open(path, "w").write(text[:at] + '''    class _TCPStoreWithoutLibuv(TCPStore):
        def __init__(self, *args, **kwargs):
            kwargs["use_libuv"] = False
            super().__init__(*args, **kwargs)
    TCPStore = _TCPStoreWithoutLibuv  # noqa: F811
    torch._C._distributed_c10d.TCPStore = _TCPStoreWithoutLibuv
''' + text[at:])
P

test -s "$root/usr/share/digits/digits.csv.gz"

# What training on a CPU never loads: 400 of 1,020 MB. The LLVM and AMD libraries serve GPU plugins of the network stack.
cd "$root"
rm -rf usr/share/{doc,man,locale,info,X11,zoneinfo,bash-completion,lintian,icons,applications,i18n} usr/include \
  usr/lib/libtorch-test usr/lib/python3/dist-packages/hypothesis var/cache/* var/lib/apt var/lib/dpkg tmp/* \
  usr/lib/*/libLLVM* usr/lib/*/libamd* usr/lib/*/libhsa*
find . -name '*.a' -delete
find usr/lib/python3/dist-packages/{networkx,numpy,sympy,mpmath} -depth -type d -name tests -exec rm -r {} +

# Byte code of what the demo imports: a container could not keep it, and would compile again at every start.
mkdir -p proc workspace
unshare --mount sh -c "mount -t proc proc proc && exec chroot . python3 -" <<'P'
import compileall, os, sys
import torch, torch.distributed.run, torch.nn.parallel
torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
for module in list(sys.modules.values()):
    path = getattr(module, "__file__", None) or ""
    if path.endswith(".py"):
        compileall.compile_file(path, quiet=1, invalidation_mode=None)
P
