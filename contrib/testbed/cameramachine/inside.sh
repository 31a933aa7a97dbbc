#!/bin/bash
# Process 1 of the camera machine: makes the place a program expects, runs the
# command, and ends the machine with its status.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
# Timers may be 1 ms late, for all programs: Go's scheduler alone would wake each process
# every 20 us. And no locale, or each program that asks for it opens 13 files.
echo 1000000 >/proc/self/timerslack_ns
mkdir -p /dev/pts /dev/shm /run/lock
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs /run/lock
# Not on /sys/fs/cgroup itself, where usermanager.sh mounts its own part of it.
mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
mkdir /sys/fs/cgroup/unified
mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified
echo "+cpu +memory +pids" >/sys/fs/cgroup/unified/cgroup.subtree_control
ln -sf /proc/self/fd /dev/fd
ip link set lo up
hostname camera-machine
stty -F /dev/ttyS1 raw -echo
source /run/machine/environment
mkdir -p "$DIRECTORY" && cd "$DIRECTORY" || exit
bash /run/machine/command </dev/null >/dev/ttyS1 2>&1
status=$?
# The device isa-debug-exit ends QEMU with 2 * status + 1.
printf "\\x$(printf %x "$status")" | dd of=/dev/port bs=1 seek=$((0xf4)) status=none
echo o >/proc/sysrq-trigger
sleep 60
