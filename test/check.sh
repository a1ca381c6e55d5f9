#!/bin/sh
# Runs the steps of `make check` in the working directory, all of them also if one fails, and says at the end which failed.
#
# The tests are those of `make test`. Go's test cache answers for what did not change. Of many packages that import a changed one, only
# the goldens and the lives run. Without root the packages that need it are left out, and the rest runs in a user namespace.
set -u
go=${GO:-go}
root=
[ "$(id -u)" = 0 ] || root=--map-root-user
failed=
many=8
sh test/apt.sh missing # a test that needs one of these fails

# step NAME ARGUMENT… runs tests in private namespaces.
step() {
	name=$1
	shift
	echo "check: $name"
	# shellcheck disable=SC2086 # one word or none
	unshare --net --mount --propagation private $root sh -c 'ip link set lo up && exec "$@"' sh \
		"$go" test -tags "$TAGS" -vet off -ldflags '-s -w' -short -p 4 -timeout 20m "$@" || failed="$failed
check: failed: $name"
}

# shellcheck disable=SC2046 # one word per package
step 'packages that need no root' $(sh test/packages.sh pure)
# shellcheck disable=SC2046
step 'goldens' -run Golden $(sh test/packages.sh golden)
if [ -z "$root" ]; then
	changed=$(sh test/packages.sh changed)
	importers=$(sh test/packages.sh importers)
	# shellcheck disable=SC2086
	[ -z "$changed" ] || step 'changed packages' $changed
	# shellcheck disable=SC2086
	if [ -z "$importers" ]; then
		:
	elif [ "$(echo "$importers" | wc -l)" -le "$many" ]; then
		step 'packages that import a changed package' $importers
	else
		step 'goldens and lives of the packages that import a changed package' -run "$LIFE" $importers
	fi
else
	echo 'check: not root: the packages that need it are left out'
fi
[ -z "$failed" ] || {
	echo "$failed" >&2
	exit 1
}
