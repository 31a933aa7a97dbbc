#!/bin/bash
# Runs a command inside a real `systemd --user` with a real user bus, in
# namespaces of its own, where there is no systemd as process 1. Nothing is left
# behind: with the command end the pid namespace, its mounts and its control group.
#
#   usermanager.sh root|fresh FOLDER COMMAND [ARGUMENT]...
#
# root   the manager of root
# fresh  the manager of a new user "tester" that exists only in there
# FOLDER its files are copied to /run/testbed, readable for that user, and
#        COMMAND is run in there. HOME and TMPDIR are fresh folders beside it.
#
# Needs root, cgroup2 mounted somewhere, util-linux, systemd and dbus-daemon.
# Environment variables named TATOLAB_* are handed through. Exits with the
# status of COMMAND.
set -eu
umask 022

if [ "${TESTBED_STAGE:-}" = "" ]; then
	export TESTBED_STAGE=group
	. "$(dirname "$0")/owngroup.sh"
	own_group testbed --mount --cgroup -- "$@"
fi

if [ "$TESTBED_STAGE" = group ]; then
	# The root of the control group namespace is our own directory. A group with processes in it
	# cannot give controllers to groups below it, so all of us goes into one there.
	mount -t cgroup2 cgroup2 /sys/fs/cgroup
	mkdir /sys/fs/cgroup/sys
	echo 0 >/sys/fs/cgroup/sys/cgroup.procs
	export TESTBED_STAGE=namespaces
	exec unshare --pid --ipc --mount --fork --kill-child --mount-proc --propagation private bash "$0" "$@"
fi

who=$1 folder=$2
shift 2

# Waits 10 ms, without a program for that: where processors are emulated it takes longer to start.
pause() { read -rt 0.01 <> <(:) || true; }

if [ "$TESTBED_STAGE" = namespaces ]; then
	if [ "$who" = fresh ]; then
		uid=4200
		while getent passwd $uid >/dev/null || getent group $uid >/dev/null; do uid=$((uid + 1)); done
		name=tester gid=$uid
	else
		uid=0 gid=0 name=root
	fi
	mount -t tmpfs -o mode=755 testbed /run
	if [ "$who" = fresh ]; then
		# A user that only this mount namespace knows.
		cp /etc/passwd /run/passwd && echo "$name:x:$uid:$gid::/run/testbed/home:/bin/bash" >>/run/passwd
		cp /etc/group /run/group && echo "$name:x:$gid:" >>/run/group
		mount --bind /run/passwd /etc/passwd
		mount --bind /run/group /etc/group
	fi
	mkdir -p /run/systemd/system /run/lock /run/log/journal /run/testbed
	install -d -m 700 -o $uid -g $gid /run/user/$uid
	cp -a "$folder/." /run/testbed/
	chown -R $uid:$gid /run/testbed
	chmod -R u+rwX /run/testbed
	install -d -m 700 -o $uid -g $gid /run/testbed/home /run/testbed/tmp

	user=/sys/fs/cgroup/user
	mkdir -p $user/init.scope
	/lib/systemd/systemd-journald >/dev/null 2>&1 &
	for _ in $(seq 2000); do [ -S /run/systemd/journal/stdout ] && break; pause; done
	for controller in cpu memory pids; do
		for group in /sys/fs/cgroup $user; do
			if grep -qw $controller $group/cgroup.controllers; then
				echo +$controller >$group/cgroup.subtree_control || true
			fi
		done
	done
	chown -R $uid:$gid $user
	echo 0 >$user/init.scope/cgroup.procs
	# The user may not be able to read where this script lies.
	install -m 755 "$0" /run/testbed.sh
	kept=()
	while IFS= read -r -d '' entry; do
		case $entry in TATOLAB_*) kept+=("$entry") ;; esac
	done </proc/self/environ
	exec setpriv --reuid=$uid --regid=$gid --init-groups env -i "${kept[@]}" \
		HOME=/run/testbed/home TMPDIR=/run/testbed/tmp USER=$name LOGNAME=$name SHELL=/bin/bash \
		PATH="$PATH" LANG=C.UTF-8 XDG_RUNTIME_DIR=/run/user/$uid \
		DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/$uid/bus TESTBED_STAGE=user \
		bash /run/testbed.sh "$who" "$folder" "$@"
fi

cd /run/testbed
unset TESTBED_STAGE
/lib/systemd/systemd --user --unit=basic.target >/run/testbed/manager.log 2>&1 &
state=
for _ in $(seq 2000); do [ -S "$XDG_RUNTIME_DIR/systemd/private" ] && break; pause; done
for _ in $(seq 20); do
	state=$(timeout 60 systemctl --user is-system-running --wait 2>/dev/null) || true
	case $state in running | degraded) break ;; esac
	sleep 0.1
done
case $state in running | degraded) ;; *)
	echo "the user manager did not come up (it is \"$state\"):" >&2
	cat /run/testbed/manager.log >&2
	exit 125
	;;
esac
status=0
"$@" || status=$?
exit $status
