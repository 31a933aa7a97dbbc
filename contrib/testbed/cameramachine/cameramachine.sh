#!/bin/bash
# Runs a command in a machine of its own that has cameras: QEMU without hardware
# help, Debian's kernel, and this machine's files, which it can read but not write
# (what it writes is in its memory).
#
#   cameramachine.sh [--memory PATH...] [--] COMMAND [ARGUMENT]...
#
# With --memory the machine has no part in this machine's files, but copies of PATHs
# (programs, with their libraries, and folders) and of COMMAND. It can be suspended
# then; the driver of shared files does not get over that.
#
# The command runs as root in the folder it was called from. No driver is loaded
# yet: `modprobe -d /run/machine/modules NAME` does, for vivid, vgem, virtio-gpu, and
# v4l2loopback where it could be built. There is a graphics card (virtio-gpu), and an
# X server for it in build/cameramachine/xorg.
# Environment variables named TATOLAB_* are handed through, and
# TATOLAB_CAMERA_MACHINE is set. Exits with the command's status; 125 means that
# there was no machine.
#
# Needs root, and the packages qemu-system-x86, kmod, busybox-static, cpio and
# binutils. The first time it downloads 80 MB of Debian's packages.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
folder=$root/build/cameramachine
# Processors and memory inside.
processors=2 memory=1536

memory_only= paths=()
if [ "${1:-}" = --memory ]; then
	memory_only=yes
	shift
	while [ "$1" != -- ]; do paths+=("$1") && shift; done
fi
[ "$1" != -- ] || shift

if [ "${CAMERAMACHINE_STAGE:-}" = "" ]; then
	"$here/prepare.sh" "$folder" || { echo "cannot make the camera machine's kernel" >&2; exit 125; }
	mkdir -p "$folder/run"
	export CAMERAMACHINE_STAGE=namespace
	status=0
	# A session of its own, for its priority (autogroups, sched(7)).
	setsid unshare --mount --propagation private setpriv --pdeathsig KILL bash "$0" ${memory_only:+--memory} "${paths[@]}" -- "$@" || status=$?
	# An even status is QEMU's own: the machine ended before the command did.
	if [ $((status % 2)) = 0 ]; then
		echo "the camera machine ended before its command did; QEMU's status is $status, its kernel said:" >&2
		cat "$folder/console.$$" >&2
		status=251
	elif [ $status != 1 ] && [ -s "$folder/console.$$" ]; then
		echo "the kernel of the camera machine said:" >&2
		cat "$folder/console.$$" >&2
	fi
	rm -f "$folder/console.$$"
	exit $((status / 2))
fi

# With priority, so that time inside stands still less where others are at work too.
echo -10 2>/dev/null >/proc/self/autogroup || true
# All that is prepared for this run goes with the namespace.
mount -t tmpfs tmpfs "$folder/run"
files=$folder/run/machine
if [ "$memory_only" ]; then files=$folder/run/files/run/machine; fi
mkdir -p "$files"
cp "$here/inside.sh" "$files/"
cp -r "$folder/modules" "$files/"
printf '%q ' exec "$@" >"$files/command"
{
	while IFS= read -r -d '' entry; do
		case $entry in TATOLAB_*) printf 'export %q\n' "$entry" ;; esac
	done </proc/self/environ
	printf 'export PATH=%q TATOLAB_CAMERA_MACHINE=1\nDIRECTORY=%q\n' "$PATH" "$PWD"
} >"$files/environment"

# Puts copies of files and of folders, with the libraries that programs among them need,
# where the machine's memory is filled from.
carry() {
	cp -rL --parents -t "$folder/run/files" "$@"
	find -L "$@" -type f \( -perm /111 -o -name "*.so" \) -exec ldd {} + 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $3 } $2 ~ /^\(/ && /\// { print $1 }' | sort -u |
		xargs -r cp -L --parents -t "$folder/run/files"
}

if [ "$memory_only" ]; then
	mkdir "$folder/run/files/tmp"
	carry "$1" /bin/bash /usr/sbin/{modprobe,rmmod} /etc/passwd /etc/group "${paths[@]}"
	{
		cat "$folder/initrd"
		cd "$folder/run/files"
		find . | cpio -o -H newc --quiet
	} >"$folder/run/initrd"
	rm -rf "$folder/run/files"
	# What loads vmlinux does so again at a return from suspension.
	boot=(-kernel "$folder/vmlinuz" -initrd "$folder/run/initrd")
else
	mkdir "$folder/run/root"
	# Not recursive: the machine has its own /proc, and must not see this one's. What the
	# command needs may be on other file systems.
	mount --bind / "$folder/run/root"
	for place in "$root" "$PWD" "$(dirname "$1")" "${TATOLAB_TEST_BIN:-}"; do
		[ -d "$place" ] || continue
		path=
		IFS=/ read -ra parts <<<"${place#/}"
		for part in "${parts[@]}"; do
			path=$path/$part
			if mountpoint -q "$path" && ! mountpoint -q "$folder/run/root$path"; then mount --bind "$path" "$folder/run/root$path"; fi
		done
	done
	shared=security_model=none,readonly=on
	boot=(-bios qboot.rom -kernel "$folder/vmlinux" -initrd "$folder/initrd" -device virtio-gpu-pci
		-fsdev "local,id=root,path=$folder/run/root,$shared,multidevs=remap" -device virtio-9p-pci,fsdev=root,mount_tag=root
		-fsdev "local,id=machine,path=$files,$shared" -device virtio-9p-pci,fsdev=machine,mount_tag=machine)
fi
# A plain processor, as what newer ones have costs most to emulate; and programs that are
# always at the same addresses, so that they are translated once.
exec setpriv --pdeathsig KILL qemu-system-x86_64 -M q35 -accel tcg,thread=multi,tb-size=512 \
	-cpu qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt \
	-smp $processors -m $memory -nodefaults -no-user-config -display none -no-reboot \
	-append "console=ttyS0,115200 quiet loglevel=3 mitigations=off audit=0 apparmor=0 tsc=reliable no_timer_check random.trust_cpu=on norandmaps panic=-1" \
	-chardev "file,id=console,path=$folder/console.$PPID" -serial chardev:console -serial stdio \
	-device isa-debug-exit,iobase=0xf4,iosize=4 -device virtio-rng-pci "${boot[@]}"
