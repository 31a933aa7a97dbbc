# Sourced. own_group NAME OPTION... -- ARGUMENT... runs the script again with its
# arguments, in a control group of its own and in the new namespaces that the options
# of unshare(1) name, and exits with its status. The group goes with the last process.
own_group() {
	local hierarchy group status=0 namespaces=()
	hierarchy=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
	[ -n "$hierarchy" ] || { echo "no cgroup2 hierarchy is mounted" >&2; exit 125; }
	group=$hierarchy/$1.$$
	shift
	while [ "$1" != -- ]; do
		namespaces+=("$1")
		shift
	done
	shift
	mkdir "$group"
	(
		echo $BASHPID >"$group/cgroup.procs"
		exec unshare "${namespaces[@]}" --propagation private bash "$0" "$@"
	) || status=$?
	for _ in $(seq 500); do # the last processes may take a moment to be gone
		find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null || true
		[ -d "$group" ] || break
		sleep 0.02
	done
	exit $status
}
