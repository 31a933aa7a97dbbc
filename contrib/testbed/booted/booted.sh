#!/bin/bash
# Boots a real systemd as process 1, with logind, in a container whose root is this
# machine's own with a layer over it, and runs a script in it at each boot.
#
#   booted.sh FOLDER SCRIPT...
#
# FOLDER/root is laid over /, owned by root; a user "tester" (uid 4200), who exists
# only in there, owns /home/tester. Each SCRIPT, a path inside, is run by root in a
# boot of its own, one after another on the same layer; its output is copied to
# standard output. It ends the boot by ending.
# Exits with the status of the first SCRIPT that fails, 125 where nothing was booted.
#
# With BOOTED_ROOT the root is another tree than this machine's, of another release
# of a distribution for instance.
#
# Needs root, cgroup2 mounted somewhere, overlayfs, util-linux and systemd-nspawn
# (of the package systemd-container). A boot takes about a second.
set -eu

if [ "${BOOTED_STAGE:-}" = "" ]; then
	export BOOTED_STAGE=group
	. "$(dirname "$0")/../usermanager/owngroup.sh"
	own_group booted --mount -- "$@"
fi

folder=$(realpath "$1")
shift

# All of it lies in memory, and goes with this mount namespace.
space=$folder/space
mkdir -p "$space"
mount -t tmpfs booted "$space"
mkdir "$space/lower" "$space/upper" "$space/work" "$space/machine"
mount --bind "${BOOTED_ROOT:-/}" "$space/lower"
upper=$space/upper
cp -r --no-preserve=ownership "$folder/root/." "$upper/"
mkdir -p "$upper/etc/systemd/system" "$upper/var/lib/systemd/linger" "$upper/home/tester"
for table in 'passwd:tester:x:4200:4200::/home/tester:/bin/bash' 'group:tester:x:4200:' 'shadow:tester:*:1::::::'; do
	file=${table%%:*}
	{ cat "$space/lower/etc/$file"; echo "${table#*:}"; } >"$upper/etc/$file"
done
chmod 600 "$upper/etc/shadow"
chown -R 4200:4200 "$upper/home/tester"
# What is the host's business, or takes its time.
for unit in systemd-udevd.service systemd-udev-trigger.service systemd-timesyncd.service systemd-tmpfiles-setup.service \
	dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount proc-sys-fs-binfmt_misc.automount; do
	ln -sf /dev/null "$upper/etc/systemd/system/$unit"
done
cat >"$upper/etc/systemd/system/booted.target" <<'UNIT'
[Unit]
Requires=basic.target booted.service
Wants=dbus.service systemd-logind.service systemd-user-sessions.service
AllowIsolate=yes
UNIT
cat >"$upper/etc/systemd/system/booted.service" <<'UNIT'
[Unit]
After=basic.target systemd-logind.service systemd-user-sessions.service
[Service]
Type=oneshot
ExecStart=/bin/bash -c '"$(cat /booted/script)" >/booted/output 2>&1; echo $? >/booted/status; systemctl poweroff -ff'
UNIT
mkdir "$upper/booted"

# The container gets a /run of its own from us: systemd-nspawn removes what it made
# there only where it lies in memory.
mount -t overlay -o "lowerdir=$space/lower,upperdir=$upper,workdir=$space/work" overlay "$space/machine"
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs -o mode=755 run /run
mkdir -p /run/systemd/system

booted=$space/machine/booted
for script; do
	echo "$script" >"$booted/script"
	rm -f "$booted/output" "$booted/status"
	SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 systemd-nspawn --quiet --directory="$space/machine" --link-journal=no --register=no \
		--keep-unit --console=pipe --boot -- --unit=booted.target </dev/null >"$space/console" 2>&1 || echo "systemd-nspawn: exit status $?" >>"$space/console"
	if [ ! -e "$booted/status" ]; then
		echo "$script: the boot did not come to it:" >&2
		cat "$space/console" >&2
		exit 125
	fi
	cat "$booted/output"
	status=$(cat "$booted/status")
	[ "$status" = 0 ] || exit "$status"
done
