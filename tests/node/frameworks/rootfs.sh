#!/usr/bin/env bash
# rootfs.sh DIR SUITE: the file system below the frameworks' images: Debian's Python, a shell, and in bookworm Open MPI 4.1
# and MPICH 4.0. Packages are unpacked, not installed, as in demo/image/rootfs.sh; so Debian's programs have only their full
# names, such as mpirun.openmpi and mpirun.mpich.
set -euo pipefail
root=$1
packages=python3,libgomp1,libstdc++6,bash,coreutils,dash,findutils,grep,gzip,mawk,procps,sed,tar,base-files,base-passwd,libc-bin,netbase
[[ $2 != bookworm ]] || packages+=,openmpi-bin,mpich
mmdebstrap --quiet --variant=extract --include="$packages" "$2" "$root"

cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
ln -sf mawk "$root/usr/bin/awk"
# What is built for any MPICH, as mpi4py's wheel, looks for it by MPICH's own name.
[[ $2 != bookworm ]] || ln -s libmpich.so.12 "$root/usr/lib/$(uname -m)-linux-gnu/libmpi.so.12"
chroot "$root" /sbin/ldconfig

cd "$root"
rm -rf usr/share/{doc,man,locale,info,X11,zoneinfo,bash-completion,lintian,icons,applications,i18n} usr/include \
  var/cache/* var/lib/apt var/lib/dpkg tmp/* usr/lib/gcc* usr/lib/*/libLLVM* usr/lib/*/libamd* usr/lib/*/libhsa*
find . -name '*.a' -delete
mkdir -p proc workspace
