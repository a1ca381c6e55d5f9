#!/bin/sh
# Prints the packages that a step of `make check` tests, for the repository in the working directory.
#   pure     packages whose tests need neither root nor a namespace of their own; store's change owners of files, which only root can
#   golden   packages with goldens
#   changed  packages with files that differ from the common ancestor with origin/main, or from HEAD if there is no origin/main
set -eu


case "$1" in
pure)
	root_only='/test/suites/e2e '
	[ "$(id -u)" = 0 ] || root_only="$root_only|/store "
	go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.TestImports}} {{.XTestImports}}{{end}}' ./... |
		grep -vE "$root_only|/(bus|clustertest|etcdtest|kubetest|netopstest|rolestest)[] ]" | cut -d ' ' -f 1
	;;
golden)
	grep -rlE --include='*_test.go' '^func Test[A-Za-z]*Golden' internal netops roles store | sed 's#^#./#; s#/[^/]*$##' | sort -u
	;;
changed)
	base=$(git merge-base HEAD origin/main 2>/dev/null || git rev-parse HEAD)
	dirs=$({ git diff --name-only "$base" && git ls-files --others --exclude-standard; } |
		sed -nE 's#(/testdata)?/[^/]*$##p; s#/testdata/.*##p' | sort -u | grep -v '^test/peers' || true)
	packages=
	for dir in $dirs; do
		for file in "$dir"/*.go; do
			[ ! -e "$file" ] || { packages="$packages ./$dir" && break; }
		done
	done
	# shellcheck disable=SC2086 # one word per package
	[ -z "$packages" ] || go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' $packages
	;;
*)
	echo "usage: $0 pure|golden|changed" >&2
	exit 2
	;;
esac
