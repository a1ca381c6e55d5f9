#!/bin/sh
# Prints how many lines of Go and how many words of documentation there are. Lines of tests are those of _test.go files, of test/, and of
# packages whose names end in "test". Words leave out lists of changes and of measurements. The last lines say how many lines each role is
# compiled from, and how large a program with one role is.
set -eu
cd "$(dirname "$0")/.."
git ls-files '*.go' | grep -vE '^test/|_test\.go$|test/[^/]*\.go$|/testdata/' | xargs wc -l | awk '
	$2 != "total" {
		n = split($2, p, "/")
		room = n == 1 ? "main.go" : p[1]
		for (i = 2; i < n && i <= 2; i++) room = room "/" p[i]
		lines[room] += $1; all += $1
	}
	END { for (r in lines) printf "%7d %s\n", lines[r], r | "sort -rn"; close("sort -rn"); printf "%7d lines of Go that are no tests\n", all }'
printf '%7d lines of tests\n' "$(git ls-files '*.go' | grep -E '^test/|_test\.go$|test/[^/]*\.go$' | xargs cat | wc -l)"
printf '%7d words of documentation\n' "$(git ls-files '*.md' ':!CHANGELOG.md' ':!BENCHMARKS.md' | xargs cat | wc -w)"
go test -count 1 -tags urfave_cli_no_docs -vet off -run '^Test(Closures|OneRole)$' -v ./test/suites/docs | sed -n 's/.* closure: //p'
