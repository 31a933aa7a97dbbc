#!/bin/bash
# Makes what the camera machine boots: Debian's kernel and a small initramfs.
# Packages are downloaded and unpacked, not installed. Once done, returns at once, whatever
# is updated meanwhile: nothing in FOLDER refers to what is installed.
#
#   prepare.sh FOLDER
#
# FOLDER/vmlinux, FOLDER/initrd  kernel, and modules with what loads them
# FOLDER/vmlinuz                 the kernel as it comes, for where vmlinux does not do
# FOLDER/modules/lib/modules/    what `modprobe -d` loads inside: vivid, vgem, virtio-gpu, and
#                                v4l2loopback where it could be built,
# FOLDER/no-v4l2loopback         or why it could not
# FOLDER/xorg                    an X server for the machine's graphics card
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
exec 9>"$folder/lock"
flock 9
# What was made by another version of these files is made again.
version=$(cat "$here/prepare.sh" "$here/init" | sha256sum | cut -c1-16)
[ "$(cat "$folder/version" 2>/dev/null)" != "$version" ] || exit 0
rm -rf "$folder/version" "$folder/work" "$folder/modules"
work=$folder/work
mkdir -p "$work/unpacked" "$work/initrd"
trap 'rm -rf "$work"' EXIT
cd "$work"

# What apt knows may be older than what the servers still have. Once is enough.
updated=
update() {
	[ -z "$updated" ] || return 1
	updated=yes
	apt-get -qq -o Acquire::Retries=3 update >&2
}

download() { apt-get -qq -o APT::Sandbox::User=root -o Acquire::Retries=3 download "$1" >&2; }

# Prints which package of a version a package stands for.
depends() { apt-cache depends "$1" | sed -n "s/^ *Depends: *\\($2\\)$/\\1/p" | head -n 1; }

# Downloads and unpacks a package; what to unpack is given as patterns.
fetch() {
	local package=$1
	shift
	download "$package" || { update && download "$package"; } || { echo "cannot download $package" >&2 && return 1; }
	dpkg-deb --fsys-tarfile "${package}"_*.deb | tar -C unpacked -x --wildcards "$@" && rm "${package}"_*.deb
}

fetch_kernel() {
	kernel=$(depends linux-image-amd64 'linux-image-[0-9].*')
	abi=${kernel#linux-image-}
	[ -n "$kernel" ] && fetch "$kernel" './boot/vmlinuz-*' './lib/modules/*/modules.*' "$tree/drivers/media/*" \
		"$tree/drivers/virtio/*" "$tree/fs/9p/*" "$tree/net/9p/*" "$tree/fs/overlayfs/*" "$tree/fs/netfs/*" "$tree/fs/fscache/*" \
		"$tree/drivers/char/hw_random/*" "$tree/drivers/gpu/drm/*"
}
tree='./lib/modules/*/kernel'
# After an update it may be one of another version.
fetch_kernel || { [ -n "$updated" ] || update; fetch_kernel; } || { echo "cannot get the package that linux-image-amd64 stands for: \"$kernel\"" >&2; exit 1; }
depmod -b unpacked "$abi"

cp "unpacked/boot/vmlinuz-$abi" "$folder/vmlinuz"
# The kernel is unpacked here, which saves the emulated processor 6 s: of a bzImage the
# payload is xz at (setup_sects + 1) * 512 + payload_offset (Documentation/x86/boot.rst).
python3 - "unpacked/boot/vmlinuz-$abi" "$folder/vmlinux" <<'PYTHON'
import lzma, struct, sys
image = open(sys.argv[1], "rb").read()
start = ((image[0x1F1] or 4) + 1) * 512
offset, length = struct.unpack_from("<II", image, 0x248)
payload = image[start + offset : start + offset + length]
open(sys.argv[2], "wb").write(lzma.LZMADecompressor().decompress(payload))
PYTHON

# Modules in the order of their dependencies. Without their debug information they lose
# their signatures too, which the kernel only notes.
list() { modprobe -d unpacked -S "$abi" --show-depends "$1" | sed -n 's/^insmod \([^ ]*\).*/\1/p'; }
root="virtio_pci virtio_rng 9p 9pnet_virtio overlay"
for name in $root videodev videobuf2-vmalloc; do list $name; done | awk '!seen[$0]++' >order
list vivid | grep -v '/vivid.ko$' | awk '!seen[$0]++' >>order
awk '!seen[$0]++' order >unique
mkdir -p initrd/{bin,modules,dev,proc,sys,machine}
while read -r module; do
	strip --strip-debug -o "initrd/modules/$(basename "$module")" "$module"
	basename "$module" >>initrd/modules/order
done <unique
modules=$folder/modules/lib/modules/$abi
mkdir -p "$modules"
cp unpacked/lib/modules/"$abi"/modules.{builtin,builtin.modinfo,order} "$modules/"
for name in vivid vgem virtio-gpu; do list $name; done | sort -u | grep -vxFf unique | while read -r module; do
	strip --strip-debug -o "$modules/$(basename "$module")" "$module"
done
install -m 755 "$(command -v busybox)" initrd/bin/busybox
install -m 755 "$here/init" initrd/init
(cd initrd && find . | cpio -o -H newc --quiet >"$folder/initrd")

# What the server links besides comes with the packages of Xvfb and QEMU.
fetch xserver-xorg-core './usr/lib/xorg/*'
fetch libxcvt0 './usr/lib/*/libxcvt.so*'
rm -rf "$folder/xorg"
mv unpacked/usr/lib/xorg "$folder/xorg"
mv unpacked/usr/lib/*/libxcvt.so* "$folder/xorg/"

# v4l2loopback is source. The headers believe to be installed, so they are laid over /usr
# where only the compiler sees it.
fetch v4l2loopback-dkms './usr/src/*'
headers=linux-headers-$abi
fetch "$headers" './usr/src/*'
fetch "$(depends "$headers" 'linux-headers-.*-common')" './usr/src/*'
fetch "$(depends "$headers" 'linux-kbuild-.*')" './usr/lib/*'
cp -r unpacked/usr/src/v4l2loopback-* source
if unshare --mount --propagation private sh -eu -c '
	mount -t overlay overlay -o "lowerdir=$1/unpacked/usr:/usr" /usr
	make -s -C "/usr/src/$2" "M=$1/source" modules' sh "$work" "$headers" >loopback.log 2>&1 &&
	strip --strip-debug -o "$modules/v4l2loopback.ko" source/v4l2loopback.ko; then
	rm -f "$folder/no-v4l2loopback"
else
	cp loopback.log "$folder/no-v4l2loopback"
fi
depmod -b "$folder/modules" "$abi"
echo "$version" >"$folder/version"
