#!/bin/sh
# Prints the packages that a step of `make check` tests, for the repository in the working directory.
#   pure     packages whose tests need neither root nor a namespace of their own; store's change owners of files, which only root can
#   golden   packages with goldens
#   changed  packages with files that differ from the common ancestor with origin/main, or from HEAD if there is no origin/main
#   importers  packages with tests that import a changed package, and did not change themselves
set -eu

# changed prints the directories of changed packages.
changed() {
	base=$(git merge-base HEAD origin/main 2>/dev/null || git rev-parse HEAD)
	{ git diff --name-only "$base" && git ls-files --others --exclude-standard; } |
		sed -nE 's#(/testdata)?/[^/]*$##p; s#/testdata/.*##p' | sort -u | grep -v '^test/peers' | while read -r dir; do
		for file in "$dir"/*.go; do
			[ ! -e "$file" ] || { echo "./$dir" && break; }
		done
	done
}

case "$1" in
pure)
	root_only='/test/suites/(e2e|nights|process) |/test/cmd/new-role '
	[ "$(id -u)" = 0 ] || root_only="$root_only|/store "
	go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.TestImports}} {{.XTestImports}}{{end}}' ./... |
		grep -vE "$root_only|/(bus|clustertest|etcdtest|kubetest|netopstest|rolestest)[] ]" | cut -d ' ' -f 1
	;;
golden)
	grep -rlE --include='*_test.go' '^func Test[A-Za-z]*Golden' internal netops roles store | sed 's#^#./#; s#/[^/]*$##' | sort -u
	;;
changed)
	packages=$(changed)
	# shellcheck disable=SC2086 # one word per package
	[ -z "$packages" ] || go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' $packages
	;;
importers)
	packages=$(changed)
	[ -n "$packages" ] || exit 0
	# shellcheck disable=SC2086 # one word per package
	names=$(go list $packages)
	go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Imports}} {{.TestImports}} {{.XTestImports}}{{end}}' ./... | awk -v names="$names" '
		BEGIN { for (n = split(names, list, "\n"); n > 0; n--) changed[list[n]] }
		{
			if ($1 in changed) next
			gsub(/[][]/, " ")
			for (i = 2; i <= NF; i++) if ($i in changed) { print $1; next }
		}'
	;;
*)
	echo "usage: $0 pure|golden|changed|importers" >&2
	exit 2
	;;
esac
